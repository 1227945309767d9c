"""A bounded queue drops the items beyond its limits by its policy, and counts them."""

import pytest

from callboard.bounded_queue import BoundedQueue, Overflow


@pytest.mark.parametrize(
    ("policy", "rest"), [(Overflow.DROP_OLDEST, [2, 3]), (Overflow.DROP_NEWEST, [0, 1])]
)
def test_items_beyond_the_limit_are_dropped_by_policy(policy: Overflow, rest: list[int]):
    queue = BoundedQueue[int](2, 1000)
    queue.extend(range(4), 10)

    assert queue.trim(policy) == queue.dropped == 2
    assert queue.bytes == 20
    assert queue.clear() == rest
    assert (len(queue), queue.bytes) == (0, 0)


def test_the_limit_in_bytes_leaves_a_minimum_of_items():
    queue = BoundedQueue[str](10, 5)
    queue.append("a", 3)
    queue.append("b", 9)

    assert queue.trim(minimum=1) == 1
    assert queue.trim() == 1
    assert (len(queue), queue.dropped) == (0, 2)


def test_an_item_that_does_not_fit_is_dropped_at_once():
    queue = BoundedQueue[str](2, 5)
    for item, size in (("a", 3), ("b", 3), ("c", 2), ("d", 0)):
        queue.try_append(item, size)

    assert (queue.popleft(), queue.popleft()) == ("a", "c")
    assert (queue.dropped, queue.bytes) == (2, 0)
