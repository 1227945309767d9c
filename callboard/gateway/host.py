"""The actor of a module: its one worker.

It takes frames from the module's inbox and calls `receive` with each, one after the other. A
module that ends, however it ends, is destroyed in its actor's own turn; its supervisor decides
whether another one is created. Frames wait meanwhile.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from actors.cell import Cell
from actors.dispatch import handler
from actors.exit_reason import ExitReason
from actors.reference import ActorRef
from callboard.gateway.errors import MalformedMessage
from callboard.gateway.handle import CORRUPT, FAILED, TOPIC_SIZE, ModuleHandle
from callboard.gateway.inbox import AWAITED_FRAMES, FRAMES, AwaitedFrames, Frames
from callboard.gateway.message import Message
from callboard.gateway.module import Cancellable, Module, Outlet, bind
from callboard.gateway.module_actor import ModuleActor

__all__ = ["Begin", "ModuleHost", "Quit", "Settle", "StartModule", "maker"]

log = logging.getLogger("callboard.gateway")

RUN: Final = 256
"""Frames that one turn takes: the node's other actors have their turns too."""


class StartModule:
    """To the actor of a module: all links are there."""


class Begin:
    """To the actor of a module elsewhere: make it there."""


class Settle:
    """To the actor of a module: answer when you have received what waits."""


class Quit:
    """To the actor of a module: end, behind a start that waits."""


class HostCell(Cell):
    """The cell of a module's actor: the module is destroyed before others learn of the end."""

    __slots__ = ()

    def terminate(self, reason: ExitReason, detail: str) -> None:
        """End."""
        if self.actor is not None:
            self.actor.leave(str(reason), detail)
        super().terminate(reason, detail)


