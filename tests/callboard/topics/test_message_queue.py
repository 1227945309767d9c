"""The queue of a reader: from threads, event loops and `select`."""

import asyncio
import select
import threading

import pytest

from callboard import locks
from callboard.actors.errors import WouldBlock, WouldDeadlock
from callboard.topics.message_queue import MessageQueue


def test_messages_come_in_order() -> None:
    queue: MessageQueue[int] = MessageQueue()
    queue.take([1, 2, 3])

    assert (queue.available(), queue.get(), queue.poll(), queue.poll()) == (3, 1, [2, 3], [])


def test_get_returns_none_when_nothing_comes_in_time() -> None:
    assert MessageQueue[int]().get(0.01) is None


def test_a_thread_that_waits_is_woken() -> None:
    queue: MessageQueue[int] = MessageQueue()
    threading.Timer(0.02, queue.take, ([7],)).start()

    assert queue.get(5) == 7


def test_a_thread_that_holds_a_lock_of_callboard_is_refused_instead_of_blocked() -> None:
    guard = locks.lock("a lock", 1)
    queue: MessageQueue[int] = MessageQueue()

    with guard:
        with pytest.raises(WouldDeadlock, match=r"get\(\) in a finalizer"):
            queue.get()
        assert queue.get(0.001) is None, "a short wait ends by itself"
        queue.take([5])
        assert queue.get() == 5


def test_a_get_inside_a_call_of_the_same_queue_is_refused() -> None:
    queue: MessageQueue[int] = MessageQueue()

    with queue._lock, pytest.raises(WouldDeadlock, match=r"get\(\) in a finalizer"):
        queue.get(0.001)


def test_two_readers_get_each_message_once() -> None:
    queue: MessageQueue[int] = MessageQueue()
    got: list[int] = []

    def read() -> None:
        while (item := queue.get(5)) is not None and item >= 0:
            got.append(item)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1000):
        queue.take([number])
    queue.take([-1, -1])
    for reader in readers:
        reader.join(5)

    assert sorted(got) == list(range(1000))


def test_a_task_awaits_messages() -> None:
    queue: MessageQueue[int] = MessageQueue()

    async def main() -> list[int]:
        asyncio.get_running_loop().call_later(0.01, queue.take, [1, 2])
        with pytest.raises(WouldBlock):
            queue.get(1)
        return [await queue.aget(), await queue.aget()]

    assert asyncio.run(main()) == [1, 2]


def test_the_descriptor_is_readable_while_messages_wait() -> None:
    queue: MessageQueue[int] = MessageQueue()
    fd = queue.fd()

    def is_readable() -> bool:
        return bool(select.select([fd], [], [], 0)[0])

    assert not is_readable()
    queue.take([1, 2])
    assert is_readable()
    queue.get()
    assert is_readable()
    queue.get()
    assert not is_readable()
    queue.take([3])
    assert is_readable()
    queue.poll()
    assert not is_readable()
    queue.close()


def test_a_reader_that_never_reads_loses_the_oldest_and_it_is_counted() -> None:
    told: list[int] = []
    queue: MessageQueue[int] = MessageQueue(limit=10, on_drop=told.append)

    for start in range(0, 40, 4):
        queue.take(list(range(start, start + 4)))

    assert queue.dropped == sum(told) == 30
    assert queue.poll() == list(range(30, 40))


def test_a_closed_queue_wakes_who_waits() -> None:
    queue: MessageQueue[int] = MessageQueue()
    queue.take([1])
    threading.Timer(0.02, queue.close).start()

    assert queue.get(5) == 1
    with pytest.raises(EOFError):
        queue.get(5)


def test_readers_that_gave_up_are_forgotten() -> None:
    queue: MessageQueue[int] = MessageQueue()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.aget(), 0.01)

    for _ in range(3):
        assert queue.get(0.001) is None
        asyncio.run(give_up())

    assert not queue._waiters


def test_a_reader_whom_another_one_was_quicker_than_waits_for_its_own_time_only() -> None:
    queue: MessageQueue[int] = MessageQueue()
    is_over = threading.Event()

    def steal() -> None:
        while not is_over.wait(0.01):
            queue._wake_readers()  # as if somebody had read the message that came

    thief = threading.Thread(target=steal)
    thief.start()
    try:
        assert queue.get(0.1) is None
    finally:
        is_over.set()
        thief.join(5)
