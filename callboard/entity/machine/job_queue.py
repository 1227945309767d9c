"""The jobs of one work queue: who gets which, and what is written of that. Pure.

A job is **ready**, **delayed** until a time, **taken** by a taker until it is acknowledged, or
**dead**: it was given back too often. Takers that find none wait, the first come first.

Rows. All jobs are rows of the state, and this machine holds a part of them in memory: those
that come next, and those that are taken. Each change is added to `changes`, which the owner
writes before anybody is told of it. Ready jobs with a number behind `ready_after`, and delayed
ones behind `delayed_after`, may be in the state alone; `wants` says when they have to be read.

Times. Delays end by the database's clock, in milliseconds, as they outlive the owner. A taker's
time is counted by the owner's own clock, in seconds, from the moment when the commit of the
taking was through (`begin`), and anew by the next owner: it never ends early.

Jobs that a taker cannot read. The program of a taker may lack the type of a job, as in a
rolling upgrade. It refuses the job, which counts no attempt. What a node lacks is kept for
a while. So its takers get other jobs, takers of other nodes get this one, and a job that no
taker can read causes no traffic. Ready jobs that a node refuses are in heaps of their own
(`_aside`), one for each set of nodes that refuse them. A heap is checked when its first job may
be handed out, which applies later refusals.

A taking has a token of its own, which names the taker's node. Who acknowledges names it, so
one that comes late is told apart, whatever happened to the job since.
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

#: Jobs that are held in memory at most, ready and delayed, and bytes of all jobs there.
HELD_LIMIT: Final = 4096
BYTES_LIMIT: Final = 16 << 20

#: Jobs that are read at once.
READ_LIMIT: Final = 1024

#: Milliseconds ahead for which delayed jobs are held.
WINDOW_MS: Final = 60_000

#: Takers that wait for a job at most.
WAITING_LIMIT: Final = 10_000

#: Characters of a reason that are kept.
REASON_LIMIT: Final = 500

#: Seconds for which it is remembered that a node cannot read a type: at first, and at most.
REFUSED_SECONDS: Final = 30.0
LONGEST_REFUSED_SECONDS: Final = 960.0

#: Types that a node lacks, as far as they are remembered; of others each job is refused.
MISSING_LIMIT: Final = 1000

#: Jobs in memory that some node refuses. Behind them no further ready job is read.
ASIDE_LIMIT: Final = 100_000

#: Jobs of a heap that keep their bodies where memory has no room for more.
_WITH_BODIES: Final = 16

#: Finds the names of the types in a value that is stored.
_TYPE_NAMES: Final = re.compile(r'"\$type":"((?:[^"\\]|\\.)*)"')

#: The nodes that refuse the jobs which all may have.
_NOBODY: Final[frozenset[str]] = frozenset()

_first: Final = itemgetter(0)

#: Behind all numbers of jobs.
_LAST: Final = 1 << 62


class JobConsumer(NamedTuple):
    """Who waits for a job."""

    token: str
    #: Seconds that the job is theirs.
    visible: float
    #: Whatever the owner answers them with.
    asker: Any


class LeasedJob(NamedTuple):
    """A job that a taker gets, once that is written."""

    taker: JobConsumer
    number: int
    attempt: int
    body: str


@dataclass(slots=True, eq=False)
class _Held:
    """A job in memory."""

    number: int
    attempt: int
    #: None where memory had no room.
    body: str | None
    status: JobStatus
    due_ms: int = 0
    token: str = ""
    visible: float = 0.0
    #: When its taker's time is over; None until that has begun.
    until: float | None = None
    #: The names of the types in its body, if it was looked for them.
    names: frozenset[str] | None = None


@dataclass(slots=True, eq=False)
class _Refusals:
    """What a node has refused, because its program cannot read it."""

    #: Seconds for which it is remembered, and until when.
    period: float = REFUSED_SECONDS / 2
    until: float = 0.0
    #: Names of types that its program lacks, and numbers of jobs that it cannot read.
    names: set[str] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What has to be read: jobs behind such places, or none."""

    ready_after: int | None
    delayed_after: tuple[int, int] | None


