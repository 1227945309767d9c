"""The owner of a work queue: an entity whose state is the rows of its jobs.

It drives `machine/job_queue.py`. The machine's changes are committed in the unit of work of the
handler, and answers leave after that, as with every entity. The entity is a singleton, which is
always active on the owner of its slot, because delays and takers' times end without a message.

Takers wait in the `QueueDesk` of their queue, which stays when the entity's state is read
again.
"""

import math
from collections import Counter
from functools import partial
from typing import Any, ClassVar, Final

from callboard.entity.entity import Entity, checked_key
from callboard.entity.errors import EntityUnavailable, QueueFull
from callboard.entity.machine.job_queue import (
    READ_LIMIT,
    WAITING_LIMIT,
    JobConsumer,
    JobQueue,
    LeasedJob,
)
from callboard.entity.ownership import called
from callboard.entity.queue.messages import (
    ANOTHERS,
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
from callboard.entity.state.interface import EntityState, JobState, JobStatus, RowChanges
from callboard.kernel.actors import handler
from callboard.kernel.errors import WrongValue
from callboard.kernel.reply import Future
from callboard.support.dataclass import dataclass
from callboard.support.keyed_name import QUEUE_PREFIX, TYPE_NAME_LIMIT, is_type_name
from callboard.support.seconds import MAX_SECONDS
from callboard.support.text import printable, safe_repr

#: Seconds between checks whether the nodes of takers are reachable.
NODE_POLL_SECONDS: Final = 0.5

#: Seconds after which an unreachable node counts as lost; longer for a node that was never
#: reachable from this owner, as it may be about to connect.
GONE_SECONDS: Final = 1.0
UNSEEN_SECONDS: Final = 5.0

#: Fewest seconds between two ticks.
_SHORTEST: Final = 0.01

#: Not allowed in a text of PostgreSQL; neither JSON nor a token of ours contains it.
_NUL: Final = "\x00"

#: Numbers of jobs hold the slot's epoch above this many bits, so no number is used twice.
_EPOCH_BITS: Final = 40


class QueueTick:
    """A message to a queue's entity: a delay or a taker's time has ended."""


_TICK: Final = QueueTick()


@dataclass(slots=True, eq=False)
class QueueDesk:
    """The part of a queue on its node that outlives activations."""

    attempts: int
    limit: int
    #: The machine of the current activation.
    jobs: JobQueue | None = None
    #: Jobs added on this node.
    count: int = 0
    #: Time of the next tick.
    tick_at: float = math.inf
    #: By unreachable node: since when; and the nodes that were reachable.
    away: "dict[str, float] | None" = None
    seen: "set[str] | None" = None

    def left(self, _: object) -> None:
        """Send all takers to the next owner: this node no longer has the queue."""
        jobs, self.jobs = self.jobs, None
        for taker in () if jobs is None else jobs.pop_takers():
            taker.asker.fail_at_once(EntityUnavailable("the queue has another owner"))


class QueueEntity(Entity):
    """The jobs of one queue; `node.queue` hosts it."""

    name: ClassVar[str] = QUEUE_PREFIX
    #: No limit: `activated` reads the jobs of the database, which may be many.
    hook_timeout: ClassVar[float | None] = None

    def __init__(self, desk: QueueDesk) -> None:
        self._desk = desk
        former, desk.jobs, desk.tick_at = desk.jobs, None, math.inf
        self._jobs = JobQueue(self.key, desk.attempts, desk.limit)
        for taker in () if former is None else former.pop_takers():
            self._jobs.add_taker(taker)

    async def activated(self) -> None:
        """Read the stored jobs."""
        read = partial(called, self.context.host.state)
        name, key = self.context.type.name, self.key
        counts = await read(EntityState.job_counts, name, key)
        taken = await read(EntityState.jobs, name, key, JobStatus.TAKEN, (-1, 0), 1 << 30)
        self._jobs.load(Counter(counts), taken, self.context.runner.now())
        self._desk.jobs = self._jobs
        await self._read_more()

    async def passivated(self) -> None:
        """Send takers to the next owner."""
        self._desk.left(None)

    # --- producers ---

    @handler
    def on_change(self, msg: ChangeJobs) -> JobsChanged:
        """Add jobs, and remove finished ones."""
        jobs, now_ms = self._jobs, self.context.host.reminders.now_ms()
        done = tuple(
            self._outcome(number, was_taken=jobs.acknowledge(number, token))
            for number, token in msg.done
        )
        put = []
        for body, delay in msg.put[: jobs.room]:
            if type(body) is str and _NUL not in body and 0.0 <= delay <= MAX_SECONDS:
                number = self._next_number()
                jobs.put(number, body, math.ceil(now_ms + 1000 * delay) if delay else 0)
                put.append(number)
        self._settle()
        return JobsChanged(tuple(put), done)

    def _next_number(self) -> int:
        """Return a number that no other job of the queue has had."""
        self._desk.count += 1
        epoch: int = self.context.host.epochs.get(self.context.slot, 0)
        return (epoch << _EPOCH_BITS) + self._desk.count

    # --- takers ---

    @handler
    def on_take(self, msg: TakeJob) -> None:
        """Assign a job to a taker, or let it wait."""
        cell = self.context
        asker = cell.sender
        is_token = type(msg.token) is str and _NUL not in msg.token
        if not is_token or not 0.0 < msg.visible <= MAX_SECONDS or not asker.expects:
            return
        cell.promised = asker  # the ask is answered when there is a job
        if not self._jobs.add_taker(JobConsumer(msg.token, msg.visible, asker)):
            text = f"{WAITING_LIMIT:,} takers wait for jobs of {self.key!r}, the limit"
            asker.set_exception(QueueFull(text))
        self._settle()
        cell.close_unit()

    @handler
    def on_withdraw(self, msg: WithdrawTake) -> None:
        """Remove a taker that no longer waits.

        The taker has cancelled its ask, but the ask is answered all the same. Otherwise both
        nodes would store it for ever, and a drain of the taker's node would wait for the
        answer.
        """
        for taker in self._jobs.withdraw(msg.token):
            taker.asker.fail_at_once(EntityUnavailable("the taker has given up"))
        self._settle()

    @handler
    def on_give_back(self, msg: GiveBackJob) -> int:
        """Return a job for the next taker."""
        now_ms, delay = self.context.host.reminders.now_ms(), msg.delay
        due_ms = math.ceil(now_ms + 1000 * delay) if 0.0 < delay <= MAX_SECONDS else 0
        was_taken = self._jobs.give_back(
            msg.number, msg.token, due_ms=due_ms, reason=printable(str(msg.reason), "\n\t")
        )
        self._settle()
        return self._outcome(msg.number, was_taken=was_taken)

    @handler
    def on_refuse(self, msg: RefuseJob) -> int:
        """Keep a job that the taker's program cannot read for takers on other nodes."""
        names = msg.missing if type(msg.missing) is tuple else ()
        was_taken = self._jobs.refuse(
            msg.number,
            msg.token,
            [name for name in names if type(name) is str],
            self.context.runner.now(),
            reason=printable(str(msg.reason), "\n\t"),
        )
        self._settle()
        return self._outcome(msg.number, was_taken=was_taken)

    @handler
    def on_extend(self, msg: ExtendJob) -> int:
        """Extend the visibility timeout of a job."""
        if not 0.0 < msg.visible <= MAX_SECONDS:
            return GONE
        now = self.context.runner.now()
        was_taken = self._jobs.extend(msg.number, msg.token, msg.visible, now)
        self._settle()
        return self._outcome(msg.number, was_taken=was_taken)

    def _outcome(self, number: int, *, was_taken: bool) -> int:
        """Return the outcome of a change of a taken job."""
        if was_taken:
            return CHANGED
        return ANOTHERS if self._jobs.knows(number) else GONE

    # --- dead jobs and statistics ---

    @handler(read_only=True)
    async def on_ask_dead(self, msg: AskDeadJobs) -> DeadJobs:
        """Return dead jobs."""
        await self._written()
        limit = min(max(int(msg.limit), 1), READ_LIMIT)
        jobs = await self._read(JobStatus.DEAD, (0, int(msg.after)), limit)
        return DeadJobs(
            tuple((job.number, job.state.attempt, job.state.reason, job.body) for job in jobs)
        )

    @handler
    async def on_revive(self, msg: ReviveJobs) -> int:
        """Make dead jobs ready again, or delete them; return their number."""
        await self._written()
        numbers = None if msg.numbers is None else set(msg.numbers)
        count, after = 0, 0
        rows = self.context.open_rows
        while jobs := await self._read(JobStatus.DEAD, (0, after), READ_LIMIT):
            after = jobs[-1].number
            for job in jobs:
                if numbers is None or job.number in numbers:
                    state = JobState() if msg.is_kept else None
                    rows().change_job(self.key, job.number, state)
                    count += 1
        self._jobs.revived(count, is_kept=msg.is_kept)
        await self._read_more()
        return count

    @property
    def limit(self) -> int:
        """The maximum number of jobs."""
        return self._desk.limit

    @property
    def attempts(self) -> int:
        """The number of attempts after which a job is dead."""
        return self._desk.attempts

    @handler(read_only=True)
    def on_ask_stats(self, msg: AskQueueStats) -> QueueStats:
        """Return the number of jobs by status."""
        return self.stats

    @property
    def stats(self) -> QueueStats:
        """The number of jobs by status, and of waiting takers."""
        counts = self._jobs.counts
        return QueueStats(
            ready=counts[JobStatus.READY],
            delayed=counts[JobStatus.DELAYED],
            taken=counts[JobStatus.TAKEN],
            dead=counts[JobStatus.DEAD],
            waiting=self._jobs.takers,
        )

    # --- time ---

    @handler
    async def on_tick(self, msg: QueueTick) -> None:
        """Handle times that have ended, lost nodes, and jobs that are due."""
        self._desk.tick_at = math.inf
        self._jobs.expire(self.context.runner.now())
        self._jobs.due(self.context.host.reminders.now_ms())
        self._check_nodes()
        self._match()
        await self._read_more()

    def _check_nodes(self) -> None:
        """Return the jobs of takers whose nodes are lost."""
        desk, runtime = self._desk, self.context.runtime
        reached, away, now = desk.seen or set(), desk.away or {}, runtime.now()
        still_away: dict[str, float] = {}
        for node in self._jobs.nodes:
            if self._is_reachable(node):
                reached.add(node)
                continue
            since = still_away[node] = away.get(node, now)
            if now - since >= (GONE_SECONDS if node in reached else UNSEEN_SECONDS):
                self._jobs.lose(node)
                del still_away[node]
        desk.seen, desk.away = reached & self._jobs.nodes, still_away

    def _is_reachable(self, node: str) -> bool:
        """Return whether a node is reachable."""
        runtime = self.context.runtime
        try:
            node_id = bytes.fromhex(node)
        except ValueError:
            return False
        return node_id == runtime.node_id or bool(runtime.is_reachable(node_id))

    # --- after each change ---

    def _settle(self) -> None:
        """Assign ready jobs, add changed rows to the unit of work, and plan the next tick."""
        self._match()
        jobs, now_ms = self._jobs, self.context.host.reminders.now_ms()
        if jobs.wants(now_ms) is not None:
            self._tick_in(0.0)
        elif jobs.next_end is not None or jobs.next_due_ms is not None or jobs.takers:
            self._plan_tick(now_ms)

    def _match(self) -> None:
        """Assign ready jobs to waiting takers, and add changed rows to the unit of work."""
        jobs = self._jobs
        leases = jobs.match()
        if jobs.changes.jobs:
            self.context.add_rows(jobs.changes)
            jobs.changes = RowChanges()
        for lease in leases:
            self._send_job(lease)

    def _plan_tick(self, now_ms: float) -> None:
        """Schedule a tick for when the next job becomes due or visible again."""
        jobs, now = self._jobs, self.context.runner.now()
        wait = NODE_POLL_SECONDS
        if jobs.next_due_ms is not None:
            wait = min(wait, (jobs.next_due_ms - now_ms) / 1000)
        if jobs.next_end is not None:
            wait = min(wait, jobs.next_end - now)
        self._tick_in(max(wait, _SHORTEST))

    def _tick_in(self, seconds: float) -> None:
        """Schedule a tick, unless an earlier one is scheduled."""
        cell, desk = self.context, self._desk
        tick_at = cell.runner.now() + seconds
        if tick_at < desk.tick_at:
            desk.tick_at = tick_at
            cell.runtime.call_later(seconds, _tick, cell)

    def _send_job(self, lease: LeasedJob) -> None:
        """Send a job to its taker after the commit, and start the taker's time."""
        cell, jobs = self.context, self._jobs
        reply = lease.taker.asker
        if reply.is_done:
            jobs.withdraw(lease.taker.token)
            self._match()
            return
        number, token = lease.number, lease.taker.token
        answer = TakenJob(number, lease.attempt, lease.body)

        def send() -> None:
            jobs.begin(number, token, cell.runner.now())
            reply.inner.set_result(answer)

        cell.emit_answer(send, reply.inner.set_exception)

    async def _read_more(self) -> None:
        """Read the next jobs while memory has room. No other handler runs in the meantime."""
        jobs, host = self._jobs, self.context.host
        while (wants := jobs.wants(host.reminders.now_ms())) is not None:
            await self._written()
            if wants.ready_after is not None:
                place = 0, wants.ready_after
                jobs.read_ready(await self._read(JobStatus.READY, place, READ_LIMIT))
            if wants.delayed_after is not None:
                place = wants.delayed_after
                delayed = await self._read(JobStatus.DELAYED, place, READ_LIMIT)
                jobs.read_delayed(delayed, host.reminders.now_ms())
            jobs.due(host.reminders.now_ms())
            self._match()
        self._settle()

    async def _read(self, status: JobStatus, after: tuple[int, int], limit: int) -> "list[Any]":
        """Read stored jobs."""
        name, state = self.context.type.name, self.context.host.state
        args = name, self.key, status, after, limit
        return list(await called(state, EntityState.jobs, *args))

    async def _written(self) -> None:
        """Wait until all changes are durable."""
        written: Future[None] = Future()
        self._match()
        self.context.emit_answer(partial(written.set_result, None), written.set_exception)
        self.context.close_unit()
        await written


def _tick(cell: Any) -> None:
    """Post a tick to an activation that has not ended."""
    if cell.reason is None:
        cell.post(_TICK)


def checked_queue(name: object) -> str:
    """Return a valid name of a queue.

    Raises:
        WrongArgument: the name is not a text.
        WrongValue: the name is empty, too long, or has spaces or slashes.
    """
    text = checked_key(name, "queue's name")
    if not is_type_name(QUEUE_PREFIX + text):
        most = TYPE_NAME_LIMIT - len(QUEUE_PREFIX)
        msg = (
            f"a queue's name must have up to {most} printable characters, without / and "
            f"spaces, not {safe_repr(text):.80}"
        )
        raise WrongValue(msg)
    return text


def queue_class(name: str) -> type[QueueEntity]:
    """Return the class of entities of a queue."""
    own: dict[str, Any] = {"name": QUEUE_PREFIX + name, "__module__": __name__}
    return type("QueueEntity", (QueueEntity,), own)
