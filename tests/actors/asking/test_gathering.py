"""`gather`, `wait` and `as_completed`: on threads, in coroutines, in handlers."""

import asyncio
import concurrent.futures
from concurrent.futures import ThreadPoolExecutor

import pytest

from callboard import Actor, Future, Node, as_completed, errors, gather, handler, wait
from callboard.actors.asking.gathering import Answers


class Doubles(Actor):
    @handler
    def number(self, msg: int) -> int:
        return 2 * msg


class Asks(Actor):
    def __init__(self, other):
        self.other = other

    @handler
    async def number(self, msg: int) -> list:
        asks = [self.other.ask(each) for each in range(msg)]
        completed = [each.result() async for each in as_completed(asks)]
        done, not_done = await wait(asks)
        return [await gather(*asks), sorted(completed), len(done), len(not_done)]

    @handler
    def text(self, msg: str) -> list:
        return gather(self.other.ask(1)).result(5)

    @handler
    def data(self, msg: bytes) -> int:
        return len(wait([Future()]).done)

    @handler
    def nothing(self, msg: None) -> list:
        return list(as_completed([Future()]))


@pytest.fixture(scope="module")
def node():
    with Node() as made:
        yield made


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as made:
        yield made


def done(value=None, error=None):
    future = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
    return future


def test_a_thread_gathers_ours_and_an_executors(node, pool):
    ref = node.spawn(Doubles)

    found = gather(ref.ask(1), pool.submit(str, 2), ref.ask(3)).result(5)

    assert found == [2, "2", 6]
    assert gather().result(0) == []


def test_the_same_future_may_be_gathered_twice():
    future = Future()
    both = gather(future, future)
    future.set_result(1)

    assert both.result(0) == [1, 1]


def test_the_first_error_fails_all_unless_errors_are_results(pool):
    bad, pending = done(error=KeyError("k")), Future()

    with pytest.raises(KeyError):
        gather(pending, bad).result(5)
    (found,) = gather(bad, return_exceptions=True).result(5)
    assert isinstance(found, KeyError)
    assert not pending.done()


def test_cancelling_cancels_all():
    ours, theirs = Future(), concurrent.futures.Future()

    assert gather(ours, theirs).cancel()

    assert ours.cancelled()
    assert theirs.cancelled()


def test_a_cancelled_part_cancels_the_whole():
    ours = Future()
    both = gather(ours, Future())
    ours.cancel()

    assert both.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        both.result(0)


def test_coroutines_await_them(node, pool):
    ref = node.spawn(Doubles)

    async def run():
        asks = [ref.ask(1), ref.ask(2), pool.submit(int, 7)]
        completed = [each.result() async for each in as_completed(asks, 5)]
        done, not_done = await wait(asks, 5)
        return await gather(*asks), sorted(completed), len(done), not_done

    assert asyncio.run(run()) == ([2, 4, 7], [2, 4, 7], 3, set())


def test_handlers_await_them(node):
    asks = node.spawn(Asks, node.spawn(Doubles))

    assert asks.ask(3).result(5) == [[0, 2, 4], [0, 2, 4], 3, 0]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("message", ["gather", b"wait", None])
def test_a_plain_handler_that_would_wait_forever_is_refused(node, message):
    asks = node.spawn(Asks, node.spawn(Doubles))

    with pytest.raises(errors.RemoteError, match=r"async def|await callboard\.wait"):
        asks.ask(message).result(5)


def test_wait_returns_completed_and_pending_futures():
    ours, theirs, pending = done(1), concurrent.futures.Future(), Future()
    theirs.set_result(2)

    found, left = wait([ours, theirs, pending], timeout=0)

    assert found == {ours, theirs}
    assert left == {pending}
    assert wait([ours]).done == {ours}
    assert wait([]).not_done == set()


@pytest.mark.parametrize(
    ("when", "left"),
    [("FIRST_COMPLETED", 1), ("FIRST_EXCEPTION", 1), ("ALL_COMPLETED", 1)],
)
def test_wait_returns_early(when, left, pool):
    pending = Future()
    futures = [pending, done(error=ValueError())]

    _, not_done = wait(futures, None if when != "ALL_COMPLETED" else 0.01, when)

    assert not_done == {pending}


