"""The locks of callboard: each has a name, a rank and an owner.

Every lock that guards data is made here, by `lock`, `condition` or `collecting_lock`. In
production it is the interpreter's own `RLock`: it costs as much as a `Lock`, and it knows its
owner. The owner is what tells a call that it runs inside another one: see
`callboard.support.reentry`.

Three rules hold for all of them:

1. **Code of users never runs under a lock.** A future is completed, a callback or a hook is
   called, and the last reference to an object of a user is dropped after the lock is released:
   collect, release, then call.
2. **Locks are taken in the order of their ranks.** A thread that holds a lock takes only locks
   of higher ranks. Two locks of one rank are never held together.
3. **A lock is taken once**, unless it is made with `reentrant=True`.

The pytest plugin `callboard.checked_locks` puts locks that assert these rules in their place.
`docs/locks.md` lists all locks.
"""

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import ref


class Lock(Protocol):
    """A lock with an owner."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:  # noqa: FBT001
        """Take the lock; return whether it was taken."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> bool:
        """Take the lock."""

    def __exit__(self, *_: object) -> None:
        """Release the lock."""

    def _is_owned(self) -> bool:
        """Return whether this thread holds the lock."""


class Factory(Protocol):
    """Makes a lock; see `lock` for the arguments."""

    def __call__(self, name: str, rank: int, *, reentrant: bool, runs_users: bool) -> Lock:
        """Return a lock."""


def _plain(name: str, rank: int, *, reentrant: bool, runs_users: bool) -> Lock:
    """Return the lock of production."""
    made: Lock = threading.RLock()  # type: ignore[assignment]  # the stubs lack `_is_owned`
    return made


#: All locks that guard data, weakly: for the rare question whether this thread holds any.
#: Adding, removing and copying are one step of the interpreter each.
_all: Final[set["ref[Lock]"]] = set()

#: The locks under which code of users may run: under these, waiting is what operations do.
_that_run_users: Final[set["ref[Lock]"]] = set()


_factory: Factory = _plain


def use(factory: Factory) -> None:
    """Make all locks from here on with a factory; for tests, before the rooms are imported."""
    global _factory
    _factory = factory


def lock(name: str, rank: int, *, reentrant: bool = False, runs_users: bool = False) -> Lock:
    """Make a lock.

    Args:
        name: what it guards, as in `docs/locks.md`.
        rank: its place in the order; a thread takes locks of rising ranks only.
        reentrant: whether its owner may take it again.
        runs_users: whether code of users may run under it, against the first rule: it makes
            whole operations follow each other, and guards no data. The page gives the reason.
    """
    made = _factory(name, rank, reentrant=reentrant, runs_users=runs_users)
    known = _that_run_users if runs_users else _all
    known.add(ref(made, known.discard))
    return made


def condition(name: str, rank: int) -> threading.Condition:
    """Make a condition with a lock of its own."""
    return condition_on(lock(name, rank))


def condition_on(guard: Lock) -> threading.Condition:
    """Make a condition of a lock."""
    return threading.Condition(guard)  # type: ignore[arg-type]  # as it is used, a lock


#: A call that waits until a lock is released.
Call = tuple[Callable[..., object], tuple[Any, ...]]


class CollectingLock:
    """A reentrant lock whose owner collects calls that must not run under it.

    What completes futures or calls hooks somewhere below a lock passes them to `after`. The
    thread that has collected them makes the calls, in their order, when it has released the
    lock. No other thread makes them: it may hold a lock of its program that a callback takes.
    """

    __slots__ = ("calls", "guard", "outer")

    def __init__(self, name: str, rank: int) -> None:
        """Make a lock as `lock` does."""
        #: For hot paths: its owner calls `release` of this object if there are `calls`.
        self.guard = lock(name, rank, reentrant=True)
        #: What the owner has collected.
        self.calls: list[Call] = []
        #: A lock under which this one may be taken: while that is held, it collects.
        self.outer: CollectingLock | None = None

    def __enter__(self) -> None:
        """Take the lock."""
        self.guard.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock, and make the calls."""
        self.release()

    @property
    def is_owned(self) -> bool:
        """Whether this thread holds the lock."""
        return is_owned(self.guard)

    def after(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function when this thread has released the lock; at once if it has not it."""
        outer = self.outer
        if outer is not None and outer.is_owned:
            outer.after(function, *args)
        elif self.is_owned:
            self.calls.append((function, args))
        else:
            function(*args)

    def _at_fork_reinit(self) -> None:
        """Forget who holds it: in a forked process that thread does not exist."""
        if not self.is_owned:
            self.guard, self.calls = _renewed(self.guard), []

    def release(self) -> None:
        """Release the lock, and make the calls unless this thread has taken it twice.

        Raises:
            BaseException: what the first call that failed has raised; all were made.
        """
        calls = self.calls
        if not calls:
            self.guard.release()
            return
        self.calls = []  # before the next owner collects
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
    """Make a reentrant lock whose owner collects calls."""
    return CollectingLock(name, rank)


class Turn:
    """A turn that one thread at a time has, and for which none waits.

    A thread that does not get it leaves its work to the one that has it. So whoever has it may
    call code of users.
    """

    __slots__ = ("_free",)

    def __init__(self) -> None:
        """Make a turn that nobody has."""
        self._free = [None]

    def take(self) -> bool:
        """Take the turn; return False if somebody has it, this thread included."""
        try:
            self._free.pop()  # one step of the interpreter
        except IndexError:
            return False
        return True

    def end(self) -> None:
        """Give the turn back."""
        self._free.append(None)

    def _at_fork_reinit(self) -> None:
        """Forget who has it: in a forked process that thread does not exist."""
        self._free = [None]


def _renewed(guard: Any) -> Any:
    """Return a lock that nobody holds, in a forked process."""
    guard._at_fork_reinit()  # noqa: SLF001  # for modules of Python, which do the same
    return guard


def renew_all() -> None:
    """Renew all locks in a forked process, except those that the thread which forked holds.

    The threads that hold the others do not exist there, so nobody would release them.
    """
    for known in [*_all, *_that_run_users]:
        made = known()
        if made is not None and not is_owned(made):
            _renewed(made)


def is_owned(guard: Lock) -> bool:
    """Return whether this thread holds a lock."""
    return guard._is_owned()  # noqa: SLF001  # public in all but its name: `Condition` uses it


def owner_test(guard: Lock) -> Callable[[], bool]:
    """Return what tells whether its thread holds a lock; hot paths keep it and call it."""
    return guard._is_owned  # noqa: SLF001  # as in `is_owned`


def is_taken(guard: Lock) -> bool:
    """Return whether any thread, this one included, holds a lock at this moment."""
    if is_owned(guard) or not guard.acquire(blocking=False):
        return True
    guard.release()
    return False


def take_if_free(guard: Lock) -> bool:
    """Take a lock that no thread holds, this one included; return whether it was taken."""
    return not is_owned(guard) and guard.acquire(blocking=False)


def holds_any() -> bool:
    """Return whether this thread holds any lock that guards data; it looks at all of them."""
    for known in list(_all):
        made = known()
        if made is not None and is_owned(made):
            return True
    return False
