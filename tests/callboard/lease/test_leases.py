"""Leases: who is valid, who may be killed, what gaps and lost answers do."""

import random
import threading

import pytest

from callboard.lease.driver import LeaseDriver, LeaseNews, LeaseThread
from callboard.lease.errors import LeaseLost, StateUnavailable
from callboard.lease.leases import LeaseValue, MemoryLeases, Versioned
from callboard.lease.machine.lease_machine import (
    Effect,
    HolderGone,
    LeaseExpired,
    LeaseHeld,
    LeaseKilled,
    LeaseMachine,
    ReadLease,
    WriteLease,
)
from tests.polling import eventually


class Life:
    """A machine with its register, at a time that the test sets; answers take no time."""

    def __init__(self, leases: MemoryLeases, writer: str) -> None:
        self.leases, self.machine = leases, LeaseMachine(writer)
        self.news: list[Effect] = []
        self.lose_answer = self.is_cut = False

    @property
    def gone(self) -> list[str]:
        return [each.writer for each in self.news if isinstance(each, HolderGone)]

    def tick(self, now: float) -> None:
        self.carry_out(self.machine.tick(now), now)

    def carry_out(self, effects: list[Effect], now: float) -> None:
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, ReadLease):
                answer = None if self.is_cut else self.leases.read(effect.name)
                effects += self.machine.read_done(effect.name, now, now, answer)
            elif isinstance(effect, WriteLease):
                done: bool | None = None
                if not self.is_cut:
                    done = self.leases.write(effect.name, effect.value, effect.expected_version)
                    done = None if self.lose_answer else done
                effects += self.machine.write_done(effect.name, now, now, is_written=done)
            else:
                self.news.append(effect)


@pytest.fixture
def pair() -> tuple[Life, Life]:
    leases = MemoryLeases()
    one, other = Life(leases, "a"), Life(leases, "b")
    other.machine.watch({"a"})
    return one, other


def test_a_lease_lasts_from_when_its_raise_was_sent() -> None:
    machine = LeaseMachine("a")
    (write,) = machine.tick(10.0)
    assert write == WriteLease("lease/a", LeaseValue("a", 1, "held"), 0)
    assert machine.write_done("lease/a", 10.0, 11.0, is_written=True) == [LeaseHeld(1)]
    assert machine.is_valid(11.89)
    assert not machine.is_valid(11.91)


def test_a_raise_whose_answer_comes_too_late_is_no_lease() -> None:
    machine = LeaseMachine("a")
    machine.tick(10.0)
    assert machine.write_done("lease/a", 10.0, 12.0, is_written=True) == []
    assert not machine.is_valid(12.0)


def test_a_silent_holder_is_killed_after_ttl_and_drift(pair: tuple[Life, Life]) -> None:
    one, other = pair
    one.tick(0.0)
    for quarter in range(6):
        other.tick(quarter * 0.4)
    assert other.gone == []
    assert not one.machine.is_valid(2.0)
    other.tick(2.1)
    assert other.gone == ["a"]
    one.tick(2.2)
    assert one.news[-1] == LeaseKilled("b")
    assert not one.machine.is_valid(2.3)


def test_a_gap_in_ones_own_reads_begins_the_count_again(pair: tuple[Life, Life]) -> None:
    one, other = pair
    one.tick(0.0)
    other.tick(0.0)
    other.is_cut = True
    for quarter in range(1, 20):
        other.tick(quarter * 0.5)
    other.is_cut = False
    other.tick(10.0)
    assert other.gone == []
    one.tick(10.1)
    other.tick(10.5)
    assert other.gone == []
    assert other.machine.risen() == {"a": 10.5}
    assert one.machine.is_valid(11.0)


def test_an_answer_that_was_lost_is_settled_by_reading(pair: tuple[Life, Life]) -> None:
    one, _ = pair
    one.lose_answer = True
    one.tick(0.0)
    assert one.news == [LeaseHeld(1)]
    one.tick(0.5)
    assert one.machine.is_valid(2.3)


