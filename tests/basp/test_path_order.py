"""The order of messages over a change of path."""

from hypothesis import given
from hypothesis import strategies as st

from basp.frame import FrameReader, pack_frame
from basp.header import EPOCH_SHIFT, Operation
from basp.path_order import BROKEN_PATIENCE, OPEN_PATIENCE, PathOrder, pack_path_end

SOURCE, DESTINATION = b"s" * 18, b"d" * 18


def dispatch(epoch, number):
    data = epoch << EPOCH_SHIFT
    payload = number.to_bytes(4, "big")
    frame = pack_frame(Operation.DISPATCH_MESSAGE, data, SOURCE, DESTINATION, 0, 7, payload)
    return FrameReader().feed(frame)[0]


def end(epoch, count, *, is_open=False):
    frame = pack_path_end(SOURCE, DESTINATION, epoch, count, is_open=is_open)
    return FrameReader().feed(frame)[0][2]


def arrive(order, frame, now=0.0):
    """Do what the driver does with a dispatch; returns what is delivered."""
    if frame[2] >> EPOCH_SHIFT == order.current:
        return [frame, *order.note_arrival(now)]
    return order.take(frame, now)


def numbers(frames):
    return [int.from_bytes(frame[7], "big") for frame in frames]


def test_a_new_epoch_waits_until_the_old_one_is_complete():
    order = PathOrder()

    assert numbers(arrive(order, dispatch(0, 1))) == [1]
    assert order.end(end(0, 2), 0.0) == []
    assert arrive(order, dispatch(1, 3)) == []
    assert numbers(arrive(order, dispatch(0, 2))) == [2, 3]
    assert numbers(arrive(order, dispatch(1, 4))) == [4]


def test_a_complete_epoch_is_followed_at_once():
    order = PathOrder()
    arrive(order, dispatch(0, 1))

    assert order.end(end(0, 1), 0.0) == []
    assert numbers(arrive(order, dispatch(1, 2))) == [2]


def test_what_is_missing_is_waited_for_a_short_time_when_the_path_is_broken():
    order = PathOrder()
    order.end(end(0, 1), 0.0)
    assert arrive(order, dispatch(1, 2), 0.0) == []

    assert order.deadline == BROKEN_PATIENCE
    assert order.tick(BROKEN_PATIENCE / 2) == []
    assert numbers(order.tick(BROKEN_PATIENCE)) == [2]


def test_late_ones_are_dropped_and_counted():
    order = PathOrder()
    order.end(end(0, 1), 0.0)
    arrive(order, dispatch(1, 2), 0.0)
    order.tick(BROKEN_PATIENCE)

    assert arrive(order, dispatch(0, 1)) == []
    assert order.late == 1


def test_an_end_that_is_lost_delays_only():
    order = PathOrder()
    assert arrive(order, dispatch(1, 2), 0.0) == []

    assert numbers(order.tick(OPEN_PATIENCE)) == [2]


def test_several_epochs_follow_each_other():
    order = PathOrder()
    assert arrive(order, dispatch(2, 3)) == []
    assert arrive(order, dispatch(1, 2)) == []
    assert order.end(end(1, 1), 0.0) == []

    assert numbers(order.end(end(0, 0), 0.0)) == [2, 3]
    assert order.deadline is None


def test_epochs_wrap():
    order = PathOrder()
    for number, epoch in enumerate(range(200), start=1):
        assert numbers(arrive(order, dispatch(epoch % 64, number))) == [number]
        assert order.end(end(epoch % 64, 1), 0.0) == []
    assert order.late == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.floats(0, 3), st.sets(st.integers(0, 3))),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_delivery_is_in_order_and_complete_but_for_what_was_lost(epochs, ends_arrive):
    """Each epoch has messages, a delay of its path, and the messages that are lost on it."""
    events, sent_at, number = [], 0.0, 0
    lost_numbers = set()
    for epoch, (count, delay, lost) in enumerate(epochs):
        for place in range(count):
            number += 1
            sent_at += 0.01
            if place in lost:
                lost_numbers.add(number)
            else:
                events.append((sent_at + delay, number, dispatch(epoch, number)))
        if epoch + 1 < len(epochs) and ends_arrive:
            over = epochs[epoch + 1][1]
            events.append((sent_at + over, number + 0.5, end(epoch, count, is_open=True)))
    order, delivered, now = PathOrder(), [], 0.0

    for at, _, event in sorted(events, key=lambda item: item[:2]):
        while order.deadline is not None and order.deadline <= at:
            delivered += order.tick(order.deadline)
        now = at
        delivered += (
            order.end(event, now) if isinstance(event, int) else arrive(order, event, now)
        )
    while order.deadline is not None:
        delivered += order.tick(order.deadline)

    found = numbers(delivered)
    assert found == sorted(set(found))
    assert len(found) + order.late == number - len(lost_numbers)
