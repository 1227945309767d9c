"""The jobs of one work queue: assignment to takers, and the rows to write. Pure.

A job is **ready**, **delayed** until a time, **taken** by a taker until it is acknowledged, or
**dead** after too many attempts. Takers that find no job wait, in order.

Rows. All jobs are rows of the state. This machine has some of them in memory: the next jobs,
and the taken ones. Each change is added to `changes`, which the owner commits before it reports
the change. Ready jobs with a number above `_ready_after`, and delayed jobs after
`_delayed_after`, may be stored only in the state; `wants` returns a request when they have to
be read.

Times. Delays are measured by the database's clock, in milliseconds, because they outlive the
owner. A taker's time is measured by the owner's own clock, in seconds, from the commit that
assigned the job (`begin`). A new owner starts to measure again, so a taker's time never ends
early.

Unreadable jobs. The program of a taker may lack the type of a job, as in a rolling upgrade. The
taker refuses such a job, which does not count as an attempt, and the machine remembers for a
while which types the taker's node lacks. So takers on that node get other jobs, takers on other
nodes get this job, and a job that no taker can read is not sent again and again. Ready jobs
that a node refuses are in heaps of their own (`_aside`), one for each set of refusing nodes. A
heap is checked when its first job may be assigned, which applies later refusals.

Each assignment has a token, which names the taker's node. An acknowledgment contains the token,
so that the machine recognizes an acknowledgment that arrives after the job was assigned again.
"""

import heapq
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any, Final, NamedTuple

from callboard.entity.state.interface import JobState, JobStatus, RowChanges, StoredJob
from callboard.support.dataclass import dataclass

#: Most jobs in memory, ready and delayed, and bytes of all jobs there.
HELD_LIMIT: Final = 4096
BYTES_LIMIT: Final = 16 << 20

#: Jobs read from the state together.
READ_LIMIT: Final = 1024

#: Milliseconds ahead for which delayed jobs are in memory.
WINDOW_MS: Final = 60_000

#: Most takers that wait for a job.
WAITING_LIMIT: Final = 10_000

#: Characters of a stored reason.
REASON_LIMIT: Final = 500

#: Seconds for which it is remembered that a node lacks a type: at first, and at most.
REFUSED_SECONDS: Final = 30.0
LONGEST_REFUSED_SECONDS: Final = 960.0

#: Types that a node lacks that are remembered; of further types each job is refused.
MISSING_LIMIT: Final = 1000

#: Jobs in memory that some node refuses. With this many, no further ready job is read.
ASIDE_LIMIT: Final = 100_000

#: Jobs of a heap that keep their bodies when memory is full.
_WITH_BODIES: Final = 16

#: Finds the type names in a stored value.
_TYPE_NAMES: Final = re.compile(r'"\$type":"((?:[^"\\]|\\.)*)"')

#: The refusing nodes of jobs that no node refuses.
_NO_NODES: Final[frozenset[str]] = frozenset()

_first: Final = itemgetter(0)

#: Larger than every number of a job.
_LAST: Final = 1 << 62


class JobConsumer(NamedTuple):
    """A taker that waits for a job."""

    token: str
    #: Seconds that the job is reserved for the taker.
    visible: float
    #: The owner's handle for the answer.
    asker: Any


class LeasedJob(NamedTuple):
    """A job that was assigned to a taker, and is sent when the assignment is committed."""

    taker: JobConsumer
    number: int
    attempt: int
    body: str


@dataclass(slots=True, eq=False)
class _LoadedJob:
    """A job in memory."""

    number: int
    attempt: int
    #: None if it was dropped because memory was full.
    body: str | None
    status: JobStatus
    due_ms: int = 0
    token: str = ""
    visible: float = 0.0
    #: When its taker's time ends; None until it has started.
    until: float | None = None
    #: The type names in its body; None until they were searched.
    names: frozenset[str] | None = None