class HostOutlet:
    """What a module's actor does for it."""

    __slots__ = ("_cell", "_handle", "_host", "_publish", "name")

    def __init__(self, handle: ModuleHandle, host: "ModuleHost", cell: Cell) -> None:
        self.name = handle.name
        self._handle = handle
        self._host = host
        self._cell = cell
        self._publish = handle.broker.publish

    @property
    def ref(self) -> ActorRef[Any]:
        """The module's actor."""
        return self._cell.ref

    @property
    def node(self) -> Any:
        """The node that it lives on."""
        return self._host.node

    def publish(self, message: Message) -> None:
        """Hand a message to all that are linked; from any thread."""
        self._publish(self._handle, message)

    def after(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back in the module's own turn."""
        return self._host.call_later(seconds, callback)

    def every(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back again and again in the module's own turn."""
        return self._host.call_often(seconds, callback)

    def fail(self, error: BaseException) -> None:
        """End the module's actor; from any thread."""
        self._host.end_by(error)


class ModuleHost(ModuleActor):
    """Runs one module."""

    def __init__(self, handle: ModuleHandle) -> None:
        self._handle = handle
        self._inbox = handle.inbox
        self._is_destroyed = False
        self.name = handle.name
        self.module: Module = handle.make(HostOutlet(handle, self, self._cell))
        handle.began(self.module, self.me)
        is_awaited = inspect.iscoroutinefunction(self.module.receive)
        self._mark = AWAITED_FRAMES if is_awaited else FRAMES
        if handle.is_started:
            self._cell.post(StartModule(), None)
        elif not handle.options.hold:
            self.open_inbox()

    def open_inbox(self) -> None:
        """Let the module receive."""
        if self._inbox.cell is not self._cell:
            self._inbox.attach(self._cell, self._mark)

    # --- its life ---

    @handler
    def start_module(self, _: StartModule) -> Any:
        """Start the module, and let it receive."""
        self._handle.is_started = True
        self.module.start()
        self.open_inbox()

    def callback_failed(self, error: Exception) -> None:
        """Take it like an error of `receive`."""
        self._note(error, "a callback")
        if self._handle.options.on_error == "crash":
            raise error

    def leave(self, reason: str, detail: str) -> None:
        """Destroy the module, because this actor ends."""
        self._inbox.detach(self._cell)
        self._destroy()
        self._handle.last_end = detail or reason
        self._handle.broker.host_ended(self._handle, reason)

    def _destroy(self) -> None:
        if self._is_destroyed:
            return
        self._is_destroyed = True
        try:
            self.module.destroy()
        except Exception as error:  # noqa: BLE001  # it ends all the same
            self._note(error, "destroy()")

    @handler
    def quit(self, _: Quit) -> Any:
        """End: nothing is received after this."""
        self.end_orderly()

    def end_orderly(self) -> None:
        """Destroy the module and end, with the supervisor."""
        self._destroy()
        self._inbox.close()
        assert self._handle.supervisor is not None
        self._handle.supervisor.stop()

    @handler
    def settle(self, _: Settle) -> None:
        """Answer behind what waited."""

    # --- receiving ---

    # One loop for each frame: calls would cost as much as what they do.
    @handler
    def receive_frames(self, _: Frames) -> None:  # noqa: C901
        """Receive what waits, up to a share of the turn."""
        inbox = self._inbox
        inbox.is_poked = False
        items, waiters, quit_message = inbox.items, inbox.waiters, inbox.quit_message
        take, read, cell = items.popleft, Message.of_frame, self._cell
        receive = self.module.receive
        is_counted = inbox.bounds.bytes is not None
        handle = self._handle
        for _index in range(min(len(items), RUN)):
            try:
                frame = take()
            except IndexError:  # a policy dropped the rest
                break
            if frame is quit_message:
                if inbox.may_end():
                    self._cell.post(Quit(), None)
                return
            if is_counted:
                inbox.took(frame)
            if waiters:
                inbox.make_room()
            try:
                receive(read(frame, TOPIC_SIZE))
                handle.received += 1
            except Exception as error:
                self._failed(frame, error)
                if handle.options.on_error == "crash":
                    raise
            if cell.attention:
                break
        if items and not inbox.is_poked:
            inbox.poke()

    @handler
    async def receive_awaited(self, _: AwaitedFrames) -> None:
        """Receive one after the other with a `receive` that is a coroutine function."""
        inbox, handle = self._inbox, self._handle
        inbox.is_poked = False
        for _index in range(min(len(inbox.items), RUN)):
            try:
                frame = inbox.items.popleft()
            except IndexError:  # a policy dropped the rest
                break
            if frame is inbox.quit_message:
                if inbox.may_end():
                    self._cell.post(Quit(), None)
                return
            if inbox.bounds.bytes is not None:
                inbox.took(frame)
            inbox.make_room()
            try:
                await self.module.receive(Message.of_frame(frame, TOPIC_SIZE))
                handle.received += 1
            except Exception as error:
                self._failed(frame, error)
                if handle.options.on_error == "crash":
                    raise
            if self._cell.attention:
                break
        if inbox.items and not inbox.is_poked:
            inbox.poke()

    def _failed(self, frame: bytes, error: Exception) -> None:
        if isinstance(error, MalformedMessage) and _is_corrupt(frame):
            log.warning("module %r was sent what is no message: %s", self.name, error)
            self._handle.lose(frame, CORRUPT, str(error))
            return
        self._note(error, "receive()")
        self._handle.lose(frame, FAILED, f"{type(error).__name__}: {error}")

    def _note(self, error: Exception, where: str) -> None:
        log.error(
            "%s of module %r raised %s: %s",
            where,
            self.name,
            type(error).__name__,
            error,
            exc_info=error,
        )


ModuleHost.cell_class = HostCell  # in the class body it is a reserved name


def maker(factory: Callable[[], Module], args: Mapping[str, Any]) -> Callable[[Outlet], Module]:
    """Return what makes, binds and creates a module."""

    def make(outlet: Outlet) -> Module:
        module: Any = factory()
        if not isinstance(module, Module):
            msg = f"{factory!r} made {module!r}, which is no Module"
            raise TypeError(msg)
        bind(module, outlet)
        made: Module = module
        made.create(args)
        return made

    return make


def _is_corrupt(frame: bytes) -> bool:
    try:
        Message.of_frame(frame, TOPIC_SIZE)
    except MalformedMessage:
        return True
    return False
