"""The order of messages on changing paths."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.frame import FrameReader, pack_frame
from callboard.basp.header import (
    CARRIED,
    POSITION_MASK,
    POSITION_SHIFT,
    SEQUENCE_BITS,
    Operation,
    count_of,
)
from callboard.basp.routing import path_order
from callboard.basp.routing.path_order import (
    BROKEN_PATIENCE,
    END_PATIENCE,
    OPEN_PATIENCE,
    PathOrder,
    pack_path_end,
)

SOURCE, DESTINATION = b"s" * 18, b"d" * 18


def at(epoch, sequence, count=0):
    """Return a dispatch; with a count, one that carries messages from this sequence on."""
    data = (epoch << SEQUENCE_BITS | sequence + max(count, 1) - 1) << POSITION_SHIFT
    actors = (count, CARRIED) if count else (0, 7)
    frame = pack_frame(
        Operation.DISPATCH_MESSAGE, data, SOURCE, DESTINATION, *actors, b"\x81\x01"
    )
    return FrameReader().feed(frame)[0]


def end(epoch, count, *, is_open=False):
    frame = pack_path_end(SOURCE, DESTINATION, epoch, count, is_open=is_open)
    return FrameReader().feed(frame)[0][2]


def arrive(order, frame, now=0.0):
    """Handle a dispatch as the driver does; return the delivered dispatches."""
    if frame[2] >> POSITION_SHIFT & POSITION_MASK == order.expected:
        order.expected += 1
        return [frame]
    return [frame] if order.is_next(frame) else order.take(frame, now)


def positions(frames):
    """Return the epoch and the sequence number of each message."""
    numbers = [
        number
        for frame in frames
        for last, count in [
            (frame[2] >> POSITION_SHIFT, count_of(frame[2], frame[5], frame[6]))
        ]
        for number in range(last - count + 1, last + 1)
    ]
    return [(number >> SEQUENCE_BITS, number % (1 << SEQUENCE_BITS)) for number in numbers]


def test_a_dispatch_that_overtakes_others_waits_for_them():
    order = PathOrder()

    assert positions(arrive(order, at(0, 0))) == [(0, 0)]
    assert arrive(order, at(0, 2)) == arrive(order, at(0, 4)) == []
    assert positions(arrive(order, at(0, 1))) == [(0, 1), (0, 2)]
    assert positions(arrive(order, at(0, 3))) == [(0, 3), (0, 4)]
    assert order.deadline is None
    assert positions(arrive(order, at(0, 5))) == [(0, 5)]


def test_a_gap_is_given_up_in_time_and_counted():
    order = PathOrder()
    arrive(order, at(0, 3), 1.0)
    arrive(order, at(0, 5), 2.0)

    assert order.tick(1.0 + OPEN_PATIENCE - 0.01) == []
    assert positions(order.tick(1.0 + OPEN_PATIENCE)) == [(0, 3)]
    assert (order.given_up, order.deadline) == ([(0, 3)], 2.0 + OPEN_PATIENCE)
    assert positions(order.tick(2.0 + OPEN_PATIENCE)) == [(0, 5)]
    assert order.given_up == [(0, 3), (0, 1)]


def test_many_gaps_delay_a_dispatch_no_longer_than_one():
    order = PathOrder()
    for sequence in range(1, 201, 2):
        arrive(order, at(0, sequence), sequence / 1000)

    assert len(order.tick(0.2 + OPEN_PATIENCE)) == 100


def test_held_dispatches_of_earlier_epochs_fill_no_gap_of_the_next():
    order = PathOrder()
    arrive(order, at(1, 3), 0.0)
    arrive(order, at(0, 2), 0.1)

    assert positions(order.tick(OPEN_PATIENCE)) == [(0, 2), (1, 3)]
    assert order.given_up == [(1, 3)]


def test_twice_the_same_is_dropped_and_counted():
    order = PathOrder()
    arrive(order, at(0, 0))
    arrive(order, at(0, 2))

    assert arrive(order, at(0, 0)) == arrive(order, at(0, 2)) == []
    assert order.late == 2


def test_a_new_epoch_waits_until_the_old_one_is_complete():
    order = PathOrder()

    assert positions(arrive(order, at(0, 0))) == [(0, 0)]
    assert order.end(end(0, 2), 0.0) == []
    assert arrive(order, at(1, 0)) == []
    assert positions(arrive(order, at(0, 1))) == [(0, 1), (1, 0)]
    assert positions(arrive(order, at(1, 1))) == [(1, 1)]


def test_the_next_epoch_follows_a_complete_one_at_once():
    order = PathOrder()
    arrive(order, at(0, 0))

    assert order.end(end(0, 1), 0.0) == []
    assert positions(arrive(order, at(1, 0))) == [(1, 0)]


def test_missing_dispatches_of_a_broken_path_are_given_up_soon():
    order = PathOrder()
    order.end(end(0, 1), 0.0)
    assert arrive(order, at(1, 0), 0.0) == []

    assert order.deadline == BROKEN_PATIENCE
    assert order.tick(BROKEN_PATIENCE / 2) == []
    assert positions(order.tick(BROKEN_PATIENCE)) == [(1, 0)]
    assert order.given_up == []  # the source knows that the epoch is over


def test_news_of_a_broken_path_shorten_the_wait():
    order = PathOrder()
    arrive(order, at(1, 0), 0.0)
    order.end(end(0, 1), 1.0)

    assert order.deadline == 1.0 + BROKEN_PATIENCE
    order.end(end(0, 1), 1.2)  # the same end again
    assert order.deadline == 1.0 + BROKEN_PATIENCE


def test_a_broken_path_does_not_shorten_the_wait_for_the_next_one():
    order = PathOrder()
    order.end(end(0, 1), 0.0)
    order.end(end(1, 1, is_open=True), 0.0)
    arrive(order, at(2, 0), 0.0)

    assert order.tick(BROKEN_PATIENCE) == []
    assert positions(arrive(order, at(1, 0), 1.0)) == [(1, 0), (2, 0)]


def test_late_ones_are_dropped_and_counted():
    order = PathOrder()
    order.end(end(0, 1), 0.0)
    arrive(order, at(1, 0), 0.0)
    order.tick(BROKEN_PATIENCE)

    assert arrive(order, at(0, 0)) == []
    assert order.late == 1


def test_an_end_that_is_lost_delays_only():
    order = PathOrder()
    assert arrive(order, at(1, 0), 0.0) == []

    assert positions(order.tick(OPEN_PATIENCE)) == [(1, 0)]


def test_several_epochs_are_delivered_in_order():
    order = PathOrder()
    assert arrive(order, at(2, 0)) == []
    assert arrive(order, at(1, 0)) == []
    assert order.end(end(1, 1), 0.0) == []

    assert positions(order.end(end(0, 0), 0.0)) == [(1, 0), (2, 0)]
    assert order.deadline is None


def test_a_dispatch_after_the_end_of_its_epoch_is_dropped():
    order = PathOrder()
    arrive(order, at(0, 2))
    arrive(order, at(0, 0))

    assert order.end(end(0, 1), 0.0) == []
    assert (order.late, order.deadline) == (1, None)
    assert positions(arrive(order, at(1, 0))) == [(1, 0)]


def test_epochs_wrap():
    order = PathOrder()
    for epoch in range(200):
        assert positions(arrive(order, at(epoch % 64, 0))) == [(epoch % 64, 0)]
        assert order.end(end(epoch % 64, 1), 0.0) == []
    assert order.late == 0


def test_the_epoch_after_a_full_one_follows_by_itself():
    last = (1 << SEQUENCE_BITS) - 1
    for epoch in (0, 5, 63):
        order = PathOrder()
        order.take(at(epoch, last), 0.0)
        order.tick(OPEN_PATIENCE)

        following = (epoch + 1) % 64
        assert arrive(order, at(following, 1)) == []
        assert positions(arrive(order, at(following, 0))) == [(following, 0), (following, 1)]
        assert positions(arrive(order, at(following, 2))) == [(following, 2)]


@pytest.mark.parametrize("epoch", range(1, 64))
def test_the_order_of_a_running_source_starts_after_a_while(epoch):
    order = PathOrder()
    assert arrive(order, at(epoch, 2), 0.0) == []
    assert arrive(order, at((epoch + 1) % 64, 0), 0.0) == []
    assert arrive(order, at(epoch, 1), 1.0) == []

    found = positions(order.tick(OPEN_PATIENCE))

    assert found == [(epoch, 1), (epoch, 2), ((epoch + 1) % 64, 0)]
    assert order.late == 0


@pytest.mark.parametrize("epoch", range(64))
def test_the_order_of_a_running_source_starts_after_a_path_end(epoch):
    order = PathOrder()
    order.end(end(epoch, 7), 0.0)
    assert arrive(order, at((epoch + 1) % 64, 0), 0.0) == []

    assert positions(order.tick(OPEN_PATIENCE)) == [((epoch + 1) % 64, 0)]


def test_the_end_of_a_later_epoch_is_believed_after_a_while():
    """The source has a later epoch; no more frames are needed to release the held ones."""
    order = PathOrder()
    arrive(order, at(0, 0))

    assert order.end(end(20, 0, is_open=True), 1.0) == []
    assert (order.deadline, order.expected) == (1.0 + OPEN_PATIENCE, 1)
    assert order.tick(order.deadline) == order.given_up == []

    assert order.deadline is None
    assert positions(arrive(order, at(21, 0))) == [(21, 0)]


def test_of_two_ends_of_an_epoch_the_latest_holds_alone():
    order = PathOrder()
    order.end(end(0, 9000, is_open=True), 0.0)
    order.end(end(1, 0, is_open=True), 0.0)
    arrive(order, at(0, 0))

    order.end(end(0, 2, is_open=True), 1.0)

    assert positions(arrive(order, at(0, 1))) == [(0, 1)]
    assert positions(arrive(order, at(1, 0))) == [(1, 0)]


@pytest.mark.parametrize("ends", [[(0, 9)], [(0, 9), (1, 0)]])
def test_an_end_of_an_incomplete_epoch_is_in_doubt_until_the_next_frame(ends):
    def doubting():
        order = PathOrder()
        arrive(order, at(0, 0))
        for one in ends:
            order.end(end(*one, is_open=True), 1.0)
        assert (order.doubts_ends, order.deadline) == (False, 1.0 + END_PATIENCE)
        assert order.tick(order.deadline) == order.given_up == []
        assert (order.doubts_ends, order.deadline, order.epoch) == (True, None, 0)
        return order

    goes_on, is_over, is_said_again = doubting(), doubting(), doubting()
    assert positions(arrive(goes_on, at(0, 1), 9.0)) == [(0, 1)]
    assert [positions(arrive(goes_on, at(0, n), 9.0)) for n in (2, 20)] == [[(0, 2)], []]
    assert goes_on.deadline == 9.0 + OPEN_PATIENCE  # it was altered, and counts no more

    following = ends[-1][0] + 1
    assert positions(arrive(is_over, at(following, 0), 9.0)) == [(following, 0)]

    is_said_again.end(end(*ends[0], is_open=True), 9.0)
    assert (is_said_again.epoch, is_said_again.doubts_ends) == (following, False)
    assert positions(arrive(is_said_again, at(following, 0), 9.0)) == [(following, 0)]


def test_an_end_is_wrong_if_more_messages_arrive_than_it_counts():
    order = PathOrder()
    order.end(end(0, 3, is_open=True), 0.0)
    for sequence in range(4):
        arrive(order, at(0, sequence), 0.1)

    assert order.epoch == 0
    assert arrive(order, at(0, 5), 0.2) == []
    assert positions(arrive(order, at(0, 4), 0.3)) == [(0, 4), (0, 5)]


def test_missing_dispatches_of_an_epoch_that_ended_long_ago_are_given_up():
    order = PathOrder()
    order.end(end(0, 3, is_open=True), 0.0)

    assert arrive(order, at(1, 0), END_PATIENCE - 0.5) == []
    assert order.deadline == END_PATIENCE
    assert positions(order.tick(END_PATIENCE)) == [(1, 0)]
    order.end(end(1, 3, is_open=True), 10.0)
    arrive(order, at(2, 0), 20.0)
    assert order.deadline == 20.0


def test_positions_far_away_count_only_if_no_others_arrive():
    order = PathOrder()
    arrive(order, at(0, 0))
    assert order.take(at(30, 3), 0.0) == []
    assert positions(arrive(order, at(0, 1), 1.0)) == [(0, 1)]

    assert order.take(at(30, 4), 9.0) == []
    assert order.end(end(30, 4), 9.0 + OPEN_PATIENCE) == []

    assert positions(arrive(order, at(31, 0))) == [(31, 0)]


def test_the_number_of_held_dispatches_is_limited(monkeypatch):
    monkeypatch.setattr(path_order, "HELD_LIMIT", 3)
    order = PathOrder()
    for sequence in (5, 3, 4):
        assert arrive(order, at(0, sequence)) == []

    assert positions(arrive(order, at(0, 9))) == [(0, 3), (0, 4), (0, 5)]
    assert order.given_up == [(0, 3)]


def test_the_bytes_of_held_dispatches_are_limited(monkeypatch):
    monkeypatch.setattr(path_order, "HELD_BYTES", 3)
    order = PathOrder()

    assert arrive(order, at(0, 5)) == []
    assert positions(arrive(order, at(0, 9))) == [(0, 5)]
    assert order.given_up == [(0, 5)]


def test_a_dispatch_takes_the_positions_of_all_its_messages():
    order = PathOrder()

    assert positions(arrive(order, at(0, 0, 3))) == [(0, 0), (0, 1), (0, 2)]
    assert positions(arrive(order, at(0, 3))) == [(0, 3)]
    assert positions(arrive(order, at(0, 4, 1))) == [(0, 4)]
    assert arrive(order, at(0, 6, 2)) == arrive(order, at(0, 8)) == []
    assert positions(arrive(order, at(0, 5))) == [(0, 5), (0, 6), (0, 7), (0, 8)]
    assert (order.expected, order.late, order.given_up, order.deadline) == (9, 0, [], None)


def test_lost_carried_messages_are_given_up_one_by_one():
    order = PathOrder()
    arrive(order, at(0, 5, 4), 1.0)  # after five missing ones
    arrive(order, at(0, 12), 1.0)  # after three missing ones

    assert len(positions(order.tick(1.0 + OPEN_PATIENCE))) == 5
    assert order.given_up == [(0, 5), (0, 3)]
    assert arrive(order, at(0, 0, 5)) == arrive(order, at(0, 9, 3)) == []
    assert order.late == 8


def test_a_path_end_counts_carried_messages():
    order = PathOrder()
    arrive(order, at(1, 0, 2), 0.0)
    order.end(end(0, 7), 0.0)
    owed = at(0, 0, 7)

    assert order.is_owed(owed)
    assert not order.has_come(owed)
    assert len(positions(arrive(order, owed, 0.1))) == 9
    assert order.has_come(owed)


@pytest.mark.parametrize("count", [1, 2, 6, 7, 2**32 - 1])
def test_a_wrong_number_of_carried_messages_affects_only_its_epoch(count):
    """A node on the path may alter the frames that it forwards."""
    order = PathOrder()
    arrive(order, at(0, 0))
    arrive(order, at(0, 1))
    frame = list(at(0, 2, 4))
    frame[5] = count
    arrive(order, tuple(frame), 0.0)
    while order.deadline is not None:
        order.tick(order.deadline)

    assert 2 <= order.expected <= 6
    assert len(positions(arrive(order, at(0, order.expected), 60.0))) == 1


def test_released_dispatches_take_no_memory():
    """Something waits at the far end while a lot comes out of order, and is complete."""
    order = PathOrder()
    arrive(order, at(0, 1_000_000), 0.0)
    for sequence in range(0, 10_000, 2):
        assert arrive(order, at(0, sequence + 1), 0.1) == []
        assert len(arrive(order, at(0, sequence), 0.1)) == 2
        assert len(order._waits) < 110
        assert len(order._positions) < 3


@st.composite
def journeys(draw):
    """Draw dispatches, ends and losses on several ways, that may move in the middle too.

    Gives how many dispatches each epoch has, and when what arrives: numbers of epoch and
    sequence, or an end.
    """
    rng = random.Random(draw(st.integers(0, 2**32)))
    ways = [rng.choice((0.0, 0.1, 0.5, 3.0)) for _ in range(draw(st.integers(1, 4)))]
    loss = draw(st.sampled_from((0.0, 0.1, 0.5)))
    ends_arrive = draw(st.booleans())
    now, events, sent = 0.0, [], []
    first = draw(st.sampled_from((0, 0, 60)))
    for epoch in range(first, first + draw(st.integers(1, 6))):
        count = rng.randint(1, 12)
        way = rng.choice(ways)
        sequence = 0
        while sequence < count:
            now += rng.choice((0.0, 0.01, 0.3))
            if rng.random() < 0.2:
                way = rng.choice(ways)  # the source hears of it later
            carried = min(rng.choice((0, 0, 1, 2, 5)), count - sequence)
            frame = at(epoch % 64, sequence, carried)
            for _ in range(max(1, carried)):
                sent.append((epoch, sequence))
                sequence += 1
            if rng.random() >= loss:
                events.append((now + way, len(events), frame))
        if ends_arrive:
            told = end(epoch % 64, count, is_open=rng.random() < 0.5)
            events.append((now + rng.choice(ways), len(events), told))
    return first, sent, sorted(events, key=lambda event: event[:2])


@given(journeys())
def test_any_ways_and_losses_deliver_in_order_once(journey):
    first, sent, events = journey
    order, delivered, arrived = PathOrder(), [], 0
    if first:
        order.take(at(first - 1, 0), -OPEN_PATIENCE)
        order.tick(0.0)
        order.end(end(first - 1, 1), 0.0)
        order.given_up.clear()

    def tick_until(until):
        while order.deadline is not None and order.deadline <= until:
            before = order.deadline
            delivered.extend(positions(order.tick(before)))
            assert order.deadline is None or order.deadline > before

    for when, _, event in events:
        tick_until(when)
        if isinstance(event, int):
            delivered += positions(order.end(event, when))
        else:
            arrived += len(positions([event]))
            delivered += positions(arrive(order, event, when))
            assert not order._held or order.deadline <= when + OPEN_PATIENCE
    tick_until(float("inf"))

    places = [sent.index((e if e >= first else e + 64, s)) for e, s in delivered]
    assert places == sorted(set(places))
    assert len(places) + order.late == arrived
    # A message is given up at most once, and never if it was delivered.
    for epoch in {epoch for epoch, _ in sent}:
        told = sum(count for number, count in order.given_up if number == epoch % 64)
        undelivered = sum(one[0] == epoch for one in sent) - sum(
            number == epoch % 64 for number, _ in delivered
        )
        assert told <= undelivered


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.randoms())
def test_all_that_arrives_in_time_is_delivered(ways, rng):
    """Of two ways each keeps its own order; they mix in any manner, nothing is lost."""
    queues = [[n for n, way in enumerate(ways) if way == this] for this in (0, 1)]
    order, delivered = PathOrder(), []
    while queues[0] or queues[1]:
        queue = rng.choice([queue for queue in queues if queue])
        delivered += positions(arrive(order, at(0, queue.pop(0)), rng.random()))

    assert delivered == [(0, n) for n in range(len(ways))]
    assert (order.late, order.given_up, order.deadline) == (0, [], None)