def test_an_expired_lease_that_nobody_killed_is_held_again(pair: tuple[Life, Life]) -> None:
    one, _ = pair
    one.tick(0.0)
    one.tick(5.0)
    assert one.news == [LeaseHeld(1), LeaseExpired(pytest.approx(3.1)), LeaseHeld(1)]


def test_who_released_is_gone_at_once(pair: tuple[Life, Life]) -> None:
    one, other = pair
    one.tick(0.0)
    one.carry_out(one.machine.release(), 0.1)
    other.tick(0.2)
    assert other.gone == ["a"]
    assert other.news[-1] == HolderGone("a", 2)


def test_who_was_killed_begins_another_term_beyond_the_kill(pair: tuple[Life, Life]) -> None:
    one, other = pair
    one.tick(0.0)
    other.tick(0.0)
    for quarter in range(1, 6):
        other.tick(quarter * 0.5)
    killed = other.news[-1]
    one.tick(2.6)
    one.tick(2.7)
    assert one.news[-1] == LeaseKilled("b")
    assert not one.machine.is_valid(2.7)
    one.machine.begin_anew()
    one.tick(2.8)
    begun = one.news[-1]
    assert isinstance(killed, HolderGone)
    assert isinstance(begun, LeaseHeld)
    assert begun.term > killed.number
    assert one.machine.is_valid(2.8)
    other.tick(2.9)
    assert other.news[-1] == killed


def test_a_lease_whose_value_was_removed_is_over(pair: tuple[Life, Life]) -> None:
    """By an operator, behind the kill: the holder was stopped and has not seen that."""
    one, other = pair
    one.tick(0.0)
    for quarter in range(6):
        other.tick(quarter * 0.5)
    assert other.gone == ["a"]
    del one.leases._values["lease/a"]
    one.tick(2.6)
    one.tick(2.7)
    assert one.news[-1] == LeaseKilled("")
    assert not one.machine.is_valid(2.7)
    one.machine.begin_anew()
    one.tick(2.8)
    begun = one.news[-1]
    assert isinstance(begun, LeaseHeld)
    assert begun.term > 1
    assert one.machine.is_valid(2.8)


def test_it_is_known_when_a_silent_holder_may_be_killed(pair: tuple[Life, Life]) -> None:
    one, other = pair
    one.tick(0.0)
    other.tick(0.1)
    assert other.machine.silent_at(0.1) == pytest.approx(2.2)
    assert one.machine.silent_at(0.1) == float("inf")


@pytest.mark.parametrize("removed", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(30))
def test_nobody_is_valid_when_another_believes_it_gone(seed: int, removed: float) -> None:
    """Clocks that are wrong by up to 5 %, pauses, slow and lost answers; values removed."""
    rng, leases = random.Random(seed), MemoryLeases()
    machines = [LeaseMachine(name) for name in "abc"]
    rates = [rng.uniform(0.955, 1.045) for _ in machines]
    for machine in machines:
        machine.watch({"a", "b", "c"})
    gone: set[str] = set()
    due: list[tuple[float, int, object]] = [(0.01 * n, n, None) for n in range(3)]
    while due and (event := min(due, key=lambda each: each[:2]))[0] < 60.0:
        due.remove(event)
        at, n, answered = event
        machine, now = machines[n], at * rates[n]
        if removed and rng.random() < removed:
            leases._values.pop(f"lease/{rng.choice('abc')}", None)
        effects = machine.tick(now) if answered is None else answered(now)  # type: ignore[operator]
        if answered is None:
            pause = rng.uniform(1.0, 6.0) if rng.random() < 0.03 else 0.5
            due.append((at + pause / rates[n], n, None))
        for effect in effects:
            if isinstance(effect, HolderGone):
                gone.add(effect.writer)
            elif isinstance(effect, ReadLease | WriteLease):
                due.append(_answer(rng, leases, machine, effect, at, now, n))
        for writer in gone:
            number = "abc".index(writer)
            assert not machines[number].is_valid(at * rates[number]), f"at {at}"
    assert due


