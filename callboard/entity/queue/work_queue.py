"""A work queue as programs use it, on every node.

Changes that are made while a request is in progress are sent together in the next request. So
if a node has many producers and takers, they share messages and commits; a single producer or
taker does not wait for others.

A request that found no owner, or whose commit failed, had no effect, and is repeated for a
while. A take is repeated without a limit, with the same token, until its future is done,
cancelled or dropped. A job that arrives for a dropped future goes to the next taker.
"""

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol
from weakref import ref as weak

from callboard import locks
from callboard.arguments import count as checked_count
from callboard.arguments import limit as checked_limit
from callboard.arguments import period as checked_period
from callboard.arguments import seconds as checked_seconds
from callboard.backoff import Backoff
from callboard.entity.cell import EntityCell
from callboard.entity.errors import EntityUnavailable, JobLost, QueueFull
from callboard.entity.event_json import EventSerializer
from callboard.entity.machine.job_queue import READ_LIMIT
from callboard.entity.queue.messages import (
    CHANGED,
    GONE,
    AskDeadJobs,
    AskQueueStats,
    ChangeJobs,
    DeadJobs,
    ExtendJob,
    GiveBackJob,
    JobsChanged,
    QueueStats,
    RefuseJob,
    ReviveJobs,
    TakeJob,
    TakenJob,
    WithdrawTake,
)
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import NodeContext, current_cell
from callboard.kernel.errors import (
    ActorDown,
    AskTimeout,
    NodeClosed,
    NodeUnreachable,
    WrongValue,
)
from callboard.kernel.reply import Future, OwnedFuture
from callboard.kernel.shutdown import Phase
from callboard.lease.errors import OutcomeUnknown, StateCorrupt, StateVersion
from callboard.support.dataclass import dataclass

#: Bytes of a job's value as JSON; larger data belongs elsewhere, with its name in the job.
JOB_LIMIT: Final = 1 << 20

#: Most jobs in one request, and bytes of them.
_MOST_JOBS: Final = 1024
_MOST_BYTES: Final = 4 << 20

#: Seconds that a request may take, repetitions included.
PATIENCE: Final = 30.0

#: Seconds until a request is repeated: at first, and at most.
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

#: Errors after which a take is repeated: nothing happened, or the same token makes it harmless.
_RETRIED: Final = (EntityUnavailable, OutcomeUnknown, NodeUnreachable, ActorDown, AskTimeout)


class QueueHome(Protocol):
    """The part of a node that its queues use."""

    runtime: NodeContext
    form: EventSerializer


@dataclass(slots=True, eq=False)
class _Put:
    """A job that waits to be added."""

    body: str
    delay: float
    future: Future[int]


@dataclass(slots=True, eq=False)
class _Done:
    """A job that waits to be acknowledged."""

    number: int
    token: str
    future: Future[None]


