"""What a program of a host finds in place of the real time, chance, threads and sockets.

While a simulation has hosts, functions of Python's library are replaced, also where a module
has taken them by `from time import monotonic`. Each asks whose turn it is: a host's program
gets what its loop says, all others what was there before. What no host has is refused with an
error that says what to do.

Those that tell the time are replaced in every simulation: an actor gets what the clocks of its
node show. Code of callboard and of Python's library measures real durations there, as it may
wait for real locks.
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
from callboard.simulation.clock import NodeClock, Shown
from callboard.simulation.programs.files import REAL, LifeWithFiles
from callboard.simulation.programs.here import ProgramLife, here
from callboard.simulation.programs.sockets import HostSocket, addresses

#: Times that a program may ask for the time in a turn before that takes time: one that waits
#: for a moment without an await would never see it.
_FREE_CALLS: Final = 10_000

Inside = Callable[..., Any]


def _clock(loop: ProgramLife) -> float:
    """Return the monotonic time of a host."""
    loop.calls += 1
    if loop.calls > _FREE_CALLS:
        loop.block(1e-6 * (loop.calls - _FREE_CALLS))
    return loop.time()


def _clock_in_turn() -> NodeClock | None:
    """Return the clock of the host or node that has its turn; None outside of all turns."""
    loop = here.loop
    if loop is None:
        return Shown.clock
    _clock(loop)
    return loop.node_clock


def _wall_ns(clock: NodeClock) -> int:
    """Return a wall clock in nanoseconds."""
    return clock.wall_ns()


def _wall(clock: NodeClock) -> float:
    """Return a wall clock."""
    return clock.wall_ns() / 1e9


def _gmtime(clock: NodeClock, at: float | None = None) -> time.struct_time:
    """Return a time, the wall clock's by default, in UTC: a simulation has no other zone."""
    return _REAL_GMTIME(_wall(clock) if at is None else at)


def _strftime(clock: NodeClock, text: str, at: Any = None) -> str:
    """Return a time as text."""
    return _REAL_STRFTIME(text, _gmtime(clock) if at is None else at)


def _asctime(clock: NodeClock, at: Any = None) -> str:
    """Return a time as text."""
    return _REAL_ASCTIME(_gmtime(clock) if at is None else at)


def _ctime(clock: NodeClock, at: float | None = None) -> str:
    """Return a time as text."""
    return _REAL_ASCTIME(_gmtime(clock, at))


def _mktime(clock: NodeClock, at: Any) -> float:
    """Return the seconds of a time: what `localtime` undoes."""
    return float(calendar.timegm(at))


def _read_clock_ns(clock: NodeClock, which: int) -> int:
    """Return one of the system's clocks: the date, or the one that never jumps."""
    return clock.wall_ns() if which in _DATED else int(clock.time() * 1e9)


def _read_clock(clock: NodeClock, which: int) -> float:
    """Return one of the system's clocks in seconds."""
    return _read_clock_ns(clock, which) / 1e9


def _sleep(loop: ProgramLife, seconds: float) -> None:
    """Block a host, as it would be."""
    if seconds < 0:
        message = "sleep length must be non-negative"
        raise ValueError(message)
    loop.block(seconds)


def _drawn(name: str) -> Inside:
    """Return a function of `random` that draws from the host's chance."""
    return lambda loop, *args, **options: getattr(loop.drawn, name)(*args, **options)


def _seed(loop: ProgramLife, a: Any = None, *rest: Any, **options: Any) -> None:
    """Seed a host's chance; without a seed it goes on as it is."""
    if a is not None:
        loop.drawn.seed(a, *rest, **options)


def _seed_own(loop: ProgramLife, self: random.Random, a: Any = None, version: int = 2) -> None:
    """Seed a program's own `random.Random`."""
    _REAL_SEED(self, loop.random.getrandbits(128) if a is None else a, version)


def _uuid1(loop: ProgramLife, node: Any = None, clock_seq: Any = None) -> uuid.UUID:
    """Return a UUID of the host's time and chance."""
    found = node or random.Random(loop.host.address).getrandbits(48)
    _clock(loop)
    nanoseconds = _wall_ns(loop.node_clock) // 100 + 0x01B21DD213814000
    sequence = loop.drawn.getrandbits(14) if clock_seq is None else clock_seq
    low, middle, high = nanoseconds & 0xFFFFFFFF, nanoseconds >> 32 & 0xFFFF, nanoseconds >> 48
    parts = (low, middle, high & 0x0FFF, sequence >> 8 & 0x3F, sequence & 0xFF, found)
    return uuid.UUID(fields=parts, version=1)


