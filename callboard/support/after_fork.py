"""Objects of a parent process in a forked child: every use of them raises an error.

`os.fork` and the fork method of `multiprocessing` copy the memory of a process, but only the
forking thread. In the child no thread runs the nodes, a lock may be held by a thread that
does not exist, and all descriptors are shared with the parent: a socket keeps a port in use and
hides the parent's end from its peers, a lock file blocks the next owner, and two processes that
append to one file overwrite each other's data.

So every object that holds a descriptor, a lock on a file, or a thread registers here:

    register(self, Journal._drop_copy)      # in __init__

In a child, before `os.fork` returns there:

1. each registered object is marked as a copy (`is_copy`);
2. all locks of `callboard.locks`, and all locks, conditions and events of our modules and of
   the registered objects, are reset, so that no call waits for a thread of the parent;
3. its function is called: it passes the descriptors to `drop`, and marks the object so that
   later calls raise the error that they raise after `close`, with the text of `refusal`.
   `close` itself, and the end of a `with` block, do nothing in a copy;
4. connections that our listening sockets had accepted are dropped, too.

`drop` replaces a descriptor with a read-only `/dev/null`. If it only closed the descriptor, the
next file that the child opens would have the same number, and code that still has this number
would write into that file. Nothing changes for the parent: its `flock` locks belong to the open
file, which it still has, and a connection does not end while the parent has a descriptor of it.

A connection of SQLite is never closed in a child. The library would remove or copy the
write-ahead log of the parent, and it assumes that the process still has the locks of the file.
For this reason `inherited_database` identifies the files that a child must not open.

Functions here acquire no lock, and are called on the only thread of the child.
"""

import atexit
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, Protocol, TypeVar
from weakref import ref

from callboard import locks
from callboard.support.platform.system import DESCRIPTORS

if TYPE_CHECKING:
    import asyncio
    import subprocess

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=socket.socket)

_log = logging.getLogger("callboard")

#: Device and inode number of a file, from `stat`.
Identity = tuple[int, int]

#: Endings of all files that SQLite may have for a database.
DATABASE_ENDINGS: Final = ("", "-wal", "-shm", "-journal")

_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared, not listened at


class HasDescriptor(Protocol):
    """A socket or a file."""

    def fileno(self) -> int:
        """Return the descriptor; -1 if it is closed."""


class _Entry:
    """A registered object."""

    __slots__ = ("is_copy", "leaves", "owner")

    def __init__(self, owner: "ref[Any]") -> None:
        self.owner = owner
        self.leaves: list[Callable[[Any], object]] = []
        self.is_copy = False


#: Registered objects by `id`, because objects may compare equal or not be hashable.
_OWNERS: Final[dict[int, _Entry]] = {}

#: The files of SQLite that were open in the parent.
_DATABASES: Final[dict[Identity, str]] = {}

#: Local and remote addresses whose connections are dropped in the child.
_LISTENED: Final[set[tuple[str, int]]] = set()
_DIALED: Final[set[tuple[str, int]]] = set()


def register(owner: T, leave: Callable[[T], object] | None = None) -> None:
    """Call `leave(owner)` in each forked child while the owner exists.

    Without `leave` its locks are reset, and it is marked as a copy.

    Args:
        owner: An object with a descriptor, a lock or a thread. Only a weak reference is kept.
        leave: Drops its descriptors and marks it. It must not acquire a lock, wait, or change
            a resource that parent and child share: no `flock`, no `unlink`, no `shutdown`.
            Pass a function of the class: a bound method would keep the owner alive.
    """
    number = id(owner)
    entry = _OWNERS.get(number)
    if entry is None:

        def forget(_: object) -> None:
            _OWNERS.pop(number, None)

        entry = _OWNERS[number] = _Entry(ref(owner, forget))
    if leave is not None:
        entry.leaves.append(leave)


def is_copy(owner: object) -> bool:
    """Return whether a registered object belongs to a parent process."""
    entry = _OWNERS.get(id(owner))
    return entry is not None and entry.is_copy


def refusal(label: str, remedy: str) -> str:
    """Return the text of the error for the use of a copy.

    Args:
        label: The object, such as "the log /var/log/x".
        remedy: Advice for the child, such as "open another one here".
    """
    return (
        f"{label} belongs to the process from which this one was forked, and cannot be used"
        f" here; {remedy}, or start processes with 'spawn'"
    )


