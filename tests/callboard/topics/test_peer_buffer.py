"""What waits for a peer: order, bounds, and each policy."""

import pytest

from callboard.bounded_queue import Overflow
from callboard.topics.machine.effect import TransmitRun
from callboard.topics.machine.peer_buffer import (
    HARD_FACTOR,
    LINK_ROOM,
    STALL_LIMIT,
    PeerBuffer,
)

NODE = bytes(18)


def a_run(number: int, count: int = 1, size: int = 10) -> TransmitRun:
    return TransmitRun(NODE, number.to_bytes(4) + bytes(size - 4), count)


def numbers(runs: list[TransmitRun]) -> list[int]:
    return [int.from_bytes(run.payload[:4]) for run in runs]


def test_runs_go_on_in_order_as_far_as_there_is_room() -> None:
    buffer = PeerBuffer(10, Overflow.DISCONNECT)
    for number in range(5):
        buffer.offer(a_run(number, size=LINK_ROOM // 2), 0.0)

    first = buffer.take(0, 100, 0.1)
    second = buffer.take(LINK_ROOM, 200, 0.2)
    third = buffer.take(0, 300, 0.3)

    assert [numbers(first), numbers(second), numbers(third)] == [[0, 1], [], [2, 3]]
    assert buffer.waiting == 1


def test_a_peer_that_reads_may_be_over_the_limit_for_a_while() -> None:
    buffer = PeerBuffer(10, Overflow.DISCONNECT)
    now = 0.0
    for number in range(10 * HARD_FACTOR):
        now += STALL_LIMIT / 2
        assert buffer.offer(a_run(number), now)
        buffer.take(LINK_ROOM, number, now)  # it reads a little all the time

    assert buffer.dropped == 0


def test_a_peer_that_does_not_read_is_disconnected() -> None:
    buffer = PeerBuffer(10, Overflow.DISCONNECT)
    buffer.offer(a_run(0, count=10), 0.0)

    assert buffer.offer(a_run(1), STALL_LIMIT) is False
    assert (buffer.waiting, buffer.dropped, len(buffer)) == (0, 11, 0)


def test_far_too_much_is_too_much_at_once() -> None:
    buffer = PeerBuffer(10, Overflow.DISCONNECT)

    assert buffer.offer(a_run(0, count=10 * HARD_FACTOR), 0.0)
    assert not buffer.offer(a_run(1), 0.0)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (Overflow.DROP_NEWEST, [0, 1, 2]),
        (Overflow.DROP_OLDEST, [3, 4, 5]),
    ],
)
def test_what_is_dropped_is_counted(policy: Overflow, kept: list[int]) -> None:
    buffer = PeerBuffer(6, policy)
    for number in range(3):
        buffer.offer(a_run(number, count=2), 0.0)

    for number in range(3, 6):
        assert buffer.offer(a_run(number, count=2), STALL_LIMIT)

    assert buffer.dropped == 6
    assert buffer.waiting == 6
    assert numbers(buffer.take(0, 1, 9.0)) == kept
