"""The locks: their rules, their page, and that none is made elsewhere."""

import ast
import functools
import re
import threading
from pathlib import Path

import pytest

from callboard import checked_locks, locks
from callboard.actors.future import Future
from tests.sources import mentioning

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "basp", "callboard", "proxies")

#: Locks that guard no data, by file: signals between two threads, a window, the role of a
#: runner. This list only shrinks.
SIGNALS = {
    "actors/future.py": 1,
    "actors/runner/runner.py": 2,
    "callboard/broker/store_file.py": 1,
    "callboard/topics/message_queue.py": 1,
    "callboard/log_service/log_writer.py": 1,
}

#: Links to packages that stand beside callboard.
LINKED = ("callboard/actors/", "callboard/basp/", "callboard/proxies/")

MAKERS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "allocate_lock"}


def made_elsewhere(tree):
    """Return the lines where a lock of the interpreter is made, or given as a factory."""
    lines = []
    for node in ast.walk(tree):
        values = []
        if isinstance(node, ast.Call):
            values = [node.func, *(keyword.value for keyword in node.keywords)]
        for value in values:
            is_attribute = isinstance(value, ast.Attribute) and isinstance(
                value.value, ast.Name
            )
            is_maker = is_attribute and value.attr in MAKERS
            if is_maker and value.value.id in ("threading", "_thread"):
                lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "_thread"):
            lines += [node.lineno for alias in node.names if alias.name in MAKERS]
    return lines


def declared(tree):
    """Yield name and rank of each lock of a file."""
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "locks"
            and function.attr in ("lock", "condition", "collecting_lock")
        ):
            name, rank = node.args
            options = [keyword.arg for keyword in node.keywords if keyword.value.value]
            kind = {"condition": "condition", "collecting_lock": "collecting"}.get(
                function.attr
            )
            shown = {"runs_users": "runs user code"}
            kinds = [kind] if kind else []
            kinds += [shown.get(option, option) for option in options]
            yield name.value, rank.value, ", ".join(kinds)


@functools.cache
def sources():
    """Return what each file makes elsewhere, and the locks that it declares."""
    return {
        name: (made_elsewhere(tree), list(declared(tree)))
        for package in PACKAGES
        for path, tree in mentioning(ROOT / package, "locks", "thread")
        if not (name := str(path.relative_to(ROOT))).startswith(LINKED)
        and name not in ("callboard/locks.py", "callboard/checked_locks.py")
    }


def test_no_lock_is_made_but_by_the_factory():
    found = {name: len(lines) for name, (lines, _) in sources().items() if lines}
    assert found == SIGNALS


@pytest.mark.parametrize(
    "text",
    [
        "import threading\nlock = threading.Lock()",
        "from threading import RLock",
        "import threading\nlock = field(default_factory=threading.Condition)",
        "import _thread\nlock = _thread.allocate_lock()",
    ],
)
def test_a_lock_that_is_made_elsewhere_is_found(text):
    assert made_elsewhere(ast.parse(text))


def test_the_page_lists_all_locks_with_their_ranks():
    rows = set()
    for line in (ROOT / "docs/locks.md").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| (\d+) \| (.+?) \| (.+?) \| `(.+?)` \| (.*?) ?\|$", line):
            rank, name, guards, file, kinds = match.groups()
            assert guards.strip()
            rows.add((int(rank), name, file, kinds.strip()))
    made = set()
    for file, (_, declarations) in sources().items():
        file = file if file.startswith("callboard/") else f"callboard/{file}"
        made |= {(rank, name, file, kinds) for name, rank, kinds in declarations}
    assert rows == made


def test_each_lock_has_a_name_of_its_own():
    names = {}
    for file, (_, declarations) in sources().items():
        for name, rank, _ in declarations:
            assert names.setdefault(name, (file, rank)) == (file, rank)


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
