"""Patches of the standard library for simulated programs: time, randomness, threads, sockets.

While a simulation has hosts, functions of the standard library are patched, including names
that a module imported with `from time import monotonic`. A patch checks which program is
running: for a host's program it uses the simulated loop, for all other code it calls the
original function. Unsupported functions raise an error that names an alternative.

Clock functions are patched in every simulation, so that actors read the clocks of their node.
Code of callboard and of the standard library still measures real durations there, because it
may wait for real locks.
"""

import builtins
import calendar
import contextlib
import datetime as datetime_module
import fcntl
import io
import mmap
import os
import random
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from callboard.simulation.actor_life import OWN_ROOMS, is_called_by_users
from callboard.simulation.clock import CurrentClock, NodeClock
from callboard.simulation.programs.current_program import ProgramLife, here
from callboard.simulation.programs.files import REAL, LifeWithFiles
from callboard.simulation.programs.sockets import HostSocket, addresses

#: Free clock reads per turn; each further one takes virtual time. Otherwise a program that
#: polls the clock without an await would never see it advance.
_FREE_CALLS: Final = 10_000

Inside = Callable[..., Any]


def _clock(loop: ProgramLife) -> float:
    """Return the monotonic time of a host."""
    loop.calls += 1
    if loop.calls > _FREE_CALLS:
        loop.block(1e-6 * (loop.calls - _FREE_CALLS))
    return loop.time()


def _clock_in_turn() -> NodeClock | None:
    """Return the clock of the host or node whose turn it is; None outside of turns."""
    loop = here.loop
    if loop is None:
        return CurrentClock.clock
    _clock(loop)
    return loop.node_clock


def _wall_ns(clock: NodeClock) -> int:
    """Return a wall clock in nanoseconds."""
    return clock.wall_ns()


def _wall(clock: NodeClock) -> float:
    """Return a wall clock."""
    return clock.wall_ns() / 1e9


def _gmtime(clock: NodeClock, seconds: float | None = None) -> time.struct_time:
    """Return a time in UTC, by default the current one; a simulation has no other zone."""
    return _REAL_GMTIME(_wall(clock) if seconds is None else seconds)


def _strftime(clock: NodeClock, text: str, moment: Any = None) -> str:
    """Format a time, by default the current one."""
    return _REAL_STRFTIME(text, _gmtime(clock) if moment is None else moment)


def _asctime(clock: NodeClock, moment: Any = None) -> str:
    """Format a time, by default the current one."""
    return _REAL_ASCTIME(_gmtime(clock) if moment is None else moment)


def _ctime(clock: NodeClock, seconds: float | None = None) -> str:
    """Format a time in seconds, by default the current one."""
    return _REAL_ASCTIME(_gmtime(clock, seconds))


def _mktime(clock: NodeClock, moment: Any) -> float:
    """Return a time in seconds; the inverse of `localtime`."""
    return float(calendar.timegm(moment))


def _read_clock_ns(clock: NodeClock, which: int) -> int:
    """Return a system clock in nanoseconds: the wall clock or the monotonic clock."""
    return clock.wall_ns() if which in _DATED else int(clock.time() * 1e9)


def _read_clock(clock: NodeClock, which: int) -> float:
    """Return a system clock in seconds."""
    return _read_clock_ns(clock, which) / 1e9


def _sleep(loop: ProgramLife, seconds: float) -> None:
    """Block a host for some seconds."""
    if seconds < 0:
        message = "sleep length must be non-negative"
        raise ValueError(message)
    loop.block(seconds)


def _drawn(name: str) -> Inside:
    """Return a function of `random` that draws from the host's random source."""
    return lambda loop, *args, **options: getattr(loop.drawn, name)(*args, **options)


def _seed(loop: ProgramLife, a: Any = None, *rest: Any, **options: Any) -> None:
    """Seed a host's random source; without a seed it stays unchanged."""
    if a is not None:
        loop.drawn.seed(a, *rest, **options)


def _seed_own(loop: ProgramLife, self: random.Random, a: Any = None, version: int = 2) -> None:
    """Seed a program's own `random.Random`."""
    _REAL_SEED(self, loop.random.getrandbits(128) if a is None else a, version)