class QueueJob:
    """A job that was taken. Call `ack()` when it is done, or `nack()` when it failed.

    Without either call, it goes to another taker when its time is over. The time is counted
    from the arrival of the job; `extend` starts it again.
    """

    __slots__ = ("_queue", "_token", "attempt", "number", "value")

    def __init__(
        self, queue: "WorkQueue", token: str, number: int, attempt: int, value: Any
    ) -> None:
        """Only queues make jobs."""
        self._queue, self._token = queue, token
        #: Identifies the job; the same in each attempt.
        self.number = number
        #: 1 for the first attempt.
        self.attempt = attempt
        #: The value that was put.
        self.value = value

    def ack(self) -> Future[None]:
        """Remove the job, because it is done.

        The future fails with `JobLost` if the taker's time had ended. It fails with
        `OutcomeUnknown` if an owner was lost, and the next owner does not have the job: the
        acknowledgment may have been stored.
        """
        return self._queue.acknowledge(self.number, self._token)

    def nack(self, delay: float = 0.0, *, reason: str = "") -> Future[None]:
        """Return the job to the queue, for another taker.

        After too many attempts the job is dead.

        Args:
            delay: seconds until it is ready again.
            reason: the reason, for people who inspect dead jobs.

        Raises:
            InvalidSeconds: the delay is invalid.
        """
        delay = checked_seconds(delay, "delay")
        message = GiveBackJob(self.number, self._token, delay, str(reason))
        return self._queue.ask_taken(message, self.number)

    def extend(self, visible_after: float) -> Future[None]:
        """Start the time of the taker again.

        Args:
            visible_after: seconds from now.

        Raises:
            InvalidSeconds: the time is invalid, or zero.
        """
        visible = checked_period(visible_after, "visible_after")
        message = ExtendJob(self.number, self._token, visible)
        return self._queue.ask_taken(message, self.number)

    def __repr__(self) -> str:
        return f"<QueueJob {self.number} of {self._queue.name}, attempt {self.attempt}>"


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job after too many attempts."""

    number: int
    attempts: int
    #: The reason of its last return.
    reason: str
    #: The value that was put; an `UnreadableValue` if this program cannot read it.
    value: Any
    #: The stored value, as JSON.
    body: str = ""


class WorkQueue:
    """A durable work queue: `node.queue("mails", state=…)`.

    Jobs are assigned in the order in which they were put, each to one taker at a time, until a
    taker acknowledges it: at least once. A job is never lost after `put` has succeeded.
    """

    def __init__(self, home: QueueHome, owner: ActorRef, name: str) -> None:
        """Only nodes make queues."""
        self.name = name
        self._home, self._owner = home, owner
        self._lock = locks.lock("takers of a work queue", 500)
        self._waiting: deque[_Put | _Done] = deque()
        self._is_asking = False
        self._takings = 0
        self._prefix = f"{home.runtime.node_id.hex()}/"
        home.runtime.shutdown.on(Phase.ENDED, self._end)

    def __repr__(self) -> str:
        return f"<WorkQueue {self.name}>"

    # --- producers ---

    def put(self, value: object, *, delay: float = 0.0) -> Future[int]:
        """Add a job; the future has its number once it is durable.

        Args:
            value: any serializable message, of at most 1 MiB as JSON.
            delay: seconds until it is ready.

        The future fails with `QueueFull` at the limit of jobs, with `EntityUnavailable` if
        nothing happened for 30 s, and with `OutcomeUnknown` if an owner was lost: the job may
        have been added.

        Raises:
            InvalidSeconds: the delay is invalid.
            NotSerializable: the value cannot be stored.
            WrongValue: the value is too large.
        """
        delay = checked_seconds(delay, "delay")
        body = self._home.form.write(value)
        if len(body) > JOB_LIMIT // 4 and len(body.encode()) > JOB_LIMIT:
            msg = (
                f"a job of {len(body):,} characters exceeds the limit of {JOB_LIMIT:,} B of "
                f"{self.name!r}; store large data elsewhere, and put its name here"
            )
            raise WrongValue(msg)
        future: Future[int] = Future(self._owner)
        self._change(_Put(body, delay, future))
        return future

    def acknowledge(self, number: int, token: str) -> Future[None]:
        """Remove a finished job; called by `QueueJob.ack`."""
        future: Future[None] = Future(self._owner)
        self._change(_Done(number, token, future))
        return future

    def _change(self, change: _Put | _Done) -> None:
        """Send a change. While a request is in progress, the change waits for the next one."""
        if isinstance(current_cell.get(), EntityCell):
            # The change is sent with the commit of the entity's unit of work, so it cannot be
            # gathered with others.
            _ChangeRequest(self, [change]).send()
            return
        with self._lock:
            has_ended = self._home.runtime.shutdown.phase is Phase.ENDED
            is_first = not (self._is_asking or has_ended)
            if not has_ended:
                self._waiting.append(change)
                self._is_asking = True
        if has_ended:
            change.future.set_exception(self._closed())
        elif is_first:
            self._send_waiting()

    def _end(self) -> None:
        """Fail the waiting changes, because the node has ended."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for change in waiting:
            change.future.set_exception(self._closed())

    def _closed(self) -> NodeClosed:
        """Return the error of a change that was not sent before the node closed."""
        return NodeClosed(f"{self._home.runtime.name} was closed before it sent this")

    def _send_waiting(self) -> None:
        """Send the waiting changes in one request."""
        changes: list[_Put | _Done] = []
        size = 0
        with self._lock:
            while self._waiting and len(changes) < _MOST_JOBS and size < _MOST_BYTES:
                change = self._waiting.popleft()
                size += len(change.body) if isinstance(change, _Put) else 0
                changes.append(change)
            self._is_asking = bool(changes)
        if changes:
            post = self._home.runtime.post
            _ChangeRequest(self, changes, lambda: post(self._send_waiting)).send()

    # --- takers ---

    def take(
        self, visible_after: float = 30.0, *, timeout: float | None = None
    ) -> Future[QueueJob]:
        """Take the next job, as soon as there is one.

        A job that this program cannot read, for instance of a type of a newer release, stays
        in the queue for consumers on other nodes. This is not counted as an attempt.

        No other consumer gets the job for `visible_after` seconds, unless the queue's owner
        cannot reach this node. If the future is cancelled or dropped, its job goes to the next
        consumer, and no attempt is counted. When this node drains or closes, the future fails
        with `NodeClosed`.

        Args:
            visible_after: seconds that the job is yours; return or `extend` it before their
                end.
            timeout: seconds to wait for a job; the future then fails with `AskTimeout`. None
                waits without a limit.

        Raises:
            InvalidSeconds: a time is invalid.
        """
        visible = checked_period(visible_after, "visible_after")
        limit = checked_limit(timeout)
        with self._lock:
            self._takings += 1
            token = f"{self._prefix}{self._takings}"
        return _Taking(self, token, visible, self._owner).begin(limit)

    def ask_taken(self, message: object, number: int) -> Future[None]:
        """Change a taken job. The future fails with `JobLost` if the taker does not have it."""
        future: Future[None] = Future(self._owner)

        def answered(outcome: Any) -> None:
            if outcome == CHANGED:
                future.set_result(None)
            else:
                future.set_exception(request.error_of(outcome, number))

        request = _Request(self, message, answered, future.set_exception, is_repeated=True)
        request.send()
        return future

    def lost(self, number: int) -> JobLost:
        """Return the error of a job that its taker does not have."""
        return JobLost(
            f"job {number} of {self.name!r} was taken from this taker: its time was over, or "
            "its node was lost; another taker has it, or has finished it"
        )

    # --- statistics and dead jobs ---

    def stats(self) -> Future[QueueStats]:
        """Return the number of jobs by status."""
        return self._asked(AskQueueStats(), lambda stats: stats)

    def dead(self, limit: int = 100, *, after: int = 0) -> Future[list[DeadJob]]:
        """Return jobs after too many attempts, in the order in which they were put.

        A value that this program cannot read is an `UnreadableValue`.

        Args:
            limit: how many at most; up to 1024.
            after: the number of the last known job.

        Raises:
            WrongArgument: an argument is not a number.
            WrongValue: an argument is out of bounds.
        """
        limit = min(checked_count(limit, "limit", 1), READ_LIMIT)
        read = self._home.form.read_or_show

        def jobs_of(answer: DeadJobs) -> list[DeadJob]:
            return [
                DeadJob(number, attempts, reason, read(body), body)
                for number, attempts, reason, body in answer.jobs
            ]

        return self._asked(AskDeadJobs(checked_count(after, "after"), limit), jobs_of)

    def requeue(self, *numbers: int) -> Future[int]:
        """Make dead jobs ready again, by default all; the future has their number."""
        return self._revive(numbers, is_kept=True)

    def discard(self, *numbers: int) -> Future[int]:
        """Delete dead jobs, by default all; the future has their number."""
        return self._revive(numbers, is_kept=False)

    def _revive(self, numbers: tuple[int, ...], *, is_kept: bool) -> Future[int]:
        selected = tuple(checked_count(number, "number") for number in numbers) or None
        return self._asked(ReviveJobs(selected, is_kept), lambda count: count)

    def _asked(self, message: object, make: Callable[[Any], Any]) -> Future[Any]:
        """Ask the owner, and convert its answer."""
        future: Future[Any] = Future(self._owner)

        def answered(answer: Any) -> None:
            try:
                future.set_result(make(answer))
            except Exception as error:  # noqa: BLE001 - a value that this program cannot read
                future.set_exception(error)

        _Request(self, message, answered, future.set_exception).send()
        return future

    # --- used by requests ---

    def ask(self, message: object, timeout: float | None) -> Future[Any]:
        """Ask the owner of the queue."""
        return self._owner.ask(message, timeout=timeout)

    @property
    def home(self) -> QueueHome:
        """The node of this queue."""
        return self._home


