"""A work queue as programs use it, on every node.

What is put and acknowledged while an earlier request is under way goes with the next one: many
producers and takers of a node share a message and a commit, and one alone waits for nobody.

A request that found no owner, or whose commit failed, is repeated for a while: nothing had
happened. A taking is repeated for ever, by the same token, until its future is done, given up
or dropped; a job that comes for a future which nobody holds any more goes to the next taker.
"""

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol
from weakref import ref as weak

from callboard import locks
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
from callboard.kernel.checks import count as checked_count
from callboard.kernel.checks import limit as checked_limit
from callboard.kernel.checks import period as checked_period
from callboard.kernel.checks import seconds as checked_seconds
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

#: Bytes of a job's value as JSON: what is larger belongs elsewhere, and its name here.
JOB_LIMIT: Final = 1 << 20

#: Jobs that go in one request, and bytes of them.
_MOST_JOBS: Final = 1024
_MOST_BYTES: Final = 4 << 20

#: Seconds that a request may take, repetitions included.
PATIENCE: Final = 30.0

#: Seconds until a request is repeated: at first, and at most.
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

#: After these nothing has happened, or what may have is repeated by the same token.
_AGAIN: Final = (EntityUnavailable, OutcomeUnknown, NodeUnreachable, ActorDown, AskTimeout)


class QueueHome(Protocol):
    """The node of a queue, as the queue uses it."""

    runtime: NodeContext
    form: EventSerializer


