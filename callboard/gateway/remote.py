"""Modules on other nodes.

A node offers a module class with `offer_module`; nothing else can be made there. The module's
actor in the gateway (`RemoteHost`) lets that node make an agent of it, and the two exchange
runs of messages: one run is under way in each direction, the next one goes when it was taken,
so both queues stay bounded. When the agent or its node is lost, the host ends as well, and its
restart policy decides; messages of the run that was under way count as `unconfirmed`.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from actors.actor import Actor
from actors.dispatch import handler
from actors.errors import CallboardError, MailboxFull
from actors.reference import ActorRef
from actors.signals import Down
from callboard.gateway.errors import MalformedMessage, ModuleFailed
from callboard.gateway.handle import FAILED, TOPIC_SIZE, ModuleHandle
from callboard.gateway.host import Begin, ModuleHost, Quit, StartModule
from callboard.gateway.inbox import AWAITED_FRAMES, DEFAULT_QUEUE, AwaitedFrames, Inbox
from callboard.gateway.loaders import InvalidEntrypoint
from callboard.gateway.message import Message
from callboard.gateway.module import Cancellable, Module, bind
from proxies.address import parse_node_address
from proxies.messages import message
from proxies.node import Node

__all__ = ["RemoteHost", "RemoteModule", "offer_module"]

log = logging.getLogger("callboard.gateway")

UNCONFIRMED: Final = "unconfirmed"
"""Why a message is lost: it was under way to a node that was lost, and may have arrived."""

RUN: Final = 64
"""Messages that go in one run."""

_KEYS: Final = ("address", "module.name")


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


class RemoteModule(Module):
    """Stands in the gateway for a module on another node."""

    def __init__(self, address: str, module_name: str) -> None:
        self.address = address
        self.module_name = module_name
        self.args: dict[str, Any] = {}

    def create(self, args: Mapping[str, Any]) -> None:
        """Keep the arguments for the agent."""
        self.args = dict(args)

    @staticmethod
    def read_entrypoint(entrypoint: Mapping[str, Any]) -> tuple[str, str]:
        """Return the node's address and the name of what it offers.

        Raises:
            InvalidEntrypoint: one is missing or has another form.
        """
        for key in entrypoint:
            if key not in _KEYS:
                msg = f"there is no such key here; there are {', '.join(_KEYS)}"
                raise InvalidEntrypoint(msg, key)
        for key in _KEYS:
            if not isinstance(entrypoint.get(key), str) or not entrypoint[key]:
                msg = f"{key} has to be there: address of a node, name of what it offers"
                raise InvalidEntrypoint(msg, key)
        address, name = entrypoint["address"], entrypoint["module.name"]
        try:
            parse_node_address(address)
        except CallboardError as error:
            raise InvalidEntrypoint(str(error), "address") from error
        return address, name


class RemoteHost(ModuleHost):
    """The actor of such a module in the gateway."""

    module: RemoteModule

    def __init__(self, handle: ModuleHandle) -> None:
        self._agent: ActorRef[Any] | None = None
        self._is_sending = self._is_leaving = False
        super().__init__(handle)
        if handle.ref is not None and handle.counters.restarts:
            self._cell.post(Begin(), None)  # the first time it is asked for

    def open_inbox(self) -> None:
        """Wait for the agent."""

    @handler
    async def begin(self, _: Begin) -> None:
        """Let the other node make the agent."""
        module = self.module
        self._agent = await self.node.aremote_spawn(
            module.address, module.module_name, self.me, self.name, module.args
        )
        self.monitor(self._agent)
        if self._handle.is_started:
            await self._agent.ask(StartAgent(), timeout=None)
        if self._handle.is_started or not self._handle.options.hold:
            self._inbox.attach(self._cell, AWAITED_FRAMES)

    @handler
    async def start_module(self, _: StartModule) -> None:
        """Start the module there."""
        if self._agent is None:
            return  # `begin` does it, when it comes to that
        self._handle.is_started = True
        await self._agent.ask(StartAgent(), timeout=None)
        self._inbox.attach(self._cell, AWAITED_FRAMES)

    @handler
    def agent_ended(self, down: Down) -> None:
        """End too: the supervisor decides whether there is another one."""
        if down.ref == self._agent and not self._is_leaving:
            msg = f"module {self.name!r} on {self.module.address} ended: {down.reason}"
            raise ModuleFailed(f"{msg} {down.detail}".rstrip())

    @handler(concurrent=True)
    async def receive_awaited(self, _: AwaitedFrames) -> None:
        """Send runs of what waits, one after the other."""
        inbox = self._inbox
        inbox.is_poked = False
        if self._is_sending or self._agent is None:
            return
        self._is_sending = True
        try:
            while inbox.items and not self._is_leaving:
                frames = _take(inbox)
                if frames:
                    await self._send(frames)
                if inbox.items and inbox.items[0] is inbox.quit_message:
                    inbox.items.popleft()
                    if inbox.may_end():
                        self._cell.post(Quit(), None)
                    return
        finally:
            self._is_sending = False

    async def _send(self, frames: list[bytes]) -> None:
        assert self._agent is not None
        handle = self._handle
        run = Deliver(tuple(frame[TOPIC_SIZE:] for frame in frames))
        failed: dict[int, str] = {}
        try:
            failed = dict(await self._agent.ask(run, timeout=None))
        except CallboardError as error:
            for frame in frames:
                handle.lose(frame, UNCONFIRMED, str(error))
            return
        for place, text in failed.items():
            handle.lose(frames[place], FAILED, text)
        handle.received += len(frames) - len(failed)

    @handler
    async def quit(self, _: Quit) -> None:
        """Let the agent destroy the module, and end."""
        self._is_leaving = True
        if self._agent is not None:
            try:
                await self._agent.ask(StopAgent(), timeout=None)
            except CallboardError as error:
                log.warning("module %r was not destroyed there: %s", self.name, error)
        self.end_orderly()

    @handler
    def publish_run(self, run: Published) -> None:
        """Publish what the module there did; a sink that refuses has counted it."""
        if run.agent != self._agent:
            return  # of an earlier one
        broker = self._handle.broker
        for data in run.messages:
            try:
                broker.publish(self._handle, Message.decode(data))
            except (MailboxFull, MalformedMessage) as error:
                log.warning("module %r published in vain: %s", self.name, error)


def _take(inbox: Inbox) -> list[bytes]:
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


@dataclass(frozen=True, slots=True)
class _Later:
    """To the agent itself: call this function."""

    callback: Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Fail:
    """To the agent itself: end, because of this error."""

    error: BaseException


class ModuleAgent(Actor):
    """Runs a module for a gateway on another node."""

    remote_methods = frozenset()
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

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back in this actor's turn."""
        return self.after(seconds, _Later(callback))

    def call_often(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back again and again in this actor's turn."""
        return self.every(seconds, _Later(callback))

    def end_by(self, error: BaseException) -> None:
        """End with an error; from any thread."""
        self._cell.post(_Fail(error), None)

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

    @handler
    def call_back(self, later: _Later) -> None:
        """Call what the module wanted to be called."""
        try:
            later.callback()
        except Exception:
            log.exception("a callback of module %r failed", self.name)

    @handler
    def failed(self, failure: _Fail) -> None:
        """End with what a thread of the module found."""
        raise failure.error

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
                frames = _take(self.outgoing)
                try:
                    await self._host.ask(Published(self.me, tuple(frames)), timeout=None)
                except CallboardError as error:
                    for frame in frames:
                        self._lost(frame, str(error))
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