class _Request:
    """A request to the owner, which is repeated while it has had no effect."""

    def __init__(
        self,
        queue: WorkQueue,
        message: object,
        answered: Callable[[Any], object],
        failed: Callable[[BaseException], object],
        *,
        is_repeated: bool = False,
    ) -> None:
        """Create a request.

        With `is_repeated`, it is idempotent, and is sent again in doubt.
        """
        self._queue, self._message = queue, message
        self._is_repeated = is_repeated
        #: The error of an earlier attempt that may have taken place; None without one.
        self.unknown: OutcomeUnknown | None = None
        self._answered, self._failed = answered, failed
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._until = queue.home.runtime.now() + PATIENCE

    def send(self) -> None:
        """Send the request."""
        left = self._until - self._queue.home.runtime.now()
        try:
            self._queue.ask(self._message, max(left, 0.01)).on_done(self._done)
        except Exception as error:  # noqa: BLE001 - the node is closed, or not serializable
            self._failed(error)

    def error_of(self, outcome: Any, number: int) -> Exception:
        """Return the error of a change that did not take place in this attempt."""
        if outcome == GONE and self.unknown is not None:
            return self.unknown  # it may be gone because an earlier attempt took place
        return self._queue.lost(number)

    def _done(self, reply: Future[Any]) -> None:
        """Handle the answer, or repeat the request if it has had no effect."""
        error = reply.exception()
        runtime = self._queue.home.runtime
        if error is None:
            self._answered(reply.result())
            return
        if isinstance(error, OutcomeUnknown) and self._is_repeated:
            self.unknown = error
        is_late = runtime.now() + self._backoff.pause >= self._until or runtime.is_closed
        if not is_late and (self.unknown is error or isinstance(error, EntityUnavailable)):
            runtime.shutdown.retry_in(self._backoff.next_pause(), self.send)
        else:
            self._failed(self.unknown or error)


