"""The streams of one actor: runs generators, and sends their items as readers grant credit.

Each stream has a task, which runs the generator like a concurrent handler. It waits for credit
between two items, and its steps are part of the actor's turns. So a reader that stops holds up
its own stream only. Streams do not count against the actor's `concurrent_limit`.

Items that the generator makes before it waits leave together, when the step of the task ends.

Everything here runs in turns of the actor, except the timer of the checks.
"""

import asyncio
import inspect
from collections.abc import (
    Awaitable,
    Generator,
    Iterable,
)
from contextlib import aclosing, closing, nullcontext, suppress
from typing import Any, Final, Protocol, Self
from weakref import ref

from callboard.actors import errors
from callboard.actors.mailbox import size_of
from callboard.actors.reference import Asker, Sender
from callboard.actors.refusal import Refusal
from callboard.actors.runner.timers import Timer
from callboard.actors.streams.machine import Pull, PullAnswer, SourceEnd
from callboard.actors.streams.messages import (
    CheckStreams,
    CloseStream,
    PullItems,
    StreamOpened,
    StreamRequest,
)
from callboard.actors.task import ConcurrentTask, TaskOwner
from callboard.actors.values import Answer, Message
from callboard.support.calls import AnyCoroutine, Callback

#: Limit of the open streams of one actor.
STREAM_LIMIT: Final = 1_000

#: Seconds between two checks of the readers, at most.
CHECK_SECONDS: Final = 5.0

#: Classes whose size is their length.
_SIZED: Final[frozenset[Any]] = frozenset((bytes, str))


class StreamActor(TaskOwner, Protocol):
    """The interface of an actor's cell for its streams."""

    @property
    def actor(self) -> Any:
        """The actor."""

    @property
    def runtime(self) -> Any:
        """The runtime of the node."""

    def post_signal(self, signal: Message) -> None:
        """Append a message of the runtime to the mailbox. Can be called from any thread."""

    def owe(self, asker: Asker, /) -> None:
        """Remember an unanswered asker, so that its ask fails if the actor ends."""

    def stream_function(self, query: Message, /) -> Callback | None:
        """Return the handler of a stream query; None if there is none."""

    def stream_steps(self, coroutine: AnyCoroutine, /) -> AnyCoroutine:
        """Return a coroutine whose steps run the steps of a stream, as the actor needs them."""

    def start_stream(self, task: ConcurrentTask, /) -> None:
        """Run a task of a stream to its first await, outside of the limit of tasks."""

    def resume_now(self, task: ConcurrentTask, /) -> None:
        """Run a task to its next await, in the turn of the current message."""

    def unexpected(self, message: Message, sender: Sender | None, /) -> None:
        """Fail the ask of a message without a handler."""


class StreamTask(ConcurrentTask):
    """The task that runs the generator of one stream."""

    __slots__ = ("needs_credit", "source")

    source: "ItemSource"
    #: Whether it waits for credit of the reader.
    needs_credit: bool

    def step(self) -> bool:
        """Run to the next await, and send the items that were made."""
        self.needs_credit = False
        is_running = super().step()
        self.source.flush()
        if not is_running:
            self.source.task = None
        return is_running

    def _await_foreign(self, awaited: Awaitable[Answer] | None) -> None:
        """Wait for credit, or for an awaitable of asyncio."""
        if awaited is _CREDIT:
            self.needs_credit = True  # `ItemSource.pull` runs the next step
        else:
            super()._await_foreign(awaited)


class _Credit:
    """The awaitable of a stream's task that waits for credit of the reader."""

    def __await__(self) -> Generator[Self, None, None]:
        yield self


_CREDIT: Final = _Credit()


