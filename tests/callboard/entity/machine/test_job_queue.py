"""The machine of work queues against a model of few lines, over rows that are kept."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from callboard.entity.machine import job_queue
from callboard.entity.machine.job_queue import JobConsumer, JobQueue, node_of
from callboard.entity.state.interface import JobStatus, RowChanges
from callboard.entity.state.memory import MemoryState, MemoryTables
from tests.callboard.entity.state.test_conformance import of_slot

ATTEMPTS, LIMIT = 3, 30


class QueueRules(RuleBasedStateMachine):
    """Producers, takers, time, owners that change; every change is kept at once."""

    @initialize()
    def begin(self) -> None:
        self.tables = MemoryTables()
        self.now = 100.0
        self.state = MemoryState("a", self.tables, lambda: int(self.now * 1000))
        self.state.claim("Cart", {1: 1})
        self.number = self.token = 0
        #: Of each job: how often it was taken, when it may be handed out, and by whom it is
        #: had until when.
        self.attempts: dict[int, int] = {}
        self.since: dict[int, float] = {}
        self.held: dict[int, tuple[str, float]] = {}
        self.visible: dict[str, float] = {}
        self.waiting: list[str] = []
        self.dead: set[int] = set()
        self.over: list[tuple[int, str]] = []
        self.own()

    def own(self) -> None:
        """Begin with what is kept, as the next owner does."""
        self.jobs = JobQueue("q", ATTEMPTS, LIMIT)
        counts = Counter(self.state.job_counts("Cart", "q"))
        taken = self.state.jobs("Cart", "q", JobStatus.TAKEN)
        self.jobs.load(counts, taken, self.now)
        self.held = {n: (t, self.now + self.visible[t]) for n, (t, _) in self.held.items()}
        self.waiting = []
        self.settle()

    def settle(self) -> None:
        """Write what changed, hand over what is ready, read what is wanted."""
        while True:
            given = self.jobs.match()
            changes, self.jobs.changes = self.jobs.changes, RowChanges()
            if changes.jobs:
                assert self.state.commit([of_slot(1, changes)]).failed == {}
            for each in given:
                assert each.taker.token == self.waiting.pop(0), "the first comes first"
                assert each.number not in self.held, "another taker has it"
                assert self.since[each.number] <= self.now, "it is not ready yet"
                self.attempts[each.number] += 1
                assert each.attempt == self.attempts[each.number]
                assert each.body == f"{each.number}"
                token = each.taker.token
                self.jobs.begin(each.number, token, self.now)
                self.held[each.number] = token, self.now + each.taker.visible
            wants = self.jobs.wants(self.now * 1000)
            if wants is None:
                return
            limit = job_queue.READ_LIMIT
            if wants.ready_after is not None:
                after = (0, wants.ready_after)
                found = self.state.jobs("Cart", "q", JobStatus.READY, after, limit)
                self.jobs.read_ready(found)
            if wants.delayed_after is not None:
                after = wants.delayed_after
                found = self.state.jobs("Cart", "q", JobStatus.DELAYED, after, limit)
                self.jobs.read_delayed(found, self.now * 1000)
            self.jobs.due(self.now * 1000)

    def fails(self, number: int, delay: float = 0.0) -> None:
        """A taker gives a job up."""
        token, _ = self.held.pop(number)
        self.over.append((number, token))
        self.since[number] = self.now + delay
        if self.attempts[number] >= ATTEMPTS:
            self.dead.add(number)

    @rule(delay=st.sampled_from((0.0, 0.0, 1.0, 100.0)), count=st.integers(1, 5))
    def put(self, delay: float, count: int) -> None:
        for _ in range(min(count, self.jobs.room)):
            self.number += 1
            self.attempts[self.number] = 0
            self.since[self.number] = self.now + delay
            due_ms = int((self.now + delay) * 1000) if delay else 0
            self.jobs.put(self.number, f"{self.number}", due_ms)
        self.settle()

    @rule(visible=st.sampled_from((1.0, 5.0)), node=st.sampled_from("xy"))
    def take(self, visible: float, node: str) -> None:
        self.token += 1
        token = f"{node}/{self.token}"
        self.visible[token] = visible
        self.waiting.append(token)
        assert self.jobs.add_taker(JobConsumer(token, visible, None))
        self.settle()

    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        if self.held:
            number = data.draw(st.sampled_from(sorted(self.held)))
            token, _ = self.held.pop(number)
            assert self.jobs.acknowledge(number, token)
            del self.attempts[number], self.since[number]
            self.over.append((number, token))
        self.settle()

    @rule(data=st.data(), delay=st.sampled_from((0.0, 2.0)))
    def give_back(self, data: Any, delay: float) -> None:
        if self.held:
            number = data.draw(st.sampled_from(sorted(self.held)))
            token, _ = self.held[number]
            due_ms = int((self.now + delay) * 1000) if delay else 0
            assert self.jobs.give_back(number, token, due_ms=due_ms, reason="r")
            self.fails(number, delay)
        self.settle()

    @rule(data=st.data())
    def come_late(self, data: Any) -> None:
        if self.over:
            number, token = data.draw(st.sampled_from(self.over))
            assert not self.jobs.acknowledge(number, token)
            assert not self.jobs.give_back(number, token)
            assert not self.jobs.extend(number, token, 5.0, self.now)
        self.settle()

    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        if self.waiting:
            token = data.draw(st.sampled_from(self.waiting))
            self.waiting.remove(token)
            self.jobs.withdraw(token)
        self.settle()

    @rule(node=st.sampled_from("xy"))
    def lose_node(self, node: str) -> None:
        self.jobs.lose(node)
        self.waiting = [token for token in self.waiting if node_of(token) != node]
        for number in [n for n, (token, _) in self.held.items() if node_of(token) == node]:
            self.fails(number)
        self.settle()

    @rule(seconds=st.sampled_from((0.5, 2.0, 70.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for number in [n for n, (_, until) in self.held.items() if until <= self.now]:
            self.fails(number)
        self.jobs.expire(self.now)
        self.jobs.due(self.now * 1000)
        self.settle()

    @rule()
    def change_owner(self) -> None:
        self.own()

    @invariant()
    def what_is_ready_is_had_by_who_waits(self) -> None:
        ready = [
            number
            for number in self.attempts
            if number not in self.held
            and number not in self.dead
            and self.since[number] <= self.now
        ]
        assert not (ready and self.waiting), "a taker waits beside a job"

    @invariant()
    def all_is_counted(self) -> None:
        counts = self.jobs.counts
        assert counts.total() == len(self.attempts)
        assert counts[JobStatus.TAKEN] == len(self.held)
        assert counts[JobStatus.DEAD] == len(self.dead)
        assert min(counts.values(), default=0) >= 0


@pytest.fixture(params=[4, 1000])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory hold few jobs, or all."""
    monkeypatch.setattr(job_queue, "HELD_LIMIT", request.param)
    monkeypatch.setattr(job_queue, "READ_LIMIT", max(2, request.param // 2))


@pytest.mark.usefixtures("memory")
def test_every_job_is_handed_out_until_it_is_acknowledged() -> None:
    rules = type("Rules", (QueueRules,), {})
    case = rules.TestCase
    case.settings = settings(case.settings, deadline=None, stateful_step_count=40)
    case().runTest()


def test_what_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: a taking that is never written is handed out twice."""
    monkeypatch.setattr(JobQueue, "_write", lambda *_: None)
    case = type("Rules", (QueueRules,), {}).TestCase
    case.settings = settings(
        deadline=None, max_examples=3_000, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises(AssertionError):
        case().runTest()


#: The types that the program of each node lacks.
LACKS = {"old": {"t1", "t2"}, "older": {"t0", "t1", "t2"}, "new": set[str]()}


class Readers:
    """Takers of programs that lack types, and the rows of a queue."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.state = MemoryState("a", self.tables, lambda: 0)
        self.state.claim("Cart", {1: 1})
        self.jobs = JobQueue("q", ATTEMPTS, 1 << 20)
        self.jobs.load(Counter(), (), 0.0)
        self.number = self.token = self.refused = 0
        self.waiting: list[str] = []
        self.given: list[tuple[str, int, int]] = []

    def put(self, kind: int, pad: str = "") -> None:
        self.number += 1
        self.jobs.put(self.number, f'{{"$type":"t{kind}","n":{self.number}{pad}}}')

    def take(self, node: str) -> None:
        self.token += 1
        token = f"{node}/{self.token}"
        self.waiting.append(token)
        assert self.jobs.add_taker(JobConsumer(token, 5.0, None))

    def write(self) -> None:
        changes, self.jobs.changes = self.jobs.changes, RowChanges()
        if changes.jobs:
            assert self.state.commit([of_slot(1, changes)]).failed == {}

    def settle(self, now: float = 0.0) -> None:
        """Write, hand over and read as an owner does; what cannot be read is refused."""
        while True:
            given = self.jobs.match()
            self.write()
            for each in given:
                token = each.taker.token
                node = node_of(token)
                name = each.body[10:12]
                if name in LACKS[node]:
                    self.refused += 1
                    assert self.jobs.refuse(each.number, token, [name], now)
                    assert self.jobs.add_taker(each.taker)
                else:
                    self.waiting.remove(token)
                    self.given.append((node, each.number, each.attempt))
                    assert self.jobs.acknowledge(each.number, token)
            self.write()
            wants = self.jobs.wants(0)
            if wants is None and not given:
                return
            if wants is not None:
                assert wants.ready_after is not None
                after = (0, wants.ready_after)
                found = self.state.jobs(
                    "Cart", "q", JobStatus.READY, after, job_queue.READ_LIMIT
                )
                self.jobs.read_ready(found)


_STEPS = st.lists(
    st.one_of(st.integers(0, 2), st.sampled_from(sorted(LACKS))), min_size=1, max_size=60
)


@pytest.mark.parametrize("room", [1, 1 << 20])
@given(steps=_STEPS)
def test_takers_get_what_their_programs_can_read_and_nothing_else_waits(
    room: int, steps: list[int | str]
) -> None:
    kinds: dict[int, str] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_queue, "BYTES_LIMIT", room)
        patched.setattr(job_queue, "_WITH_BODIES", 2)
        readers = Readers()
        for step in steps:
            if isinstance(step, int):
                readers.put(step)
                kinds[readers.number] = f"t{step}"
            else:
                readers.take(step)
            readers.settle()
        done = {number for _, number, _ in readers.given}
        left = {kinds[number] for number in kinds.keys() - done}
        for token in readers.waiting:
            assert left <= LACKS[node_of(token)], "a job waits for one who can read it"
        assert {attempt for *_, attempt in readers.given} <= {1}, "a refusal is no attempt"
        # Each node is asked once for each type, unless memory had no room for its jobs.
        assert readers.refused <= 5 or room == 1
        assert readers.jobs.counts[JobStatus.READY] == len(kinds) - len(done)
        for _ in kinds.keys() - done:
            readers.take("new")
        readers.settle()
        assert {number for _, number, _ in readers.given} == set(kinds)


def test_jobs_that_no_taker_reads_delay_none_behind_them() -> None:
    readers = Readers()
    for _ in range(10_000):
        readers.put(1)
    readers.put(0)
    readers.take("old")
    readers.settle()
    assert readers.given == [("old", 10_001, 1)]
    assert readers.refused == 1


def test_a_taker_that_reads_what_memory_had_no_room_for_gets_it_behind_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_queue, "BYTES_LIMIT", 10_000)
    readers = Readers()
    for _ in range(1000):
        readers.put(1, ',"x":"' + "x" * 100 + '"')
    for _ in range(1000):
        readers.take("old")
        readers.take("new")
    readers.settle()
    assert sorted(number for _, number, _ in readers.given) == list(range(1, 1001))


