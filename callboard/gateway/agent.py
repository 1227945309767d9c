"""The far end of a module on another node: its agent there, and what the two ends say.

A node lets gateways elsewhere make agents of a class with `offer_module`. What the module
publishes waits in a bounded queue, and goes to the gateway in runs.
"""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from actors.dispatch import handler
from actors.errors import CallboardError
from actors.reference import ActorRef
from actors.signals import Down
from callboard.gateway.errors import ModuleFailed
from callboard.gateway.inbox import AWAITED_FRAMES, DEFAULT_QUEUE, AwaitedFrames, Inbox
from callboard.gateway.message import Message
from callboard.gateway.module import Cancellable, Module, bind
from callboard.gateway.module_actor import ModuleActor
from proxies.messages import message
from proxies.node import Node

__all__ = [
    "UNCONFIRMED",
    "Deliver",
    "ModuleAgent",
    "Published",
    "StartAgent",
    "StopAgent",
    "offer_module",
    "take_run",
]

log = logging.getLogger("callboard.gateway")

UNCONFIRMED: Final = "unconfirmed"
"""Why a message is lost: it was under way to a node that was lost, and may have arrived."""

RUN: Final = 64
"""Messages that go in one run."""


@message("callboard.gateway.Deliver")
@dataclass(frozen=True, slots=True)
class Deliver:
    """Gateway to agent: receive these; answered with place and text of each that failed."""

    messages: tuple[bytes, ...]


@message("callboard.gateway.Published")
@dataclass(frozen=True, slots=True)
class Published:
    """Agent to gateway: the module published these; answered when all were handed on."""

    agent: ActorRef[Any]
    messages: tuple[bytes, ...]


@message("callboard.gateway.StartAgent")
@dataclass(frozen=True, slots=True)
class StartAgent:
    """Gateway to agent: all links are there."""


@message("callboard.gateway.StopAgent")
@dataclass(frozen=True, slots=True)
class StopAgent:
    """Gateway to agent: destroy the module; answered when it is."""


def take_run(inbox: Inbox) -> list[bytes]:
    """Take a run of frames, up to the quit message."""
    frames: list[bytes] = []
    while inbox.items and len(frames) < RUN and inbox.items[0] is not inbox.quit_message:
        try:
            frame = inbox.items.popleft()
        except IndexError:  # a policy dropped the rest
            break
        if inbox.bounds.bytes is not None:
            inbox.took(frame)
        frames.append(frame)
    inbox.make_room()
    return frames


class ModuleAgent(ModuleActor):
    """Runs a module for a gateway on another node."""

    module_class: ClassVar[type[Module]]

    def __init__(self, host: ActorRef[Any], name: str, args: dict[str, Any]) -> None:
        self._host = host
        self._is_sending = False
        self.name = name
        self.outgoing = Inbox(name, DEFAULT_QUEUE, b"", self._lost)
        self.outgoing.attach(self._cell, AWAITED_FRAMES)
        self.module = self.module_class()
        if inspect.iscoroutinefunction(self.module.receive):
            msg = "a module whose receive is a coroutine function runs on its gateway's node"
            raise ModuleFailed(msg)
        bind(self.module, AgentOutlet(self))
        self.module.create(args)
        self.monitor(host)

    def callback_failed(self, error: Exception) -> None:
        """Go on: a gateway hears of failures of `receive` only."""
        log.error("a callback of module %r failed", self.name, exc_info=error)

    @handler
    def start_agent(self, _: StartAgent) -> None:
        """Start the module."""
        self.module.start()

    @handler
    def stop_agent(self, _: StopAgent) -> None:
        """Destroy the module."""
        self.stop_self()
        self.module.destroy()

    @handler
    def host_ended(self, _: Down) -> None:
        """Nobody is there to receive or send."""
        self.stop_self()
        self.module.destroy()

    @handler(concurrent=True)
    async def deliver(self, run: Deliver) -> tuple[tuple[int, str], ...]:
        """Receive a run; between two messages wait until what was published has room."""
        failures = []
        for place, data in enumerate(run.messages):
            if not self.outgoing.has_room():
                await self.outgoing.when_room()
            try:
                self.module.receive(Message.decode(data))
            except Exception as error:
                log.exception("receive() of module %r failed", self.name)
                failures.append((place, f"{type(error).__name__}: {error}"))
        return tuple(failures)

    @handler(concurrent=True)
    async def send_out(self, _: AwaitedFrames) -> None:
        """Send runs of what the module published, one after the other."""
        self.outgoing.is_poked = False
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self.outgoing.items:
                frames = take_run(self.outgoing)
                is_handed_on = False
                try:
                    await self._host.ask(Published(self.me, tuple(frames)), timeout=None)
                    is_handed_on = True
                except CallboardError as error:
                    log.warning("the gateway of module %r is lost: %s", self.name, error)
                finally:
                    if not is_handed_on:
                        for frame in frames:
                            self._lost(frame, UNCONFIRMED)
        finally:
            self._is_sending = False

    def _lost(self, _frame: bytes, reason: str) -> None:
        log.warning("module %r published in vain: %s", self.name, reason)


class AgentOutlet:
    """What the agent does for its module."""

    __slots__ = ("_agent", "_outgoing", "name")

    def __init__(self, agent: ModuleAgent) -> None:
        self.name = agent.name
        self._agent = agent
        self._outgoing = agent.outgoing

    @property
    def ref(self) -> ActorRef[Any]:
        """The module's actor."""
        return self._agent.me

    @property
    def node(self) -> Any:
        """The node that it lives on."""
        return self._agent.node

    def publish(self, message: Message) -> None:
        """Hand a message to the gateway; from any thread."""
        self._outgoing.put(message.data)

    def after(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back in the module's own turn."""
        return self._agent.call_later(seconds, callback)

    def every(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back again and again in the module's own turn."""
        return self._agent.call_often(seconds, callback)

    def fail(self, error: BaseException) -> None:
        """End the module's actor; from any thread."""
        self._agent.end_by(error)


def offer_module(node: Node, module_class: type[Module], name: str = "") -> str:
    """Let gateways on other nodes run modules of a class here; returns its name.

    Raises:
        TypeError: it is no class of modules.
    """
    given: Any = module_class
    if not isinstance(given, type) or not issubclass(given, Module):
        msg = f"{module_class!r} is no class of modules; derive one from Module"
        raise TypeError(msg)
    name = name or module_class.__name__
    agent = type(
        f"{module_class.__name__}Agent", (ModuleAgent,), {"module_class": module_class}
    )
    node.offer(name, agent)
    return name
