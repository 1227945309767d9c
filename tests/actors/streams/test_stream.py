"""Streams of an actor on its own node and of one on another node."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from callboard import (
    Actor,
    Entity,
    Mailbox,
    Node,
    Query,
    Refusal,
    StreamQuery,
    errors,
    event,
    handler,
    message,
)
from tests.polling import eventually

pytestmark = pytest.mark.timeout(60)


@message("tests.streams.Numbers")
@dataclass(frozen=True)
class Numbers(StreamQuery[int]):
    count: int
    fault: str = ""


@message("tests.streams.Plain")
@dataclass(frozen=True)
class Plain(StreamQuery[int]):
    count: int


@message("tests.streams.Wide")
@dataclass(frozen=True)
class Wide(StreamQuery[bytes]):
    size: int


@message("tests.streams.TooMany")
@dataclass(frozen=True)
class TooMany(Refusal):
    limit: int


class Source(Actor):
    made = 0
    closed = 0

    @handler
    async def numbers(self, query: Numbers) -> AsyncIterator[int]:
        try:
            for number in range(query.count):
                if query.fault == "refuse" and number == 7:
                    raise TooMany(7)
                if query.fault == "raise" and number == 7:
                    message = "no"
                    raise ValueError(message)
                if query.fault == "wait" and number == 3:
                    await self.sleep(3600)
                self.made += 1
                yield number
        finally:
            await self.sleep(0)
            self.closed += 1

    @handler
    def plain(self, query: Plain):
        yield from range(query.count)

    @handler
    def wide(self, query: Wide) -> Iterator[bytes]:
        while True:
            self.made += 1
            yield b"x" * query.size

    @handler
    def state(self, _: str) -> tuple[int, int]:
        return self.made, self.closed


@pytest.fixture(params=["local", "remote"])
def source(request):
    with Node("far") as far, Node("near") as near:
        ref = far.spawn(Source)
        if request.param == "remote":
            far.listen("127.0.0.1", 0)
            far.register("source", ref)
            ref = near.remote_actor(far.address + "/source")
        yield ref


async def read(stream):
    return [item async for item in stream]


@pytest.mark.parametrize("buffer", [1, 2, 3, 64])
def test_all_items_arrive_in_order(source, buffer):
    assert list(source.stream(Numbers(100), buffer)) == list(range(100))
    assert asyncio.run(read(source.stream(Numbers(100), buffer))) == list(range(100))


def test_a_generator_without_await_is_a_handler_too(source):
    assert list(source.stream(Plain(100), 8)) == list(range(100))


def test_a_stream_without_items_ends(source):
    assert list(source.stream(Numbers(0))) == []


def test_next_and_anext_take_one_item(source):
    with source.stream(Numbers(3)) as stream:
        assert [next(stream), next(stream)] == [0, 1]
        assert list(stream) == [2]

    async def first():
        async with source.stream(Numbers(3)) as stream:
            return await anext(stream)

    assert asyncio.run(first()) == 0


def test_leaving_the_loop_closes_the_generator(source):
    for number in source.stream(Numbers(10**9)):
        if number == 10:
            break
    eventually(lambda: source.ask("state").result(5)[1] == 1)

    async def leave():
        async for number in source.stream(Numbers(10**9)):
            if number == 10:
                break

    asyncio.run(leave())
    eventually(lambda: source.ask("state").result(5)[1] == 2)


def test_cancelling_the_reader_closes_a_generator_that_waits(source):
    async def cancel():
        async with asyncio.timeout(0.2):
            await read(source.stream(Numbers(10, "wait")))

    with pytest.raises(TimeoutError):
        asyncio.run(cancel())

    eventually(lambda: source.ask("state").result(5)[1] == 1)


def test_a_reader_that_stops_holds_up_only_its_own_generator(source):
    stopped = source.stream(Numbers(10**9), 16)
    assert next(stopped) == 0

    assert list(source.stream(Plain(1_000))) == list(range(1_000))
    made, _ = source.ask("state").result(5)

    assert made <= 2 * 16
    stopped.close()


def test_bytes_are_bounded_as_well(source):
    stream = source.stream(Wide(100_000), 1_000)
    next(stream)

    eventually(lambda: source.ask("state").result(5)[0] == 22)  # 11 of each MiB
    stream.close()


def test_a_reader_that_takes_nothing_for_long_is_closed(source):
    stream = source.stream(Numbers(10**9), 4, idle=0.2)
    next(stream)
    eventually(lambda: source.ask("state").result(5)[1] == 1)

    with pytest.raises(errors.StreamFailed, match="took nothing for 0.2 s"):
        list(stream)


def test_a_refusal_ends_the_stream_after_the_items_before_it(source):
    items = []

    with pytest.raises(TooMany) as caught:
        items.extend(source.stream(Numbers(10, "refuse"), 3))

    assert items == list(range(7))
    assert caught.value.limit == 7
    assert source.ask("state").result(5)[1] == 1


def test_another_exception_ends_the_stream_and_the_actor(source):
    stream, items = source.stream(Numbers(10, "raise"), 3), []

    with pytest.raises(errors.RemoteError, match="ValueError: no"):
        items.extend(stream)

    assert items == list(range(7))
    assert isinstance(source.ask("state").exception(5), errors.ActorDown)


def test_the_end_of_the_actor_ends_the_stream(source):
    stream = source.stream(Numbers(10**9), 4)
    next(stream)
    source.stop()

    with pytest.raises(errors.ActorDown):
        list(stream)


def test_a_closed_stream_refuses_to_be_read(source):
    stream = source.stream(Numbers(3))
    stream.close()
    stream.close()

    with pytest.raises(errors.StreamFailed, match="the stream was closed"):
        next(stream)


def test_an_ask_of_a_stream_query_says_what_to_do(source):
    error = source.ask(Numbers(3)).exception(5)

    assert type(error) is errors.StreamExpected
    assert (
        str(error) == "Numbers is a StreamQuery; read its answers with ref.stream(Numbers(…))"
    )


def test_an_item_that_cannot_travel_fails_the_stream():
    class Odd(Actor):
        @handler
        def odd(self, query: Plain):
            yield object()

    with Node() as a, Node() as b:
        a.listen("127.0.0.1", 0)
        a.register("odd", a.spawn(Odd))
        odd = b.remote_actor(a.address + "/odd")
        with pytest.raises(errors.NotSerializable):
            next(odd.stream(Plain(1)))


def test_a_stream_needs_a_stream_query_and_a_sound_buffer(source):
    class Ask(Query[int]):
        pass

    with pytest.raises(errors.WrongArgument, match="Ask is not one; use ask"):
        source.stream(Ask())
    with pytest.raises(errors.WrongValue, match="at least 1"):
        source.stream(Plain(1), 0)
    with pytest.raises(errors.WrongValue, match="at most 1,000,000"):
        source.stream(Plain(1), 10**9)
    with pytest.raises(errors.InvalidSeconds):
        source.stream(Plain(1), idle=0)


def test_an_actor_without_a_handler_for_the_query_refuses_it():
    class Deaf(Actor):
        pass

    with Node() as node, pytest.raises(errors.UnexpectedMessage, match="no handler for Plain"):
        next(node.spawn(Deaf).stream(Plain(1)))


def test_a_full_mailbox_does_not_fail_an_open_stream():
    class Small(Source):
        mailbox = Mailbox(limit=1, on_full="fail")

    with Node() as node:
        small = node.spawn(Small)
        assert list(small.stream(Plain(100), 2)) == list(range(100))


def test_a_generator_handler_needs_a_stream_query():
    class Total(Query[int]):
        pass

    def total(self, msg: Total):
        yield 1

    with pytest.raises(errors.InvalidHandler, match="Total is not a StreamQuery; derive it"):
        type("Wrong", (Actor,), {"total": handler(total)})


def test_readers_on_several_threads_have_streams_of_their_own(source):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(sum(source.stream(Plain(500), 7))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert results == [sum(range(500))] * 3


@message("tests.streams.Added")
@dataclass(frozen=True)
class Added:
    number: int


class Cart(Entity):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    @handler
    def add(self, number: int) -> None:
        self.persist(Added(number))

    @event
    def added(self, change: Added) -> None:
        self.numbers.append(change.number)

    @handler
    async def read(self, query: Plain) -> AsyncIterator[int]:
        for number in self.numbers[: query.count]:
            yield number

    @handler
    def write(self, query: Numbers) -> Iterator[int]:
        yield 1
        self.persist(Added(1))


def test_the_stream_of_an_entity_reads_and_cannot_persist(tmp_path):
    with Node() as node:
        node.host(Cart, state=f"sqlite:{tmp_path}/carts.db")
        cart = node.entity(Cart, "k")
        for number in range(5):
            cart.ask(number).result(5)
        assert list(cart.stream(Plain(5), 2)) == list(range(5))

        with pytest.raises(errors.RemoteError, match="NotPersistable"):
            list(cart.stream(Numbers(1)))

        assert list(cart.stream(Plain(9), 2)) == list(range(5))


def test_a_lost_node_ends_the_stream_at_both_ends(cluster):
    a, b = cluster(2)
    local = a.spawn(Source)
    stream = b.ref(str(local)).stream(Numbers(10**9), 4)
    assert next(stream) == 0

    cluster.partition(a, b)
    cluster.advance(60.0)

    with pytest.raises(errors.NodeUnreachable):
        list(stream)
    assert local.ask("state").result(5)[1] == 1


def test_the_items_of_a_simulated_stream_are_complete_over_a_lossy_path(cluster):
    a, b, c = cluster(3, topology="line")
    there = c.ref(str(a.spawn(Source)))
    assert list(there.stream(Plain(300), 7)) == list(range(300))