@dataclass(slots=True, eq=False)
class _Put:
    """A job that waits to be put."""

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
    """A job that was taken. `ack()` when it is done, `nack()` when it failed.

    Without either it goes to another taker once the time of the taking is over, counted from
    when it was handed over; `extend` gives it more.
    """

    __slots__ = ("_queue", "_token", "attempt", "number", "value")

    def __init__(
        self, queue: "WorkQueue", token: str, number: int, attempt: int, value: Any
    ) -> None:
        """Only queues make them."""
        self._queue, self._token = queue, token
        #: Which job it is; the same in each attempt.
        self.number = number
        #: The first one is 1.
        self.attempt = attempt
        #: What was put.
        self.value = value

    def ack(self) -> Future[None]:
        """Take the job away: it was done.

        The future fails with `JobLost` if the time of the taking was over, and with
        `OutcomeUnknown` if an owner was lost and the job is gone: perhaps it was acknowledged.
        """
        return self._queue.acknowledge(self.number, self._token)

    def nack(self, delay: float = 0.0, *, reason: str = "") -> Future[None]:
        """Give the job back: another taker gets it, or it is dead after too many attempts.

        Args:
            delay: seconds until it is ready again.
            reason: why, for those who look at dead jobs.

        Raises:
            InvalidSeconds: the delay is no time.
        """
        delay = checked_seconds(delay, "delay")
        message = GiveBackJob(self.number, self._token, delay, str(reason))
        return self._queue.ask_taken(message, self.number)

    def extend(self, visible_after: float) -> Future[None]:
        """Let the time of the taking begin anew, with so many seconds.

        Raises:
            InvalidSeconds: that is no time, or none at all.
        """
        visible = checked_period(visible_after, "visible_after")
        message = ExtendJob(self.number, self._token, visible)
        return self._queue.ask_taken(message, self.number)

    def __repr__(self) -> str:
        return f"<QueueJob {self.number} of {self._queue.name}, attempt {self.attempt}>"


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that was given back too often."""

    number: int
    attempts: int
    #: Why it was given back for the last time.
    reason: str
    #: What was put; an `UnreadableValue` where this program cannot read it.
    value: Any
    #: The value as it is stored, JSON.
    body: str = ""


class WorkQueue:
    """A durable work queue: `node.queue("mails", state=…)`.

    Jobs are handed out in the order in which they were put, each to one taker at a time, until
    one acknowledges it: at least once. What `put` acknowledged is never lost.
    """

    def __init__(self, home: QueueHome, owner: ActorRef[Any], name: str) -> None:
        """Only nodes make them."""
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
            value: any message that can travel, of at most 1 MiB as JSON.
            delay: seconds until it is ready.

        The future fails with `QueueFull` where no more jobs may wait, with `EntityUnavailable`
        if nothing happened for 30 s, and with `OutcomeUnknown` if an owner was lost: perhaps
        the job is there.

        Raises:
            InvalidSeconds: the delay is no time.
            NotSerializable: the value cannot be stored.
            WrongValue: it is too large.
        """
        delay = checked_seconds(delay, "delay")
        body = self._home.form.write(value)
        if len(body) > JOB_LIMIT // 4 and len(body.encode()) > JOB_LIMIT:
            msg = (
                f"a job of {len(body):,} characters exceeds the limit of {JOB_LIMIT:,} B of "
                f"{self.name!r}; put large data elsewhere, and its name here"
            )
            raise WrongValue(msg)
        future: Future[int] = Future(self._owner)
        self._change(_Put(body, delay, future))
        return future

    def acknowledge(self, number: int, token: str) -> Future[None]:
        """Take a job away that was done; `QueueJob.ack` calls it."""
        future: Future[None] = Future(self._owner)
        self._change(_Done(number, token, future))
        return future

    def _change(self, change: _Put | _Done) -> None:
        """Send a change, with others if a request is under way."""
        if isinstance(
            current_cell.get(), EntityCell
        ):  # it leaves with the commit of its stretch
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
        """Fail what waits to be sent: the node has ended."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for change in waiting:
            change.future.set_exception(self._closed())

    def _closed(self) -> NodeClosed:
        """Return the error of a change that a closed node does not send."""
        return NodeClosed(f"{self._home.runtime.name} was closed before it sent this")

    def _send_waiting(self) -> None:
        """Send what waits in one request."""
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

        Jobs that this program cannot read, such as those of a type that a newer release has,
        are left to takers of other nodes; that counts no attempt.

        Nobody else gets it for `visible_after` seconds, unless this node is out of reach of
        the queue's owner. A future that is cancelled, or that nobody holds any more, takes
        none: a job that arrives for it goes to the next taker, and no attempt is counted. When
        this node drains or closes, the future fails with `NodeClosed`.

        Args:
            visible_after: seconds that the job is yours; give it back, or `extend` it, before.
            timeout: seconds to wait for a job; the future fails with `AskTimeout` then. None
                waits for ever.

        Raises:
            InvalidSeconds: that is no time.
        """
        visible = checked_period(visible_after, "visible_after")
        limit = checked_limit(timeout)
        with self._lock:
            self._takings += 1
            token = f"{self._prefix}{self._takings}"
        return _Taking(self, token, visible, self._owner).begin(limit)

    def ask_taken(self, message: object, number: int) -> Future[None]:
        """Ask something for a job that was taken; `JobLost` if it is another's by now."""
        future: Future[None] = Future(self._owner)

        def answered(outcome: Any) -> None:
            if outcome == CHANGED:
                future.set_result(None)
            else:
                future.set_exception(request.why_not(outcome, number))

        request = _Request(self, message, answered, future.set_exception, is_repeated=True)
        request.send()
        return future

    def lost(self, number: int) -> JobLost:
        """Return the error of a job that is not its taker's any more."""
        return JobLost(
            f"job {number} of {self.name!r} was taken from this taker: its time was over, or "
            "its node out of reach; another one does it, or has done it"
        )

    # --- people ---

    def stats(self) -> Future[QueueStats]:
        """Return how many jobs there are."""
        return self._asked(AskQueueStats(), lambda found: found)

    def dead(self, limit: int = 100, *, after: int = 0) -> Future[list[DeadJob]]:
        """Return jobs that were given back too often, in the order in which they were put.

        A value that this program cannot read is an `UnreadableValue`.

        Args:
            limit: how many at most; up to 1024.
            after: the number of the last one that is known.

        Raises:
            WrongArgument: that is no number.
            WrongValue: it is out of bounds.
        """
        limit = min(checked_count(limit, "limit", 1), READ_LIMIT)
        read = self._home.form.read_or_show

        def made(found: DeadJobs) -> list[DeadJob]:
            return [
                DeadJob(number, attempts, reason, read(body), body)
                for number, attempts, reason, body in found.jobs
            ]

        return self._asked(AskDeadJobs(checked_count(after, "after"), limit), made)

    def requeue(self, *numbers: int) -> Future[int]:
        """Let dead jobs be ready again, all of them if none is named; returns how many."""
        return self._revive(numbers, is_kept=True)

    def discard(self, *numbers: int) -> Future[int]:
        """Take dead jobs away, all of them if none is named; returns how many."""
        return self._revive(numbers, is_kept=False)

    def _revive(self, numbers: tuple[int, ...], *, is_kept: bool) -> Future[int]:
        wanted = tuple(checked_count(number, "number") for number in numbers) or None
        return self._asked(ReviveJobs(wanted, is_kept), lambda count: count)

    def _asked(self, message: object, make: Callable[[Any], Any]) -> Future[Any]:
        """Return what an owner answers."""
        future: Future[Any] = Future(self._owner)

        def answered(found: Any) -> None:
            try:
                future.set_result(make(found))
            except Exception as error:  # noqa: BLE001 - a value that this program cannot read
                future.set_exception(error)

        _Request(self, message, answered, future.set_exception).send()
        return future

    # --- for requests ---

    def ask(self, message: object, timeout: float | None) -> Future[Any]:
        """Ask the owner."""
        return self._owner.ask(message, timeout=timeout)

    @property
    def home(self) -> QueueHome:
        """The node of this queue."""
        return self._home