@dataclass(slots=True, eq=False)
class _Refusals:
    """The jobs and types that a node's program cannot read."""

    #: Seconds for which they are remembered, and their end. Not a `Backoff`: the last period is
    #: also the time after which the refusals of a node are forgotten.
    period: float = REFUSED_SECONDS / 2
    until: float = 0.0
    #: Names of types that the program lacks, and numbers of single unreadable jobs.
    names: set[str] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request to read jobs after these places; None if nothing must be read."""

    ready_after: int | None
    delayed_after: tuple[int, int] | None


@dataclass(slots=True, eq=False)
class JobQueue:
    """One queue: the machine of the entity with its key."""

    key: str
    #: Attempts after which a job is dead.
    attempts: int
    #: Most jobs in the queue.
    limit: int
    changes: RowChanges = field(default_factory=RowChanges)
    #: Number of jobs by status, including jobs that are not in memory.
    counts: "Counter[JobStatus]" = field(default_factory=Counter)
    _jobs: dict[int, _LoadedJob] = field(default_factory=dict)
    _ready: list[int] = field(default_factory=list)
    _delayed: list[tuple[int, int]] = field(default_factory=list)
    _takers: "deque[JobConsumer]" = field(default_factory=deque)
    _tokens: dict[str, int] = field(default_factory=dict)
    _ends: list[tuple[float, int, str]] = field(default_factory=list)
    _bytes: int = 0
    #: Ready jobs with higher numbers may be in the state alone; None if there are none.
    _ready_after: int | None = None
    #: Delayed jobs after this place may be in the state alone.
    _delayed_after: tuple[int, int] = (0, _LAST)
    #: By node: the jobs that its program cannot read.
    _refusals: dict[str, _Refusals] = field(default_factory=dict)
    #: Numbers of ready jobs that nodes refuse, by these nodes.
    _aside: dict[frozenset[str], list[int]] = field(default_factory=dict)

    # --- stored jobs ---

    def load(
        self, counts: "Counter[JobStatus]", taken: Iterable[StoredJob], now: float
    ) -> None:
        """Start with the stored jobs. The time of each taker starts again."""
        self.counts = counts
        for job in taken:
            entry = self._add(job.number, job.state.attempt, job.body, JobStatus.TAKEN)
            entry.token, entry.visible = job.state.taker, job.state.visible_ms / 1000
            self._tokens[entry.token] = job.number
            self._start_time(entry, now)
        if counts[JobStatus.READY]:
            self._ready_after = 0
        # A taker may have been assigned a job without having received it.
        for taker in self.pop_takers():
            self.add_taker(taker)

    def wants(self, now_ms: float) -> ReadRequest | None:
        """Return a request for the jobs that have to be read; None if there are none."""
        ready = self._ready_after if len(self._ready) < HELD_LIMIT // 4 else None
        if self._aside and self.refused >= ASIDE_LIMIT:
            ready = None
        delayed = None
        has_more = self.counts[JobStatus.DELAYED] > len(self._delayed)
        if has_more and self._has_room and self._delayed_after[0] < now_ms + WINDOW_MS / 2:
            delayed = self._delayed_after
        return None if ready is None and delayed is None else ReadRequest(ready, delayed)

    def read_ready(self, jobs: Sequence[StoredJob]) -> None:
        """Add ready jobs that were read. No job may have changed during the read."""
        self._ready_after = jobs[-1].number if len(jobs) >= READ_LIMIT else None
        for job in jobs:
            if job.number not in self._jobs:
                self._add(job.number, job.state.attempt, job.body, JobStatus.READY)
                heapq.heappush(self._ready, job.number)

    def read_delayed(self, jobs: Sequence[StoredJob], now_ms: float) -> None:
        """Add delayed jobs that were read. No job may have changed during the read."""
        horizon = int(now_ms) + WINDOW_MS, _LAST
        for job in jobs:
            place = job.state.due_ms, job.number
            if place > horizon:
                break
            if job.number not in self._jobs:
                entry = self._add(job.number, job.state.attempt, job.body, JobStatus.DELAYED)
                entry.due_ms = job.state.due_ms
                heapq.heappush(self._delayed, place)
        if len(jobs) >= READ_LIMIT:
            last = jobs[-1]
            horizon = min(horizon, (last.state.due_ms, last.number))
        self._delayed_after = horizon

    def _add(self, number: int, attempt: int, body: str, status: JobStatus) -> _LoadedJob:
        """Add a job to memory."""
        entry = self._jobs[number] = _LoadedJob(number, attempt, body, status)
        self._bytes += len(body)
        return entry

    def _drop(self, entry: _LoadedJob) -> None:
        """Remove a job from memory."""
        del self._jobs[entry.number]
        self._bytes -= len(entry.body or "")

    @property
    def _has_room(self) -> bool:
        """Whether memory has room for another job."""
        return len(self._ready) + len(self._delayed) < HELD_LIMIT and self._bytes < BYTES_LIMIT

    # --- producers ---

    @property
    def room(self) -> int:
        """Number of jobs that can still be added."""
        return max(0, self.limit - self.counts.total())

    def put(self, number: int, body: str, due_ms: int = 0) -> None:
        """Add a job with a new number, which is delayed if it has a due time."""
        status = JobStatus.DELAYED if due_ms else JobStatus.READY
        state = JobState(status, due_ms)
        self.changes.change_job(self.key, number, StoredJob(self.key, number, state, 0, body))
        self.counts[status] += 1
        if due_ms:
            if (due_ms, number) <= self._delayed_after and self._has_room:
                self._add(number, 0, body, status).due_ms = due_ms
                heapq.heappush(self._delayed, (due_ms, number))
            else:
                self._delayed_after = min(self._delayed_after, (due_ms, number - 1))
        elif self._ready_after is None and (self._has_room or self._takers):
            self._add(number, 0, body, status)
            heapq.heappush(self._ready, number)
        elif self._ready_after is None:
            self._ready_after = number - 1

    # --- takers ---

    def add_taker(self, taker: JobConsumer) -> bool:
        """Queue a taker for a job; return False if too many wait."""
        number = self._tokens.get(taker.token)
        entry = None if number is None else self._jobs.get(number)
        if entry is not None and entry.token == taker.token:
            # The taker asks again, so it has not received the answer that assigned this job.
            self._make_ready(entry)
            entry.attempt -= 1
            self._takers.appendleft(taker)
            return True
        if len(self._takers) >= WAITING_LIMIT:
            return False
        self._takers.append(taker)
        return True

    def withdraw(self, token: str) -> list[JobConsumer]:
        """Remove a taker that has given up, and give its job, if any, to the next taker.

        Returns:
            The waiting takers with the token, to be answered.
        """
        withdrawn = [taker for taker in self._takers if taker.token == token]
        self._takers = deque(taker for taker in self._takers if taker.token != token)
        number = self._tokens.get(token)
        if number is not None:
            self.give_back(number, token, counts=False)
        return withdrawn

    def match(self) -> list[LeasedJob]:
        """Assign ready jobs to waiting takers; each is notified after the commit."""
        if self._refusals:
            return self._match_choosing()
        leases = []
        while self._ready and self._takers:
            entry = self._jobs[self._ready[0]]
            heapq.heappop(self._ready)
            leases.append(self._assign(entry, self._takers.popleft()))
        return leases

    def _assign(self, entry: _LoadedJob, taker: JobConsumer) -> LeasedJob:
        """Assign a ready job, already removed from its heap, to a taker."""
        entry.attempt += 1
        entry.token, entry.visible, entry.until = taker.token, taker.visible, None
        self._tokens[taker.token] = entry.number
        self._change(entry, JobStatus.TAKEN)
        lease = LeasedJob(taker, entry.number, entry.attempt, entry.body or "")
        if self._bytes >= BYTES_LIMIT:
            self._shed(entry)
        return lease

    def _shed(self, entry: _LoadedJob) -> None:
        """Drop the body of a job in memory."""
        self._bytes -= len(entry.body or "")
        entry.body = None

    # --- jobs that some takers cannot read ---

    @property
    def refused(self) -> int:
        """Number of ready jobs in memory that some node refuses."""
        return sum(map(len, self._aside.values()))

    def refuse(
        self, number: int, token: str, names: Iterable[str], now: float, reason: str = ""
    ) -> bool:
        """Return a job that its taker cannot read to the queue.

        Return False if it has no such job.

        This does not count as an attempt. For a while, takers on that node get neither this job
        nor other jobs of these types.

        Args:
            number: the number of the job.
            token: the token of the assignment.
            names: types that the taker's program lacks; empty if only this job is unreadable.
            now: the owner's clock.
            reason: the reason, shown to people.
        """
        entry = self._taken(number, token)
        if entry is None:
            return False
        refusals = self._refusals.setdefault(node_of(token), _Refusals())
        if refusals.until <= now:
            refusals.period = min(2 * refusals.period, LONGEST_REFUSED_SECONDS)
            refusals.until = now + refusals.period
        lacking = self._names(entry).intersection(names)
        if lacking and len(refusals.names) < MISSING_LIMIT:
            refusals.names |= lacking
        else:
            refusals.numbers.add(number)
        entry.attempt -= 1
        self._make_ready(entry, reason=reason[:REASON_LIMIT])
        return True

    @staticmethod
    def _names(entry: _LoadedJob) -> frozenset[str]:
        """Return the type names in a job."""
        if entry.names is None and entry.body is not None:
            entry.names = frozenset(map(_unescaped, _TYPE_NAMES.findall(entry.body)))
        return entry.names or frozenset()

    def _refusing(self, entry: _LoadedJob) -> frozenset[str]:
        """Return the nodes that refuse a job."""
        names = self._names(entry)
        return frozenset(
            node
            for node, refusals in self._refusals.items()
            if entry.number in refusals.numbers or not refusals.names.isdisjoint(names)
        )

    def _match_choosing(self) -> list[LeasedJob]:
        """Assign to each waiting taker the first ready job that its node does not refuse."""
        leases: list[LeasedJob] = []
        waiting: deque[JobConsumer] = deque()
        without: set[str] = set()
        while self._takers:
            taker = self._takers.popleft()
            node = node_of(taker.token)
            entry = None if node in without else self._first_for(node)
            if entry is None:
                without.add(node)
                waiting.append(taker)
            else:
                leases.append(self._assign(entry, taker))
        self._takers = waiting
        return leases

    def _first_for(self, node: str) -> _LoadedJob | None:
        """Pop the first ready job that a node does not refuse."""
        while True:
            places = [
                (heap[0], nodes)
                for nodes, heap in (*self._aside.items(), (_NO_NODES, self._ready))
                if heap and node not in nodes
            ]
            if not places:
                return None
            number, nodes = min(places, key=_first)
            entry = self._jobs[number]
            if entry.body is None:
                self._read_again(nodes)
                continue
            heap = self._ready if nodes is _NO_NODES else self._aside[nodes]
            heapq.heappop(heap)
            if not heap and heap is not self._ready:
                del self._aside[nodes]
            refusing = self._refusing(entry)
            if node not in refusing:
                return entry
            self._set_aside(entry, refusing)

    def _set_aside(self, entry: _LoadedJob, nodes: frozenset[str]) -> None:
        """Add a ready job to the jobs that some nodes refuse.

        The bodies of the first of these jobs stay in memory even if it is full. Otherwise a
        taker that can read them might never get one, because each read could fill the memory
        with jobs that another taker refuses.
        """
        heap = self._aside.setdefault(nodes, [])
        heapq.heappush(heap, entry.number)
        if self._bytes >= BYTES_LIMIT and len(heap) > _WITH_BODIES:
            self._shed(entry)

    def _read_again(self, nodes: frozenset[str]) -> None:
        """Schedule a read of the refused jobs whose bodies were dropped."""
        numbers = self._aside.pop(nodes)
        complete = [number for number in numbers if self._jobs[number].body is not None]
        if complete:
            heapq.heapify(complete)
            self._aside[nodes] = complete
        dropped = {*numbers}.difference(complete)
        for number in dropped:
            self._drop(self._jobs[number])
        if dropped:
            first = min(dropped) - 1
            after = first if self._ready_after is None else self._ready_after
            self._ready_after = min(first, after)

    def _forget_refusals(self, now: float) -> None:
        """Remove old refusals, because the programs may have been upgraded since."""
        is_over = False
        for node, refusals in list(self._refusals.items()):
            if refusals.until <= now and (refusals.names or refusals.numbers):
                refusals.names, refusals.numbers, is_over = set(), set(), True
            elif refusals.until + refusals.period <= now:
                del self._refusals[node]
        if is_over:
            self._put_back()

    def _put_back(self) -> None:
        """Make all refused jobs ready for every node."""
        for nodes in list(self._aside):
            self._read_again(nodes)
            self._ready += self._aside.pop(nodes, ())
        heapq.heapify(self._ready)

    @property
    def takers(self) -> int:
        """Number of takers that wait for a job."""
        return len(self._takers)

    def pop_takers(self) -> "deque[JobConsumer]":
        """Return the waiting takers, and forget them."""
        takers, self._takers = self._takers, deque()
        return takers

    def begin(self, number: int, token: str, now: float) -> None:
        """Start a taker's time: its assignment was committed."""
        entry = self._taken(number, token)
        if entry is not None:
            self._start_time(entry, now)

    def _start_time(self, entry: _LoadedJob, now: float) -> None:
        """Start a taker's time."""
        entry.until = now + entry.visible
        heapq.heappush(self._ends, (entry.until, entry.number, entry.token))
        # Most entries belong to finished jobs.
        if len(self._ends) > 2 * len(self._tokens) + 1024:
            lasting = (job for job in self._jobs.values() if job.until is not None)
            self._ends = [(job.until, job.number, job.token) for job in lasting if job.until]
            heapq.heapify(self._ends)

    def acknowledge(self, number: int, token: str) -> bool:
        """Remove a finished job; return False if the taker does not have the job."""
        entry = self._taken(number, token)
        if entry is None:
            return False
        del self._tokens[token]
        self._drop(entry)
        self.counts[JobStatus.TAKEN] -= 1
        self.changes.change_job(self.key, number, None)
        return True

    def extend(self, number: int, token: str, visible: float, now: float) -> bool:
        """Start a taker's time again; return False if the taker does not have the job."""
        entry = self._taken(number, token)
        if entry is None:
            return False
        entry.visible = visible
        self._start_time(entry, now)
        self._write(entry)
        return True

    def give_back(
        self, number: int, token: str, *, due_ms: int = 0, reason: str = "", counts: bool = True
    ) -> bool:
        """Return a job to the queue; return False if the taker does not have the job.

        Args:
            number: the number of the job.
            token: the token of the assignment.
            due_ms: when it is ready again; 0 for at once.
            reason: the reason, shown to people.
            counts: whether this counts as an attempt; after the last attempt the job is dead.
        """
        entry = self._taken(number, token)
        if entry is None:
            return False
        if not counts:
            entry.attempt -= 1
        self._make_ready(entry, due_ms, reason[:REASON_LIMIT], is_tried=counts)
        return True

    def knows(self, number: int) -> bool:
        """Return whether a job is in memory; a taken one always is."""
        return number in self._jobs

    def _taken(self, number: int, token: str) -> _LoadedJob | None:
        """Return the job of a current assignment; None if there is none."""
        entry = self._jobs.get(number)
        is_current = (
            entry is not None and entry.status is JobStatus.TAKEN and entry.token == token
        )
        return entry if is_current else None

    def _make_ready(
        self, entry: _LoadedJob, due_ms: int = 0, reason: str = "", *, is_tried: bool = False
    ) -> None:
        """Make a taken job ready, delayed or dead."""
        del self._tokens[entry.token]
        entry.token, entry.until, entry.visible = "", None, 0.0
        number = entry.number
        if is_tried and entry.attempt >= self.attempts:
            self._change(entry, JobStatus.DEAD, reason)
            self._drop(entry)
        elif due_ms:
            entry.due_ms = due_ms
            self._change(entry, JobStatus.DELAYED, reason)
            if (due_ms, number) <= self._delayed_after and entry.body is not None:
                heapq.heappush(self._delayed, (due_ms, number))
            else:
                self._delayed_after = min(self._delayed_after, (due_ms, number - 1))
                self._drop(entry)
        else:
            entry.due_ms = 0
            self._change(entry, JobStatus.READY, reason)
            if entry.body is not None:
                heapq.heappush(self._ready, number)
            else:
                after = number if self._ready_after is None else self._ready_after
                self._ready_after = min(after, number - 1)
                self._drop(entry)

    def _change(self, entry: _LoadedJob, status: JobStatus, reason: str = "") -> None:
        """Change the status of a job."""
        self.counts[entry.status] -= 1
        self.counts[status] += 1
        entry.status = status
        self._write(entry, reason)

    def _write(self, entry: _LoadedJob, reason: str = "") -> None:
        """Add the current state of a job to the changes."""
        due_ms = entry.due_ms if entry.status is JobStatus.DELAYED else 0
        visible_ms = round(entry.visible * 1000)
        state = JobState(entry.status, due_ms, entry.attempt, entry.token, visible_ms, reason)
        self.changes.change_job(self.key, entry.number, state)

    def revived(self, count: int, *, is_kept: bool) -> None:
        """Update the counts after dead jobs were made ready or deleted in the state."""
        self.counts[JobStatus.DEAD] -= count
        if is_kept and count:
            self.counts[JobStatus.READY] += count
            self._ready_after = 0

    # --- time ---

    def expire(self, now: float) -> None:
        """Return jobs whose takers' time has ended, and forget old refusals."""
        if self._refusals:
            self._forget_refusals(now)
        while self._ends and self._ends[0][0] <= now:
            until, number, token = heapq.heappop(self._ends)
            entry = self._taken(number, token)
            if entry is not None and entry.until == until:
                reason = f"its taker had {entry.visible:g} s"
                self._make_ready(entry, reason=reason, is_tried=True)

    def due(self, now_ms: float) -> None:
        """Make delayed jobs ready that are due. Their rows do not change."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, number = heapq.heappop(self._delayed)
            entry = self._jobs[number]
            self.counts[JobStatus.DELAYED] -= 1
            self.counts[JobStatus.READY] += 1
            entry.status, entry.due_ms = JobStatus.READY, 0
            heapq.heappush(self._ready, number)

    @property
    def next_end(self) -> float | None:
        """When the next taker's time ends, if it still has the job."""
        return self._ends[0][0] if self._ends else None

    @property
    def next_due_ms(self) -> float | None:
        """When the next delayed job is ready, or more of them must be read."""
        if self.counts[JobStatus.DELAYED] > len(self._delayed):
            more = self._delayed_after[0] - WINDOW_MS / 2
            return min(more, self._delayed[0][0]) if self._delayed else more
        return self._delayed[0][0] if self._delayed else None

    # --- nodes ---

    @property
    def nodes(self) -> set[str]:
        """The nodes of takers that wait or have a job."""
        tokens = (*self._tokens, *(taker.token for taker in self._takers))
        return {node_of(token) for token in tokens}

    def lose(self, node: str) -> None:
        """Return all jobs of a lost node's takers, and forget its waiting takers."""
        for token, number in list(self._tokens.items()):
            if node_of(token) == node:
                self.give_back(number, token, reason="the node of its taker is gone")
        self._takers = deque(taker for taker in self._takers if node_of(taker.token) != node)
        if self._refusals.pop(node, None) is not None:
            self._put_back()


def _unescaped(name: str) -> str:
    """Return a name from its form in JSON."""
    return str(json.loads(f'"{name}"')) if "\\" in name else name


def node_of(token: str) -> str:
    """Return the node that a token names."""
    return token.partition("/")[0]
