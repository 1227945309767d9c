"""Iterators survive a cancelled wait, without ending and without losing an item."""

import asyncio
import contextlib
import gc
import threading

import pytest

from callboard import Actor, Endpoint, Node, as_completed, handler
from callboard.actors.future import Future
from callboard.actors.waits.feed import Feed
from callboard.commitlog import CommitLog
from callboard.proxies.names.watch import NameAdded
from callboard.support.items import Items
from tests.polling import eventually


class Echo(Actor):
    @handler
    async def on_number(self, msg: float) -> float:
        await self.sleep(msg)
        return msg


async def cancelled(items):
    """Wait for an item that does not come, as `asyncio.wait_for` does."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(items), 0.01)


def test_a_feed_gives_each_item_once_and_in_order_whatever_is_cancelled():
    async def main():
        sources = []
        feed = Feed(lambda source: sources.append(source) or source.end)
        got = []
        await cancelled(feed)
        for number in range(500):
            wait = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(0)
            sources[0].put(number)  # the reader is woken, and cancelled before it runs
            wait.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got.append(await wait)
        sources[0].end()
        return got + [item async for item in feed]

    assert asyncio.run(main()) == list(range(500))


@pytest.mark.slow
def test_a_feed_that_is_dropped_or_closed_stops_its_source():
    async def main(stopped):
        begin = lambda _: lambda: stopped.append(1)  # noqa: E731
        dropped, closed, unused = Feed(begin), Feed(begin), Feed(begin)
        await cancelled(dropped)
        await cancelled(closed)
        await closed.aclose()
        assert [item async for item in closed] == []
        del dropped, unused
        gc.collect()
        return len(stopped)

    assert asyncio.run(main([])) == 2


def test_iteration_continues_after_an_error_and_ends_with_the_source():
    numbers = iter([1, ValueError(), 2, EOFError(), 3])
    closed = []

    async def next_item():
        item = next(numbers)
        if isinstance(item, Exception):
            raise item
        return item

    async def main():
        items = Items(next_item, lambda: closed.append(1), ends=(EOFError,))
        first = await anext(items)
        with pytest.raises(ValueError):  # noqa: PT011
            await anext(items)
        return [first] + [item async for item in items] + [item async for item in items]

    assert asyncio.run(main()) == [1, 2]
    assert closed == [1]


def test_watch_and_events_of_a_node_continue_after_a_timed_out_wait():
    async def main():
        async with Node() as node:
            changes, events = node.watch("echo"), node.events()
            await cancelled(changes)
            await cancelled(events)
            await cancelled(changes)
            ref = node.spawn(Echo)
            node.register("echo", ref)
            assert await asyncio.wait_for(anext(changes), 10) == NameAdded("echo", ref)
            assert (await asyncio.wait_for(anext(events), 10)).ref == ref
        assert [change async for change in changes] == []  # it ends with the node
        assert [event async for event in events][-1:] != []

    asyncio.run(main())


def test_subscribers_lose_nothing_when_a_read_of_several_is_cancelled():
    async def main():
        async with Node() as node:
            endpoint, other = Endpoint(node=node), Endpoint(node=node)
            subscriber = other.make_subscriber(["t"])
            items = aiter(subscriber)
            await cancelled(items)
            publisher = endpoint.make_publisher("t")
            for number in range(3):
                other.hub.publishing.deliver_here("t", number)
            await asyncio.to_thread(eventually, lambda: subscriber.available() == 3)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(subscriber.aget(10), 0.05)  # it has taken three by then
            assert [value for _, value in await subscriber.aget(2)] == [0, 1]
            assert (await anext(items))[1] == 2
            assert await subscriber.aget(10, 0.01) == []
            publisher.close()

    asyncio.run(main())


def test_gathered_answers_continue_after_a_timed_out_wait():
    async def main():
        async with Node() as node:
            group = node.group("echo")
            group.join(node.spawn(Echo))
            answers = aiter(group.map([0.1, 0.0]))
            await cancelled(answers)
            assert [answer async for answer in answers] == [0.1, 0.0]
            late = Future[int]()
            completed = aiter(as_completed([late]))
            await cancelled(completed)
            late.set_result(1)
            assert [future.result() async for future in completed] == [1]

    asyncio.run(main())


def test_a_follower_of_a_log_continues_after_a_timed_out_wait():
    async def main():
        with CommitLog() as log:
            records = aiter(log.follow())
            await cancelled(records)
            log.append("t", 1)
            log.append("t", 2)
            assert (await asyncio.wait_for(anext(records), 10)).offset == 0
            assert (await asyncio.wait_for(anext(records), 10)).offset == 1
            await cancelled(records)

    asyncio.run(main())


def test_a_cancelled_read_of_a_log_that_is_elsewhere_takes_nothing():
    async def main():
        with CommitLog() as log:
            log.append("t", 1)
            follower = log.follow(0)
            follower._log = slow = Slow(log)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(follower.aread(), 0.02)
            slow.may_answer.set()
            assert await asyncio.to_thread(slow.has_read.wait, 20)
            return [record.offset for record in await follower.aread()]

    assert asyncio.run(main()) == [0]


class Slow:
    """A log that answers when it may."""

    is_elsewhere = True
    is_written_here = False

    def __init__(self, log):
        self._log, self.growth = log, log.follow()._log.growth
        self.may_answer, self.has_read = threading.Event(), threading.Event()

    def readv(self, *args):
        self.may_answer.wait(20)
        run = self._log.readv(*args)
        self.has_read.set()
        return run
