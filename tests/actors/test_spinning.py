"""A runner polls on for a moment before it sleeps where that has paid, and only there."""

import pytest

from callboard.actors.runner import spinning
from callboard.actors.runner.spinning import (
    ANSWER_SPIN_SECONDS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    SPIN_SECONDS,
    TURN_SECONDS,
    AdaptivePoll,
)

SHORT = SPIN_SECONDS / 2
LONG = 10.0
FOUND = [("key", 1)]


class World:
    """A clock, and a selector that finds something at a time that the test sets."""

    def __init__(self):
        self.time = 0.0
        self.comes_at = 0.0
        self.timeouts = []
        self.patience = AdaptivePoll(lambda: self.time)

    def select(self, timeout):
        self.timeouts.append(timeout)
        self.time += 1e-6
        if timeout:
            self.time = max(self.time, min(self.comes_at, self.time + timeout))
        return FOUND if self.time >= self.comes_at else []

    def wait(self, seconds, *, busy=1e-6, timeout=LONG):
        """Be busy, then wait for what comes so many seconds later; return the timeouts used."""
        self.time += busy
        self.comes_at = self.time + seconds
        self.timeouts.clear()
        assert self.patience.select(self, timeout) == (FOUND if seconds < timeout else [])
        return list(self.timeouts)

    def sleeps(self, seconds, **how):
        return self.wait(seconds, **how) == [how.get("timeout", LONG)]


@pytest.fixture
def world():
    return World()


def test_a_node_that_hears_something_now_and_then_sleeps_at_once(world):
    assert all(world.sleeps(0.001) for _ in range(100))


def test_after_a_short_wait_the_next_one_is_spent_awake(world):
    assert world.sleeps(SHORT)
    assert set(world.wait(SHORT)) == {0.0}
    assert set(world.wait(SHORT)) == {0.0}


def test_the_runner_sleeps_for_late_events(world):
    world.wait(SHORT)

    *awake, last = world.wait(0.001)

    assert set(awake) == {0.0}
    assert last == LONG
    assert len(awake) * 1e-6 == pytest.approx(SPIN_SECONDS, rel=0.1)
    assert world.sleeps(0.001)


def test_an_answer_is_waited_for_longer(world):
    for _ in range(2):
        world.patience.has_sent = True
        awake = world.wait(ANSWER_SPIN_SECONDS / 2)

    assert set(awake) == {0.0}


def test_the_runner_spins_longer_only_for_an_answer(world):
    assert all(world.sleeps(ANSWER_SPIN_SECONDS / 2) for _ in range(100))


def test_a_sent_message_lengthens_one_spin(world):
    world.wait(SHORT)
    world.patience.has_sent = True
    world.wait(SHORT)

    assert world.wait(ANSWER_SPIN_SECONDS / 2)[-1] == LONG


def test_each_spin_without_an_event_doubles_the_waits_without_spinning(world):
    world.wait(SHORT)
    pause = 0
    for _ in range(12):
        world.wait(0.001)
        pause = min(2 * pause + FIRST_PAUSE, LONGEST_PAUSE)
        assert all(world.sleeps(SHORT) for _ in range(pause + 1))

    assert pause == LONGEST_PAUSE


def test_polling_that_pays_again_is_soon_done_each_time(world):
    world.wait(SHORT)
    for _ in range(12):
        world.wait(0.001)
        while world.sleeps(SHORT):
            pass
    for _ in range(LONGEST_PAUSE.bit_length()):
        assert not world.sleeps(SHORT)

    world.wait(0.001)

    assert all(world.sleeps(SHORT) for _ in range(FIRST_PAUSE + 1))
    assert not world.sleeps(SHORT)


def test_an_event_at_the_first_poll_does_not_count_as_a_short_wait(world):
    world.wait(SHORT)
    pause = 0
    for _ in range(12):
        assert not world.sleeps(0.0)
        world.wait(0.001)
        pause = min(2 * pause + FIRST_PAUSE, LONGEST_PAUSE)
        assert all(world.sleeps(SHORT) for _ in range(pause + 1))


def test_the_runner_yields_between_two_polls(world, monkeypatch):
    yielded_at = []
    monkeypatch.setattr(spinning, "_yield_processor", lambda: yielded_at.append(world.time))
    world.wait(SHORT)

    assert not yielded_at
    looks = len(world.wait(SHORT))

    assert len(set(yielded_at)) == len(yielded_at) == looks - 1


def test_a_turn_that_took_long_is_followed_by_sleep(world):
    world.wait(SHORT)

    assert not world.sleeps(SHORT, busy=TURN_SECONDS / 2)
    assert world.sleeps(SHORT, busy=2 * TURN_SECONDS)


def test_a_poll_that_may_not_wait_is_one_poll(world):
    world.wait(SHORT)

    assert world.sleeps(0.001, timeout=0.0)
    assert world.sleeps(0.001, timeout=SHORT)