class _ChangeRequest(_Request):
    """Jobs to add, and finished jobs to remove."""

    def __init__(
        self,
        queue: WorkQueue,
        changes: list[_Put | _Done],
        following: Callable[[], object] = lambda: None,
    ) -> None:
        self._put = [change for change in changes if isinstance(change, _Put)]
        self._ended = [change for change in changes if isinstance(change, _Done)]
        self._following = following
        message = ChangeJobs(
            tuple((put.body, put.delay) for put in self._put),
            tuple((done.number, done.token) for done in self._ended),
        )
        is_repeated = not self._put
        super().__init__(queue, message, self._changed, self._refused, is_repeated=is_repeated)

    def _changed(self, answer: JobsChanged) -> None:
        """Complete the future of each change."""
        self._following()
        for put, number in zip(self._put, answer.put, strict=False):
            put.future.set_result(number)
        for put in self._put[len(answer.put) :]:
            name = self._queue.name
            put.future.set_exception(QueueFull(f"{name!r} has reached its limit of jobs"))
        for done, outcome in zip(self._ended, answer.done, strict=True):
            if outcome == CHANGED:
                done.future.set_result(None)
            else:
                done.future.set_exception(self.error_of(outcome, done.number))

    def _refused(self, error: BaseException) -> None:
        """Fail the future of each put.

        Acknowledgments are idempotent, so they are sent again.
        """
        self._following()
        for put in self._put:
            put.future.set_exception(error)
        if isinstance(error, OutcomeUnknown) and self._put and self._ended:
            again = _ChangeRequest(self._queue, [*self._ended])
            again.unknown = error
            again.send()
            return
        for done in self._ended:
            done.future.set_exception(error)


