"""A value that is owned on arrival is fetched or given back, whatever happens in between."""

import asyncio
import concurrent.futures
import gc
import threading

import pytest

from callboard import errors, gather
from callboard.actors.waits.owned_future import OwnedFuture


@pytest.fixture
def returned():
    """What was given back."""
    return []


@pytest.fixture
def future(returned):
    return OwnedFuture[str](None, returned.append)


def test_a_value_that_is_awaited_or_read_is_not_given_back(future, returned):
    async def main():
        asyncio.get_running_loop().call_soon(future.set_result, "job")
        return await asyncio.wait_for(future, 10)

    assert asyncio.run(main()) == "job"
    assert future.result() == "job"
    assert not future.cancel()
    assert returned == []


def test_a_value_goes_back_when_the_wait_was_cancelled_before_its_task_ran(future, returned):
    async def main():
        waiter = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        future.set_result("job")  # the task is woken, and has not run when it is cancelled
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    async def wait():
        return await future

    asyncio.run(main())
    assert returned == ["job"]
    assert future.cancelled()


@pytest.mark.slow
@pytest.mark.parametrize("shield", [False, True])
def test_a_wait_in_time_fetches_the_value_or_gives_it_back(returned, shield):
    """The value arrives at about the moment at which the time is over, again and again."""
    got = []

    async def main():
        loop = asyncio.get_running_loop()
        for number in range(300):
            future = OwnedFuture[int](None, returned.append)
            has_come = asyncio.Event()

            def arrive(future=future, number=number, has_come=has_come):
                future.set_result(number)
                has_come.set()

            loop.call_later(0.001, arrive)  # just before the time is over
            try:
                async with asyncio.timeout(0.001):
                    got.append(await (asyncio.shield(future) if shield else future))
            except TimeoutError:
                pass
            if shield:  # the inner future goes on, and is dropped with its value
                await has_come.wait()
            del future, arrive

    asyncio.run(main())
    gc.collect()
    assert sorted(got + returned) == list(range(300))


def test_an_unfetched_value_is_given_back_when_its_future_is_dropped(returned):
    future = OwnedFuture[str](None, returned.append)
    future.set_result("job")
    assert future.exception() is None
    assert returned == []
    del future
    gc.collect()
    assert returned == ["job"]


def test_a_cancelled_gather_gives_back_the_values_that_have_arrived(returned):
    futures = [OwnedFuture[str](None, returned.append) for _ in range(2)]

    async def main():
        both = asyncio.gather(*futures)
        await asyncio.sleep(0)
        futures[0].set_result("job")
        await asyncio.sleep(0)
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both

    asyncio.run(main())
    assert returned == ["job"]
    ours = gather(first := OwnedFuture[str](None, returned.append), OwnedFuture(None, print))
    first.set_result("other job")
    ours.cancel()
    assert returned == ["job", "other job"]


def test_a_thread_whose_time_ran_out_finds_the_value_or_leaves_it(future, returned):
    with pytest.raises(errors.ResultTimeout):
        future.result(0.0)
    future.set_result("job")
    assert future.result() == "job"
    assert returned == []


def test_a_twin_for_threads_has_the_value_or_gives_it_back(returned):
    future = OwnedFuture[str](None, returned.append)
    twin = future.as_concurrent()
    future.set_result("job")
    assert twin.result() == "job"
    del future
    gc.collect()
    assert returned == []

    other = OwnedFuture[str](None, returned.append)
    assert other.as_concurrent().cancel()
    assert not other.set_result("late")


def test_an_arrival_and_a_cancellation_on_two_threads_have_one_outcome():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in range(300):
            returned: list[str] = []
            future = OwnedFuture[str](None, returned.append)
            barrier = threading.Barrier(2)

            def at_once(call, *args, barrier=barrier):
                barrier.wait()
                return call(*args)

            arrival = pool.submit(at_once, future.set_result, "job")
            cancellation = pool.submit(at_once, future.cancel)
            assert cancellation.result(10)
            assert returned == (["job"] if arrival.result(10) else [])
