"""Sends from inside callboard's own calls, as finalizers and signal handlers make them."""

import contextlib
import contextvars
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from callboard import Node, closing, locks
from callboard.actors.errors import MailboxFull, WouldDeadlock
from callboard.actors.future import Future
from callboard.actors.runner.timers import Timers
from callboard.support import reentry
from tests.callboard.support.reentrant import GOT, BoundedSink, Cart, Number, Sink
from tests.polling import eventually

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


def test_a_send_does_not_acquire_a_lock_that_its_thread_holds(guard):
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


def test_calls_are_executed_in_order_after_the_lock_is_released(guard, queue):
    made = []
    with guard:
        for number in range(5):
            queue.add(lambda number=number: made.append(number), made.append)
        queue.carry_out()
        assert made == []
    queue.carry_out()
    assert made == [0, 1, 2, 3, 4]
    assert queue.handed == 5


def test_the_runner_always_checks_the_queue(guard, queue, posted):
    made = []
    with guard:
        queue.add(lambda: made.append(1), made.append)
    posted.popleft()()
    assert made == [1]


def test_later_calls_are_queued_after_waiting_ones(queue):
    made = []

    def first():
        queue.add(lambda: made.append("from inside"), made.append)
        queue.carry_out()
        made.append("first")

    queue.add(first, made.append)
    queue.add(lambda: made.append("second"), made.append)
    queue.carry_out()
    assert made == ["first", "second", "from inside"]


def test_a_call_is_executed_in_its_own_context(queue):
    variable, seen = contextvars.ContextVar("variable", default=0), []
    token = variable.set(1)
    queue.add(lambda: seen.append(variable.get()), seen.append)
    variable.reset(token)
    queue.carry_out()
    assert seen == [1]


def test_a_failed_call_is_reported_to_its_sender_and_the_next_one_executed(queue):
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


def run_python(*args, seconds=150):
    command = [sys.executable, *map(str, args)]
    root = PROGRAM.parents[3]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=root)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-4000:]


def run_program(*args):
    run_python(PROGRAM, *args)


def run_parts(*args):
    run_python("-m", "tests.callboard.support.reentrant_parts", *args)


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
def test_a_send_before_each_opcode_of_another_send_is_correct(outer, inner):
    run_program("opcodes", outer, inner)


#: More ways in which garbage may send.
REST = ("finalize", "warning", "unraisable")


def test_sends_at_random_points_inside_others_are_correct():
    run_program("chance", 1, 300)


@pytest.mark.parametrize(
    "way",
    ["del", *(pytest.param(way, marks=pytest.mark.slow) for way in REST)],
)
def test_garbage_and_signal_handlers_may_send(way):
    run_program("garbage", 2, way)


@pytest.mark.parametrize(
    ("part", "outer", "inner", "step"),
    [
        ("log", "append", "append", 20),
        ("log", "append_batch", "flush", 30),
        ("log", "produce", "produce", 15),
        ("log", "append", "close", 20),
        ("each", "append", "append", 30),
        ("mqtt", "publish", "publish", 10),
        ("mqtt", "publish_2", "close", 20),
        ("flow", "put", "put", 10),
        ("file", "append", "append", 10),
        ("gateway", "publish", "publish", 5),
        ("bytes", "publish", "publish", 10),
        ("dropping", "publish", "publish", 10),
        ("spool", "publish", "publish", 30),
    ],
)
def test_a_call_inside_another_one_is_done_or_refused(part, outer, inner, step):
    run_parts(part, outer, inner, step)


def test_every_part_stands_in_the_quick_set():
    from tests.callboard.support.reentrant_parts import PARTS

    (marks,) = test_a_call_inside_another_one_is_done_or_refused.pytestmark
    assert {each[0] for each in marks.args[1]} == PARTS.keys()


@pytest.mark.parametrize("make", [locks.lock, lambda *a: locks.lock(*a, reentrant=True)])
def test_a_call_that_has_to_answer_is_refused_inside_its_own_lock(make):
    guard = make("a lock", 1)
    with guard, pytest.raises(WouldDeadlock, match=r"append\(\) was called in a finalizer"):
        reentry.enter(guard, "append()")
    reentry.enter(guard, "append()")
    guard.release()


def test_a_call_that_has_to_answer_waits_for_another_thread_but_not_for_ever(guard):
    over, thread = held_elsewhere(guard)
    with pytest.raises(WouldDeadlock, match="another thread has held the lock of this call"):
        reentry.enter(guard, "append()", longest=2 * reentry.PATIENCE)
    threading.Timer(2 * reentry.PATIENCE, over.set).start()
    reentry.enter(guard, "append()")
    guard.release()
    thread.join()


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


@contextlib.contextmanager
def standing_still(node):
    """Keep the thread of a node from carrying anything out."""
    stands, over = threading.Event(), threading.Event()
    node.runtime.post(lambda: stands.set() or over.wait(60))
    assert stands.wait(60)
    try:
        yield
    finally:
        over.set()


@pytest.fixture
def near():
    with Node("near") as node:
        yield node


@pytest.fixture
def remote(near):
    """A remote actor, and the lock that its senders need."""
    got = []
    with Node("far") as far:
        far.listen("127.0.0.1", 0)
        near.connect(far.address)
        yield near.ref(str(far.spawn(Sink, got))), near._broker.outgoing.lock, got


@pytest.fixture
def bounded(near):
    """An actor with a bounded mailbox, and the lock that its senders need."""
    got = []
    ref = near.spawn(BoundedSink, got)
    return ref, near.runtime.contexts[ref.actor_id]._mailbox._lock, got


@pytest.fixture
def entity(near):
    """An entity, and the lock of its host."""
    near.host(Cart)
    ref, got = near.entity(Cart, "one"), GOT["entity"]
    ref.ask(_number()).result(60)
    got.clear()
    return ref, near._entities._hosts[Cart.name].lock, got


@pytest.mark.parametrize("kind", ["remote", "bounded", "entity"])
def test_a_sender_that_continues_outside_keeps_the_order(near, kind, request):
    ref, guard, got = request.getfixturevalue(kind)
    before = near.stats().handed_over
    with standing_still(near):
        with guard:
            ref.tell(Number("me", 1))
        for number in (2, 3):
            ref.tell(Number("me", number))
        assert got == []
    eventually(lambda: len(got) == 3)
    assert got == [("me", 1), ("me", 2), ("me", 3)]
    assert near.stats().handed_over > before


def test_a_message_that_cannot_be_handed_over_is_a_dead_letter(near, bounded, monkeypatch):
    monkeypatch.setattr(reentry, "CALLS_LIMIT", 2)
    ref, guard, got = bounded
    before = near.stats().dead_letters
    with standing_still(near), guard:
        futures = [ref.ask(Number("me", number), 60) for number in range(4)]
        ref.tell(Number("me", 5))
    assert [each.result(60) for each in futures[:2]] == [0, 1]
    for each in futures[2:]:
        with pytest.raises(MailboxFull, match="calls are queued"):
            each.result(60)
    eventually(lambda: near.stats().dead_letters == before + 3)
