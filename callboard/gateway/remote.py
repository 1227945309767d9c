"""Modules on other nodes: the actor in the gateway, and its agent on the other node.

A node offers a class of modules with `offer_module`; gateways can make no others there. The
module's actor in the gateway (`RemoteHost`) asks that node to make an agent (`ModuleAgent`).
The two exchange runs of messages, one run at a time in each direction: the next run is sent
when the last one was received, so the queues on both sides stay bounded. When the agent or its
node is lost, the host ends as well, and its restart policy decides; messages of a run without
an answer count as `unconfirmed`.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from callboard.gateway.errors import MalformedMessage, ModuleFailed, invalid_entry
from callboard.gateway.handle import TOPIC_SIZE, ModuleHandle, RemotePlace
from callboard.gateway.host import BeginStart, FramesAwaited, ModuleHost, Quit
from callboard.gateway.inbox import DEFAULT_QUEUE, FAILED, Inbox
from callboard.gateway.module import Module, ModuleActor
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ActorRef, Down, frozen_message, handler
from callboard.kernel.errors import CallboardError, MailboxFull
from callboard.kernel.topology import parse_node_address
from callboard.node import Node
from callboard.support.text import describe

_log = logging.getLogger("callboard.gateway")

#: Reason of a loss: the message was sent to a node that was lost; it may have arrived.
UNCONFIRMED: Final = "unconfirmed"

#: Messages in one run.
RUN: Final = 64

_KEYS: Final = ("address", "module.name")


def read_place(entrypoint: Mapping[str, Any]) -> RemotePlace:
    """Read the address of a node, and the name of an offered class.

    Raises:
        InvalidEntrypoint: the address or the name is missing or malformed.
    """
    for key in entrypoint:
        if key not in _KEYS:
            invalid_entry(f"there is no such key here; there are {', '.join(_KEYS)}", key)
    for key in _KEYS:
        if not isinstance(entrypoint.get(key), str) or not entrypoint[key]:
            text = f"{key} is missing: the address of a node, the name of an offered class"
            invalid_entry(text, key)
    try:
        parse_node_address(entrypoint["address"])
    except CallboardError as error:
        invalid_entry(str(error), "address")
    return RemotePlace(entrypoint["address"], entrypoint["module.name"])


@frozen_message("callboard.gateway.Deliver")
class ReceiveRun:
    """Gateway to agent: receive these; the answer has index and text of each failure."""

    messages: tuple[bytes, ...]


@frozen_message("callboard.gateway.Published")
class PublishRun:
    """Agent to gateway: the module published these; answered after all were published."""

    agent: ActorRef
    messages: tuple[bytes, ...]


@frozen_message("callboard.gateway.StartAgent")
class StartAgent:
    """Gateway to agent: start the module, all its links exist."""


@frozen_message("callboard.gateway.StopAgent")
class StopAgent:
    """Gateway to agent: destroy the module; answered when that is done."""


class MakeAgent:
    """Makes the host of a remote module request its agent from the other node."""


class RemoteHost(ModuleHost):
    """The actor of a remote module in the gateway; its local module is a placeholder."""

    def __init__(self, handle: ModuleHandle) -> None:
        self._agent: ActorRef | None = None
        assert isinstance(handle.where, RemotePlace)
        self._place = handle.where
        super().__init__(handle)
        if handle.counted.restarts:
            # This actor was restarted; after the first start the broker sends `MakeAgent`.
            self.post_self(MakeAgent())

    def open_inbox(self) -> None:
        """Attach the actor to the inbox, if the agent exists."""
        if self._agent is not None:
            self._inbox.attach(self.context, FramesAwaited())

    @handler(cancellable=False)
    async def make_agent(self, _: MakeAgent) -> None:
        """Ask the other node to make the agent."""
        handle, place = self._handle, self._place
        self._agent = await self.node.aremote_spawn(
            place.address, place.module_name, self.me, self.name, dict(handle.args)
        )
        self.monitor(self._agent)
        if handle.is_started:
            await self._agent.ask(StartAgent(), timeout=None)
        if handle.is_started or not handle.options.hold:
            self.open_inbox()

    @handler(cancellable=False)
    async def begin_start(self, _: BeginStart) -> None:
        """Start the remote module; without an agent, `make_agent` does it later."""
        if self._agent is not None:
            self._handle.is_started = True
            await self._agent.ask(StartAgent(), timeout=None)
            self.open_inbox()

    @handler
    def agent_ended(self, down: Down) -> None:
        """End with the agent: the supervisor decides whether both are restarted."""
        if down.ref == self._agent:
            msg = f"module {self.name!r} on {self._place.address} ended: {down.reason}"
            raise ModuleFailed(f"{msg} {down.detail}".rstrip())

    @handler(concurrent=True)
    async def receive_awaited(self, _: FramesAwaited) -> None:
        """Send runs of queued frames, one after the other."""
        inbox, agent = self._inbox, self._agent
        if agent is None:
            return
        for frames in inbox.runs(RUN):
            await self._send(agent, frames)
            if self._agent is not agent:
                break
        if not inbox.is_open and inbox.is_drained():
            self.post_self(Quit())

    async def _send(self, agent: ActorRef, frames: list[bytes]) -> None:
        """Send a run to the agent, and count the outcome of its messages."""
        handle = self._handle
        run = ReceiveRun(tuple(frame[TOPIC_SIZE:] for frame in frames))
        if (failures := await _hand_on(agent, run, frames, handle.lose)) is not None:
            for index, text in failures:
                handle.lose(frames[index], FAILED, text)
            handle.counted.received += len(frames) - len(failures)

    @handler(cancellable=False)
    async def quit(self, order: Quit) -> None:
        """Ask the agent to destroy the module, and end."""
        agent, self._agent = self._agent, None
        if agent is not None:
            try:
                await agent.ask(StopAgent(), timeout=None)
            except CallboardError as error:
                _log.warning("the remote module %r was not destroyed: %s", self.name, error)
        super().quit(order)

    @handler
    def publish_run(self, run: PublishRun) -> None:
        """Publish messages of the remote module; a sink that refuses one has counted it."""
        if run.agent != self._agent:
            return  # from an earlier agent
        for data in run.messages:
            try:
                self._handle.broker.publish(self._handle, Message.decode(data))
            except (MailboxFull, MalformedMessage) as error:
                _log.warning("a message of module %r was not published: %s", self.name, error)


class ModuleAgent(ModuleActor):
    """Runs a module for a gateway on another node."""

    module_class: ClassVar[type[Module]]

    def __init__(self, host: ActorRef, name: str, args: dict[str, Any]) -> None:
        self._host = host
        self._outgoing = Inbox(name, DEFAULT_QUEUE, self._lost)
        self._outgoing.attach(self.context, FramesAwaited())
        if inspect.iscoroutinefunction(self.module_class.receive):
            msg = "a module whose receive is a coroutine function runs on its gateway's node"
            raise ModuleFailed(msg)
        self.make(
            name, self.module_class, args, lambda message: self._outgoing.put(message.data)
        )
        self.monitor(host)

    @handler
    def start_agent(self, _: StartAgent) -> None:
        """Start the module."""
        self.module.start()

    @handler
    def stop_agent(self, _: StopAgent | Down) -> None:
        """Destroy the module, even if the gateway is lost."""
        self.stop_self()
        self.module.destroy()

    @handler(concurrent=True, cancellable=False)
    async def deliver(self, run: ReceiveRun) -> tuple[tuple[int, str], ...]:
        """Receive a run; between two messages, wait until published messages have room."""
        failures = []
        for index, data in enumerate(run.messages):
            if not self._outgoing.has_room():
                await self._outgoing.when_room()
            try:
                self.module.receive(Message.decode(data))
            except BaseException as error:  # noqa: BLE001  # a module may raise anything
                self.log_error(error, "receive()")
                failures.append((index, describe(error)))
        return tuple(failures)

    @handler(concurrent=True)
    async def send_out(self, _: FramesAwaited) -> None:
        """Send runs of published messages, one after the other."""
        for frames in self._outgoing.runs(RUN):
            run = PublishRun(self.me, tuple(frames))
            await _hand_on(self._host, run, frames, self._lost)

    def _lost(self, _frame: bytes, reason: str, detail: str = "") -> None:
        """Log that a message does not reach the gateway."""
        _log.warning("a message of module %r was lost: %s %s", self.name, reason, detail)


async def _hand_on(
    receiver: ActorRef, run: Any, frames: list[bytes], lose: Callable[..., None]
) -> Any:
    """Send a run and return the answer; without an answer its messages are unconfirmed."""
    try:
        return await receiver.ask(run, timeout=None)
    except BaseException as error:
        is_ours = not isinstance(error, CallboardError)  # this actor is being ended
        reason = "this end was lost before the answer arrived" if is_ours else str(error)
        for frame in frames:
            lose(frame, UNCONFIRMED, reason)
        if is_ours:
            raise
        return None


def offer_module(node: Node, module_class: type[Module], name: str = "") -> str:
    """Allow gateways on other nodes to run modules of a class here; return its name.

    Raises:
        TypeError: the argument is not a module class.
    """
    candidate: Any = module_class
    if not isinstance(candidate, type) or not issubclass(candidate, Module):
        msg = f"{module_class!r} is not a module class; derive one from Module"
        raise TypeError(msg)
    name = name or module_class.__name__
    agent = type(
        f"{module_class.__name__}Agent", (ModuleAgent,), {"module_class": module_class}
    )
    node.offer(name, agent)
    return name
