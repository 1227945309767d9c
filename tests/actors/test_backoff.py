"""Pauses between attempts that fail."""

import random

from callboard.actors.backoff import JITTER, Backoff


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
