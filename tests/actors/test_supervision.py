"""The rules of supervision, without actors: against a model, and in any order of events."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from callboard.actors.supervision.child import Child
from callboard.actors.supervision.rules import STRATEGIES, Phase, Supervision

KINDS = ("permanent", "transient", "temporary")
CLEAN = {"normal", "shutdown"}
REASONS = ("normal", "shutdown", "error", "killed")


class Worker:
    pass


def make(strategy, intensity=(3, 5.0), kinds=("permanent",) * 3, backoff=(0.05, 5.0), seed=0):
    plan = Supervision(strategy, intensity, backoff, random.Random(seed))
    for number, kind in enumerate(kinds):
        plan.add(Child(Worker, restart=kind, name=f"c{number}"))
    return plan


class Settled(RuleBasedStateMachine):
    """Each failure is settled before the next one: a model of 25 lines says who is renewed."""

    @initialize(
        strategy=st.sampled_from(STRATEGIES),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
        limit=st.integers(0, 4),
        seed=st.integers(0, 99),
    )
    def begin(self, strategy, kinds, limit, seed):
        self.strategy, self.limit, self.period = strategy, limit, 5.0
        self.plan = make(strategy, (limit, self.period), kinds, seed=seed)
        self.now, self.refs = 0.0, 0
        self.settle()
        #: name -> [kind, incarnation that runs or None]
        self.model = {
            slot.child.name: [slot.child.restart, slot.ref] for slot in self.plan.slots
        }
        self.times = []
        self.has_given_up = False

    def settle(self):
        while True:
            if (slot := self.plan.next_to_end()) is not None:
                assert self.plan.ended(slot, "shutdown", "", self.now)
            elif (slot := self.plan.next_to_start(self.now)) is not None:
                self.refs += 1
                self.plan.started(slot, self.refs, self.now)
            elif self.plan.next_due is not None and not self.plan.is_closing:
                self.now = max(self.now, self.plan.next_due)
            else:
                return

    @rule(data=st.data(), reason=st.sampled_from(REASONS))
    @precondition(lambda self: not self.has_given_up)
    def fail(self, data, reason):
        running = [slot for slot in self.plan.slots if slot.ref is not None]
        if not running:
            return
        slot = data.draw(st.sampled_from(running))
        before = self.refs
        is_fine = self.plan.ended(slot, reason, "", self.now)
        renewed = self.expect(slot.child.name, reason)
        assert is_fine is (renewed is not None)
        if renewed is None:
            self.has_given_up = True
            self.plan.close()
        self.settle()
        assert self.refs - before == len(renewed or ())
        for number, name in enumerate(renewed or (), before + 1):
            self.model[name][1] = number

    def expect(self, failed, reason):
        """Return the names that are started again, in order; None for giving up."""
        kind = self.model[failed][0]
        self.model[failed][1] = None
        if kind == "temporary" or (kind == "transient" and reason in CLEAN):
            if kind == "temporary":
                del self.model[failed]
            return []
        self.times = [at for at in self.times if at >= self.now - self.period]
        if len(self.times) >= self.limit:
            self.model = {}
            return None
        self.times.append(self.now)
        names = list(self.model)
        first = names.index(failed)
        group = {"one_for_one": [failed], "one_for_all": names, "rest_for_one": names[first:]}
        renewed = group[self.strategy]
        for name in renewed:
            if self.model[name][0] == "temporary":
                del self.model[name]
        return [name for name in renewed if name in self.model]

    @rule(seconds=st.floats(0.0, 6.0))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    @precondition(lambda self: not self.has_given_up and len(self.plan.slots) < 6)
    def add(self):
        slot = self.plan.add(Child(Worker, name=f"added {self.refs}"))
        self.settle()
        self.model[slot.child.name] = ["permanent", slot.ref]

    @rule(data=st.data())
    @precondition(lambda self: not self.has_given_up and self.plan.slots)
    def remove(self, data):
        slot = data.draw(st.sampled_from(self.plan.slots))
        self.plan.remove(slot)
        self.settle()
        del self.model[slot.child.name]

    @invariant()
    def runs_what_the_model_says(self):
        if not hasattr(self, "model"):
            return
        runs = {slot.child.name: slot.ref for slot in self.plan.slots if slot.ref is not None}
        assert runs == {name: ref for name, (_, ref) in self.model.items() if ref is not None}
        assert not self.has_given_up or self.plan.is_over


TestSettled = Settled.TestCase


class AnyOrder(RuleBasedStateMachine):
    """Failures, ends, starts and time in any order: what must hold all the time."""

    @initialize(strategy=st.sampled_from(STRATEGIES), count=st.integers(1, 4))
    def begin(self, strategy, count):
        self.plan = make(strategy, (10_000, 5.0), ("permanent",) * count)
        self.is_grouped = strategy != "one_for_one"
        self.now, self.refs = 0.0, 0
        self.ending = []
        while (slot := self.plan.next_to_start(0.0)) is not None:
            self.start(slot)

    def start(self, slot):
        self.refs += 1
        self.plan.started(slot, self.refs, self.now)

    @rule(data=st.data())
    def fail(self, data):
        alive = [slot for slot in self.plan.slots if slot.ref is not None]
        if alive:
            slot = data.draw(st.sampled_from(alive))
            self.ending = [one for one in self.ending if one is not slot]
            assert self.plan.ended(slot, "error", "", self.now)

    @rule()
    def tell_to_end(self):
        slot = self.plan.next_to_end()
        if slot is not None:
            assert self.ending == []
            assert all(
                later.phase is not Phase.DOOMED
                for later in self.plan.slots[self.plan.slots.index(slot) + 1 :]
            )
            self.ending.append(slot)

    @rule()
    def has_ended(self):
        if self.ending:
            assert self.plan.ended(self.ending.pop(), "shutdown", "", self.now)

    @rule(succeeds=st.booleans(), seconds=st.floats(0.0, 1.0))
    def start_next(self, succeeds, seconds):
        self.now += seconds
        slot = self.plan.next_to_start(self.now)
        if slot is None:
            return
        assert slot.ref is None
        assert slot.due <= self.now
        if self.is_grouped:
            before = self.plan.slots[: self.plan.slots.index(slot)]
            assert all(earlier.phase is Phase.RUNNING for earlier in before)
            assert self.ending == []
        if succeeds:
            self.start(slot)
        else:
            assert self.plan.not_started(slot, "OSError", self.now)

    def teardown(self):
        if not hasattr(self, "plan"):
            return
        for _ in range(100):
            self.has_ended()
            self.tell_to_end()
            self.start_next(succeeds=True, seconds=1.0)
        assert all(slot.phase is Phase.RUNNING for slot in self.plan.slots)


TestAnyOrder = AnyOrder.TestCase


@given(
    limit=st.integers(0, 20),
    period=st.floats(0.1, 60.0),
    first=st.floats(0.0, 10.0),
    longest=st.floats(0.0, 1000.0),
    seed=st.integers(0, 99),
)
def test_a_child_that_always_fails_exceeds_the_intensity_despite_pauses(
    limit, period, first, longest, seed
):
    plan = make("one_for_one", (limit, period), ["permanent"], (first, longest), seed)
    [slot] = plan.slots
    now = 0.0

    for restarts in range(limit + 1):
        slot = plan.next_to_start(now)
        plan.started(slot, restarts, now)
        is_fine = plan.ended(slot, "error", "", now)
        assert is_fine is (restarts < limit)
        now = plan.next_due if is_fine else now


def test_pauses_grow_from_none_to_the_longest_with_some_chance_in_them():
    plan = make("one_for_one", (1000, 1e9), ["permanent"], (0.1, 1.0))
    [slot] = plan.slots
    now, pauses = 0.0, []

    for ref in range(8):
        plan.started(plan.next_to_start(now), ref, now)
        assert plan.ended(slot, "error", "", now)
        pauses.append(plan.next_due - now)
        now = plan.next_due

    assert pauses[0] == 0.0
    for pause, least in zip(pauses[1:], [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
        assert least - 1e-6 <= pause <= 1.5 * least + 1e-6
    assert len(set(pauses)) == len(pauses)


def test_a_child_that_ran_for_long_starts_again_at_once():
    plan = make("one_for_one", (5, 10.0), ["permanent"])
    [slot] = plan.slots
    for now in (0.0, 1.0, 20.0):
        plan.started(plan.next_to_start(1e9), 1, now)
        assert plan.ended(slot, "error", "", now + (0.5 if now < 20 else 11.0))

    assert plan.next_due == 31.0


def test_a_removed_child_that_is_down_is_gone_at_once():
    plan = make("one_for_one", kinds=["permanent"])

    assert plan.remove(plan.slots[0])
    assert plan.slots == []


def test_a_start_on_another_node_that_comes_too_late_is_ended():
    plan = make("one_for_all", kinds=["permanent", "permanent"])
    first, second = plan.slots
    plan.started(first, 1, 0.0)
    second.phase = Phase.STARTING

    assert plan.ended(first, "error", "", 0.0)
    assert plan.next_to_end() is None
    assert plan.next_to_start(9.0) is None
    plan.started(second, 2, 0.0)

    assert plan.next_to_end() is second
    assert plan.ended(second, "shutdown", "", 0.0)
    assert plan.next_to_start(9.0) is first


def test_an_unknown_strategy_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="one_for_one, one_for_all, rest_for_one"):
        make("all_for_none")