def nothing_in_copies(close: Callable[P, None]) -> Callable[P, None]:
    """Return a method that does nothing if a fork has copied its object.

    The resources of the object belong to the parent process.
    """

    @wraps(close)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if not is_copy(args[0]):
            close(*args, **kwargs)

    return checked


def nothing_awaited_in_copies(
    close: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, Coroutine[Any, Any, None]]:
    """Return a coroutine method that does nothing if a fork has copied its object."""

    @wraps(close)
    async def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if not is_copy(args[0]):
            await close(*args, **kwargs)

    return checked


class Refusing:
    """Replaces a part of an object that a fork has copied: every use of it raises an error."""

    def __init__(self, error: Callable[[str], Exception], label: str, remedy: str) -> None:
        """Create a part that raises `error` with the text of `refusal`."""
        self.__error, self.__text = error, refusal(label, remedy)

    def __getattr__(self, _: str) -> NoReturn:
        raise self.__error(self.__text)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refuse the call."""
        raise self.__error(self.__text)


def drop(*resources: "int | HasDescriptor | None") -> None:
    """Replace descriptors with `/dev/null`, so their files are no longer open in this process.

    For functions given to `register`. Descriptors that are closed, negative or None are
    ignored.
    """
    for resource in resources:
        number = -1
        with suppress(ValueError, OSError):  # a closed file
            if resource is not None:
                number = resource if isinstance(resource, int) else resource.fileno()
        if number < 0:
            continue
        try:
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the process has no free descriptor: closing this one frees it
            with suppress(OSError):
                os.close(number)
            continue
        try:
            os.fstat(number)  # raises if the descriptor is closed; it must stay closed
            os.dup2(null, number, inheritable=False)
        except OSError:
            pass
        finally:
            os.close(null)


def drop_listener(sock: "socket.socket | Any") -> None:
    """Drop a listening socket and, in the last step, all connections accepted by it."""
    with suppress(OSError):
        drop_accepted(*_address_of(sock.getsockname()))
    drop(sock)


def drop_accepted(host: str, port: int) -> None:
    """Mark the connections accepted at an address; they are dropped in the last step.

    Port 0 means that ``host`` is the path of a Unix socket.
    """
    _LISTENED.add((host, port))


def drop_endpoint(endpoint: str, *, is_bound: bool) -> None:
    """Mark the connections of an endpoint `tcp://HOST:PORT` or `ipc://PATH`."""
    scheme, _, path = endpoint.partition("://")
    host, _, port = path.rpartition(":")
    mark = drop_accepted if is_bound else drop_dialed
    if scheme == "ipc":
        mark(path, 0)
    elif port.isdecimal():
        host = host.strip("[]")
        is_number = host.replace(".", "").isdecimal() or ":" in host
        mark(host if is_number else "", int(port))


def drop_dialed(host: str, port: int) -> None:
    """Mark the connections to an address, for libraries that do not expose their sockets.

    Args:
        host: An IP address; empty for all.
        port: The remote port.
    """
    _DIALED.add((host, port))


def own_socket(sock: S) -> S:
    """Register a socket that is dropped in a child, and return it."""
    register(sock, drop)
    return sock


def own_listener(sock: S) -> S:
    """Register a listening socket, with the connections accepted by it, and return it."""
    register(sock, drop_listener)
    return sock


def own_wake(owner: T) -> T:
    """Register an object whose `wake_pending` is set while a thread has to check it; return it.

    In a child this thread does not exist. If the flag stayed set, calls would wait for it;
    after the reset, the next call wakes the runner again, and is refused.
    """
    register(owner, _clear_wake)
    return owner


def _clear_wake(owner: Any) -> None:
    owner.wake_pending = False


def keep_for_ever(thing: object) -> None:
    """Keep an object of a library forever: its finalizer would change the parent's files."""
    import ctypes  # only in children

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def at_exit(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a function when this process exits, but not in its forked children."""
    process = os.getpid()

    def called() -> None:
        if os.getpid() == process:
            call(*args, **kwargs)

    atexit.register(called)


def own_loop(loop: "asyncio.AbstractEventLoop") -> None:
    """Register an event loop of one of our threads: its selector and its socket pair."""
    register(loop, _drop_loop)


def _drop_loop(loop: Any) -> None:
    drop(*(getattr(loop, name, None) for name in ("_selector", "_ssock", "_csock")))


def own_pipes(process: "subprocess.Popen[Any]") -> None:
    """Register the pipes of a process: open copies of its input would keep it running."""
    register(process, _drop_pipes)


def _drop_pipes(process: "subprocess.Popen[Any]") -> None:
    drop(process.stdin, process.stdout, process.stderr)


def leave_database(connection: object, path: "str | Path") -> None:
    """Drop the descriptors of a connection of SQLite that is never closed.

    Args:
        connection: The connection, which is kept forever: freeing it would close it.
        path: Path of the database.
    """
    keep_for_ever(connection)
    database = os.path.realpath(path)
    names = {database + ending for ending in DATABASE_ENDINGS}
    for number in _open_descriptors():
        with suppress(OSError):
            link = os.readlink(f"{DESCRIPTORS}/{number}")  # noqa: PTH115
            name = link.removesuffix(" (deleted)")
            if name in names:
                if name == database:
                    status = os.fstat(number)
                    _DATABASES[status.st_dev, status.st_ino] = database
                drop(number)


def inherited_database(path: "str | Path") -> bool:
    """Return whether a file of SQLite was open in the parent when this process was forked."""
    if _DATABASES:
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116  # a path may be a text
            return (status.st_dev, status.st_ino) in _DATABASES
    return False


def renew_locks(holder: object) -> None:
    """Reset the locks, conditions and events of an object or module.

    They have a method `_at_fork_reinit`, as the locks of Python and of `callboard.locks` do.
    """
    for value in _values_of(holder):
        # Looked up in the class, because `__getattr__` of a user's object may return anything.
        kind = type(value)
        renew = getattr(kind, "_at_fork_reinit", None)
        if renew is not None:
            is_owned = getattr(kind, "_is_owned", None)
            # The forking thread exists in the child, and releases its locks itself.
            if is_owned is None or kind is threading.Condition or not is_owned(value):
                renew(value)


def _values_of(holder: object) -> Iterator[object]:
    """Yield the values of the attributes of an object."""
    yield from list(getattr(holder, "__dict__", {}).values())
    for kind in type(holder).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            with suppress(AttributeError):
                if name not in ("__dict__", "__weakref__"):
                    yield object.__getattribute__(holder, name)


def _in_child() -> None:
    """Reset locks, and drop all resources of the parent."""
    locks.renew_all()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "callboard":
            renew_locks(module)
    entries = [entry for entry in list(_OWNERS.values()) if not entry.is_copy]
    for entry in entries:
        entry.is_copy = True
        renew_locks(entry.owner())
    for entry in entries:
        owner = entry.owner()
        for leave in entry.leaves if owner is not None else ():
            try:
                leave(owner)
            except Exception:  # noqa: BLE001  # the other objects must be left, too
                _log.exception("a forked process could not leave %s", type(owner).__name__)
    if _LISTENED or _DIALED:
        _drop_connections()
        _LISTENED.clear()
        _DIALED.clear()


def _drop_connections() -> None:
    """Drop the connections of marked addresses."""
    for number in _open_descriptors():
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            sock = socket.socket(fileno=number)
            try:
                is_ours = _is_at(_LISTENED, sock.getsockname)
                is_ours = is_ours or _is_at(_DIALED, sock.getpeername)
            finally:
                sock.detach()
            if is_ours:
                drop(number)


def _is_at(addresses: set[tuple[str, int]], read: Callable[[], Any]) -> bool:
    """Return whether the address of a socket, returned by `read`, is one of some addresses."""
    if not addresses:
        return False
    try:
        host, port = _address_of(read())
    except OSError:  # it is not connected
        return False
    host = host.removeprefix("::ffff:")
    return (host, port) in addresses or (
        port > 0
        and any(port == other and (name in _ANY_HOST or not name) for name, other in addresses)
    )


def _address_of(address: Any) -> tuple[str, int]:
    """Return host and port of a result of `getsockname`; path and 0 for a Unix socket."""
    if isinstance(address, tuple) and len(address) > 1:
        return str(address[0]), int(address[1])
    name = os.fsdecode(address) if isinstance(address, bytes | str) else ""
    return name, 0 if name else -1


def _open_descriptors() -> list[int]:
    """Return the open descriptors of this process."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(DESCRIPTORS) if name.isdigit()]  # noqa: PTH208
    return []


os.register_at_fork(after_in_child=_in_child)
