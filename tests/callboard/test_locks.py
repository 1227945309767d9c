"""The locks: their rules, their page, and that none is made elsewhere."""

import ast
import threading

import pytest

from callboard import checked_locks, locks
from callboard.actors.future import Future
from scripts import locks_page

pytest_plugins = ["pytester"]

#: Locks and semaphores that guard no data: signals between two threads, a window, the role of a
#: runner. This list only shrinks.
SIGNALS = {
    ("callboard/actors/future.py", "Future._wait.woken"),
    ("callboard/actors/runner/runner.py", "Runner._role"),
    ("callboard/actors/runner/runner.py", "Runner._wait_as_spare.needed"),
    ("callboard/broker/store_file.py", "write_store_file.done"),
    ("callboard/log_service/log_writer.py", "LogWriter._room"),
    ("callboard/cli/own_node.py", "SignalEvent._closed"),
    ("callboard/topics/message_queue.py", "_Sleeper._woken"),
}


@pytest.mark.parametrize(
    "text",
    [
        "import threading\nlock = threading.Lock()",
        "from threading import RLock\nlock = RLock()",
        "from threading import Event as Flag\nflag = Flag()",
        "import threading\nlock = field(default_factory=threading.Condition)",
        "import _thread\nlock = _thread.allocate_lock()",
    ],
)
def test_what_is_made_without_the_factory_is_found(text):
    assert locks_page.signals_in(ast.parse(text), "a.py")


def test_a_lock_is_named_by_its_class_and_attribute():
    text = """
class Box:
    def __init__(self):
        self.count, self._lock = 0, locks.lock("a box", 5, reentrant=True)
        self._emptied: Event = threading.Event()
"""

    assert locks_page.locks_in(ast.parse(text), "a.py") == [
        (5, "a box", "Box._lock", "a.py", "reentrant")
    ]
    assert locks_page.signals_in(ast.parse(text), "a.py") == [("a.py", "Box._emptied", "Event")]


def test_the_page_has_the_locks_and_signals_of_the_code():
    page = locks_page.PAGE.read_text(encoding="utf-8")

    for table in locks_page.tables(page):
        assert table in page, "run `python -m scripts.locks_page`"


def test_the_page_says_what_each_lock_guards_and_what_each_signal_means():
    rows = locks_page.texts(locks_page.PAGE.read_text(encoding="utf-8"))

    made, signals = locks_page.in_code()
    assert len(rows) == len({lock.name for lock in made}) + len(signals)
    assert [name for name, text in rows.items() if not text] == []


def test_no_lock_that_guards_data_is_made_without_the_factory():
    _, signals = locks_page.in_code()

    locks_of_threading = [signal for signal in signals if signal.kind != "Event"]
    assert {(signal.file, signal.owner) for signal in locks_of_threading} == SIGNALS


def test_each_lock_has_a_name_of_its_own():
    names = {}
    for lock in locks_page.in_code()[0]:
        assert names.setdefault(lock.name, (lock.file, lock.rank)) == (lock.file, lock.rank)


# --- the checked locks, which the whole suite runs with ---


@pytest.fixture
def broken():
    """Return what was broken, and forget it: the test breaks rules on purpose."""
    yield checked_locks.misuses
    checked_locks.misuses()


def test_locks_of_the_suite_are_checked():
    from callboard.actors.cell import MONITORS_LOCK

    assert isinstance(MONITORS_LOCK, checked_locks.CheckedLock)


def test_a_lock_of_a_lower_rank_is_refused(broken):
    low, high = locks.lock("low", 1), locks.lock("high", 2)
    with low, high:
        pass
    with high, pytest.raises(checked_locks.LockMisuse, match="'low'.*'high'"):
        low.acquire()
    assert len(broken()) == 1


def test_two_locks_of_one_rank_are_refused(broken):
    one, other = locks.lock("one", 1), locks.lock("other", 1)
    with one, pytest.raises(checked_locks.LockMisuse):
        other.acquire()
    assert broken()


def test_a_lock_is_taken_once_unless_it_is_reentrant(broken):
    once, often = locks.lock("once", 1), locks.lock("often", 2, reentrant=True)
    with once, pytest.raises(checked_locks.LockMisuse):
        once.acquire()
    with often, often:
        pass
    assert len(broken()) == 1