class _Request:
    """A request to the owner, repeated while nothing has happened."""

    def __init__(
        self,
        queue: WorkQueue,
        message: object,
        answered: Callable[[Any], object],
        failed: Callable[[BaseException], object],
        *,
        is_repeated: bool = False,
    ) -> None:
        """Make one; repeated after an unknown outcome too, where a second time does nothing."""
        self._queue, self._message = queue, message
        self._is_repeated = is_repeated
        #: Why it is unknown whether an earlier attempt took place; None if none did.
        self.unknown: OutcomeUnknown | None = None
        self._answered, self._failed = answered, failed
        self._pause = _FIRST_PAUSE
        self._until = queue.home.runtime.now() + PATIENCE

    def send(self) -> None:
        """Ask."""
        left = self._until - self._queue.home.runtime.now()
        try:
            self._queue.ask(self._message, max(left, 0.01)).on_done(self._done)
        except Exception as error:  # noqa: BLE001 - the node is closed, or it cannot travel
            self._failed(error)

    def why_not(self, outcome: Any, number: int) -> Exception:
        """Return the error of a change that did not take place, this time."""
        if outcome == GONE and self.unknown is not None:
            return self.unknown  # it may be gone because an earlier attempt took place
        return self._queue.lost(number)

    def _done(self, asked: Future[Any]) -> None:
        """Take the answer, or ask again where nothing has happened."""
        error = asked.exception()
        runtime = self._queue.home.runtime
        if error is None:
            self._answered(asked.result())
            return
        if isinstance(error, OutcomeUnknown) and self._is_repeated:
            self.unknown = error
        is_late = runtime.now() + self._pause >= self._until or runtime.is_closed
        if not is_late and (self.unknown is error or isinstance(error, EntityUnavailable)):
            runtime.shutdown.retry_in(self._pause, self.send)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            self._failed(self.unknown or error)


class _ChangeRequest(_Request):
    """Jobs that are put or done."""

    def __init__(
        self,
        queue: WorkQueue,
        changes: list[_Put | _Done],
        following: Callable[[], object] = lambda: None,
    ) -> None:
        self._put = [each for each in changes if isinstance(each, _Put)]
        self._ended = [each for each in changes if isinstance(each, _Done)]
        self._following = following
        message = ChangeJobs(
            tuple((each.body, each.delay) for each in self._put),
            tuple((each.number, each.token) for each in self._ended),
        )
        is_repeated = not self._put
        super().__init__(queue, message, self._changed, self._refused, is_repeated=is_repeated)

    def _changed(self, answer: JobsChanged) -> None:
        """Tell everyone what became of their change."""
        self._following()
        for put, number in zip(self._put, answer.put, strict=False):
            put.future.set_result(number)
        for put in self._put[len(answer.put) :]:
            name = self._queue.name
            put.future.set_exception(QueueFull(f"{name!r} has all the jobs that it may have"))
        for each, outcome in zip(self._ended, answer.done, strict=True):
            if outcome == CHANGED:
                each.future.set_result(None)
            else:
                each.future.set_exception(self.why_not(outcome, each.number))

    def _refused(self, error: BaseException) -> None:
        """Tell everyone that it failed."""
        self._following()
        for put in self._put:
            put.future.set_exception(error)
        if isinstance(error, OutcomeUnknown) and self._put and self._ended:
            again = _ChangeRequest(self._queue, [*self._ended])  # a second time does nothing
            again.unknown = error
            again.send()
            return
        for each in self._ended:
            each.future.set_exception(error)


