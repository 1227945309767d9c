"""A pytest plugin: every lock checks its owner and its order.

`-p callboard.checked_locks` makes all locks that are created after its import check the rules
of `callboard.locks`, so it has to be named before plugins that import packages of callboard.
Futures check that a thread which holds a lock neither completes them nor calls their callbacks.
A broken rule raises `LockMisuse`, and fails the test even if a thread of a node caught the
error.
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
    """The locks of a thread, in the order of their acquisition."""

    def __init__(self) -> None:
        self.locks: list[CheckedLock] = []


_held: Final = _Held()

#: Waits for a lock with a shorter timeout, in seconds, may be in any order: they cannot block
#: a thread for long.
_MOMENT: Final = 1.0

#: Broken rules since the last test, with their stacks.
_misuses: Final[list[str]] = []


def _misuse(text: str) -> LockMisuse:
    """Record a broken rule, and return its error."""
    _misuses.append(f"{text}\n{''.join(traceback.format_stack(limit=25)[:-2])}")
    return LockMisuse(text)


class CheckedLock:
    """A lock that checks the rules."""

    def __init__(self, name: str, rank: int, *, reentrant: bool, runs_users: bool) -> None:
        self.name, self.rank, self.is_reentrant = name, rank, reentrant
        self.runs_users = runs_users
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<lock {self.name!r} of rank {self.rank}>"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """Acquire the lock if the rules allow it."""
        held = _held.locks
        if self in held:
            if not self.is_reentrant:
                error = _misuse(f"{self} is held by this thread already")
                raise error
        elif (
            blocking
            and not 0 <= timeout < _MOMENT
            and held
            and max(lock.rank for lock in held) >= self.rank
        ):
            error = _misuse(f"{self} is taken while this thread holds {held}")
            raise error
        is_acquired = self._lock.acquire(blocking, timeout)
        if is_acquired:
            held.append(self)
        return is_acquired

    def release(self) -> None:
        """Release the lock; only its owner may do this."""
        held = _held.locks
        if self not in held:
            error = _misuse(f"{self} is released by a thread that does not hold it")
            raise error
        for index in range(len(held) - 1, -1, -1):  # the latest acquisition first
            if held[index] is self:
                del held[index]
                break
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # Methods that `threading.Condition` calls.

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


def refuse_held(action: str) -> None:
    """Raise if this thread holds a lock; ``action`` is for the text of the error.

    Raises:
        LockMisuse: this thread holds a lock that guards data.
    """
    guards = [lock for lock in _held.locks if not lock.runs_users]
    if guards:
        error = _misuse(f"{action} while this thread holds {guards}")
        raise error


def _outside(method: Callable[..., Any], action: str) -> Callable[..., Any]:
    """Return a method that refuses to run under a lock."""

    def checked(self: Any, *args: Any) -> Any:
        if not getattr(self, "is_internal", False):
            refuse_held(action)
        return method(self, *args)

    return checked


def _install() -> None:
    """Replace the factory of locks, and the methods of futures that call user code."""
    locks.use(CheckedLock)
    from callboard.kernel.reply import Future

    methods = {
        "set_result": "a future is completed",
        "set_exception": "a future is failed",
        "_run_callbacks": "callbacks of a future are called",
    }
    for name, action in methods.items():
        setattr(Future, name, _outside(getattr(Future, name), action))


_install()


def misuses() -> list[str]:
    """Return the rules broken since the last call, each with its stack."""
    texts = _misuses[:]
    _misuses.clear()
    return texts


def _left_held() -> list[str]:
    """Return an error text for each lock that this thread still holds, and forget the locks.

    A signal that ends a test may interrupt it between acquiring a lock and the statement that
    releases it. If the lock were not forgotten, all later tests would fail, too.
    """
    texts = [f"{lock} is still held when the test has ended" for lock in _held.locks]
    _held.locks.clear()
    return texts


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test if any thread broke a rule."""
    try:
        result = yield
    finally:
        texts = [*misuses(), *_left_held()]
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)
    return result