def test_a_lock_is_released_by_its_owner_alone(broken):
    lock = locks.lock("a lock", 1)
    with pytest.raises(checked_locks.LockMisuse):
        lock.release()
    assert broken()


@pytest.mark.parametrize(
    "complete",
    [
        lambda future: future.set_result(1),
        lambda future: future.set_exception(ValueError()),
        lambda future: future.cancel(),
        lambda future: [future.on_done(print), future.set_result(1)],
    ],
)
def test_no_future_is_completed_under_a_lock(broken, complete):
    with locks.lock("a lock", 1), pytest.raises(checked_locks.LockMisuse):
        complete(Future())
    assert broken()


def test_a_callback_of_a_future_that_is_done_is_not_called_under_a_lock(broken):
    future = Future()
    future.set_result(1)
    with locks.lock("a lock", 1), pytest.raises(checked_locks.LockMisuse):
        future.add_done_callback(print)
    assert broken()


def test_a_broken_rule_fails_the_test_also_where_the_error_is_caught(pytester):
    pytester.makepyfile(
        """
        from callboard import locks
        from callboard.actors.future import Future

        def test_it():
            try:
                with locks.lock("a lock", 1):
                    Future().set_result(1)
            except AssertionError:
                pass
        """
    )
    plugins = ["-p", "callboard.checked_locks", "-p", "no:randomly", "-p", "no:cacheprovider"]
    outcome = pytester.runpytest_subprocess(*plugins)
    outcome.assert_outcomes(passed=1, errors=1)
    outcome.stdout.fnmatch_lines(["*a future is completed while this thread holds*a lock*"])


def test_a_condition_gives_its_lock_back_while_it_waits():
    condition = locks.condition("a condition", 1)
    is_there = []

    def add():
        with condition:
            is_there.append(1)
            condition.notify()

    with condition:
        thread = threading.Thread(target=add)
        thread.start()
        assert condition.wait_for(lambda: is_there, 60)
    thread.join()


def test_production_has_the_locks_of_the_interpreter():
    made = locks._plain("a lock", 1, reentrant=False, runs_users=False)
    assert type(made) is type(threading.RLock())


# --- collecting locks ---


def test_what_a_lock_collects_is_called_in_order_when_it_is_released():
    lock, calls = locks.collecting_lock("collecting", 1), []
    with lock:
        with lock:
            lock.after(calls.append, 1)
            lock.after(calls.append, 2)
        assert calls == []
    assert calls == [1, 2]
    lock.after(calls.append, 3)
    assert calls == [1, 2, 3]


def test_a_thread_makes_no_calls_that_another_has_collected():
    lock, callers = locks.collecting_lock("collecting", 1), []
    collected, taken = threading.Event(), threading.Event()

    def note():
        collected.set()
        assert taken.wait(60)
        callers.append(threading.get_ident())

    def collect():
        with lock:
            lock.after(note)
            lock.after(lambda: callers.append(threading.get_ident()))

    thread = threading.Thread(target=collect)
    thread.start()
    assert collected.wait(60)
    with lock:  # between the two calls of the other thread
        pass
    assert callers == []
    taken.set()
    thread.join()
    assert callers == [thread.ident] * 2


def test_an_inner_lock_leaves_calls_to_the_outer_one_that_is_held():
    outer, inner = locks.collecting_lock("outer", 1), locks.collecting_lock("inner", 2)
    inner.outer, calls = outer, []
    with outer:
        with inner:
            inner.after(calls.append, 1)
        assert calls == []
    assert calls == [1]


def test_a_call_that_fails_keeps_no_other_from_being_made():
    lock, calls = locks.collecting_lock("collecting", 1), []

    def collect():
        with lock:
            lock.after(int, "no number")
            lock.after(calls.append, 2)

    with pytest.raises(ValueError, match="no number"):
        collect()
    assert calls == [2]


def test_a_turn_is_had_once_also_by_the_same_thread():
    turn = locks.Turn()
    assert turn.take()
    assert not turn.take()
    turn.end()
    assert turn.take()