class _Taking:
    """A taker that waits for a job."""

    def __init__(
        self, queue: WorkQueue, token: str, visible: float, owner: ActorRef[Any]
    ) -> None:
        self._queue, self._token, self._visible = queue, token, visible
        self._runtime = queue.home.runtime
        self._owner = owner
        self._pause = _FIRST_PAUSE
        self._is_over = False

    def begin(self, limit: float | None) -> Future[QueueJob]:
        """Ask for a job, at most for some seconds; returns the future of it."""
        future = OwnedFuture[QueueJob](self._owner, self._give_back)
        self._future = weak(future)
        #: Told when nobody holds the future any more.
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
            asked = self._queue.ask(TakeJob(self._token, self._visible), None)
        except Exception as error:  # noqa: BLE001 - the node is closed
            future.set_exception(error)
            return
        asked.on_done(self._done)

    def _done(self, asked: Future[Any]) -> None:
        """Take the job, or ask again by the same token."""
        error, future = asked.exception(), self._future()
        if error is None and isinstance(taken := asked.result(), TakenJob):
            self._take(taken, future)
        elif future is None or future.is_done:
            return
        elif isinstance(error, _AGAIN) and not self._runtime.is_closed:
            self._runtime.post(self._runtime.call_later, self._pause, self._send)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            future.set_exception(error or EntityUnavailable(f"the owner gave {taken!r:.80}"))

    def _take(self, taken: TakenJob, future: Future[QueueJob] | None) -> None:
        """Hand the job over, or give it back if nobody waits."""
        self._is_over = True
        if future is not None:
            queue = self._queue
            try:
                value = queue.home.form.read(taken.body)
            except (StateCorrupt, StateVersion) as error:
                self._refuse(taken, error)
                return
            job = QueueJob(queue, self._token, taken.number, taken.attempt, value)
            if future.set_result(job):
                return
        self._is_over = False
        self._withdraw()

    def _refuse(self, taken: TakenJob, error: StateCorrupt | StateVersion) -> None:
        """Leave a job to others that this program cannot read, and ask for another one."""
        queue, self._is_over = self._queue, False
        names = (error.missing,) if isinstance(error, StateVersion) and error.missing else ()
        what = names or (type(error),)
        self._runtime.warn_once(
            ("unreadable job", queue.name, *what),
            f"a job of {queue.name!r} is left to takers that can read it: {error}",
        )
        message = RefuseJob(taken.number, self._token, names, str(error))
        asked = queue.ask_taken(message, taken.number)
        asked.on_done(partial(self._refused, taken, str(error)))

    def _refused(self, taken: TakenJob, reason: str, asked: Future[None]) -> None:
        """Ask for another job; an owner that knows no refusals is given this one back."""
        error = asked.exception()
        if error is not None and not isinstance(error, (JobLost, *_AGAIN)):
            message = GiveBackJob(taken.number, self._token, 1.0, reason)
            self._queue.ask_taken(message, taken.number).on_done(lambda _: self._send())
        else:
            self._send()

    def _future_done(self, future: Future[QueueJob]) -> None:
        """Withdraw if the future was given up."""
        self._dropped.detach()
        if not self._is_over:
            self._withdraw()

    def _withdraw(self) -> None:
        """Wait no more; a job that was handed over meanwhile goes to the next taker."""
        if self._is_over or self._runtime.is_closed:
            return
        self._is_over = True
        self._runtime.post(self._send_withdrawal)

    def _give_back(self, _: QueueJob) -> None:
        """Let a job that its taker has not seen go to the next one; from any thread."""
        if not self._runtime.is_closed:
            self._runtime.post(self._send_withdrawal)

    def _send_withdrawal(self) -> None:
        """Tell the owner, until it knows: it may just have moved."""
        message = WithdrawTake(self._token)
        _Request(self._queue, message, _ignore, _ignore, is_repeated=True).send()

    def _expire(self, limit: float) -> None:
        """Wait no more: the taker's own time is over."""
        future = self._future()
        if future is not None:
            text = f"no job of {self._queue.name!r} came within {limit:g} s"
            future.set_exception(AskTimeout(text))


def _ignore(_: object) -> None:
    """Take an outcome that nobody waits for."""