def _signal(loop: ProgramLife, number: int, handler: Any) -> Any:
    """Set what a signal does to a host."""
    before = loop.host.handlers.pop(number, signal.SIG_DFL)
    if handler != signal.SIG_DFL:
        loop.host.handlers[number] = handler
    return before


def _kill(loop: ProgramLife, process: int, number: int) -> None:
    """Send a signal to oneself."""
    if process not in (0, _process(loop)):
        loop.refuse("other processes are not simulated", "let the test call cluster.kill")
    loop.host.signal(number)


def _process(loop: ProgramLife) -> int:
    """Return the number of a host's process."""
    return 1000 + loop.host.number % 1000


def _exit(loop: ProgramLife, code: int) -> None:
    """End a host's program."""
    raise SystemExit(code)


def _refused(what: str, instead: str) -> Inside:
    """Return a function that says what no host has."""

    def refuse(loop: ProgramLife, *_: Any, **__: Any) -> None:
        loop.refuse(what, instead)

    return refuse


def _of_path(name: str) -> Inside:
    """Return a function of paths: on the disk of the host."""
    return lambda loop, *args, **options: getattr(loop.files, name)(*args, **options)


def _of_number(name: str) -> Inside:
    """Return a function of descriptors: of a file of the host, or what there is."""

    def called(loop: LifeWithFiles, number: Any, *args: Any, **options: Any) -> Any:
        number = number if isinstance(number, int) else number.fileno()
        home = getattr(loop.files, name) if loop.files.has(number) else REAL[name]
        return home(number, *args, **options)

    return called


def _refused_file(name: str, real: Callable[..., Any], instead: str) -> Inside:
    """Return a function of descriptors that refuses files of the host."""

    def called(loop: LifeWithFiles, number: Any, *args: Any, **options: Any) -> Any:
        if loop.files.has(number if isinstance(number, int) else number.fileno()):
            loop.refuse(f"{name} of a file is not simulated", instead)
        return real(number, *args, **options)

    return called


def _sqlite(loop: LifeWithFiles, database: Any, *args: Any, **options: Any) -> Any:
    """Open an SQLite in memory."""
    if os.fspath(database) != ":memory:":
        loop.refuse(
            "SQLite writes files past Python, which no simulated disk sees",
            "use ':memory:' in the test, or make the database a host of its own",
        )
    return _REAL_SQLITE(database, *args, **options)


_REAL_SOCKET = "send messages to actors, or make the program a host of its own"
_THREAD = "asyncio.to_thread and loop.run_in_executor call a function in virtual time"
_OTHER = "make the other program a host of its own: cluster.host(name, main)"
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

#: What removes named temporary files: it took the real function as a default argument.
_CLOSER: Final = vars(tempfile)["_TemporaryFileCloser"]
_CLOSES: Final = "cleanup" if hasattr(_CLOSER, "cleanup") else "close"
_REAL_CLOSE: Final = vars(_CLOSER)[_CLOSES]

_ALONE = "one program runs on a simulated host: it needs no locks of files"
_MAPPED = "read and write the file"
_PLAIN = "write to a file of its own name"

#: Home, name, and what a host's program finds there of files.
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

#: Home, name, and what tells the time there by the clock that has its turn.
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

#: Those with which one measures.
_MEASURES: Final = {name + end for name in (*_CLOCKS, "clock_gettime") for end in ("", "_ns")}

#: Home, name, and what a host's program and the actors of a node find there.
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
    (threading.Thread, "start", _refused("there is one thread", _THREAD)),
    (threading.Condition, "wait", _refused("to wait for a thread would be for ever", _THREAD)),
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

#: Home, name, and what the actors of a node find there; a host's program has sockets.
_OF_ACTORS: Final[list[tuple[Any, str, Inside]]] = [
    (socket.socket, "__init__", _refused("sockets are real", _REAL_SOCKET)),
]