class ItemSource:
    """One stream: its machine, and the coroutine that runs the generator."""

    __slots__ = ("_cell", "_sources", "end", "node", "number", "task")

    def __init__(
        self,
        cell: StreamActor,
        sources: "dict[int, ItemSource]",
        number: int,
        node: bytes,
        idle: float,
    ) -> None:
        self._cell = cell
        #: The open streams of the actor, without those whose reader was sent the end.
        self._sources = sources
        self.number = number
        #: The node of the reader; empty for this one.
        self.node = node
        self.end: SourceEnd[Asker] = SourceEnd(cell.runner.now(), idle)
        self.task: StreamTask | None = None

    # --- the generator ---

    async def run(self, function: Callback, query: Message) -> None:
        """Call the handler, and send its items."""
        try:
            while not self.end.room:
                await _CREDIT
            items = function(self._cell.actor, query)
            if inspect.isawaitable(items):
                items = await items
            if hasattr(items, "__aiter__"):
                await self._send_async(items)
            else:
                await self._send(items)
        except Refusal as refusal:
            self._finish(refusal.with_traceback(None))
        except asyncio.CancelledError:
            if self.task is None or not self.task.is_given_up:
                self._finish(errors.StreamFailed("its generator was cancelled"))
            raise
        except BaseException as error:
            self._finish(errors.remote_error(error))
            # First the reader gets the error, then the actor ends, and no longer answers.
            with suppress(asyncio.CancelledError):
                while not self.end.is_reported:
                    await _CREDIT
            raise
        else:
            self._finish(None)

    async def _send_async(self, items: Any) -> None:
        """Send the items of an asynchronous generator."""
        size, batch = 0, self.end.batch
        room, bytes_room = self.end.room, self.end.bytes_room
        async with aclosing(items) if hasattr(items, "aclose") else nullcontext():
            async for item in items:
                batch.append(item)
                size += len(item) if item.__class__ in _SIZED else size_of(item)
                if len(batch) >= room or size >= bytes_room:
                    await self._next_batch()
                    size, room, bytes_room = 0, self.end.room, self.end.bytes_room

    async def _send(self, items: Any) -> None:
        """Send the items of a generator, or of any other iterable."""
        size, batch = 0, self.end.batch
        room, bytes_room = self.end.room, self.end.bytes_room
        with closing(items) if hasattr(items, "close") else nullcontext():
            for item in items:
                batch.append(item)
                size += len(item) if item.__class__ in _SIZED else size_of(item)
                if len(batch) >= room or size >= bytes_room:
                    await self._next_batch()
                    size, room, bytes_room = 0, self.end.room, self.end.bytes_room

    async def _next_batch(self) -> None:
        """Send a full batch, or wait until the reader takes it."""
        self.flush()
        while self.end.batch:
            await _CREDIT

    # --- the reader ---

    def pull(self, pull: Pull, asker: Asker) -> None:
        """Handle credit of the reader."""
        answer_all(self.end.pull(pull, asker, self._cell.runner.now()))
        if self.end.is_over:
            self._forget_reported()
        task = self.task
        if task is not None and task.needs_credit and not task.ready:
            self._cell.resume_now(task)

    def flush(self) -> None:
        """Send the collected items."""
        if self.end.batch:
            answer_all(self.end.flush(self._cell.runner.now()))

    def check(self, now: float, *, is_reachable: bool) -> bool:
        """Keep the stream alive, or end it if its reader is gone; return whether to keep it."""
        answer_all(self.end.tick(now))
        if is_reachable and not self.end.is_idle(now):
            return True
        if self.end.is_over:
            self.close()
            return False
        text = f"its reader took nothing for {self.end.idle:g} s, so its generator was closed"
        self._finish(errors.StreamFailed(f"{text}; open the stream again"))
        self.close()
        return True  # the reader may still ask for the reason

    def close(self) -> None:
        """Close the generator: it is cancelled where it waits."""
        task, self.task = self.task, None
        if task is not None:
            task.give_up()

    def _finish(self, error: BaseException | None) -> None:
        """Send the rest of the items, and the end."""
        answer_all(self.end.end(error, self._cell.runner.now()))
        self._forget_reported()

    def _forget_reported(self) -> None:
        """Forget the stream if its reader was sent the end."""
        if self.end.is_reported:
            self._sources.pop(self.number, None)


def answer_all(answers: Iterable[PullAnswer[Asker]]) -> None:
    """Send answers to pulls."""
    for asker, items, error in answers:
        if error is None:
            asker.set_result(items)
        else:
            asker.set_exception(error)


