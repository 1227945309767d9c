"""The locks of callboard: each has a name, a rank and an owner.

Every lock that guards data is created here, by `lock`, `condition` or `collecting_lock`. In
production it is the interpreter's `RLock`, which is as fast as a `Lock` and knows its owner. A
call checks the owner to find out whether it runs inside another call of the same thread: see
`callboard.support.reentry`.

Three rules are valid for all of them:

1. **User code never runs under a lock.** Futures are completed, callbacks and hooks are
   called, and the last reference to a user's object is dropped after the lock is released:
   collect, release, then call. Otherwise that code could wait for a second lock, whose owner
   waits for this one.
2. **Locks are acquired in the order of their ranks.** A thread that holds a lock acquires only
   locks of higher ranks. Two locks of one rank are never held together.
3. **A lock is acquired once**, unless it is created with `reentrant=True`.

The pytest plugin `callboard.checked_locks` replaces the locks by ones that check these rules.
`docs/locks.md` lists all locks.
"""

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import ref


class Lock(Protocol):
    """A lock with an owner."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:  # noqa: FBT001
        """Acquire the lock; return whether it was acquired."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> bool:
        """Acquire the lock."""

    def __exit__(self, *_: object) -> None:
        """Release the lock."""

    def _is_owned(self) -> bool:
        """Return whether this thread holds the lock."""


class Factory(Protocol):
    """Creates a lock; see `lock` for the arguments."""

    def __call__(self, name: str, rank: int, *, reentrant: bool, runs_users: bool) -> Lock:
        """Return a lock."""


def _plain(name: str, rank: int, *, reentrant: bool, runs_users: bool) -> Lock:
    """Return the lock of production."""
    guard: Lock = threading.RLock()  # type: ignore[assignment]  # the stubs lack `_is_owned`
    return guard


#: Weak references to all locks that guard data, for `holds_any`. Adding, removing and copying
#: are atomic in the interpreter, so the set needs no lock.
_data_locks: Final[set["ref[Lock]"]] = set()

#: Weak references to all locks that are created with `runs_users=True`.
_operation_locks: Final[set["ref[Lock]"]] = set()


_factory: Factory = _plain


def use(factory: Factory) -> None:
    """Create all later locks with a factory; tests call it before they import the packages."""
    global _factory
    _factory = factory


def lock(name: str, rank: int, *, reentrant: bool = False, runs_users: bool = False) -> Lock:
    """Create a lock.

    Args:
        name: the guarded data, as in `docs/locks.md`.
        rank: position in the order; a thread acquires locks of increasing ranks only.
        reentrant: whether its owner may acquire it again.
        runs_users: whether user code may run under it, an exception to the first rule: the
            lock serializes whole operations and guards no data. The page gives the reason.
    """
    guard = _factory(name, rank, reentrant=reentrant, runs_users=runs_users)
    group = _operation_locks if runs_users else _data_locks
    group.add(ref(guard, group.discard))
    return guard


def condition(name: str, rank: int) -> threading.Condition:
    """Create a condition with a new lock."""
    return condition_on(lock(name, rank))


def condition_on(guard: Lock) -> threading.Condition:
    """Create a condition of an existing lock."""
    return threading.Condition(guard)  # type: ignore[arg-type]  # as it is used, a lock


#: A call that waits until a lock is released.
Call = tuple[Callable[..., object], tuple[Any, ...]]