def _uuid1(loop: ProgramLife, node: Any = None, clock_seq: Any = None) -> uuid.UUID:
    """Return a UUID from the host's clock and random source."""
    node_id = node or random.Random(loop.host.address).getrandbits(48)
    _clock(loop)
    nanoseconds = _wall_ns(loop.node_clock) // 100 + 0x01B21DD213814000
    sequence = loop.drawn.getrandbits(14) if clock_seq is None else clock_seq
    low, middle, high = nanoseconds & 0xFFFFFFFF, nanoseconds >> 32 & 0xFFFF, nanoseconds >> 48
    parts = (low, middle, high & 0x0FFF, sequence >> 8 & 0x3F, sequence & 0xFF, node_id)
    return uuid.UUID(fields=parts, version=1)


def _signal(loop: ProgramLife, number: int, handler: Any) -> Any:
    """Set a host's handler of a signal; return the former one."""
    former = loop.host.handlers.pop(number, signal.SIG_DFL)
    if handler != signal.SIG_DFL:
        loop.host.handlers[number] = handler
    return former


def _kill(loop: ProgramLife, process: int, number: int) -> None:
    """Send a signal to the program's own process."""
    if process not in (0, _process(loop)):
        loop.refuse("other processes are not simulated", "call cluster.kill in the test")
    loop.host.signal(number)


def _process(loop: ProgramLife) -> int:
    """Return the process id of a host."""
    return 1000 + loop.host.number % 1000


def _exit(loop: ProgramLife, code: int) -> None:
    """End a host's program."""
    raise SystemExit(code)


def _refused(problem: str, instead: str) -> Inside:
    """Return a function that refuses an unsupported call."""

    def refuse(loop: ProgramLife, *_: Any, **__: Any) -> None:
        loop.refuse(problem, instead)

    return refuse


def _of_path(name: str) -> Inside:
    """Return a function of paths that uses the disk of the host."""
    return lambda loop, *args, **options: getattr(loop.files, name)(*args, **options)


def _of_number(name: str) -> Inside:
    """Return a function of descriptors, for simulated and for real ones."""

    def called(loop: LifeWithFiles, number: Any, *args: Any, **options: Any) -> Any:
        number = number if isinstance(number, int) else number.fileno()
        home = getattr(loop.files, name) if loop.files.has(number) else REAL[name]
        return home(number, *args, **options)

    return called


def _refused_file(name: str, real: Callable[..., Any], instead: str) -> Inside:
    """Return a function of descriptors that refuses simulated files."""

    def called(loop: LifeWithFiles, number: Any, *args: Any, **options: Any) -> Any:
        if loop.files.has(number if isinstance(number, int) else number.fileno()):
            loop.refuse(f"{name} of a file is not simulated", instead)
        return real(number, *args, **options)

    return called


def _sqlite(loop: LifeWithFiles, database: Any, *args: Any, **options: Any) -> Any:
    """Open an SQLite database in memory; refuse files."""
    if os.fspath(database) != ":memory:":
        loop.refuse(
            "SQLite writes files in C, past the simulated disk",
            "use ':memory:' in the test, or run the database on a host of its own",
        )
    return _REAL_SQLITE(database, *args, **options)


