"""What a second may bring: one bucket, and one of messages beside one of bytes."""

from hypothesis import given
from hypothesis import strategies as st

from callboard.support.token_bucket import TokenBucket, TrafficLimit


def test_a_burst_is_free_and_then_time_is_owed():
    bucket = TokenBucket(10)

    assert bucket.spend(10, 0.0) == 0.0
    assert bucket.spend(5, 0.0) == 0.5
    assert bucket.is_empty(0.25)
    assert bucket.is_empty(0.5)
    assert not bucket.is_empty(0.75)


def test_a_rate_of_0_is_unlimited():
    bucket = TokenBucket(0)

    assert bucket.spend(10**9, 0.0) == 0.0
    assert bucket.allows(0.0)
    assert not bucket.is_empty(0.0)


def test_a_slow_rate_allows_one_at_once():
    bucket = TokenBucket(0.5)

    assert [bucket.allows(now) for now in (0.0, 1.9, 2.0, 3.0)] == [True, False, True, False]


def test_a_burst_is_the_capacity_of_the_bucket():
    bucket = TokenBucket(1, burst=3)

    assert [bucket.allows(100.0) for _ in range(4)] == [True, True, True, False]


def test_the_longer_of_two_debts_counts():
    limit = TrafficLimit(10, 1000)

    assert limit.spend(12, 3000, 0.0) == 2.0


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 20), st.floats(0, 3))))
def test_never_more_than_the_burst_ahead_of_the_rate(rate, reads):
    bucket, now, taken = TokenBucket(rate), 0.0, 0
    for count, idle in reads:
        now += idle
        taken += count
        now += bucket.spend(count, now)

        assert taken <= rate * (now + 1.0) + 1e-6