#: Home, name, and what a host's program finds there.
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
    """Lets classes that stand for real ones make real objects, and know these as their own."""

    def __instancecheck__(cls, thing: object) -> bool:
        """Return whether a thing is one of the real class or of the simulated one."""
        if cls in _STANDS_FOR:
            return isinstance(thing, _STANDS_FOR[cls])
        return super().__instancecheck__(thing)

    def __subclasscheck__(cls, kind: type) -> bool:
        """Return whether a class is one of the real ones."""
        if cls in _STANDS_FOR:
            return issubclass(kind, _STANDS_FOR[cls])
        return super().__subclasscheck__(kind)

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Make an object of the real class, or of the simulated one in a host's program."""
        if cls not in _STANDS_FOR:
            return super().__call__(*args, **options)
        loop = here.loop
        if loop is not None and cls in _MADE:
            return _MADE[cls](loop, *args, **options)
        return _STANDS_FOR[cls][0](*args, **options)


def _host_socket(
    loop: ProgramLife,
    family: int = -1,
    type: int = -1,  # noqa: A002 - the keyword of the real one
    proto: int = -1,
    fileno: int | None = None,
) -> HostSocket:
    """Make a socket for a host's program."""
    if fileno is not None:
        loop.refuse("descriptors are not simulated", _NO_SOCKET)
    return HostSocket(loop, family, type, proto)


def _host_map(loop: LifeWithFiles, fileno: int, *args: Any, **options: Any) -> mmap.mmap:
    """Map memory that is no file's."""
    if loop.files.has(fileno):
        loop.refuse("to map a file is not simulated", _MAPPED)
    return _REAL_MMAP(fileno, *args, **options)


def _now() -> float:
    """Return the wall clock: that of the host or node that has its turn, or the real one."""
    return time.time()  # noqa: TID251 - it stands for what programs ask


class SocketOfHost(socket.socket, metaclass=_RealOrOurs):
    """`socket.socket`: one of the simulated network in a host's program."""


class MapOfHost(mmap.mmap, metaclass=_RealOrOurs):
    """`mmap.mmap`, which maps no files of a host."""


class DateOfHost(datetime_module.date, metaclass=_RealOrOurs):
    """`datetime.date` with the today of the host or node that has its turn."""

    _callboard_stands_for = datetime_module.date  # to a handler that is annotated with it

    @classmethod
    def today(cls) -> Any:
        """Return the day of the host's wall clock."""
        return cls.fromtimestamp(_now())

    @classmethod
    def fromtimestamp(cls, timestamp: float, /) -> Any:
        """Return the day of a time, in UTC in a turn."""
        if here.loop is None and Shown.clock is None:
            return _REAL_DATE.fromtimestamp(timestamp)
        return _REAL_DATETIME.fromtimestamp(timestamp, datetime_module.UTC).date()


