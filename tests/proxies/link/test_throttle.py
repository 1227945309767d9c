"""What one link may bring in a second: the bucket alone, and nodes that use it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Limits
from callboard.proxies.link.limits import LEAST_READ, Throttle
from tests.proxies.cast import Echo, Sink, Size, connect, eventually, settled


def test_a_second_of_messages_is_free_and_then_time_is_owed():
    throttle = Throttle(10, 0, now=0.0, read_size=65536)

    assert throttle.take(10, 10**9, 0.0) == 0.0
    assert throttle.take(5, 0, 0.0) == 0.5
    assert throttle.take(0, 0, 0.5) == 0.0
    assert throttle.take(5, 0, 1.0) == 0.0


def test_what_is_not_used_is_kept_for_a_second_only():
    throttle = Throttle(0, 1000, now=0.0, read_size=65536)

    assert throttle.take(10**9, 1500, 100.0) == 0.5


def test_the_longer_of_two_pauses_counts():
    throttle = Throttle(10, 1000, now=0.0, read_size=65536)

    assert throttle.take(12, 3000, 0.0) == 2.0


@pytest.mark.parametrize(
    ("messages", "octets", "size"),
    [(0, 0, 65536), (1, 0, LEAST_READ), (0, 2000, 1000), (1000, 2000, 1000), (20, 10**9, 600)],
)
def test_a_read_takes_half_a_second_at_most(messages, octets, size):
    assert Throttle(messages, octets, now=0.0, read_size=65536).read_size == size


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 20), st.floats(0, 3)), min_size=1, max_size=50),
)
def test_never_more_than_a_second_ahead_of_the_rate(rate, reads):
    """However reads come: who waits as told has had rate * time plus one second's worth."""
    throttle = Throttle(rate, 0, now=0.0, read_size=65536)
    now, taken = 0.0, 0
    for count, idle in reads:
        now += idle
        taken += count
        now += throttle.take(count, 0, now)
        assert taken <= rate * (now + 1.0) + 1e-6


@pytest.mark.slow
def test_a_flood_waits_at_its_sender_and_nothing_is_lost(make_node):
    a, b = make_node("a", limits=Limits(messages_per_second=200)), make_node("b")
    connect(b, a)
    a.register("sink", a.spawn(Sink))
    sink = b.remote_actor(a.address + "/sink")
    began = time.monotonic()

    for number in range(500):
        sink.tell(number)

    assert sink.ask(Size(), timeout=20).result(20) == 500
    assert time.monotonic() - began > 0.7  # a second is free
    assert sink.call(Sink.everything).result(20) == list(range(500))
    assert a.stats().pauses > 0
    assert a.links()[0].pauses == a.stats().pauses
    assert b.stats().pauses == 0
    settled(a, b)


def test_large_messages_come_at_the_rate_of_bytes_and_the_link_lives(make_node):
    a, b = make_node("a", limits=Limits(bytes_per_second=300_000)), make_node("b")
    connect(b, a)
    a.register("echo", a.spawn(Echo))
    echo = b.remote_actor(a.address + "/echo")
    began = time.monotonic()

    assert echo.ask(bytes(700_000), timeout=20).result(20) == 700_000

    assert time.monotonic() - began > 0.9
    assert len(a.links()) == len(b.links()) == 1
    assert a.stats().pauses > 1


@pytest.mark.slow
def test_a_slow_link_is_not_taken_for_a_dead_one(make_node):
    """Heartbeats wait behind the message for longer than silence may last."""
    a, b = make_node("a", limits=Limits(bytes_per_second=1_500)), make_node("b")
    connect(b, a)
    a.register("echo", a.spawn(Echo))
    echo = b.remote_actor(a.address + "/echo")

    assert echo.ask(bytes(7_000), timeout=20).result(20) == 7_000

    assert len(a.links()) == len(b.links()) == 1
    assert b.accounts()[a.node_id].lost == 0


def test_others_are_not_slowed_by_who_floods(make_node):
    a = make_node("a", limits=Limits(messages_per_second=100))
    b, c = make_node("b"), make_node("c")
    connect(b, a)
    c.connect(a.address)
    a.register("sink", a.spawn(Sink))
    a.register("echo", a.spawn(Echo))
    sink, echo = b.remote_actor(a.address + "/sink"), c.remote_actor(a.address + "/echo")
    for number in range(250):
        sink.tell(number)
    eventually(lambda: a.stats().pauses > 0)

    assert [echo.ask("x").result(5) for _ in range(20)] == ["x"] * 20

    assert sink.ask(Size(), timeout=20).result(20) == 250


def test_a_link_that_is_put_off_can_be_closed(make_node):
    a, b = make_node("a", limits=Limits(messages_per_second=1)), make_node("b")
    connect(b, a)
    a.register("sink", a.spawn(Sink))
    sink = b.remote_actor(a.address + "/sink")
    for number in range(50):
        sink.tell(number)
    eventually(lambda: a.links() and a.links()[0].pauses > 0)

    b.disconnect(a.node_id, 60.0)
    b.close()

    eventually(lambda: a.links() == [])
    assert a.stats().pauses > 0