_REAL_SOCKET = "send messages to actors, or run the program on a host of its own"
_THREAD = "asyncio.to_thread and loop.run_in_executor call a function in virtual time"
_OTHER = "run the other program on a host of its own: cluster.host(name, main)"
_NO_SOCKET = "use asyncio: open_connection, start_server or loop.sock_connect"
_TLS: Final = "use asyncio: open_connection(…, ssl=context) or start_tls"
_DRAWN: Final = (
    *("random", "uniform", "triangular", "randint", "choice", "randrange", "sample", "shuffle"),
    *("choices", "normalvariate", "lognormvariate", "expovariate", "vonmisesvariate", "gauss"),
    *("gammavariate", "betavariate", "paretovariate", "weibullvariate", "binomialvariate"),
    *("getstate", "setstate", "getrandbits", "randbytes"),
)
_REAL_SEED: Final = random.Random.seed
_REAL_GMTIME: Final = time.gmtime
_REAL_STRFTIME: Final = time.strftime
_REAL_ASCTIME: Final = time.asctime
_DATED: Final = {
    getattr(time, name)
    for name in ("CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "CLOCK_TAI")
    if hasattr(time, name)
}

_REAL_SQLITE: Final = sqlite3.connect

#: The class that removes named temporary files; it has the real function as a default argument.
_CLOSER: Final = vars(tempfile)["_TemporaryFileCloser"]
_CLOSES: Final = "cleanup" if hasattr(_CLOSER, "cleanup") else "close"
_REAL_CLOSE: Final = vars(_CLOSER)[_CLOSES]

_ALONE = "only one program runs on a simulated host, so it needs no file locks"
_MAPPED = "read and write the file"
_PLAIN = "write to a file of its own name"

#: File functions for programs of hosts: module or class, name, replacement.
_FILES: Final[list[tuple[Any, str, Inside]]] = [
    (builtins, "open", _of_path("open_object")),
    (io, "open", _of_path("open_object")),
    *(
        (os, name, _of_path(name))
        for name in (
            *(
                "open",
                "closerange",
                "stat",
                "lstat",
                "access",
                "listdir",
                "scandir",
                "readlink",
            ),
            *("mkdir", "rmdir", "unlink", "rename", "truncate", "chmod", "utime"),
            *("getcwd", "getcwdb", "chdir"),
        )
    ),
    *((os, name, _of_path(to)) for name, to in (("remove", "unlink"), ("replace", "rename"))),
    *(
        (os, name, _of_number(name))
        for name in (
            *("close", "dup", "read", "pread", "readv", "write", "pwrite", "writev", "lseek"),
            *("fsync", "fdatasync", "ftruncate", "fstat", "isatty"),
        )
    ),
    *(
        (os, name, _refused(f"os.{name} is not simulated", _PLAIN))
        for name in (
            *("link", "symlink", "mkfifo", "mknod", "chown", "lchown", "fchown", "chroot"),
            *("statvfs", "fstatvfs", "sync", "setxattr", "fchdir", "fchmod", "memfd_create"),
        )
        if hasattr(os, name)
    ),
    (os, "listxattr", lambda loop, *_, **__: []),
    *(
        (fcntl, name, _refused_file(f"fcntl.{name}", getattr(fcntl, name), _ALONE))
        for name in ("flock", "lockf", "fcntl", "ioctl")
    ),
    (tempfile, "gettempdir", lambda loop: "/tmp"),  # noqa: S108 - of a simulated disk
    (tempfile, "_get_candidate_names", lambda loop: loop.files.temporary_names()),
    (_CLOSER, _CLOSES, lambda loop, self, *_: _REAL_CLOSE(self, unlink=loop.files.unlink)),
    (sqlite3, "connect", _sqlite),
]

_CLOCKS: Final = ("monotonic", "perf_counter", "process_time", "thread_time")

#: Clock functions for programs of hosts and for actors: module, name, replacement.
_TIMES: Final[list[tuple[Any, str, Inside]]] = [
    (time, "time", _wall),
    (time, "time_ns", _wall_ns),
    *((time, name, _gmtime) for name in ("gmtime", "localtime")),
    (time, "strftime", _strftime),
    (time, "asctime", _asctime),
    (time, "ctime", _ctime),
    (time, "mktime", _mktime),
    *((time, name, NodeClock.time) for name in _CLOCKS),
    *((time, f"{name}_ns", lambda clock: int(clock.time() * 1e9)) for name in _CLOCKS),
    (time, "clock_gettime", _read_clock),
    (time, "clock_gettime_ns", _read_clock_ns),
]

#: Clock functions that are used to measure durations.
_MEASURES: Final = {name + end for name in (*_CLOCKS, "clock_gettime") for end in ("", "_ns")}

#: Functions for programs of hosts and for actors: module or class, name, replacement.
_SHARED: Final[list[tuple[Any, str, Inside]]] = [
    (time, "sleep", _sleep),
    *((random, name, _drawn(name)) for name in _DRAWN if hasattr(random, name)),
    (random, "seed", _seed),
    (random.Random, "seed", _seed_own),
    (os, "urandom", lambda loop, size: loop.drawn.randbytes(size)),
    (uuid, "uuid1", _uuid1),
    *(
        (signal, name, _refused("interrupting timers are not simulated", "use loop.call_later"))
        for name in ("alarm", "setitimer")
        if hasattr(signal, name)
    ),
    *(
        (socket, name, _refused(f"socket.{name} blocks or is real", _NO_SOCKET))
        for name in ("create_connection", "create_server", "socketpair", "fromfd")
    ),
    (ssl.SSLContext, "wrap_socket", _refused("SSLContext.wrap_socket blocks", _TLS)),
    (threading.Thread, "start", _refused("threads are not simulated", _THREAD)),
    (threading.Condition, "wait", _refused("waiting for a thread would never end", _THREAD)),
    (subprocess.Popen, "__init__", _refused("subprocesses are not simulated", _OTHER)),
    *(
        (os, name, _refused("processes are not simulated", _OTHER))
        for name in (
            "fork",
            "forkpty",
            "system",
            "posix_spawn",
            "posix_spawnp",
            "execv",
            "execve",
        )
        if hasattr(os, name)
    ),
]

#: Functions for actors only; programs of hosts have simulated sockets.
_OF_ACTORS: Final[list[tuple[Any, str, Inside]]] = [
    (socket.socket, "__init__", _refused("sockets are real", _REAL_SOCKET)),
]

#: Functions for programs of hosts only: module, name, replacement.
_INSIDE: Final[list[tuple[Any, str, Inside]]] = [
    (os, "getpid", _process),
    (os, "kill", _kill),
    (os, "_exit", _exit),
    (signal, "signal", _signal),
    (signal, "getsignal", lambda loop, number: loop.host.handlers.get(number, signal.SIG_DFL)),
    (signal, "raise_signal", lambda loop, number: loop.host.signal(number)),
    (socket, "getaddrinfo", addresses),
    (socket, "gethostbyname", lambda loop, name: addresses(loop, name, 0)[0][4][0]),
    (socket, "gethostname", lambda loop: loop.host.name),
    (socket, "getfqdn", lambda loop, name="": name or loop.host.name),
    *_FILES,
]


class _RealOrOurs(type):
    """Metaclass of replacement classes.

    They create real objects outside of hosts; `isinstance` accepts real and simulated ones.
    """

    def __instancecheck__(cls, thing: object) -> bool:
        """Return whether an object is an instance of the real or of the simulated class."""
        if cls in _STANDS_FOR:
            return isinstance(thing, _STANDS_FOR[cls])
        return super().__instancecheck__(thing)

    def __subclasscheck__(cls, kind: type) -> bool:
        """Return whether a class is a subclass of the real or of the simulated class."""
        if cls in _STANDS_FOR:
            return issubclass(kind, _STANDS_FOR[cls])
        return super().__subclasscheck__(kind)

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Create a simulated object in a program of a host, else a real one."""
        if cls not in _STANDS_FOR:
            return super().__call__(*args, **options)
        loop = here.loop
        if loop is not None and cls in _MADE:
            return _MADE[cls](loop, *args, **options)
        return _STANDS_FOR[cls][0](*args, **options)


def _host_socket(
    loop: ProgramLife,
    family: int = -1,
    type: int = -1,  # noqa: A002 - as in `socket.socket`
    proto: int = -1,
    fileno: int | None = None,
) -> HostSocket:
    """Create a socket for a program of a host."""
    if fileno is not None:
        loop.refuse("descriptors are not simulated", _NO_SOCKET)
    return HostSocket(loop, family, type, proto)


def _host_map(loop: LifeWithFiles, fileno: int, *args: Any, **options: Any) -> mmap.mmap:
    """Map anonymous memory or a real file."""
    if loop.files.has(fileno):
        loop.refuse("mapping a file is not simulated", _MAPPED)
    return _REAL_MMAP(fileno, *args, **options)


def _now() -> float:
    """Return the wall clock of the host or node whose turn it is, or the real one."""
    return time.time()  # noqa: TID251 - patched in simulations


class SocketOfHost(socket.socket, metaclass=_RealOrOurs):
    """Replacement of `socket.socket`: a simulated socket in programs of hosts."""


class MapOfHost(mmap.mmap, metaclass=_RealOrOurs):
    """Replacement of `mmap.mmap`; it does not map simulated files."""


class DateOfHost(datetime_module.date, metaclass=_RealOrOurs):
    """Replacement of `datetime.date` that uses the clock of the current host or node."""

    _callboard_stands_for = datetime_module.date  # for handlers annotated with the class

    @classmethod
    def today(cls) -> Any:
        """Return the date of the current wall clock."""
        return cls.fromtimestamp(_now())

    @classmethod
    def fromtimestamp(cls, timestamp: float, /) -> Any:
        """Return the date of a time; within turns in UTC."""
        if here.loop is None and CurrentClock.clock is None:
            return _REAL_DATE.fromtimestamp(timestamp)
        return _REAL_DATETIME.fromtimestamp(timestamp, datetime_module.UTC).date()


class DatetimeOfHost(datetime_module.datetime, metaclass=_RealOrOurs):
    """Replacement of `datetime.datetime` that uses the clock of the current host or node."""

    _callboard_stands_for = datetime_module.datetime

    @classmethod
    def now(cls, tz: datetime_module.tzinfo | None = None) -> Any:
        """Return the current wall clock; within turns in UTC by default."""
        return cls.fromtimestamp(_now(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        """Return the current wall clock in UTC, without a zone."""
        now = _REAL_DATETIME.fromtimestamp(_now(), datetime_module.UTC)
        return now.replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        """Return the current wall clock."""
        return cls.now()

    @classmethod
    def fromtimestamp(cls, timestamp: float, tz: datetime_module.tzinfo | None = None) -> Any:
        """Convert a timestamp; within turns in UTC by default."""
        if tz is not None or (here.loop is None and CurrentClock.clock is None):
            return _REAL_DATETIME.fromtimestamp(timestamp, tz)
        moment = _REAL_DATETIME.fromtimestamp(timestamp, datetime_module.UTC)
        return moment.replace(tzinfo=None)


_REAL_DATE: Final = datetime_module.date
_REAL_DATETIME: Final = datetime_module.datetime
_REAL_MMAP: Final = mmap.mmap
_STANDS_FOR: Final[dict[type, tuple[type, ...]]] = {
    MapOfHost: (mmap.mmap,),
    SocketOfHost: (socket.socket, HostSocket),
    DateOfHost: (_REAL_DATE,),
    DatetimeOfHost: (_REAL_DATETIME,),
}

#: Functions that create objects in programs of hosts, by replaced class.
_MADE: Final[dict[type, Inside]] = {SocketOfHost: _host_socket, MapOfHost: _host_map}


class _Substitute:
    """A patched function, and the original."""

    def __init__(self, home: Any, name: str, inside: Inside) -> None:
        """Create the replacement of a function; it is not installed yet."""
        self.home, self.name = home, name
        self.real = home.__dict__[name]
        self.before = self.real
        self.function = self._function(inside)
        self.function.__name__ = self.function.__qualname__ = name

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return a replacement that applies to programs of hosts."""

        def asks(*args: Any, **options: Any) -> Any:
            loop = here.loop
            if loop is None:
                return self.before(*args, **options)
            return inside(loop, *args, **options)

        return asks


class _Shared(_Substitute):
    """A function patched in programs of hosts, and in user code of actors."""

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return a replacement that applies to programs of hosts and to user code of actors."""

        def asks(*args: Any, **options: Any) -> Any:
            life = here.loop
            if life is None and here.actors is not None and is_called_by_users():
                life = here.actors
            if life is None:
                return self.before(*args, **options)
            return inside(life, *args, **options)

        return asks


class _OfActors(_Substitute):
    """A function patched in user code of actors only."""

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return a replacement that applies to user code of actors."""

        def asks(*args: Any, **options: Any) -> Any:
            life = here.actors
            if here.loop is not None or life is None or not is_called_by_users():
                return self.before(*args, **options)
            return inside(life, *args, **options)

        return asks


class _Time(_Substitute):
    """A clock function, patched for hosts and nodes."""

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return a replacement that reads the clock of the current host or node."""
        measures = self.name in _MEASURES

        def asks(*args: Any, **options: Any) -> Any:
            clock = _clock_in_turn()
            if clock is None or (measures and here.loop is None and _asks_for_itself()):
                return self.before(*args, **options)
            return inside(clock, *args, **options)

        return asks


def _asks_for_itself() -> bool:
    """Return whether callboard or the standard library is calling, and not user code."""
    caller: Any = sys._getframe(2)  # noqa: SLF001 - documented, despite the underscore
    room = str(caller.f_globals.get("__name__", "")).partition(".")[0]
    return room in OWN_ROOMS or room in sys.stdlib_module_names


class StdlibPatches:
    """A set of patches that are installed while simulations need them."""

    def __init__(self, functions: Iterable[_Substitute], classes: Iterable[type]) -> None:
        """Prepare patches of functions, and of the classes that these classes replace."""
        self._functions = list(functions)
        self._by_id: dict[int, tuple[Any, Any]] = {}
        for function in self._functions:
            self._by_id[id(function.real)] = (function.real, function.function)
        standing = {ours: _STANDS_FOR[ours][0] for ours in classes}
        for ours, real in standing.items():
            self._by_id[id(real)] = (real, ours)
        self._classes = {id(real) for real in standing.values()}
        self._places: list[tuple[Any, str, Any]] = [
            (function.home, function.name, function.function) for function in self._functions
        ]
        self._known: set[str] = set()
        self._users = 0
        self._undo: list[tuple[Any, str, Any]] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install all patches; remove them after the last simulation that needs them."""
        self._users += 1
        if self._users == 1:
            self._install()
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                for home, name, original in reversed(self._undo):
                    setattr(home, name, original)
                self._undo.clear()

    def _install(self) -> None:
        """Install the patches in all modules that use the originals."""
        self._find()
        for function in self._functions:
            function.before = function.home.__dict__[function.name]
        for home, name, replacement in self._places:
            if name in home.__dict__:
                self._undo.append((home, name, home.__dict__[name]))
                setattr(home, name, replacement)

    def _find(self) -> None:
        """Find uses of the originals in modules loaded since the last search."""
        if len(sys.modules) == len(self._known):
            return
        homes = {(id(home), name) for home, name, _ in self._places}
        for title, module in list(sys.modules.items()):
            if title in self._known:
                continue
            self._known.add(title)
            names = getattr(module, "__dict__", None)
            is_left = title in _MACHINERY or title.partition(".")[0] == "callboard"
            if is_left or not isinstance(names, dict):
                continue
            is_own = title.partition(".")[0] in _LEFT_ALONE and title not in _HOMES
            for name, value in list(names.items()):
                replaced = self._by_id.get(id(value))
                if replaced is None or replaced[0] is not value or (id(module), name) in homes:
                    continue
                if not (is_own and id(value) in self._classes):
                    self._places.append((module, name, replaced[1]))


#: Modules whose references to classes are not patched, because they need the real classes.
_LEFT_ALONE: Final = sys.stdlib_module_names | {"numpy", "pandas", "pyarrow", "pytest"}
_HOMES: Final = ("datetime", "socket", "mmap")

#: Modules of the import system, which must read real files even in turns of hosts.
_MACHINERY: Final = frozenset(
    {"posix", "_io", "importlib._bootstrap_external", "_frozen_importlib_external"}
)

# Global, because the standard library is global.

#: Patches for every simulation: clocks, and functions that actors call.
dates: Final = StdlibPatches(
    (
        *(_Time(*entry) for entry in _TIMES),
        *(_Shared(*entry) for entry in _SHARED),
        *(_OfActors(*entry) for entry in _OF_ACTORS),
    ),
    (DateOfHost, DatetimeOfHost),
)

#: Further patches for simulations with hosts.
substitutes: Final = StdlibPatches(
    (_Substitute(*entry) for entry in _INSIDE), (SocketOfHost, MapOfHost)
)