class CollectingLock:
    """A reentrant lock whose owner collects calls that must not run under it.

    Code under the lock that would complete a future or call a hook passes this call to
    `after`. The same thread executes the collected calls in order after it has released the
    lock. No other thread may execute them: it may hold a lock of its program that a callback
    acquires.
    """

    __slots__ = ("calls", "guard", "outer")

    def __init__(self, name: str, rank: int) -> None:
        """Create a lock; for the arguments see `lock`."""
        #: The lock itself, for hot paths. Its owner must call `release` of this object if there
        #: are `calls`.
        self.guard = lock(name, rank, reentrant=True)
        #: The calls that the owner has collected.
        self.calls: list[Call] = []
        #: A lock of lower rank. While the thread holds it too, the outer lock collects.
        self.outer: CollectingLock | None = None

    def __enter__(self) -> None:
        """Acquire the lock."""
        self.guard.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock, and execute the collected calls."""
        if self.calls:
            self.release()
        else:  # without a call: locks of this kind are on the paths of messages
            self.guard.release()

    @property
    def is_owned(self) -> bool:
        """Whether this thread holds the lock."""
        return is_owned(self.guard)

    def after(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function after this thread has released the lock, or at once without it."""
        outer = self.outer
        if outer is not None and outer.is_owned:
            outer.after(function, *args)
        elif self.is_owned:
            self.calls.append((function, args))
        else:
            function(*args)

    def _at_fork_reinit(self) -> None:
        """Free the lock in a forked process if a thread held it that does not exist there."""
        if not self.is_owned:
            self.guard, self.calls = _renewed(self.guard), []

    def release(self) -> None:
        """Release the lock; execute the calls unless this thread still holds it.

        Raises:
            BaseException: the exception of the first call that failed, after all calls.
        """
        calls = self.calls
        if not calls:
            self.guard.release()
            return
        self.calls = []  # before the release, because the next owner collects its own calls
        self.guard.release()
        if self.is_owned:
            self.calls = calls + self.calls
            return
        failed: BaseException | None = None
        for function, args in calls:
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001  # raised again below
                failed = failed or error
        if failed is not None:
            raise failed


def collecting_lock(name: str, rank: int) -> CollectingLock:
    """Create a reentrant lock whose owner collects calls."""
    return CollectingLock(name, rank)


class Turn:
    """A permission that one thread at a time has, and for which no thread waits.

    A thread that does not get it leaves its work to the thread that has it. Because no thread
    waits for it, its owner may call user code.
    """

    __slots__ = ("_free",)

    def __init__(self) -> None:
        """Create a free turn."""
        self._free = [None]

    def take(self) -> bool:
        """Acquire the turn; return False if a thread has it, even if it is this one."""
        try:
            self._free.pop()  # atomic in the interpreter
        except IndexError:
            return False
        return True

    def end(self) -> None:
        """Release the turn."""
        self._free.append(None)

    def _at_fork_reinit(self) -> None:
        """Free the turn in a forked process: its owner does not exist there."""
        self._free = [None]


def _renewed(guard: Any) -> Any:
    """Free a lock in a forked process, and return it."""
    guard._at_fork_reinit()  # noqa: SLF001  # for modules of Python, which do the same
    return guard


def renew_all() -> None:
    """Free all locks in a forked process, except those of the thread that forked.

    The owners of the others do not exist there, so the locks would never be released.
    """
    for reference in [*_data_locks, *_operation_locks]:
        guard = reference()
        if guard is not None and not is_owned(guard):
            _renewed(guard)


def is_owned(guard: Lock) -> bool:
    """Return whether this thread holds a lock."""
    return guard._is_owned()  # noqa: SLF001  # `threading.Condition` uses it in the same way


def owner_test(guard: Lock) -> Callable[[], bool]:
    """Return `is_owned` of one lock as a function without arguments, for hot paths."""
    return guard._is_owned  # noqa: SLF001  # as in `is_owned`


def is_taken(guard: Lock) -> bool:
    """Return whether any thread, including this one, holds a lock at this moment."""
    if is_owned(guard) or not guard.acquire(blocking=False):
        return True
    guard.release()
    return False


def take_if_free(guard: Lock) -> bool:
    """Acquire a lock if no thread holds it, including this one; return whether it did."""
    return not is_owned(guard) and guard.acquire(blocking=False)


def holds_any() -> bool:
    """Return whether this thread holds any lock that guards data; it checks all of them."""
    for reference in list(_data_locks):
        guard = reference()
        if guard is not None and is_owned(guard):
            return True
    return False