class ActorStreams:
    """The open streams of one actor, by number."""

    __slots__ = ("_cell", "_timer", "sources")

    def __init__(self, cell: StreamActor) -> None:
        self._cell = cell
        self._timer: Timer | None = None
        self.sources: dict[int, ItemSource] = {}

    def handle(self, message: Message, sender: Sender | None) -> None:
        """Handle a message to the streams of the actor."""
        asker = sender if sender is not None and sender.expects else None
        if isinstance(message, PullItems):
            self._pull(message, asker)
        elif isinstance(message, StreamRequest):
            self._open(message, sender)
        elif isinstance(message, CloseStream):
            self._close(message, b"" if sender is None else sender.node)
            if asker is not None:
                asker.set_result(None)
        elif isinstance(message, CheckStreams) and sender is None:
            self._check()

    def _open(self, message: StreamRequest, sender: Sender | None) -> None:
        """Start the generator of a query, and answer with the number of the stream."""
        cell = self._cell
        function = cell.stream_function(message.query)
        if function is None:
            cell.unexpected(message.query, sender)
            return
        if sender is None or not sender.expects or not sender.wants_reply:
            return
        if len(self.sources) >= STREAM_LIMIT:
            text = f"{cell.ref} has {STREAM_LIMIT:,} open streams, the limit; close some first"
            sender.set_exception(errors.MailboxFull(text))
            return
        idle = message.idle if type(message.idle) in (int, float) else 0.0
        number = cell.runtime.random.getrandbits(62)
        source = self.sources[number] = ItemSource(
            cell, self.sources, number, sender.node, max(0.0, idle)
        )
        self._schedule_check()
        steps = cell.stream_steps(source.run(function, message.query))
        source.task = task = StreamTask(cell, steps.send, None, message.query)
        task.source, task.is_promised = source, False
        sender.set_result(StreamOpened(cell.ref, number))
        cell.start_stream(task)

    def _pull(self, message: PullItems, asker: Asker | None) -> None:
        """Pass credit to a stream."""
        if asker is None:
            return
        cell = self._cell
        fields = (message.stream, message.pull, message.count, message.size)
        if any(type(field) is not int or field < 0 for field in fields) or not message.count:
            asker.set_exception(errors.StreamFailed("a pull has malformed fields"))
            return
        source = self.sources.get(message.stream)
        if source is None or source.node != asker.node:
            text = f"{cell.ref} has no such stream: it ended, or its actor was restarted"
            asker.set_exception(errors.ActorDown(f"{text}; open the stream again"))
            return
        cell.owe(asker)
        source.pull(Pull(message.pull, message.count, message.size), asker)

    def _close(self, message: CloseStream, node: bytes) -> None:
        """Close the generator of a stream."""
        source = self.sources.get(message.stream) if type(message.stream) is int else None
        if source is not None and source.node == node:
            del self.sources[source.number]
            answer_all(source.end.end(None, self._cell.runner.now()))
            source.close()

    def _check(self) -> None:
        """End the streams of readers that have stopped or are lost."""
        self._timer = None
        runtime = self._cell.runtime
        now = self._cell.runner.now()
        for source in list(self.sources.values()):
            is_reachable = not source.node or runtime.is_reachable(source.node)
            if not source.check(now, is_reachable=is_reachable):
                self.sources.pop(source.number, None)
        if self.sources:
            self._schedule_check()

    def _schedule_check(self) -> None:
        """Schedule the next check, without keeping the actor alive."""
        if self._timer is None:
            shortest = min(source.end.idle for source in self.sources.values())
            # Often enough that a generator is closed soon after the idle time of its reader.
            seconds = min(CHECK_SECONDS, max(0.05, shortest / 4))
            self._timer = self._cell.runner.call_later(seconds, _post_check, ref(self._cell))

    def fail(self, error: BaseException) -> None:
        """End all streams with an error, and close their generators."""
        for source in list(self.sources.values()):
            answer_all(source.end.end(error, self._cell.runner.now()))
            source.close()

    def drop(self) -> None:
        """Forget all streams of an actor that has ended."""
        if self._timer is not None:
            self._timer.cancel()
        self.sources.clear()


def _post_check(cell: "ref[StreamActor]") -> None:
    """Have an actor that still exists check its streams."""
    live = cell()
    if live is not None:
        live.post_signal(CheckStreams())