@dataclass(slots=True, eq=False)
class JobQueue:
    """One queue, the entity of a key."""

    key: str
    #: How often a job is given back before it is dead.
    attempts: int
    #: Jobs that there may be.
    limit: int
    changes: RowChanges = field(default_factory=RowChanges)
    #: How many there are, those that are not in memory included.
    counts: "Counter[JobStatus]" = field(default_factory=Counter)
    _jobs: dict[int, _Held] = field(default_factory=dict)
    _ready: list[int] = field(default_factory=list)
    _delayed: list[tuple[int, int]] = field(default_factory=list)
    _takers: "deque[JobConsumer]" = field(default_factory=deque)
    _tokens: dict[str, int] = field(default_factory=dict)
    _ends: list[tuple[float, int, str]] = field(default_factory=list)
    _bytes: int = 0
    #: Ready jobs behind it may be in the state alone; None if there are none.
    _ready_after: int | None = None
    #: Delayed jobs behind it may be in the state alone.
    _delayed_after: tuple[int, int] = (0, _LAST)
    #: By node, what its takers cannot read.
    _refusals: dict[str, _Refusals] = field(default_factory=dict)
    #: Numbers of ready jobs that nodes refuse, by these nodes.
    _aside: dict[frozenset[str], list[int]] = field(default_factory=dict)

    # --- what was stored ---

    def load(
        self, counts: "Counter[JobStatus]", taken: Iterable[StoredJob], now: float
    ) -> None:
        """Begin with what the state has: takers' times begin anew."""
        self.counts = counts
        for job in taken:
            held = self._hold(job.number, job.state.attempt, job.body, JobStatus.TAKEN)
            held.token, held.visible = job.state.taker, job.state.visible_ms / 1000
            self._tokens[held.token] = job.number
            self._begin(held, now)
        if counts[JobStatus.READY]:
            self._ready_after = 0
        for taker in self.let_go():  # one may have a job already, and not know
            self.take(taker)

    def wants(self, now_ms: float) -> ReadRequest | None:
        """Return what has to be read; None for nothing."""
        ready = self._ready_after if len(self._ready) < HELD_LIMIT // 4 else None
        if self._aside and self.refused >= ASIDE_LIMIT:
            ready = None
        delayed = None
        is_more = self.counts[JobStatus.DELAYED] > len(self._delayed)
        if is_more and self._has_room and self._delayed_after[0] < now_ms + WINDOW_MS / 2:
            delayed = self._delayed_after
        return None if ready is None and delayed is None else ReadRequest(ready, delayed)

    def read_ready(self, jobs: Sequence[StoredJob]) -> None:
        """Take the ready jobs that were read; nothing may have changed meanwhile."""
        self._ready_after = jobs[-1].number if len(jobs) >= READ_LIMIT else None
        for job in jobs:
            if job.number not in self._jobs:
                self._hold(job.number, job.state.attempt, job.body, JobStatus.READY)
                heapq.heappush(self._ready, job.number)

    def read_delayed(self, jobs: Sequence[StoredJob], now_ms: float) -> None:
        """Take the delayed jobs that were read; nothing may have changed meanwhile."""
        horizon = int(now_ms) + WINDOW_MS, _LAST
        for job in jobs:
            place = job.state.due_ms, job.number
            if place > horizon:
                break
            if job.number not in self._jobs:
                held = self._hold(job.number, job.state.attempt, job.body, JobStatus.DELAYED)
                held.due_ms = job.state.due_ms
                heapq.heappush(self._delayed, place)
        if len(jobs) >= READ_LIMIT:
            last = jobs[-1]
            horizon = min(horizon, (last.state.due_ms, last.number))
        self._delayed_after = horizon

    def _hold(self, number: int, attempt: int, body: str, status: JobStatus) -> _Held:
        """Hold a job in memory."""
        held = self._jobs[number] = _Held(number, attempt, body, status)
        self._bytes += len(body)
        return held

    def _drop(self, held: _Held) -> None:
        """Hold a job in memory no more."""
        del self._jobs[held.number]
        self._bytes -= len(held.body or "")

    @property
    def _has_room(self) -> bool:
        """Whether memory has room for another job."""
        return len(self._ready) + len(self._delayed) < HELD_LIMIT and self._bytes < BYTES_LIMIT

    # --- producers ---

    @property
    def room(self) -> int:
        """How many more jobs there may be."""
        return max(0, self.limit - self.counts.total())

    def put(self, number: int, body: str, due_ms: int = 0) -> None:
        """Add a job of a number that none had before; delayed if it is due at a time."""
        status = JobStatus.DELAYED if due_ms else JobStatus.READY
        state = JobState(status, due_ms)
        self.changes.change_job(self.key, number, StoredJob(self.key, number, state, 0, body))
        self.counts[status] += 1
        if due_ms:
            if (due_ms, number) <= self._delayed_after and self._has_room:
                self._hold(number, 0, body, status).due_ms = due_ms
                heapq.heappush(self._delayed, (due_ms, number))
            else:
                self._delayed_after = min(self._delayed_after, (due_ms, number - 1))
        elif self._ready_after is None and (self._has_room or self._takers):
            self._hold(number, 0, body, status)
            heapq.heappush(self._ready, number)
        elif self._ready_after is None:
            self._ready_after = number - 1

    # --- takers ---

    def take(self, taker: JobConsumer) -> bool:
        """Let a taker wait for a job; False if too many do."""
        number = self._tokens.get(taker.token)
        held = None if number is None else self._jobs.get(number)
        if held is not None and held.token == taker.token:
            self._make_ready(held)  # it asks again, as the answer was lost
            held.attempt -= 1
            self._takers.appendleft(taker)
            return True
        if len(self._takers) >= WAITING_LIMIT:
            return False
        self._takers.append(taker)
        return True

    def withdraw(self, token: str) -> list[JobConsumer]:
        """Forget a taker that gave up; a job that it was given goes to the next one, uncounted.

        Returns:
            What waited in its name, to be answered.
        """
        withdrawn = [taker for taker in self._takers if taker.token == token]
        self._takers = deque(each for each in self._takers if each.token != token)
        number = self._tokens.get(token)
        if number is not None:
            self.give_back(number, token, counts=False)
        return withdrawn

    def match(self) -> list[LeasedJob]:
        """Give ready jobs to those who wait; each has to be told once that is written."""
        if self._refusals:
            return self._match_choosing()
        given = []
        while self._ready and self._takers:
            held = self._jobs[self._ready[0]]
            heapq.heappop(self._ready)
            given.append(self._give(held, self._takers.popleft()))
        return given

    def _give(self, held: _Held, taker: JobConsumer) -> LeasedJob:
        """Give a ready job, which no heap has any more, to a taker."""
        held.attempt += 1
        held.token, held.visible, held.until = taker.token, taker.visible, None
        self._tokens[taker.token] = held.number
        self._change(held, JobStatus.TAKEN)
        given = LeasedJob(taker, held.number, held.attempt, held.body or "")
        if self._bytes >= BYTES_LIMIT:
            self._shed(held)
        return given

    def _shed(self, held: _Held) -> None:
        """Keep a job in memory without its body."""
        self._bytes -= len(held.body or "")
        held.body = None

    # --- jobs that some takers cannot read ---

    @property
    def refused(self) -> int:
        """How many ready jobs in memory some node refuses."""
        return sum(map(len, self._aside.values()))

    def refuse(
        self, number: int, token: str, names: Iterable[str], now: float, reason: str = ""
    ) -> bool:
        """Give back a job that its taker cannot read; False if it is another's, or gone.

        It counts no attempt, and takers of that node get neither this job nor others with
        these types for a while.

        Args:
            number: of the job.
            token: of the taking.
            names: of the types that the taker's program lacks; none if only this job is bad.
            now: the owner's clock.
            reason: why, for people.
        """
        held = self._taken(number, token)
        if held is None:
            return False
        refusals = self._refusals.setdefault(node_of(token), _Refusals())
        if refusals.until <= now:
            refusals.period = min(2 * refusals.period, LONGEST_REFUSED_SECONDS)
            refusals.until = now + refusals.period
        lacking = self._names(held).intersection(names)
        if lacking and len(refusals.names) < MISSING_LIMIT:
            refusals.names |= lacking
        else:
            refusals.numbers.add(number)
        held.attempt -= 1
        self._make_ready(held, reason=reason[:REASON_LIMIT])
        return True

    @staticmethod
    def _names(held: _Held) -> frozenset[str]:
        """Return the names of the types in a job."""
        if held.names is None and held.body is not None:
            held.names = frozenset(map(_unescaped, _TYPE_NAMES.findall(held.body)))
        return held.names or frozenset()

    def _refusing(self, held: _Held) -> frozenset[str]:
        """Return the nodes that refuse a job."""
        names = self._names(held)
        return frozenset(
            node
            for node, each in self._refusals.items()
            if held.number in each.numbers or not each.names.isdisjoint(names)
        )

    def _match_choosing(self) -> list[LeasedJob]:
        """Give to each who waits the first ready job that its node does not refuse."""
        given: list[LeasedJob] = []
        waiting: deque[JobConsumer] = deque()
        without: set[str] = set()
        while self._takers:
            taker = self._takers.popleft()
            node = node_of(taker.token)
            held = None if node in without else self._first_for(node)
            if held is None:
                without.add(node)
                waiting.append(taker)
            else:
                given.append(self._give(held, taker))
        self._takers = waiting
        return given

    def _first_for(self, node: str) -> _Held | None:
        """Take the first ready job that a node does not refuse out of its heap."""
        while True:
            places = [
                (heap[0], nodes)
                for nodes, heap in (*self._aside.items(), (_NOBODY, self._ready))
                if heap and node not in nodes
            ]
            if not places:
                return None
            number, nodes = min(places, key=_first)
            held = self._jobs[number]
            if held.body is None:
                self._read_again(nodes)
                continue
            heap = self._ready if nodes is _NOBODY else self._aside[nodes]
            heapq.heappop(heap)
            if not heap and heap is not self._ready:
                del self._aside[nodes]
            refusing = self._refusing(held)
            if node not in refusing:
                return held
            self._set_aside(held, refusing)

    def _set_aside(self, held: _Held, nodes: frozenset[str]) -> None:
        """Put a ready job among those that some nodes refuse.

        The first ones keep their bodies even where memory has no room. Otherwise a taker that
        can read them would wait for ever behind one that cannot: each read would end here.
        """
        heap = self._aside.setdefault(nodes, [])
        heapq.heappush(heap, held.number)
        if self._bytes >= BYTES_LIMIT and len(heap) > _WITH_BODIES:
            self._shed(held)

    def _read_again(self, nodes: frozenset[str]) -> None:
        """Let the refused jobs be read again that are in memory without their bodies."""
        numbers = self._aside.pop(nodes)
        kept = [number for number in numbers if self._jobs[number].body is not None]
        if kept:
            heapq.heapify(kept)
            self._aside[nodes] = kept
        dropped = {*numbers}.difference(kept)
        for number in dropped:
            self._drop(self._jobs[number])
        if dropped:
            first = min(dropped) - 1
            after = first if self._ready_after is None else self._ready_after
            self._ready_after = min(first, after)

    def _forget_refusals(self, now: float) -> None:
        """Forget what nodes refused a while ago: their programs may be others by now."""
        is_over = False
        for node, refusals in list(self._refusals.items()):
            if refusals.until <= now and (refusals.names or refusals.numbers):
                refusals.names, refusals.numbers, is_over = set(), set(), True
            elif refusals.until + refusals.period <= now:
                del self._refusals[node]
        if is_over:
            self._put_back()

    def _put_back(self) -> None:
        """Let all jobs that were refused be ready as others are."""
        for nodes in list(self._aside):
            self._read_again(nodes)
            self._ready += self._aside.pop(nodes, ())
        heapq.heapify(self._ready)

    @property
    def takers(self) -> int:
        """How many wait for a job."""
        return len(self._takers)

    def let_go(self) -> "deque[JobConsumer]":
        """Return who waits, and forget them."""
        takers, self._takers = self._takers, deque()
        return takers

    def begin(self, number: int, token: str, now: float) -> None:
        """Let a taker's time begin: it was written that it has the job."""
        held = self._taken(number, token)
        if held is not None:
            self._begin(held, now)

    def _begin(self, held: _Held, now: float) -> None:
        """Let a taker's time begin."""
        held.until = now + held.visible
        heapq.heappush(self._ends, (held.until, held.number, held.token))
        if len(self._ends) > 2 * len(self._tokens) + 1024:  # most are of jobs that are done
            lasting = (job for job in self._jobs.values() if job.until is not None)
            self._ends = [(job.until, job.number, job.token) for job in lasting if job.until]
            heapq.heapify(self._ends)

    def acknowledge(self, number: int, token: str) -> bool:
        """Take a job away that was done; False if it is another taker's, or gone."""
        held = self._taken(number, token)
        if held is None:
            return False
        del self._tokens[token]
        self._drop(held)
        self.counts[JobStatus.TAKEN] -= 1
        self.changes.change_job(self.key, number, None)
        return True

    def extend(self, number: int, token: str, visible: float, now: float) -> bool:
        """Let a taker's time begin anew; False if the job is another's, or gone."""
        held = self._taken(number, token)
        if held is None:
            return False
        held.visible = visible
        self._begin(held, now)
        self._write(held)
        return True

    def give_back(
        self, number: int, token: str, *, due_ms: int = 0, reason: str = "", counts: bool = True
    ) -> bool:
        """Give a job to the next taker, at a time; False if it is another's, or gone.

        Args:
            number: of the job.
            token: of the taking.
            due_ms: when it is ready again; 0 for at once.
            reason: why, for people.
            counts: whether it was tried; one that was tried too often is dead.
        """
        held = self._taken(number, token)
        if held is None:
            return False
        if not counts:
            held.attempt -= 1
        self._make_ready(held, due_ms, reason[:REASON_LIMIT], is_tried=counts)
        return True

    def knows(self, number: int) -> bool:
        """Return whether a job is in memory: one that is taken always is."""
        return number in self._jobs

    def _taken(self, number: int, token: str) -> _Held | None:
        """Return the job of a taking that lasts."""
        held = self._jobs.get(number)
        is_so = held is not None and held.status is JobStatus.TAKEN and held.token == token
        return held if is_so else None

    def _make_ready(
        self, held: _Held, due_ms: int = 0, reason: str = "", *, is_tried: bool = False
    ) -> None:
        """Let a job that was taken be ready, delayed or dead."""
        del self._tokens[held.token]
        held.token, held.until, held.visible = "", None, 0.0
        number = held.number
        if is_tried and held.attempt >= self.attempts:
            self._change(held, JobStatus.DEAD, reason)
            self._drop(held)
        elif due_ms:
            held.due_ms = due_ms
            self._change(held, JobStatus.DELAYED, reason)
            if (due_ms, number) <= self._delayed_after and held.body is not None:
                heapq.heappush(self._delayed, (due_ms, number))
            else:
                self._delayed_after = min(self._delayed_after, (due_ms, number - 1))
                self._drop(held)
        else:
            held.due_ms = 0
            self._change(held, JobStatus.READY, reason)
            if held.body is not None:
                heapq.heappush(self._ready, number)
            else:
                after = number if self._ready_after is None else self._ready_after
                self._ready_after = min(after, number - 1)
                self._drop(held)

    def _change(self, held: _Held, status: JobStatus, reason: str = "") -> None:
        """Let a job have another status."""
        self.counts[held.status] -= 1
        self.counts[status] += 1
        held.status = status
        self._write(held, reason)

    def _write(self, held: _Held, reason: str = "") -> None:
        """Write what a job is."""
        due_ms = held.due_ms if held.status is JobStatus.DELAYED else 0
        visible_ms = round(held.visible * 1000)
        state = JobState(held.status, due_ms, held.attempt, held.token, visible_ms, reason)
        self.changes.change_job(self.key, held.number, state)

    def revived(self, count: int, *, is_kept: bool) -> None:
        """Take note that dead jobs were written as ready, or taken away."""
        self.counts[JobStatus.DEAD] -= count
        if is_kept and count:
            self.counts[JobStatus.READY] += count
            self._ready_after = 0

    # --- time ---

    def expire(self, now: float) -> None:
        """Give back the jobs whose takers' time is over, and forget old refusals."""
        if self._refusals:
            self._forget_refusals(now)
        while self._ends and self._ends[0][0] <= now:
            until, number, token = heapq.heappop(self._ends)
            held = self._taken(number, token)
            if held is not None and held.until == until:
                reason = f"its taker had {held.visible:g} s"
                self._make_ready(held, reason=reason, is_tried=True)

    def due(self, now_ms: float) -> None:
        """Let delayed jobs be ready whose time has come; their rows stay as they are."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, number = heapq.heappop(self._delayed)
            held = self._jobs[number]
            self.counts[JobStatus.DELAYED] -= 1
            self.counts[JobStatus.READY] += 1
            held.status, held.due_ms = JobStatus.READY, 0
            heapq.heappush(self._ready, number)

    @property
    def next_end(self) -> float | None:
        """When the next taker's time is over, if it is still the taker."""
        return self._ends[0][0] if self._ends else None

    @property
    def next_due_ms(self) -> float | None:
        """When the next delayed job is ready, or more of them have to be read."""
        if self.counts[JobStatus.DELAYED] > len(self._delayed):
            more = self._delayed_after[0] - WINDOW_MS / 2
            return min(more, self._delayed[0][0]) if self._delayed else more
        return self._delayed[0][0] if self._delayed else None

    # --- nodes ---

    @property
    def nodes(self) -> set[str]:
        """The nodes of those who wait or have a job."""
        tokens = (*self._tokens, *(taker.token for taker in self._takers))
        return {node_of(token) for token in tokens}

    def lose(self, node: str) -> None:
        """Give back all that takers of a node have that is gone."""
        for token, number in list(self._tokens.items()):
            if node_of(token) == node:
                self.give_back(number, token, reason="the node of its taker is gone")
        self._takers = deque(each for each in self._takers if node_of(each.token) != node)
        if self._refusals.pop(node, None) is not None:
            self._put_back()


def _unescaped(name: str) -> str:
    """Return the name that stands in JSON."""
    return str(json.loads(f'"{name}"')) if "\\" in name else name


def node_of(token: str) -> str:
    """Return the node that a token names."""
    return token.partition("/")[0]
