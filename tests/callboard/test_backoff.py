"""Pauses between attempts that fail, and the loops of threads that make them."""

import random
import threading
import time

import pytest

from callboard.backoff import JITTER, Backoff, is_reached, retried, retrying


class Clock:
    """Time that passes only in pauses; the pauses are recorded."""

    def __init__(self):
        self.now = 100.0
        self.pauses = []

    def pause(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "sleep", clock.pause)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_pauses_double_up_to_the_longest():
    backoff = Backoff(0.5, 3.0)

    assert [backoff.next_pause(None) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_success_begins_with_the_first_pause_again():
    backoff = Backoff(0.5, 3.0)
    backoff.next_pause(None)

    backoff.reset()

    assert (backoff.attempts, backoff.next_pause(None)) == (0, 0.5)


def test_jitter_adds_up_to_its_share():
    rng, backoff = random.Random(4), Backoff(1.0, 1.0)

    pauses = [backoff.next_pause(rng) for _ in range(200)]

    assert 1.0 <= min(pauses) < 1.01 + JITTER / 10
    assert 1.0 + 0.9 * JITTER < max(pauses) <= 1.0 + JITTER


def test_a_long_streak_stays_at_the_longest():
    backoff = Backoff(1e-3, 60.0)
    backoff.attempts = 10_000

    assert backoff.next_pause(None) == 60.0


def test_a_fixed_pause_does_not_grow():
    backoff = Backoff.fixed(0.25)

    assert [backoff.next_pause() for _ in range(3)] == [0.25, 0.25, 0.25]


def test_the_next_pause_can_be_read_without_counting_an_attempt():
    backoff = Backoff(1.0, 8.0)
    backoff.next_pause()

    assert (backoff.pause, backoff.pause, backoff.next_pause()) == (2.0, 2.0, 2.0)


def test_the_pauses_between_attempts_are_those_of_the_backoff(clock):
    attempts = retrying(Backoff(1.0, 4.0))

    for _ in range(5):
        next(attempts)

    assert clock.pauses == [1.0, 2.0, 4.0, 4.0]


def test_the_last_pause_ends_with_the_time_limit_and_one_attempt_follows(clock):
    attempts = list(retrying(Backoff(1.0, 4.0), 5.0))

    assert (len(attempts), clock.pauses) == (4, [1.0, 2.0, 2.0])


def test_one_attempt_is_made_without_any_time(clock):
    assert (len(list(retrying(Backoff.fixed(1.0), 0.0))), clock.pauses) == (1, [])


def test_a_long_attempt_uses_up_the_time(clock):
    count = 0
    for _ in retrying(Backoff.fixed(1.0), 5.0):
        count += 1
        clock.now += 7.0

    assert (count, clock.pauses) == (1, [])


def test_an_attempt_may_reset_the_backoff(clock):
    backoff = Backoff(1.0, 8.0)
    for number, _ in enumerate(retrying(backoff)):
        if number == 2:
            backoff.reset()
        if number == 4:
            break

    assert clock.pauses == [1.0, 2.0, 1.0, 2.0]


def test_an_event_ends_the_pause_and_the_loop():
    stop = threading.Event()
    count = 0

    for _ in retrying(Backoff.fixed(60.0), stop=stop):
        count += 1
        stop.set()

    assert count == 1


def test_a_call_is_repeated_until_it_succeeds(clock):
    outcomes = iter([OSError("a"), OSError("b"), 7])

    def attempt():
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    assert retried(attempt, OSError, Backoff(1.0, 4.0), 10.0) == 7
    assert clock.pauses == [1.0, 2.0]


def test_the_last_error_is_raised_when_the_time_is_up(clock):
    def attempt():
        raise OSError(f"at {clock.now}")

    with pytest.raises(OSError, match=r"at 103\.0"):
        retried(attempt, OSError, Backoff(1.0, 4.0), 3.0)


def test_another_error_is_raised_at_once(clock):
    def attempt():
        raise KeyError

    with pytest.raises(KeyError):
        retried(attempt, (OSError, ValueError), Backoff.fixed(1.0), 3.0)
    assert clock.pauses == []


def test_a_condition_is_checked_until_it_is_true(clock):
    values = iter([False, False, True])

    assert is_reached(lambda: next(values), 0.5, 10.0)
    assert clock.pauses == [0.5, 0.5]


def test_a_condition_that_stays_false_is_reported_when_the_time_is_up(clock):
    assert not is_reached(lambda: False, 0.5, 1.2)
    assert clock.pauses == pytest.approx([0.5, 0.5, 0.2])


def test_an_event_ends_the_wait_for_a_condition():
    stop = threading.Event()
    stop.set()

    assert not is_reached(lambda: False, 60.0, stop=stop)
