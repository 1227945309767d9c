"""Publishers: order, back-pressure, what they tell of themselves."""

import asyncio
import select
import threading

import pytest

from callboard.actors.errors import WouldBlock
from callboard.broker import publisher as module
from callboard.topics.input_queue import INPUT_LIMIT, InputQueue


def is_ready(publisher):
    return select.select([publisher.fd()], [], [], 0)[0] == [publisher.fd()]


@pytest.fixture
def published(pair):
    """A publisher, and the subscriber at the other end."""
    here, there, port = pair
    subscriber = here.make_subscriber("/a")
    assert there.peer("127.0.0.1", port)
    return there.make_publisher("/a/b"), subscriber


def test_values_arrive_in_order(published):
    publisher, subscriber = published

    publisher.publish(0)
    publisher.publish_batch(1, 2, [3])
    publisher.publish_batch()

    assert subscriber.get(4, 5.0) == [("/a/b", value) for value in (0, 1, 2, (3,))]


def test_thousands_of_messages_do_not_stall(published):
    publisher, subscriber = published

    for number in range(5_000):
        publisher.publish(number)

    assert [value for _, value in subscriber.get(5_000, 10.0)] == list(range(5_000))


def test_a_publisher_tells_its_room_and_its_rate(published):
    publisher, _ = published
    publisher.publish_batch(*range(100))

    assert publisher.capacity() == INPUT_LIMIT
    assert 0 <= publisher.buffered() <= 100
    assert publisher.free_capacity() == publisher.demand() >= INPUT_LIMIT - 100
    assert publisher.send_rate() == 100


def test_without_room_publish_waits_until_there_is_some(published):
    publisher, subscriber = published
    publisher._hub.inputs.set_congested(is_congested=True)
    waiting = threading.Thread(target=publisher.publish, args=(1,))
    waiting.start()
    assert publisher.free_capacity() == 0
    assert waiting.is_alive()
    assert subscriber.get(0.05) is None

    publisher._hub.inputs.set_congested(is_congested=False)

    assert subscriber.get(5.0) == ("/a/b", 1)
    waiting.join(5)
    assert not waiting.is_alive()


def test_the_descriptor_is_readable_while_there_is_room(published):
    publisher, _ = published
    assert is_ready(publisher)

    publisher._hub.inputs.set_congested(is_congested=True)
    assert not is_ready(publisher)
    publisher._hub.inputs.set_congested(is_congested=False)

    assert is_ready(publisher)


def test_on_an_event_loop_publish_names_its_twin_which_waits(published):
    publisher, subscriber = published
    publisher._hub.inputs.set_congested(is_congested=True)

    async def publish():
        with pytest.raises(WouldBlock, match="apublish"):
            publisher.publish(0)
        waiting = asyncio.ensure_future(publisher.apublish(1))
        batch = asyncio.ensure_future(publisher.apublish_batch(2, 3))
        await asyncio.sleep(0)
        assert not waiting.done()
        publisher._hub.inputs.set_congested(is_congested=False)
        await asyncio.gather(waiting, batch)

    asyncio.run(publish())
    assert [value for _, value in subscriber.get(3, 5.0)] == [1, 2, 3]


def test_the_end_of_a_publisher_may_drop_what_waits(published, monkeypatch):
    publisher, subscriber = published
    hub = publisher._hub
    monkeypatch.setattr(InputQueue, "wake", lambda self: None)  # the core does not look
    hub.inputs.wake_pending = True
    publisher.publish_batch(1, 2)
    hub.publish("/a/other", 3)
    publisher.drop_all_on_destruction()

    publisher.close()
    monkeypatch.undo()
    hub.inputs.wake_pending = False
    hub.inputs.wake()

    assert subscriber.get(5.0) == ("/a/other", 3)
    assert subscriber.get(0.02) is None


def test_a_closed_publisher_publishes_no_more(published):
    publisher, _ = published
    assert publisher.fd() >= 0
    with publisher:
        pass
    publisher.reset()

    with pytest.raises(EOFError, match="was closed"):
        publisher.publish(1)


def test_a_forked_process_drops_the_pipe_of_a_publisher(published, monkeypatch):
    publisher, _ = published
    pipe, dropped = [publisher.fd(), publisher._pipe[1]], []
    monkeypatch.setattr(module.after_fork, "drop", lambda *ends: dropped.append([*ends]))

    publisher._drop_copy()
    publisher.close()
    publisher._drop_copy()

    assert dropped == [pipe, []]
