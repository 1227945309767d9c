"""A pytest plugin: every lock asserts its owner and its order.

`-p callboard.checked_locks` puts locks that know the rules of `callboard.locks` in the place of
all locks that are made from its import on; it has to stand before plugins that import rooms of
callboard. It makes futures assert that none is completed, and no callback called, by a thread
that holds a lock. A broken rule raises `LockMisuse`. It fails the test also where the thread of
a node has caught that error.
"""

import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from callboard import locks


class LockMisuse(AssertionError):
    """A rule of `callboard.locks` was broken."""


class _Held(threading.local):
    """The locks of a thread, in the order in which it took them."""

    def __init__(self) -> None:
        self.locks: list[CheckedLock] = []


_held: Final = _Held()

#: Seconds below which a wait for a lock stops nobody, in whichever order it is taken.
_MOMENT: Final = 1.0

#: What was broken since the last test, with its stack.
_misuses: Final[list[str]] = []


def _misuse(text: str) -> LockMisuse:
    """Record a broken rule, and return the error of it."""
    _misuses.append(f"{text}\n{''.join(traceback.format_stack(limit=25)[:-2])}")
    return LockMisuse(text)


class CheckedLock:
    """A lock that asserts the rules."""

    def __init__(self, name: str, rank: int, *, reentrant: bool, runs_users: bool) -> None:
        self.name, self.rank, self.is_reentrant = name, rank, reentrant
        self.runs_users = runs_users
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<lock {self.name!r} of rank {self.rank}>"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """Take the lock, if this thread may."""
        held = _held.locks
        if self in held:
            if not self.is_reentrant:
                error = _misuse(f"{self} is held by this thread already")
                raise error
        elif (
            blocking
            and not 0 <= timeout < _MOMENT
            and held
            and max(each.rank for each in held) >= self.rank
        ):
            error = _misuse(f"{self} is taken while this thread holds {held}")
            raise error
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            held.append(self)
        return taken

    def release(self) -> None:
        """Release the lock; only its owner may."""
        held = _held.locks
        if self not in held:
            error = _misuse(f"{self} is released by a thread that does not hold it")
            raise error
        for index in range(len(held) - 1, -1, -1):  # the latest of it
            if held[index] is self:
                del held[index]
                break
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # What `threading.Condition` uses.

    def _is_owned(self) -> bool:
        return self in _held.locks

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001

    def _release_save(self) -> int:
        count = _held.locks.count(self)
        for _ in range(count):
            self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        for _ in range(count):
            self._lock.acquire()
            _held.locks.append(self)


def refuse_held(what: str) -> None:
    """Raise if this thread holds a lock.

    Raises:
        LockMisuse: it does.
    """
    held = [each for each in _held.locks if not each.runs_users]
    if held:
        error = _misuse(f"{what} while this thread holds {held}")
        raise error


def _outside(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return a method that refuses to run under a lock."""

    def checked(self: Any, *args: Any) -> Any:
        if not getattr(self, "is_internal", False):
            refuse_held(what)
        return method(self, *args)

    return checked


def _install() -> None:
    """Make locks and futures assert the rules."""
    locks.use(CheckedLock)
    from callboard.kernel.reply import Future

    methods = {
        "set_result": "a future is completed",
        "set_exception": "a future is failed",
        "_run_callbacks": "callbacks of a future are called",
    }
    for name, what in methods.items():
        setattr(Future, name, _outside(getattr(Future, name), what))


_install()


def misuses() -> list[str]:
    """Return what was broken since the last call, each with its stack."""
    found = _misuses[:]
    _misuses.clear()
    return found


def _left_held() -> list[str]:
    """Return what is wrong if this thread still holds locks, and forget that it does.

    A test that was ended from outside, as by a signal, may leave a lock between taking it and
    the statement that releases it. The tests after it would fail for that.
    """
    left = [f"{each} is still held when the test has ended" for each in _held.locks]
    _held.locks.clear()
    return left


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test in which a rule was broken, on whichever thread."""
    try:
        result = yield
    finally:
        found = [*misuses(), *_left_held()]
    if found:
        pytest.fail("\n".join(found), pytrace=False)
    return result