class DatetimeOfHost(datetime_module.datetime, metaclass=_RealOrOurs):
    """`datetime.datetime` with the now of the host or node that has its turn."""

    _callboard_stands_for = datetime_module.datetime

    @classmethod
    def now(cls, tz: datetime_module.tzinfo | None = None) -> Any:
        """Return the wall clock, which is in UTC in a turn where no zone is given."""
        return cls.fromtimestamp(_now(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        """Return the host's wall clock."""
        now = _REAL_DATETIME.fromtimestamp(_now(), datetime_module.UTC)
        return now.replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        """Return the host's wall clock."""
        return cls.now()

    @classmethod
    def fromtimestamp(cls, timestamp: float, tz: datetime_module.tzinfo | None = None) -> Any:
        """Return a time as a date and time, in UTC in a turn."""
        if tz is not None or (here.loop is None and Shown.clock is None):
            return _REAL_DATETIME.fromtimestamp(timestamp, tz)
        found = _REAL_DATETIME.fromtimestamp(timestamp, datetime_module.UTC)
        return found.replace(tzinfo=None)


_REAL_DATE: Final = datetime_module.date
_REAL_DATETIME: Final = datetime_module.datetime
_REAL_MMAP: Final = mmap.mmap
_STANDS_FOR: Final[dict[type, tuple[type, ...]]] = {
    MapOfHost: (mmap.mmap,),
    SocketOfHost: (socket.socket, HostSocket),
    DateOfHost: (_REAL_DATE,),
    DatetimeOfHost: (_REAL_DATETIME,),
}

#: What makes objects in a host's program.
_MADE: Final[dict[type, Inside]] = {SocketOfHost: _host_socket, MapOfHost: _host_map}


class _Substitute:
    """One function that is replaced, and what was there before."""

    def __init__(self, home: Any, name: str, inside: Inside) -> None:
        """Prepare a substitute."""
        self.home, self.name = home, name
        self.real = home.__dict__[name]
        self.before = self.real
        self.function = self._function(inside)
        self.function.__name__ = self.function.__qualname__ = name

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return what stands in its place: what asks for the program that has its turn."""

        def asks(*args: Any, **options: Any) -> Any:
            loop = here.loop
            if loop is None:
                return self.before(*args, **options)
            return inside(loop, *args, **options)

        return asks


class _Shared(_Substitute):
    """A function that is replaced in hosts, and in code of users in the actors of nodes."""

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return what asks for the program, or the node, that has its turn."""

        def asks(*args: Any, **options: Any) -> Any:
            life = here.loop
            if life is None and here.actors is not None and is_called_by_users():
                life = here.actors
            if life is None:
                return self.before(*args, **options)
            return inside(life, *args, **options)

        return asks


class _OfActors(_Substitute):
    """A function that is replaced in code of users in the actors of nodes only."""

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return what asks for the node that has its turn."""

        def asks(*args: Any, **options: Any) -> Any:
            life = here.actors
            if here.loop is not None or life is None or not is_called_by_users():
                return self.before(*args, **options)
            return inside(life, *args, **options)

        return asks


class _Time(_Substitute):
    """A function that tells the time, of hosts and of nodes."""

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return what asks for the clock that has its turn."""
        measures = self.name in _MEASURES

        def asks(*args: Any, **options: Any) -> Any:
            clock = _clock_in_turn()
            if clock is None or (measures and here.loop is None and _asks_for_itself()):
                return self.before(*args, **options)
            return inside(clock, *args, **options)

        return asks


def _asks_for_itself() -> bool:
    """Return whether callboard or Python's library measures something, and no user's code."""
    caller: Any = sys._getframe(2)  # noqa: SLF001 - the documented way to a caller
    room = str(caller.f_globals.get("__name__", "")).partition(".")[0]
    return room in OWN_ROOMS or room in sys.stdlib_module_names


class Substitutes:
    """What is replaced while there are simulations that need it."""

    def __init__(self, functions: Iterable[_Substitute], classes: Iterable[type]) -> None:
        """Find out what is to be replaced, classes by those that stand for them."""
        self._functions = list(functions)
        self._by_id: dict[int, tuple[Any, Any]] = {}
        for each in self._functions:
            self._by_id[id(each.real)] = (each.real, each.function)
        standing = {ours: _STANDS_FOR[ours][0] for ours in classes}
        for ours, real in standing.items():
            self._by_id[id(real)] = (real, ours)
        self._classes = {id(real) for real in standing.values()}
        self._places: list[tuple[Any, str, Any]] = [
            (each.home, each.name, each.function) for each in self._functions
        ]
        self._known: set[str] = set()
        self._users = 0
        self._undo: list[tuple[Any, str, Any]] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replace everything; put it back at the end of the last simulation that needs it."""
        self._users += 1
        if self._users == 1:
            self._install()
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                for home, name, before in reversed(self._undo):
                    setattr(home, name, before)
                self._undo.clear()

    def _install(self) -> None:
        """Replace everything where it was found."""
        self._find()
        for each in self._functions:
            each.before = each.home.__dict__[each.name]
        for home, name, ours in self._places:
            if name in home.__dict__:
                self._undo.append((home, name, home.__dict__[name]))
                setattr(home, name, ours)

    def _find(self) -> None:
        """Look for what is to be replaced in modules that were not seen yet."""
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
                found = self._by_id.get(id(value))
                if found is None or found[0] is not value or (id(module), name) in homes:
                    continue
                if not (is_own and id(value) in self._classes):
                    self._places.append((module, name, found[1]))


#: Modules in which classes stay: they are used there for what they are.
_LEFT_ALONE: Final = sys.stdlib_module_names | {"numpy", "pandas", "pyarrow", "pytest"}
_HOMES: Final = ("datetime", "socket", "mmap")

#: What Python imports modules with, also in a host's turn.
_MACHINERY: Final = frozenset(
    {"posix", "_io", "importlib._bootstrap_external", "_frozen_importlib_external"}
)

# There is one of each, since there is one library of Python.

#: What tells the time, and what actors share with hosts, in every simulation.
dates: Final = Substitutes(
    (
        *(_Time(*entry) for entry in _TIMES),
        *(_Shared(*entry) for entry in _SHARED),
        *(_OfActors(*entry) for entry in _OF_ACTORS),
    ),
    (DateOfHost, DatetimeOfHost),
)

#: All else, in simulations with hosts.
substitutes: Final = Substitutes(
    (_Substitute(*entry) for entry in _INSIDE), (SocketOfHost, MapOfHost)
)