def test_a_wait_that_has_ended_leaves_no_callbacks():
    pending = Future()
    wait([pending], timeout=0)

    assert pending.remove_done_callback(None) == 0
    assert pending._callbacks is None


def test_as_completed_gives_them_as_they_are_done(pool):
    first, second = Future(), Future()
    completed = iter(as_completed([second, first]))
    first.set_result(1)

    assert next(completed) is first
    second.set_result(2)
    assert next(completed) is second
    assert list(completed) == []


def test_as_completed_ends_with_its_time():
    with pytest.raises(errors.ResultTimeout, match="1 of 2 futures"):
        list(as_completed([Future(), done(1)], timeout=0.01))

    async def run():
        return [each async for each in as_completed([Future()], timeout=0.01)]

    with pytest.raises(TimeoutError, match="1 of 1"):
        asyncio.run(run())


async def coroutine():
    pass


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        (lambda: gather([Future()]), errors.WrongArgument, r"asyncio\.gather"),
        (lambda: wait(Future()), errors.WrongArgument, r"wait\(\[first"),
        (lambda: wait([1]), errors.WrongArgument, "takes futures"),
        (lambda: wait([Future()], return_when="x"), errors.WrongValue, "FIRST_COMPLETED"),
        (lambda: wait([Future()], "5"), errors.InvalidSeconds, "number of seconds"),
        (lambda: as_completed(None), errors.WrongArgument, r"\[first, second\]"),
        (lambda: Answers(Future, 5, 1), errors.WrongArgument, "as a list"),
        (lambda: Answers(Future, "abc", 1), errors.WrongArgument, "as a list"),
        (lambda: Answers(Future, [], "1"), errors.WrongArgument, "whole number"),
        (lambda: Answers(Future, [], True), errors.WrongArgument, "whole number"),
        (lambda: Answers(Future, [], 0), errors.WrongValue, "at least 1"),
    ],
)
def test_an_argument_that_is_not_a_future_is_refused(call, error, remedy):
    with pytest.raises(error, match=remedy):
        call()


def test_an_unawaited_wait_in_a_coroutine_is_refused():
    async def run():
        waited = wait([Future()], 0.01)
        with pytest.raises(errors.WouldBlock, match="await callboard.wait"):
            _, _ = waited
        return await waited

    assert asyncio.run(run()).done == set()


# --- the answers of a map ---


class Asked:
    """Answers when it is told to."""

    def __init__(self):
        self.futures = []

    def __call__(self, item):
        self.futures.append(Future(item))
        return self.futures[-1]


def test_answers_come_in_order_with_so_many_under_way():
    asked = Asked()
    answers = Answers(asked, iter(range(100)), 3)
    walk = iter(answers)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, walk)
        while len(asked.futures) < 3:
            pass
        assert len(asked.futures) == 3
        asked.futures[1].set_result("b")
        asked.futures[0].set_result("a")

        assert first.result(5) == "a"
    assert next(walk) == "b"
    walk.close()
    assert all(future.done() for future in asked.futures)


def test_answers_that_wait_for_a_slow_one_are_bounded():
    asked = Asked()
    answers = Answers(asked, iter(range(1000)), 2)
    answers._fill()
    for _ in range(10):
        for future in asked.futures[1:]:
            future.set_result(1)
        answers._fill()

    assert len(asked.futures) == 4


def test_answers_as_a_list_on_a_thread_and_awaited():
    assert Answers(done, [1, 2, 3], 2).result(5) == [1, 2, 3]

    async def run():
        return await Answers(done, [1, 2], 1), [a async for a in Answers(done, [3], 5)]

    assert asyncio.run(run()) == ([1, 2], [3])


def test_the_first_error_ends_a_map_and_cancels_the_rest():
    pending = Future()
    futures = iter([done(error=KeyError("k")), pending])

    with pytest.raises(KeyError):
        list(Answers(lambda _: next(futures), [1, 2], 5))
    assert pending.cancelled()


def test_a_map_that_is_not_done_in_time_is_cancelled():
    asked = Asked()

    with pytest.raises(errors.ResultTimeout):
        Answers(asked, [1], 1).result(0.01)
    assert asked.futures[0].cancelled()
