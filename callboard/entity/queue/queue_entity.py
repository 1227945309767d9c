"""The owner of a work queue: an entity whose state is the rows of its jobs.

It drives `machine/job_queue.py`. What that changes is written in the stretch of the handler,
and each answer leaves when this is durable, as with every entity. The entity is a singleton:
it runs wherever its slot is owned, for delays and takers' times end without a message.

Takers wait at the `QueueDesk` of their queue, which outlives an activation that is read again.
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
from callboard.kernel.activation import QUEUE_PREFIX, TYPE_NAME_LIMIT, is_type_name
from callboard.kernel.actors import handler
from callboard.kernel.errors import WrongValue
from callboard.kernel.reply import Future
from callboard.support.dataclass import dataclass
from callboard.support.seconds import MAX_SECONDS
from callboard.support.text import printable, safe_repr

#: Seconds between looks whether the nodes of takers are there.
LOOK: Final = 0.5

#: Seconds after which a node is gone that is out of reach, and one that was never in reach of
#: this owner: it may be about to connect.
GONE_SECONDS: Final = 1.0
UNSEEN_SECONDS: Final = 5.0

#: Seconds between two ticks at least.
_SHORTEST: Final = 0.01

#: What no text of PostgreSQL may have; neither JSON nor a token of ours has it.
_NUL: Final = "\x00"

#: Numbers of jobs hold the epoch of their owner's slot above so many bits: none is used twice.
_EPOCH_BITS: Final = 40


class QueueTick:
    """To a queue's entity: some time is over."""


_TICK: Final = QueueTick()


@dataclass(slots=True, eq=False)
class QueueDesk:
    """What a node keeps of a queue whatever becomes of the activation."""

    attempts: int
    limit: int
    #: The activation's machine.
    jobs: JobQueue | None = None
    #: Jobs that were put here.
    count: int = 0
    #: When the next tick comes.
    tick_at: float = math.inf
    #: Since when a node is out of reach, and the nodes that were in reach.
    away: "dict[str, float] | None" = None
    seen: "set[str] | None" = None

    def left(self, _: object) -> None:
        """Tell all takers that this node has the queue no more: they ask the next owner."""
        jobs, self.jobs = self.jobs, None
        for taker in () if jobs is None else jobs.let_go():
            taker.asker.fail_at_once(EntityUnavailable("the queue has another owner"))


