"""A handler that blocks freezes neither other actors, nor timers, nor sockets."""

import asyncio
import socket
import threading
import time
from collections import deque

import pytest

from callboard import Actor, Future, handler
from callboard.actors.errors import NodeClosed
from callboard.actors.runner.deadlines import SWEEP_INTERVAL
from callboard.actors.runner.runner import Runner
from callboard.actors.runtime import Runtime
from tests.actors.conftest import runtime_threads
from tests.actors.sample import Echo, Gate, instance
from tests.polling import eventually

#: Seconds; it takes milliseconds on a quiet machine, and what is stuck never ends. A computing
#: thread gives the interpreter's lock away only every 5 ms, and each step of another needs it.
WITHIN = 60.0


class Computing(Actor):
    """Computes in pure Python until it is told to end."""

    def __init__(self):
        self.entered = threading.Event()
        self.enough = False

    @handler
    def compute(self, msg: str) -> int:
        self.entered.set()
        count = 0
        while not self.enough:
            count += 1
        return count


@pytest.fixture(params=[Gate, Computing])
def stuck(runtime, request):
    """An actor inside a handler that does not return before the test is over."""
    ref = runtime.start_actor(request.param)
    actor = instance(ref)
    ref.tell("x")
    assert actor.entered.wait(WITHIN)
    yield ref
    actor.enough = True
    getattr(actor, "opened", threading.Event()).set()


def test_other_actors_continue_while_one_is_stuck(runtime, stuck):
    echo = runtime.start_actor(Echo)
    echo.ask("warm").result(WITHIN)
    started = time.monotonic()

    assert [echo.ask(str(i)).result(WITHIN) for i in range(10)] == [str(i) for i in range(10)]
    assert time.monotonic() - started < WITHIN


def test_timers_fire_while_an_actor_is_stuck(runtime, stuck):
    fired, started = threading.Event(), time.monotonic()
    runtime.runner.call_later(0.05, fired.set)

    assert fired.wait(WITHIN)
    assert 0.05 <= time.monotonic() - started < 0.05 + WITHIN


def test_sockets_are_polled_while_an_actor_is_stuck(runtime, stuck):
    class Server(Actor):
        @handler
        async def start(self, msg: str) -> int:
            async def serve(reader, writer):
                writer.write(await reader.readline())
                writer.close()

            self.server = await asyncio.start_server(serve, "127.0.0.1", 0)
            return self.server.sockets[0].getsockname()[1]

        @handler
        def end(self, msg: bytes) -> None:
            self.server.close()

    server = runtime.start_actor(Server)
    port = server.ask("x").result(WITHIN)
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN) as client:
        client.sendall(b"hello\n")
        assert client.recv(100) == b"hello\n"
    server.ask(b"").result(WITHIN)


def test_coroutine_handlers_continue_while_an_actor_is_stuck(runtime, stuck):
    class Sleeping(Actor):
        @handler
        async def go(self, msg: str) -> str:
            called = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, called.set)
            async with asyncio.timeout(WITHIN):
                await asyncio.gather(called.wait(), self.sleep(0.01))
            return msg

    assert runtime.start_actor(Sleeping).ask("x").result(WITHIN) == "x"


def test_many_stuck_actors_are_stuck_together(runtime):
    gates = [runtime.start_actor(Gate) for _ in range(10)]
    asks = [gate.ask("x") for gate in gates]
    inside = [instance(gate).entered.wait(WITHIN) for gate in gates]
    for gate in gates:
        instance(gate).opened.set()

    assert inside == [True] * 10
    assert [ask.result(WITHIN) for ask in asks] == ["x"] * 10


def test_threads_are_not_added_without_end_by_one_that_computes(runtime):
    before = len(runtime_threads())
    computing, echo = runtime.start_actor(Computing), runtime.start_actor(Echo)
    count = computing.ask("x")
    assert instance(computing).entered.wait(WITHIN)
    for _ in range(100):
        echo.ask("x").result(WITHIN)
    threads = len(runtime_threads()) - before
    instance(computing).enough = True

    assert count.result(WITHIN) > 0
    assert threads <= 8


def test_a_coroutine_handler_continues_after_blocking(runtime):
    entered, opened = threading.Event(), threading.Event()

    class Blocking(Actor):
        @handler
        async def go(self, msg: str) -> str:
            entered.set()
            opened.wait(WITHIN)
            await asyncio.sleep(0)
            async with asyncio.timeout(WITHIN):
                await self.sleep(0.001)
            return msg

    ref, echo = runtime.start_actor(Blocking), runtime.start_actor(Echo)
    answer = ref.ask("done")
    assert entered.wait(WITHIN)

    assert echo.ask("x").result(WITHIN) == "x"
    opened.set()
    assert answer.result(WITHIN) == "done"


def test_a_thread_that_loses_the_role_between_two_cells_ends_nothing(no_thread_left):
    class Robbed(deque):
        """Its first item goes to a thread that gets the role at the worst moment."""

        def popleft(self):
            if robbed:
                return super().popleft()
            robbed.append(threading.current_thread())
            assert runtime.runner.pass_role_on()
            assert answered.wait(WITHIN)  # the other thread has taken it
            try:
                return super().popleft()
            finally:
                is_over.set()

    robbed: list[threading.Thread] = []
    answered, is_over = threading.Event(), threading.Event()
    runtime = Runtime("robbed")
    runtime.runner.ready = Robbed()
    try:
        assert runtime.start_actor(Echo).ask("x").result(WITHIN) == "x"
        answered.set()
        assert is_over.wait(WITHIN)

        assert runtime.start_actor(Echo).ask("y").result(WITHIN) == "y"
        eventually(lambda: not runtime.runner.times.stuck)
        assert robbed[0].is_alive()
    finally:
        runtime.close()


