"""All ways to read what a subscriber got."""

import asyncio
import select

import pytest

from callboard.actors.errors import WouldBlock
from callboard.broker import Subscriber
from callboard.topics.hub import Hub


@pytest.fixture
def fed(pair):
    """A subscriber of `/a`, and what publishes to it."""
    here, there, port = pair
    subscriber = here.make_subscriber("/a")
    assert there.peer("127.0.0.1", port)
    return subscriber, lambda *values: there.publish_batch(*(("/a", v) for v in values))


def test_get_waits_for_one(fed):
    subscriber, publish = fed
    publish(1, 2)

    assert subscriber.get() == ("/a", 1)
    assert subscriber.get(1.0) == ("/a", 2)
    assert subscriber.get(0.01) is None
    assert subscriber.get(0.0) is None


def test_get_with_a_number_waits_for_so_many_or_the_end_of_the_time(fed):
    subscriber, publish = fed
    publish(*range(5))

    assert [value for _, value in subscriber.get(3)] == [0, 1, 2]
    assert [value for _, value in subscriber.get(3, 0.05)] == [3, 4]
    assert subscriber.get(3, 0.01) == []
    assert subscriber.get(0) == []


@pytest.mark.parametrize("arguments", [("1",), (True,), (-1,), (-0.5,), (1, 2, 3), (1, "x")])
def test_get_refuses_what_is_neither_number_nor_time(fed, arguments):
    with pytest.raises(TypeError, match="a number of messages"):
        fed[0].get(*arguments)


def test_values_can_be_changed_and_are_each_readers_own(pair):
    here, there, port = pair
    readers = [here.make_subscriber("/a") for _ in range(2)]
    there.peer("127.0.0.1", port)

    there.publish("/a", [{1}, {"k": {2}}, {frozenset({3})}])

    first, second = (reader.get(5.0)[1] for reader in readers)
    first[0].add(9)
    first[1]["k"].add(9)
    assert first == ({1, 9}, {"k": {2, 9}}, {frozenset({3})})
    assert second == ({1}, {"k": {2}}, {frozenset({3})})


def test_a_safe_subscriber_gives_what_cannot_be_changed(pair):
    here, there, port = pair
    reader = here.make_safe_subscriber("/a")
    there.peer("127.0.0.1", port)

    there.publish("/a", [{1}, {"k": 2}])

    value = reader.get(5.0)[1]
    assert value == (frozenset({1}), {"k": 2})
    with pytest.raises(TypeError):
        value[1]["k"] = 3


def test_the_descriptor_is_readable_while_messages_wait(fed):
    subscriber, publish = fed
    assert select.select([subscriber.fd()], [], [], 0)[0] == []

    publish(1)

    assert select.select([subscriber.fd()], [], [], 5)[0] == [subscriber.fd()]
    assert subscriber.available() == 1
    assert subscriber.poll() == [("/a", 1)]
    assert select.select([subscriber.fd()], [], [], 0)[0] == []


def test_topics_are_added_and_removed(pair):
    here, there, port = pair
    subscriber = here.make_subscriber("/a")
    there.peer("127.0.0.1", port)

    subscriber.add_topic("/b", block=True)
    subscriber.remove_topic("/a", block=True)
    assert there.await_filter_entry("/b")
    there.publish_batch(("/a", 1), ("/b", 2))

    assert subscriber.get(5.0) == ("/b", 2)
    assert subscriber.available() == 0


def test_messages_are_iterated_until_the_subscriber_is_closed(fed):
    subscriber, publish = fed

    async def read():
        found = []
        async for topic, value in subscriber:
            found.append((topic, value))
            if value == 2:
                subscriber.close()
        return found

    publish(1, 2)
    assert asyncio.run(asyncio.wait_for(read(), 10)) == [("/a", 1), ("/a", 2)]


def test_aget_has_the_forms_of_get(fed):
    subscriber, publish = fed

    async def read():
        publish(1, 2, 3)
        return (
            await subscriber.aget(),
            await subscriber.aget(5.0),
            await subscriber.aget(2, 0.05),
            await subscriber.aget(0.01),
        )

    assert asyncio.run(read()) == (("/a", 1), ("/a", 2), [("/a", 3)], None)


def test_get_on_an_event_loop_takes_what_is_there_and_never_waits(fed):
    subscriber, publish = fed
    publish(1)
    while not subscriber.available():
        select.select([subscriber.fd()], [], [], 5)

    async def read():
        assert subscriber.get() == ("/a", 1)
        with pytest.raises(WouldBlock, match="aget"):
            subscriber.get(1.0)

    asyncio.run(read())


def test_a_closed_subscriber_gives_what_it_has_and_then_ends(fed):
    subscriber, publish = fed
    publish(1)
    select.select([subscriber.fd()], [], [], 5)

    with subscriber:
        pass
    subscriber.reset()

    assert subscriber.get() == ("/a", 1)
    with pytest.raises(EOFError):
        subscriber.get()


def test_a_closed_subscriber_wants_nothing_any_more(pair):
    here, there, port = pair
    there.peer("127.0.0.1", port)
    with here.make_subscriber("/a"):
        assert there.await_filter_entry("/a")

    assert there.hub.waits.until(lambda core: not core.peer_topics(), 5.0).result()


def test_what_nobody_reads_is_dropped_and_counted(pair, monkeypatch):
    here, there, port = pair
    subscriber = here.make_subscriber("/a")
    monkeypatch.setattr(subscriber._queue, "limit", 10)
    there.peer("127.0.0.1", port)

    there.publish_batch(*(("/a", number) for number in range(25)))

    last = 0
    while last != 24:
        last = subscriber.get(5.0)[1]
    assert subscriber.dropped == 15


def test_a_subscriber_is_made_by_an_endpoint_of_a_hub(make_endpoint):
    endpoint = make_endpoint()

    assert isinstance(endpoint.make_subscriber([]), Subscriber)
    assert endpoint.hub is Hub.of(endpoint.node)
    with pytest.raises(TypeError, match="qsize"):
        endpoint.make_subscriber("/a", -1)