class QueueEntity(Entity):
    """The jobs of one queue; `node.queue` hosts it."""

    name: ClassVar[str] = QUEUE_PREFIX
    #: `activated` reads the jobs of the database, however many there are.
    hook_timeout: ClassVar[float | None] = None

    def __init__(self, desk: QueueDesk) -> None:
        self._desk = desk
        before, desk.jobs, desk.tick_at = desk.jobs, None, math.inf
        self._jobs = JobQueue(self.key, desk.attempts, desk.limit)
        for taker in () if before is None else before.let_go():
            self._jobs.take(taker)

    async def activated(self) -> None:
        """Read what there is."""
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
        """Put jobs, and take away those that are done."""
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
        """Return a number that no job of the queue had before."""
        self._desk.count += 1
        epoch: int = self.context.host.epochs.get(self.context.slot, 0)
        return (epoch << _EPOCH_BITS) + self._desk.count

    # --- takers ---

    @handler
    def on_take(self, msg: TakeJob) -> None:
        """Give a job to a taker, or let it wait."""
        cell = self.context
        asker = cell.sender
        is_token = type(msg.token) is str and _NUL not in msg.token
        if not is_token or not 0.0 < msg.visible <= MAX_SECONDS or not asker.expects:
            return
        cell.promised = asker  # answered when there is a job
        if not self._jobs.take(JobConsumer(msg.token, msg.visible, asker)):
            text = f"{WAITING_LIMIT:,} takers wait for jobs of {self.key!r}, the limit"
            asker.set_exception(QueueFull(text))
        self._settle()
        cell.close_stretch()

    @handler
    def on_withdraw(self, msg: WithdrawTake) -> None:
        """Let a taker wait no more.

        Its ask is answered, though it has given up: both nodes would remember it for ever, and
        the drain of the taker's node would wait for the answer.
        """
        for taker in self._jobs.withdraw(msg.token):
            taker.asker.fail_at_once(EntityUnavailable("the taker has given up"))
        self._settle()

    @handler
    def on_give_back(self, msg: GiveBackJob) -> int:
        """Give a job to the next taker."""
        now_ms, delay = self.context.host.reminders.now_ms(), msg.delay
        due_ms = math.ceil(now_ms + 1000 * delay) if 0.0 < delay <= MAX_SECONDS else 0
        was_taken = self._jobs.give_back(
            msg.number, msg.token, due_ms=due_ms, reason=printable(str(msg.reason), "\n\t")
        )
        self._settle()
        return self._outcome(msg.number, was_taken=was_taken)

    @handler
    def on_refuse(self, msg: RefuseJob) -> int:
        """Keep a job for takers of other nodes: the program of this one cannot read it."""
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
        """Give a taker more time."""
        if not 0.0 < msg.visible <= MAX_SECONDS:
            return GONE
        now = self.context.runner.now()
        was_taken = self._jobs.extend(msg.number, msg.token, msg.visible, now)
        self._settle()
        return self._outcome(msg.number, was_taken=was_taken)

    def _outcome(self, number: int, *, was_taken: bool) -> int:
        """Return what became of a change of a job that a taker has."""
        if was_taken:
            return CHANGED
        return ANOTHERS if self._jobs.knows(number) else GONE

    # --- people ---

    @handler(read_only=True)
    async def on_ask_dead(self, msg: AskDeadJobs) -> DeadJobs:
        """Tell which jobs are dead."""
        await self._written()
        limit = min(max(int(msg.limit), 1), READ_LIMIT)
        found = await self._read(JobStatus.DEAD, (0, int(msg.after)), limit)
        return DeadJobs(
            tuple((job.number, job.state.attempt, job.state.reason, job.body) for job in found)
        )

    @handler
    async def on_revive(self, msg: ReviveJobs) -> int:
        """Let dead jobs be ready again, or take them away."""
        await self._written()
        wanted = None if msg.numbers is None else set(msg.numbers)
        count, after = 0, 0
        rows = self.context.open_rows
        while found := await self._read(JobStatus.DEAD, (0, after), READ_LIMIT):
            after = found[-1].number
            for job in found:
                if wanted is None or job.number in wanted:
                    state = JobState() if msg.is_kept else None
                    rows().change_job(self.key, job.number, state)
                    count += 1
        self._jobs.revived(count, is_kept=msg.is_kept)
        await self._read_more()
        return count

    @handler(read_only=True)
    def on_ask_stats(self, msg: AskQueueStats) -> QueueStats:
        """Tell how many jobs there are."""
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
        """Look for takers whose time is over, nodes that are gone, jobs that are due."""
        self._desk.tick_at = math.inf
        self._jobs.expire(self.context.runner.now())
        self._jobs.due(self.context.host.reminders.now_ms())
        self._look_for_nodes()
        self._match()
        await self._read_more()

    def _look_for_nodes(self) -> None:
        """Give back the jobs of takers whose nodes are gone."""
        desk, runtime = self._desk, self.context.runtime
        seen, before, now = desk.seen or set(), desk.away or {}, runtime.now()
        away: dict[str, float] = {}
        for node in self._jobs.nodes:
            if self._is_reachable(node):
                seen.add(node)
                continue
            since = away[node] = before.get(node, now)
            if now - since >= (GONE_SECONDS if node in seen else UNSEEN_SECONDS):
                self._jobs.lose(node)
                del away[node]
        desk.seen, desk.away = seen & self._jobs.nodes, away

    def _is_reachable(self, node: str) -> bool:
        """Return whether there is a way to a node."""
        runtime = self.context.runtime
        try:
            node_id = bytes.fromhex(node)
        except ValueError:
            return False
        return node_id == runtime.node_id or bool(runtime.is_reachable(node_id))

    # --- what follows each change ---

    def _settle(self) -> None:
        """Give ready jobs to those who wait, write what changed, and plan what is due."""
        self._match()
        jobs, now_ms = self._jobs, self.context.host.reminders.now_ms()
        if jobs.wants(now_ms) is not None:
            self._tick_in(0.0)
        elif jobs.next_end is not None or jobs.next_due_ms is not None or jobs.takers:
            self._plan_tick(now_ms)

    def _match(self) -> None:
        """Give ready jobs to those who wait, and write what changed."""
        jobs = self._jobs
        given = jobs.match()
        if jobs.changes.jobs:
            self.context.add_rows(jobs.changes)
            jobs.changes = RowChanges()
        for each in given:
            self._hand_over(each)

    def _plan_tick(self, now_ms: float) -> None:
        """Come back when something is due."""
        jobs, now = self._jobs, self.context.runner.now()
        wait = LOOK
        if jobs.next_due_ms is not None:
            wait = min(wait, (jobs.next_due_ms - now_ms) / 1000)
        if jobs.next_end is not None:
            wait = min(wait, jobs.next_end - now)
        self._tick_in(max(wait, _SHORTEST))

    def _tick_in(self, seconds: float) -> None:
        """Come back in a while."""
        cell, desk = self.context, self._desk
        at = cell.runner.now() + seconds
        if at < desk.tick_at:
            desk.tick_at = at
            cell.runtime.call_later(seconds, _tick, cell)

    def _hand_over(self, given: LeasedJob) -> None:
        """Tell a taker of its job, once that is written; then its time begins."""
        cell, jobs = self.context, self._jobs
        held = given.taker.asker
        if held.is_done:
            jobs.withdraw(given.taker.token)
            self._match()
            return
        number, token = given.number, given.taker.token
        answer = TakenJob(number, given.attempt, given.body)

        def go() -> None:
            jobs.begin(number, token, cell.runner.now())
            held.inner.set_result(answer)

        cell.emit_answer(go, held.inner.set_exception)

    async def _read_more(self) -> None:
        """Read the jobs that come next, as far as memory has room; nothing else goes on."""
        jobs, host = self._jobs, self.context.host
        while (wants := jobs.wants(host.reminders.now_ms())) is not None:
            await self._written()
            if wants.ready_after is not None:
                place = 0, wants.ready_after
                jobs.read_ready(await self._read(JobStatus.READY, place, READ_LIMIT))
            if wants.delayed_after is not None:
                place = wants.delayed_after
                found = await self._read(JobStatus.DELAYED, place, READ_LIMIT)
                jobs.read_delayed(found, host.reminders.now_ms())
            jobs.due(host.reminders.now_ms())
            self._match()
        self._settle()

    async def _read(self, status: JobStatus, after: tuple[int, int], limit: int) -> "list[Any]":
        """Read jobs of the state."""
        name, state = self.context.type.name, self.context.host.state
        args = name, self.key, status, after, limit
        return list(await called(state, EntityState.jobs, *args))

    async def _written(self) -> None:
        """Wait until all that was changed is durable."""
        written: Future[None] = Future()
        self._match()
        self.context.emit_answer(partial(written.set_result, None), written.set_exception)
        self.context.close_stretch()
        await written


def _tick(cell: Any) -> None:
    """Let some time be over for an activation, if it is still there."""
    if cell.reason is None:
        cell.post(_TICK)


def checked_queue(name: object) -> str:
    """Return what was given as the name of a queue.

    Raises:
        WrongArgument: it is no text.
        WrongValue: it is empty, too long, or has spaces or slashes.
    """
    text = checked_key(name, "queue's name")
    if not is_type_name(QUEUE_PREFIX + text):
        most = TYPE_NAME_LIMIT - len(QUEUE_PREFIX)
        msg = f"a queue's name has up to {most} printable characters, without / and spaces; "
        msg_0 = f"{msg}{safe_repr(text):.80} has not"
        raise WrongValue(msg_0)
    return text


def queue_class(name: str) -> type[QueueEntity]:
    """Return the class of entities of a queue."""
    own: dict[str, Any] = {"name": QUEUE_PREFIX + name, "__module__": __name__}
    return type("QueueEntity", (QueueEntity,), own)
