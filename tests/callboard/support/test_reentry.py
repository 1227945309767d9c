"""Sends from inside callboard's own calls, as finalizers and signal handlers make them."""

import contextvars
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from callboard import Node, locks
from callboard.actors import closing
from callboard.actors.errors import WouldDeadlock
from callboard.actors.future import Future
from callboard.actors.runner.timers import Timers
from callboard.support import reentry

PROGRAM = Path(__file__).with_name("reentrant.py")


@pytest.fixture
def guard():
    return locks.lock("a lock", 1)


@pytest.fixture
def posted():
    return deque()


@pytest.fixture
def queue(guard, posted):
    return reentry.HandOver(guard, posted.append)


def test_a_lock_is_not_taken_for_a_send_by_the_thread_that_holds_it(guard):
    assert reentry.take(guard)
    assert not reentry.take(guard)
    guard.release()
    assert reentry.take(guard)
    guard.release()


def held_elsewhere(guard):
    """Have another thread hold a lock; return the event that ends that, and the thread."""
    is_held, over = threading.Event(), threading.Event()

    def hold():
        with guard:
            is_held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(60)
    return over, thread


def test_a_thread_that_holds_a_lock_waits_for_no_other_to_send(guard):
    over, thread = held_elsewhere(guard)
    with locks.lock("another lock", 2):  # which the other thread may be waiting for
        assert not reentry.take(guard)
    over.set()
    thread.join()


def test_a_thread_that_holds_no_lock_waits_until_it_can_send(guard):
    over, thread = held_elsewhere(guard)
    threading.Timer(reentry.PATIENCE, over.set).start()
    while not reentry.take(guard):
        pass
    guard.release()
    thread.join()


def test_calls_are_made_in_order_once_the_lock_is_left(guard, queue):
    made = []
    with guard:
        for number in range(5):
            queue.add(lambda number=number: made.append(number), made.append)
        queue.carry_out()
        assert made == []
    queue.carry_out()
    assert made == [0, 1, 2, 3, 4]
    assert queue.handed == 5


def test_the_runner_looks_into_the_queue_in_any_case(guard, queue, posted):
    made = []
    with guard:
        queue.add(lambda: made.append(1), made.append)
    posted.popleft()()
    assert made == [1]


def test_what_is_handed_over_meanwhile_comes_behind_what_waits(queue):
    made = []

    def first():
        queue.add(lambda: made.append("from inside"), made.append)
        queue.carry_out()
        made.append("first")

    queue.add(first, made.append)
    queue.add(lambda: made.append("second"), made.append)
    queue.carry_out()
    assert made == ["first", "second", "from inside"]


def test_a_call_is_made_in_its_own_context(queue):
    variable, seen = contextvars.ContextVar("variable", default=0), []
    token = variable.set(1)
    queue.add(lambda: seen.append(variable.get()), seen.append)
    variable.reset(token)
    queue.carry_out()
    assert seen == [1]


def test_the_sender_of_a_call_that_fails_is_told_and_the_next_one_is_made(queue):
    told = []
    queue.add(lambda: int("no number"), told.append)
    queue.add(lambda: told.append("next"), told.append)
    queue.carry_out()
    assert isinstance(told[0], ValueError)
    assert told[1] == "next"


def test_the_queue_is_bounded(queue, monkeypatch):
    monkeypatch.setattr(reentry, "CALLS_LIMIT", 3)
    made, refused = [], []
    for number in range(5):
        queue.add(lambda number=number: made.append(number), refused.append)
    queue.carry_out()
    assert made == [0, 1, 2]
    assert [type(error) for error in refused] == [reentry.TooManyCalls] * 2


def test_a_wait_for_an_answer_inside_a_call_is_refused(guard):
    future = Future()
    with guard, pytest.raises(WouldDeadlock):
        future.result(60)
    threading.Timer(2 * reentry.PATIENCE, future.set_result, [1]).start()
    assert future.result(60) == 1


def test_a_short_wait_ends_in_time_inside_a_call():
    future = Future()
    with locks.lock("a lock", 1), pytest.raises(TimeoutError):
        future.result(0.001)


def test_closing_inside_a_call_is_refused(guard):
    with Node() as node:
        with guard, pytest.raises(WouldDeadlock, match=r"close\(\)"):
            node.close()
        with guard, pytest.raises(WouldDeadlock):
            closing.refuse_loop("x()", "ax()")


def test_a_timer_that_is_set_inside_another_call_of_the_heap_is_due_in_its_place():
    timers, fired = Timers(), []
    timers.add(2.0, fired.append, ("second",))
    with timers._lock:
        timers.add(1.0, fired.append, ("first",))
    assert len(timers) == 2
    for callback, args in timers.due(3.0):
        callback(*args)
    assert fired == ["first", "second"]


def run_program(*args, seconds=150):
    command = [sys.executable, str(PROGRAM), *map(str, args)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-4000:]


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("tell_remote", "tell_remote,spawn_and_tell,blocking"),
        ("tell_entity", "tell_entity,put"),
        ("timer", "timer,tell_remote"),
        ("publish", "publish,tell_entity"),
        ("monitor", "monitor,tell_remote"),
    ],
)
def test_sends_are_right_before_each_opcode_of_another_send(outer, inner):
    run_program("opcodes", outer, inner)


def test_sends_are_right_inside_others_by_chance():
    run_program("chance", 1, 300)


def test_finalizers_of_garbage_and_signal_handlers_may_send():
    run_program("garbage", 3)


def test_a_logging_handler_may_ship_records_to_a_remote_actor_from_a_finalizer():
    from tests.callboard.support.reentrant import Sink

    got, far, near = [], Node("far"), Node("near")
    far.listen("127.0.0.1", 0)
    near.connect(far.address)
    sink = near.ref(str(far.spawn(Sink, got)))

    class Ship(logging.Handler):
        def emit(self, record):
            sink.tell(self.format(record))

    class Session:
        def __init__(self):
            self.me = self

        def __del__(self):
            logger.warning("a session was not closed")

    logger = logging.getLogger("test_reentry")
    logger.propagate = False
    logger.addHandler(Ship())
    try:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            Session()
            logger.warning("a request")
        assert sink.ask(_number()).result(60) == 1
    finally:
        logger.handlers.clear()
        near.close()
        far.close()


def _number():
    from tests.callboard.support.reentrant import Number

    return Number("last", 1)