def _answer(
    rng: random.Random, leases: MemoryLeases, machine: LeaseMachine, effect: Effect,
    at: float, now: float, n: int,
) -> tuple[float, int, object]:  # fmt: skip
    """Carry an effect out at once; its answer comes later, or never."""
    later = at + rng.choice((0.001, 0.01, 0.3, 1.5))
    is_lost = rng.random() < 0.05
    if isinstance(effect, ReadLease):
        answer: Versioned | None = None if is_lost else leases.read(effect.name)
        return later, n, lambda then: machine.read_done(effect.name, now, then, answer)
    assert isinstance(effect, WriteLease)
    done: bool | None = leases.write(effect.name, effect.value, effect.expected_version)
    if is_lost:
        done = None
    return later, n, lambda then: machine.write_done(effect.name, now, then, is_written=done)


def test_drivers_hold_watch_and_release() -> None:
    leases, news = MemoryLeases(), {"a": list[LeaseNews](), "b": list[LeaseNews]()}
    drivers = {
        name: LeaseDriver(
            LeaseThread(leases, name), LeaseMachine(name, ttl=1.0), news[name].append
        )
        for name in "ab"
    }
    for driver in drivers.values():
        driver.start()
    drivers["b"].watch({"a"})
    assert eventually(drivers["a"].is_valid)
    assert eventually(lambda: drivers["b"].risen() == {"a"})
    drivers["a"].close()
    assert eventually(lambda: any(isinstance(each, HolderGone) for each in news["b"]))
    drivers["b"].close()
    assert not drivers["b"].is_valid()


def test_a_lease_that_is_lost_names_the_handler_that_ran() -> None:
    times, lost = [0.0], threading.Event()
    news: list[LeaseNews] = []

    def tell(told: LeaseNews) -> None:
        news.append(told)
        if isinstance(told, LeaseLost):
            lost.set()

    driver = LeaseDriver(
        LeaseThread(MemoryLeases(), "a", lambda: times[0]), LeaseMachine("a", ttl=0.2), tell,
        running=lambda: "Cart.on_add",
    )  # fmt: skip
    driver.start()
    assert eventually(lambda: LeaseHeld(1) in news)
    times[0] = 3.0
    driver.watch(set())
    assert lost.wait(30)
    told = next(each for each in news if isinstance(each, LeaseLost))
    assert told.handler == "Cart.on_add"
    assert "Cart.on_add was running" in str(told)
    driver.close()


def test_a_database_that_is_away_loses_the_lease_and_kills_nobody() -> None:
    class Away(MemoryLeases):
        is_away = False

        def read(self, name: str) -> Versioned:
            if self.is_away:
                raise StateUnavailable("away")
            return super().read(name)

        def write(self, name: str, value: LeaseValue, expected_version: int) -> bool:
            if self.is_away:
                raise StateUnavailable("away")
            return super().write(name, value, expected_version)

    leases, news = Away(), list[LeaseNews]()
    drivers = [
        LeaseDriver(LeaseThread(leases, n), LeaseMachine(n, ttl=0.4), news.append) for n in "ab"
    ]
    for number, driver in enumerate(drivers):
        driver.start()
        driver.watch({"ba"[number]})
    assert eventually(lambda: all(driver.is_valid() for driver in drivers))
    leases.is_away = True
    assert eventually(lambda: not any(driver.is_valid() for driver in drivers))
    leases.is_away = False
    assert eventually(lambda: all(driver.is_valid() for driver in drivers))
    assert not [each for each in news if isinstance(each, HolderGone)]
    for driver in drivers:
        driver.close()
