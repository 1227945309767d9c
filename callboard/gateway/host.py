"""The actor of a module: it makes the module and calls it, one call at a time.

It takes frames from the module's inbox and calls `receive` with each, one after the other. A
module that ends, however it ends, is destroyed in its actor's own turn; its supervisor decides
whether another one is created. Frames wait meanwhile.
"""

import asyncio
import inspect
import logging
from functools import partial
from itertools import islice
from typing import Any, Final

from callboard.actors.dispatch import handler
from callboard.actors.exit_reason import ExitReason
from callboard.gateway.errors import MalformedMessage
from callboard.gateway.handle import CORRUPT, FAILED, TOPIC_SIZE, ModuleHandle, message_in
from callboard.gateway.module import Module, ModuleActor
from callboard.gateway.wire.message import Message
from callboard.text import describe

_log = logging.getLogger("callboard.gateway")

#: Frames that one turn takes: the node's other actors have their turns too.
RUN: Final = 256


class FramesWait:
    """To the actor of a module: look into its queue."""


class FramesAwaited:
    """The same to the actor of a module whose `receive` has to be awaited."""


class BeginStart:
    """To the actor of a module: all links are there."""


class Settle:
    """To the actor of a module: answer when you have received what waits."""


class Quit:
    """To the actor of a module: end, behind a start that waits."""


class ModuleHost(ModuleActor):
    """Runs a module of a gateway."""

    def __init__(self, handle: ModuleHandle) -> None:
        self._handle = handle
        self._inbox = handle.inbox
        self._is_destroyed = False
        self.crashes = handle.options.on_error == "crash"
        given = handle.given
        factory = (lambda: given) if isinstance(given, Module) else given
        self.make(handle.name, factory, handle.args, partial(handle.broker.publish, handle))
        handle.counted.restarts += handle.module is not None
        handle.module, handle.ref = self.module, self.me
        if handle.is_started:
            self.post_self(BeginStart())
        elif not handle.options.hold:
            self.open_inbox()

    def open_inbox(self) -> None:
        """Let the module receive."""
        if self._inbox.context is not self.context:
            is_awaited = inspect.iscoroutinefunction(self.module.receive)
            self._inbox.attach(self.context, FramesAwaited() if is_awaited else FramesWait())

    # --- its life ---

    @handler
    def begin_start(self, _: BeginStart) -> Any:
        """Start the module, and let it receive."""
        self._handle.is_started = True
        self.module.start()
        self.open_inbox()

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Destroy the module before others learn of the end."""
        handle = self._handle
        self._inbox.detach(self.context)
        self._destroy()
        handle.last_end = detail or str(reason)
        restart = handle.options.restart
        is_over = restart == "temporary" or (restart == "transient" and reason == "normal")
        if is_over and handle.supervisor is not None:
            handle.supervisor.stop()

    def _destroy(self) -> None:
        """Destroy the module, once; an error is logged."""
        if not self._is_destroyed:
            self._is_destroyed = True
            with self.noted("destroy()"):
                self.module.destroy()

    @handler
    def quit(self, _: Quit) -> Any:
        """Destroy the module and end, with the supervisor: nothing is received after this."""
        self._destroy()
        self._inbox.close()
        assert self._handle.supervisor is not None
        self._handle.supervisor.stop()

    @handler
    def settle(self, _: Settle) -> None:
        """Answer behind what waited."""

    # --- receiving ---

    @handler
    def receive_frames(self, _: FramesWait) -> None:
        """Receive what waits, up to a share of the turn.

        One loop for each frame: calls would cost as much as what they do.
        """
        inbox, context = self._inbox, self.context
        inbox.is_poked = False
        items, pressure, counted = inbox.items, inbox.pressure, self._handle.counted
        waiters, is_counted = pressure.waiters, inbox.bounds.bytes is not None
        take, read, receive = items.popleft, Message.of_frame, self.module.receive
        for _index in range(min(len(items), RUN)):
            try:
                frame = take()
            except IndexError:  # a policy dropped the rest
                break
            if is_counted:
                inbox.took(frame)
            if waiters:
                pressure.make_room(len(items))
            try:
                receive(read(frame, TOPIC_SIZE))
                counted.received += 1
            except BaseException as error:
                self._failed(frame, error)
                if self.crashes:
                    raise
            if context.attention:
                break
        self._look_again()

    @handler
    async def receive_awaited(self, _: FramesAwaited) -> None:
        """Receive one after the other with a `receive` that is a coroutine function."""
        for (frame,) in islice(self._inbox.runs(1), RUN):
            try:
                await self.module.receive(Message.of_frame(frame, TOPIC_SIZE))
                self._handle.counted.received += 1
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._failed(frame, error)
                if self.crashes:
                    raise
            if self.context.attention:
                break
        self._look_again()

    def _look_again(self) -> None:
        """See that what still waits is received, or that a module that is removed ends."""
        inbox = self._inbox
        if inbox.items:
            if not inbox.is_poked:
                inbox.poke()
        elif not inbox.is_open and inbox.is_drained():
            self.post_self(Quit())

    def _failed(self, frame: bytes, error: BaseException) -> None:
        """Count a message that `receive` did not take, and log why."""
        if isinstance(error, MalformedMessage) and message_in(frame) is None:
            _log.warning("module %r was sent what is no message: %s", self.name, error)
            self._handle.lose(frame, CORRUPT, str(error))
            return
        self.note(error, "receive()")
        self._handle.lose(frame, FAILED, describe(error))
