"""Modules on other nodes.

A node offers a module class with `offer_module`; nothing else can be made there. The module's
actor in the gateway (`RemoteHost`) lets that node make an agent of it, and the two exchange
runs of messages: one run is under way in each direction, the next one goes when it was taken,
so both queues stay bounded. When the agent or its node is lost, the host ends as well, and its
restart policy decides; messages of the run that was under way count as `unconfirmed`.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from actors.dispatch import handler
from actors.errors import CallboardError, MailboxFull
from actors.reference import ActorRef
from actors.signals import Down
from callboard.gateway.agent import (
    UNCONFIRMED,
    Deliver,
    Published,
    StartAgent,
    StopAgent,
    take_run,
)
from callboard.gateway.errors import MalformedMessage, ModuleFailed
from callboard.gateway.handle import FAILED, TOPIC_SIZE, ModuleHandle
from callboard.gateway.host import Begin, ModuleHost, Quit, StartModule
from callboard.gateway.inbox import AWAITED_FRAMES, AwaitedFrames
from callboard.gateway.loaders import InvalidEntrypoint
from callboard.gateway.message import Message
from callboard.gateway.module import Module
from proxies.address import parse_node_address

__all__ = ["RemoteHost", "RemoteModule"]

log = logging.getLogger("callboard.gateway")

_KEYS: Final = ("address", "module.name")


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
                frames = take_run(inbox)
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
        why = "this end was lost before the answer came"
        failed: dict[int, str] | None = None
        try:
            failed = dict(await self._agent.ask(run, timeout=None))
        except CallboardError as error:
            why = str(error)
        finally:  # also when this actor ends meanwhile
            if failed is None:
                for frame in frames:
                    handle.lose(frame, UNCONFIRMED, why)
        if failed is not None:
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