def test_what_a_node_refused_is_offered_to_it_again_after_a_while() -> None:
    readers = Readers()
    readers.put(1)
    readers.take("old")
    readers.settle()
    assert readers.refused == 1
    for now, refused in ((29.0, 1), (31.0, 2), (60.0, 2), (95.0, 3), (96.0, 3)):
        readers.jobs.expire(now)
        readers.settle(now)
        assert readers.refused == refused, now


def test_a_job_that_alone_cannot_be_read_costs_a_node_no_other_job() -> None:
    readers = Readers()
    for _ in range(2):
        readers.put(0)
    readers.jobs.add_taker(JobConsumer("new/1", 5.0, None))
    readers.jobs.add_taker(JobConsumer("new/2", 5.0, None))
    first, second = readers.jobs.match()
    assert readers.jobs.refuse(first.number, "new/1", [], 0.0)
    assert readers.jobs.give_back(second.number, "new/2")
    readers.jobs.add_taker(JobConsumer("new/3", 5.0, None))
    assert [each.number for each in readers.jobs.match()] == [second.number]
    readers.jobs.add_taker(JobConsumer("old/1", 5.0, None))
    assert [(each.number, each.attempt) for each in readers.jobs.match()] == [(1, 1)]
    assert not readers.jobs.refuse(1, "new/1", [], 0.0), "it is another's"
