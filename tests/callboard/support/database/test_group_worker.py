"""Threads that handle what waits as one group."""

import queue
import threading

import pytest

from callboard.support.database.group_worker import GroupWorker, call_all

LIMIT = 60.0


@pytest.fixture
def groups():
    return queue.Queue()


def test_what_waits_while_a_group_is_handled_is_the_next_group(groups):
    is_free = threading.Event()

    def handle(group):
        groups.put(list(group))
        assert is_free.wait(LIMIT)

    worker = GroupWorker("a worker", handle)
    worker.add(0)
    assert groups.get(timeout=LIMIT) == [0]

    for number in range(1, 4):
        worker.add(number)
    is_free.set()

    assert groups.get(timeout=LIMIT) == [1, 2, 3]
    worker.close()


def test_queued_items_are_handled_before_the_end(groups):
    worker = GroupWorker("a worker", groups.put)
    for number in range(100):
        worker.add(number)

    worker.close()

    handled = [number for group in iter_now(groups) for number in group]
    assert handled == list(range(100))


def iter_now(groups):
    while not groups.empty():
        yield groups.get()


def test_items_may_be_calls(groups):
    worker = GroupWorker("a worker", call_all)
    worker.add(lambda: groups.put(1))
    worker.add(lambda: groups.put(2))

    worker.close()

    assert list(iter_now(groups)) == [1, 2]


def test_a_tick_follows_each_group_and_its_own_time(groups):
    pauses = iter([0.01, 0.01, None])

    def tick():
        groups.put("tick")
        return next(pauses)

    worker = GroupWorker("a worker", lambda group: groups.put(list(group)), tick)
    worker.add(1)

    seen = [groups.get(timeout=LIMIT) for _ in range(4)]
    assert seen == [[1], "tick", "tick", "tick"]
    worker.close()
    assert groups.empty()
