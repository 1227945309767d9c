"""The actor of a module: it makes the module and calls it, one call at a time.

It takes frames from the module's inbox and calls `receive` with each, one after the other. A
module that ends, however it ends, is destroyed in its actor's own turn; its supervisor decides
whether another one is created. Frames wait meanwhile.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final

from callboard.gateway.errors import MalformedMessage
from callboard.gateway.handle import CORRUPT, TOPIC_SIZE, ModuleHandle, message_in
from callboard.gateway.inbox import FAILED
from callboard.gateway.module import Module, ModuleActor
from callboard.gateway.spool import SpooledInbox
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ExitReason, Reminder, handler
from callboard.kernel.backoff import Backoff
from callboard.kernel.context import CallBack
from callboard.support.text import describe

_log = logging.getLogger("callboard.gateway")

#: Seconds of the first and the longest pause before a target that is down is tried again.
RETRY: Final = (0.1, 5.0)

#: Frames that one turn takes: the node's other actors have their turns too.
RUN: Final = 256


class FramesWait:
    """To the actor of a module: look into its queue."""


class FramesAwaited:
    """The same to the actor of a module whose `receive` has to be awaited."""


class FramesStored:
    """The same to the actor of a module whose queue is on disk."""


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
        #: Whether `start` of the module has returned.
        self._is_up = not handle.options.hold
        self._backoff = Backoff(*RETRY)
        self._retry: Reminder | None = None
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
            mark: Any = FramesWait()
            if isinstance(self._inbox, SpooledInbox):
                mark = FramesStored()
            elif inspect.iscoroutinefunction(self.module.receive):
                mark = FramesAwaited()
            self._inbox.attach(self.context, mark)

    # --- its life ---

    @handler
    def begin_start(self, _: BeginStart) -> Any:
        """Start the module, and let it receive."""
        self._handle.is_started = True
        if isinstance(self._inbox, SpooledInbox):
            self._is_up = self._tried(self.module.start)
        else:
            self.module.start()
        self.open_inbox()

    def note_outage(self, error: BaseException | None) -> None:
        """Log and tell, once, that what is behind the module fails; None: it is back."""
        self._handle.note_outage(error)

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
        if inbox.handed:
            inbox.carry_out()
        items, pressure, counted = inbox.items, inbox.pressure, self._handle.counted
        waiters, is_counted = pressure.waiters, inbox.bounds.bytes is not None
        take, read, receive = items.popleft, Message.of_frame, self.module.receive
        failed_at = counted.received
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
                failed_at = counted.received
                if self.crashes:
                    raise
            if context.attention:
                break
        if self._handle.outage and counted.received > failed_at:
            self.note_outage(None)
        self._look_again()

    @handler
    async def receive_awaited(self, _: FramesAwaited) -> None:
        """Receive one after the other with a `receive` that is a coroutine function."""
        for (frame,) in islice(self._inbox.runs(1), RUN):
            try:
                await self.module.receive(Message.of_frame(frame, TOPIC_SIZE))
                self._handle.counted.received += 1
                if self._handle.outage:
                    self.note_outage(None)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._failed(frame, error)
                if self.crashes:
                    raise
            if self.context.attention:
                break
        self._look_again()

    @handler
    async def forward(self, _: FramesStored) -> None:
        """Receive what waits on disk, one after the other, unless the target is down.

        A frame stays there until it was received. An `OSError` lets it wait and be tried
        again; what else `receive` raises makes it a dead letter, as everywhere.
        """
        inbox = self._inbox
        assert isinstance(inbox, SpooledInbox)
        inbox.is_poked = False
        if inbox.handed:
            inbox.carry_out()
        if not self._is_up and self._retry is None and self._tried(self.module.start):
            self._is_up = True
            self.note_outage(None)
        for _index in range(RUN):
            found = inbox.spool.head() if inbox.is_taker and self._is_up else None
            if found is None or self._retry is not None:
                break
            await self._receive_stored(inbox, *found)
            if self.context.attention:
                break
        if self._retry is None or inbox.is_open:
            self._look_again()
        else:  # what waits stays on disk
            self.post_self(Quit())

    async def _receive_stored(self, inbox: SpooledInbox, place: int, frame: bytes) -> None:
        """Receive a frame, or let it wait for its target."""
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
                self.note_outage(None)

    def _tried(self, function: Callable[[], object]) -> bool:
        """Call what starts the module; False when its target is down."""
        try:
            function()
        except OSError as error:
            self._wait_for_target(error)
            return False
        return True

    def _wait_for_target(self, error: OSError) -> None:
        """Try again later, and tell why."""
        self.note_outage(error)
        pause = self._backoff.next_pause(self.runtime.random)
        self._retry = self.after(pause, CallBack(self._try_again))

    def _try_again(self) -> None:
        """Look whether the target is back."""
        self._retry = None
        self._inbox.poke()

    def _look_again(self) -> None:
        """See that what still waits is received, or that a module that is removed ends."""
        inbox = self._inbox
        if inbox.items and not (isinstance(inbox, SpooledInbox) and not inbox.is_taker):
            if not inbox.is_poked and self._retry is None:
                inbox.poke()
        elif not inbox.is_open and inbox.is_drained():
            self.post_self(Quit())

    def _failed(self, frame: bytes, error: BaseException) -> None:
        """Count a message that `receive` did not take, and log why."""
        if isinstance(error, MalformedMessage) and message_in(frame) is None:
            _log.warning("module %r was sent what is no message: %s", self.name, error)
            self._handle.lose(frame, CORRUPT, str(error))
            return
        if isinstance(error, OSError):
            self.note_outage(error)
        else:
            self.note(error, "receive()")
        self._handle.lose(frame, FAILED, describe(error))