def test_callbacks_after_a_stuck_one_run_on_the_thread_with_the_role(runtime):
    threads: list[int] = []
    gate, entered = threading.Event(), threading.Event()
    loop, runner = runtime.runner.loop, runtime.runner

    def blocks() -> None:
        threads.append(threading.get_ident())
        entered.set()
        gate.wait(WITHIN)

    def follows() -> None:
        threads.append(threading.get_ident())
        done.set()

    done = threading.Event()
    runtime.start_actor(Echo).ask("warm").result(WITHIN)
    runner.post(lambda: (loop.call_soon(blocks), loop.call_soon(follows)))
    assert entered.wait(WITHIN)
    eventually(lambda: runner.holder not in {None, threads[0]})
    gate.set()

    assert done.wait(WITHIN)
    assert threads[1] != threads[0]


def test_a_cancelled_timer_does_not_fire(runtime):
    runtime.start_actor(Echo)
    fired, later = [], threading.Event()
    runtime.runner.call_later(0.01, fired.append, 1).cancel()
    runtime.runner.call_later(0.02, later.set)

    assert later.wait(WITHIN)
    assert fired == []


def test_timers_fire_in_the_order_of_their_times(runtime):
    runtime.start_actor(Echo)
    fired, done = [], threading.Event()
    for delay in (0.03, 0.01, 0.02):
        runtime.runner.call_later(delay, fired.append, delay)
    runtime.runner.call_later(0.04, done.set)

    assert done.wait(WITHIN)
    assert fired == [0.01, 0.02, 0.03]


def test_a_timer_that_never_comes_does_not_stop_the_poller(runtime):
    runtime.runner.call_later(float("inf"), print)

    assert runtime.start_actor(Echo).ask("x").result(WITHIN) == "x"


def test_a_posted_call_that_fails_ends_nothing(runtime):
    runtime.start_actor(Echo)
    done = threading.Event()
    runtime.runner.post(lambda: 1 / 0)
    runtime.runner.post(done.set)

    assert done.wait(WITHIN)


def test_a_runner_that_never_started_is_freed(no_thread_left):
    Runtime("idle").close()


def test_no_thread_stays_after_the_end_though_the_role_moved(no_thread_left):
    runtime = Runtime("moved")
    gates = [runtime.start_actor(Gate) for _ in range(3)]
    for gate in gates:
        gate.tell("x")
        assert instance(gate).entered.wait(WITHIN)
        instance(gate).opened.set()
    runtime.end_actors()
    started = time.monotonic()
    runtime.close()

    assert time.monotonic() - started < WITHIN


@pytest.mark.parametrize("noticed_within", [0.0, 0.05])
def test_a_runtime_can_be_closed_while_an_actor_is_stuck(no_thread_left, noticed_within):
    runtime = Runtime("stuck")
    gate = runtime.start_actor(Gate)
    actor, answer = instance(gate), gate.ask("x")
    assert actor.entered.wait(WITHIN)

    assert not runtime.end_actors(noticed_within)
    runtime.close()
    actor.opened.set()

    with pytest.raises(NodeClosed):
        answer.result(WITHIN)


def test_a_poll_is_ended_only_for_a_deadline_that_it_would_miss(monkeypatch):
    runner = Runner("polls", clock=lambda: 5.0)
    woken = []
    monkeypatch.setattr(runner, "wake", lambda: woken.append(runner._polls_until))
    runner.sleeping, runner._polls_until = True, 10.0

    runner.awake_by(10.0)
    runner.awake_by(9.9)
    runner.sleeping = False
    runner.awake_by(9.9)
    runner.stop()

    assert woken == [10.0]


def test_an_ask_that_is_made_while_a_poll_begins_is_not_overlooked():
    runner = Runner("polls", clock=lambda: 5.0)
    timeouts = []

    class Late:
        """A selector during whose choice of a timeout nothing else happens any more."""

        def select(self, timeout):
            timeouts.append(timeout)
            return []

    runner.deadlines.fresh.append(Future("somebody", deadline=65.0))
    sweep = runner.deadlines.sweep

    def sweep_then_ask(now):
        sweep(now)
        runner.deadlines.fresh.append(Future("somebody"))
        return 65.0

    runner.deadlines.sweep = sweep_then_ask
    runner.selector, selector = Late(), runner.selector
    runner._poll(5.0)
    runner.selector = selector
    runner.stop()

    assert timeouts == [pytest.approx(SWEEP_INTERVAL)]


def test_any_number_of_cells_can_be_left_over_when_a_node_ends(runtime):
    """Each of them posts something as it ends, which wakes the runner that is over."""
    runner, ran = runtime.runner, []

    class Left:
        def run(self):
            ran.append(self)
            runner.post(ran.clear)

    runtime.close()
    runner.ready.extend(Left() for _ in range(5_000))
    runner.schedule(Left())

    assert len(ran) == 5_001