class _Taking:
    """A taker that waits for a job."""

    def __init__(self, queue: WorkQueue, token: str, visible: float, owner: ActorRef) -> None:
        self._queue, self._token, self._visible = queue, token, visible
        self._runtime = queue.home.runtime
        self._owner = owner
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._is_over = False

    def begin(self, limit: float | None) -> Future[QueueJob]:
        """Request a job, within some seconds; return the future of the job."""
        future = OwnedFuture[QueueJob](self._owner, self._give_back)
        self._future = weak(future)
        #: Runs when the future is dropped.
        self._dropped = weakref.finalize(future, self._withdraw)
        self._dropped.atexit = False
        future.on_done(self._future_done)
        self._runtime.shutdown.guard(future, until=Phase.DRAINING)
        if limit is not None:
            self._runtime.post(self._runtime.call_later, limit, self._expire, limit)
        self._send()
        return future

    def _send(self) -> None:
        """Ask the owner."""
        future = self._future()
        if future is None or future.is_done:
            return
        try:
            reply = self._queue.ask(TakeJob(self._token, self._visible), None)
        except Exception as error:  # noqa: BLE001 - the node is closed
            future.set_exception(error)
            return
        reply.on_done(self._done)

    def _done(self, reply: Future[Any]) -> None:
        """Deliver the job, or ask again with the same token."""
        error, future = reply.exception(), self._future()
        if error is None and isinstance(answer := reply.result(), TakenJob):
            self._deliver(answer, future)
        elif future is None or future.is_done:
            return
        elif isinstance(error, _RETRIED) and not self._runtime.is_closed:
            pause = self._backoff.next_pause()
            self._runtime.post(self._runtime.call_later, pause, self._send)
        else:
            future.set_exception(
                error or EntityUnavailable(f"the owner answered {answer!r:.80}")
            )

    def _deliver(self, answer: TakenJob, future: Future[QueueJob] | None) -> None:
        """Complete the future with a job, or return the job if the future is dropped."""
        self._is_over = True
        if future is not None:
            queue = self._queue
            try:
                value = queue.home.form.read(answer.body)
            except (StateCorrupt, StateVersion) as error:
                self._refuse(answer, error)
                return
            job = QueueJob(queue, self._token, answer.number, answer.attempt, value)
            if future.set_result(job):
                return
        self._is_over = False
        self._withdraw()

    def _refuse(self, job: TakenJob, error: StateCorrupt | StateVersion) -> None:
        """Refuse a job that this program cannot read, and ask for another one."""
        queue, self._is_over = self._queue, False
        names = (error.missing,) if isinstance(error, StateVersion) and error.missing else ()
        causes = names or (type(error),)
        self._runtime.warn_once(
            ("unreadable job", queue.name, *causes),
            f"a job of {queue.name!r} is left to takers that can read it: {error}",
        )
        message = RefuseJob(job.number, self._token, names, str(error))
        reply = queue.ask_taken(message, job.number)
        reply.on_done(partial(self._refused, job, str(error)))

    def _refused(self, job: TakenJob, reason: str, reply: Future[None]) -> None:
        """Ask for another job; return the job first if the owner does not know refusals."""
        error = reply.exception()
        if error is not None and not isinstance(error, (JobLost, *_RETRIED)):
            message = GiveBackJob(job.number, self._token, 1.0, reason)
            self._queue.ask_taken(message, job.number).on_done(lambda _: self._send())
        else:
            self._send()

    def _future_done(self, future: Future[QueueJob]) -> None:
        """Withdraw if the future was cancelled."""
        self._dropped.detach()
        if not self._is_over:
            self._withdraw()

    def _withdraw(self) -> None:
        """Stop waiting. A job that arrives later goes to the next taker."""
        if self._is_over or self._runtime.is_closed:
            return
        self._is_over = True
        self._runtime.post(self._send_withdrawal)

    def _give_back(self, _: QueueJob) -> None:
        """Return a job that its taker has not seen. Can be called from any thread."""
        if not self._runtime.is_closed:
            self._runtime.post(self._send_withdrawal)

    def _send_withdrawal(self) -> None:
        """Send a withdrawal, repeatedly until an owner receives it."""
        message = WithdrawTake(self._token)
        _Request(self._queue, message, _ignore, _ignore, is_repeated=True).send()

    def _expire(self, limit: float) -> None:
        """Stop waiting, because the taker's timeout has passed."""
        future = self._future()
        if future is not None:
            text = f"no job of {self._queue.name!r} arrived within {limit:g} s"
            future.set_exception(AskTimeout(text))


def _ignore(_: object) -> None:
    """Ignore an outcome."""
