"""The actor of a module: it makes the module and calls it, one call at a time.

It calls `receive` with each frame from the module's inbox, one after the other. When
the actor ends, for whatever reason, it destroys the module in its own turn. Its supervisor then
decides whether another one is created; frames wait until then.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final

from callboard.backoff import Backoff
from callboard.gateway.errors import MalformedMessage
from callboard.gateway.handle import CORRUPT, TOPIC_SIZE, ModuleHandle, message_in
from callboard.gateway.inbox import FAILED
from callboard.gateway.module import Module, ModuleActor
from callboard.gateway.spool import SpooledInbox
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ExitReason, Reminder, handler
from callboard.kernel.context import CallBack
from callboard.support.text import describe

_log = logging.getLogger("callboard.gateway")

#: The first and the longest pause before a failed target is tried again, in seconds.
RETRY: Final = (0.1, 5.0)

#: The most frames of one turn, so that other actors of the node have their turns.
RUN: Final = 256


class FramesWait:
    """Makes the actor of a module read its queue."""


class FramesAwaited:
    """The same for a module whose `receive` is a coroutine function."""


class FramesStored:
    """The same for a module whose queue is on disk."""


class BeginStart:
    """Starts a module: all its links exist."""


class Settle:
    """Asks the actor of a module to answer after its queued messages."""


class Quit:
    """Ends the actor of a module; handled after a start that is queued."""


class ModuleHost(ModuleActor):
    """Runs a module of a gateway."""

    def __init__(self, handle: ModuleHandle) -> None:
        self._handle = handle
        self._inbox = handle.inbox
        self._is_destroyed = False
        #: Whether `start` of the module has returned.
        self._is_up = not handle.options.hold
        self._backoff = Backoff(*RETRY)
        self._retry: Reminder | None = None
        self.crashes = handle.options.on_error == "crash"
        module = handle.given
        factory = (lambda: module) if isinstance(module, Module) else module
        self.make(handle.name, factory, handle.args, partial(handle.broker.publish, handle))
        handle.counted.restarts += handle.module is not None
        handle.module, handle.ref = self.module, self.me
        if handle.is_started:
            self.post_self(BeginStart())
        elif not handle.options.hold:
            self.open_inbox()

    def open_inbox(self) -> None:
        """Attach the actor to the inbox, so that the module receives messages."""
        if self._inbox.context is not self.context:
            mark: Any = FramesWait()
            if isinstance(self._inbox, SpooledInbox):
                mark = FramesStored()
            elif inspect.iscoroutinefunction(self.module.receive):
                mark = FramesAwaited()
            self._inbox.attach(self.context, mark)

    # --- start and end ---

    @handler
    def begin_start(self, _: BeginStart) -> Any:
        """Start the module, and open its inbox."""
        self._handle.is_started = True
        if isinstance(self._inbox, SpooledInbox):
            self._is_up = self._tried(self.module.start)
        else:
            self.module.start()
        self.open_inbox()

    def report_outage(self, error: BaseException | None) -> None:
        """Log and report, once, that the module's target fails; None: it works again."""
        self._handle.report_outage(error)

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Destroy the module before monitors are notified of the end."""
        handle = self._handle
        self._inbox.detach(self.context)
        self._destroy()
        handle.last_end = detail or str(reason)
        restart = handle.options.restart
        is_over = restart == "temporary" or (restart == "transient" and reason == "normal")
        if is_over and handle.supervisor is not None:
            handle.supervisor.stop()

    def _destroy(self) -> None:
        """Destroy the module, once; log an error."""
        if not self._is_destroyed:
            self._is_destroyed = True
            with self.log_errors("destroy()"):
                self.module.destroy()

    @handler
    def quit(self, _: Quit) -> Any:
        """Destroy the module and end, with its supervisor; nothing is received after this."""
        self._destroy()
        self._inbox.close()
        assert self._handle.supervisor is not None
        self._handle.supervisor.stop()

    @handler
    def settle(self, _: Settle) -> None:
        """Answer after the messages that were queued."""

    # --- receiving ---

    @handler
    def receive_frames(self, _: FramesWait) -> None:
        """Receive queued frames, up to the limit of a turn.

        It is one loop without helper functions, because a call would cost as much as its work.
        """
        inbox, context = self._inbox, self.context
        inbox.wake_pending = False
        if inbox.handed:
            inbox.carry_out()
        items, pressure, counted = inbox.items, inbox.pressure, self._handle.counted
        waiters, is_counted = pressure.waiters, inbox.bounds.bytes is not None
        take, read, receive = items.popleft, Message.of_frame, self.module.receive
        failed_at = counted.received
        for _index in range(min(len(items), RUN)):
            try:
                frame = take()
            except IndexError:  # `drop_oldest` has removed the rest
                break
            if is_counted:
                inbox.subtract(frame)
            if waiters:
                pressure.make_room(len(items))
            try:
                receive(read(frame, TOPIC_SIZE))
                counted.received += 1
            except BaseException as error:
                self._failed(frame, error)
                failed_at = counted.received
                if self.crashes:
                    raise
            if context.attention:
                break
        if self._handle.outage and counted.received > failed_at:
            self.report_outage(None)
        self._resume()

    @handler
    async def receive_awaited(self, _: FramesAwaited) -> None:
        """Receive one frame after the other with an async `receive`."""
        for (frame,) in islice(self._inbox.runs(1), RUN):
            try:
                await self.module.receive(Message.of_frame(frame, TOPIC_SIZE))
                self._handle.counted.received += 1
                if self._handle.outage:
                    self.report_outage(None)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._failed(frame, error)
                if self.crashes:
                    raise
            if self.context.attention:
                break
        self._resume()

    @handler
    async def forward(self, _: FramesStored) -> None:
        """Receive the frames on disk, one after the other, unless the target fails.

        A frame stays on disk until it was received. After an `OSError` it is tried again later;
        any other exception of `receive` makes it a dead letter, as for all modules.
        """
        inbox = self._inbox
        assert isinstance(inbox, SpooledInbox)
        inbox.wake_pending = False
        if inbox.handed:
            inbox.carry_out()
        if not self._is_up and self._retry is None and self._tried(self.module.start):
            self._is_up = True
            self.report_outage(None)
        for _index in range(RUN):
            entry = inbox.spool.head() if inbox.is_taker and self._is_up else None
            if entry is None or self._retry is not None:
                break
            await self._receive_stored(inbox, *entry)
            if self.context.attention:
                break
        if self._retry is None or inbox.is_open:
            self._resume()
        else:  # the remaining frames stay on disk
            self.post_self(Quit())

    async def _receive_stored(self, inbox: SpooledInbox, place: int, frame: bytes) -> None:
        """Receive a frame, or keep it until its target works again."""
        try:
            result = self.module.receive(Message.of_frame(frame, TOPIC_SIZE))
            if inspect.isawaitable(result):
                await result
        except OSError as error:
            self._wait_for_target(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            inbox.received(place)
            self._failed(frame, error)
            if self.crashes:
                raise
        else:
            inbox.received(place)
            self._handle.counted.received += 1
            self._backoff.reset()
            if self._handle.outage:
                self.report_outage(None)

    def _tried(self, function: Callable[[], object]) -> bool:
        """Call a function that starts the module; return False if its target fails."""
        try:
            function()
        except OSError as error:
            self._wait_for_target(error)
            return False
        return True

    def _wait_for_target(self, error: OSError) -> None:
        """Report the error, and schedule another attempt."""
        self.report_outage(error)
        pause = self._backoff.next_pause(self.runtime.random)
        self._retry = self.after(pause, CallBack(self._try_again))

    def _try_again(self) -> None:
        """Try the target again."""
        self._retry = None
        self._inbox.wake()

    def _resume(self) -> None:
        """Continue with queued frames, or end a module that is being removed."""
        inbox = self._inbox
        if inbox.items and not (isinstance(inbox, SpooledInbox) and not inbox.is_taker):
            if not inbox.wake_pending and self._retry is None:
                inbox.wake()
        elif not inbox.is_open and inbox.is_drained():
            self.post_self(Quit())

    def _failed(self, frame: bytes, error: BaseException) -> None:
        """Count a message that `receive` did not accept, and log the error."""
        if isinstance(error, MalformedMessage) and message_in(frame) is None:
            _log.warning("module %r received a malformed message: %s", self.name, error)
            self._handle.lose(frame, CORRUPT, str(error))
            return
        if isinstance(error, OSError):
            self.report_outage(error)
        else:
            self.log_error(error, "receive()")
        self._handle.lose(frame, FAILED, describe(error))
