"""Patches of the standard library for actors on simulated nodes: time, randomness, threads.

While a simulation is open, functions of the standard library are patched, including names that
a module imported with `from time import monotonic`. In user code of actors, a patch uses the
clock and the random source of the node; for all other code it calls the original function.
Unsupported functions raise an error that names an alternative.

Code of callboard and of the standard library still measures real durations, because it may
wait for real locks.
"""

import calendar
import contextlib
import datetime as datetime_module
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from callboard.simulation.actor_life import (
    OWN_ROOMS,
    ActorLife,
    current,
    is_called_by_users,
)
from callboard.simulation.clock import CurrentClock, NodeClock

Inside = Callable[..., Any]


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


def _sleep(life: ActorLife, seconds: float) -> None:
    """Block a node for some seconds."""
    if seconds < 0:
        message = "sleep length must be non-negative"
        raise ValueError(message)
    life.block(seconds)


def _drawn(name: str) -> Inside:
    """Return a function of `random` that draws from the node's random source."""
    return lambda life, *args, **options: getattr(life.drawn, name)(*args, **options)


def _seed(life: ActorLife, a: Any = None, *rest: Any, **options: Any) -> None:
    """Seed a node's random source; without a seed it stays unchanged."""
    if a is not None:
        life.drawn.seed(a, *rest, **options)


def _seed_own(life: ActorLife, self: random.Random, a: Any = None, version: int = 2) -> None:
    """Seed a user's own `random.Random`."""
    _REAL_SEED(self, life.random.getrandbits(128) if a is None else a, version)


def _uuid1(life: ActorLife, node: Any = None, clock_seq: Any = None) -> uuid.UUID:
    """Return a UUID from the node's clock and random source."""
    node_id = node or random.Random(life.name).getrandbits(48)
    nanoseconds = _wall_ns(life.node_clock) // 100 + 0x01B21DD213814000
    sequence = life.drawn.getrandbits(14) if clock_seq is None else clock_seq
    low, middle, high = nanoseconds & 0xFFFFFFFF, nanoseconds >> 32 & 0xFFFF, nanoseconds >> 48
    parts = (low, middle, high & 0x0FFF, sequence >> 8 & 0x3F, sequence & 0xFF, node_id)
    return uuid.UUID(fields=parts, version=1)


def _refused(problem: str, instead: str) -> Inside:
    """Return a function that refuses an unsupported call."""

    def refuse(life: ActorLife, *_: Any, **__: Any) -> None:
        life.refuse(problem, instead)

    return refuse


_THREAD = "asyncio.to_thread and loop.run_in_executor call a function in virtual time"
_OTHER = "replace the client of the other program by an object in the test"
_NO_SOCKET = "send messages to actors"
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

_CLOCKS: Final = ("monotonic", "perf_counter", "process_time", "thread_time")

#: Clock functions: module, name, replacement.
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

#: Functions that user code of actors calls: module or class, name, replacement.
_CALLS: Final[list[tuple[Any, str, Inside]]] = [
    (time, "sleep", _sleep),
    *((random, name, _drawn(name)) for name in _DRAWN if hasattr(random, name)),
    (random, "seed", _seed),
    (random.Random, "seed", _seed_own),
    (os, "urandom", lambda life, size: life.drawn.randbytes(size)),
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
    (socket.socket, "__init__", _refused("sockets are real", _NO_SOCKET)),
    (ssl.SSLContext, "wrap_socket", _refused("SSLContext.wrap_socket blocks", _NO_SOCKET)),
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


class _RealOrOurs(type):
    """Metaclass of replacement classes, which create objects of the real class."""

    def __instancecheck__(cls, thing: object) -> bool:
        """Return whether an object is an instance of the real class."""
        real = _STANDS_FOR.get(cls)
        return super().__instancecheck__(thing) if real is None else isinstance(thing, real)

    def __subclasscheck__(cls, kind: type) -> bool:
        """Return whether a class is a subclass of the real class."""
        real = _STANDS_FOR.get(cls)
        return super().__subclasscheck__(kind) if real is None else issubclass(kind, real)

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Create an object of the real class; a subclass of a user creates its own."""
        real = _STANDS_FOR.get(cls)
        return super().__call__(*args, **options) if real is None else real(*args, **options)


def _now() -> float:
    """Return the wall clock of the node whose turn it is, or the real one."""
    return time.time()  # noqa: TID251 - patched in simulations


class DateOfNode(datetime_module.date, metaclass=_RealOrOurs):
    """Replacement of `datetime.date` that uses the clock of the current node."""

    _callboard_stands_for = datetime_module.date  # for handlers annotated with the class

    @classmethod
    def today(cls) -> Any:
        """Return the date of the current wall clock."""
        return cls.fromtimestamp(_now())

    @classmethod
    def fromtimestamp(cls, timestamp: float, /) -> Any:
        """Return the date of a time; within turns in UTC."""
        if CurrentClock.clock is None:
            return _REAL_DATE.fromtimestamp(timestamp)
        return _REAL_DATETIME.fromtimestamp(timestamp, datetime_module.UTC).date()


class DatetimeOfNode(datetime_module.datetime, metaclass=_RealOrOurs):
    """Replacement of `datetime.datetime` that uses the clock of the current node."""

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
        if tz is not None or CurrentClock.clock is None:
            return _REAL_DATETIME.fromtimestamp(timestamp, tz)
        moment = _REAL_DATETIME.fromtimestamp(timestamp, datetime_module.UTC)
        return moment.replace(tzinfo=None)


_REAL_DATE: Final = datetime_module.date
_REAL_DATETIME: Final = datetime_module.datetime
_STANDS_FOR: Final[dict[type, type]] = {
    DateOfNode: _REAL_DATE,
    DatetimeOfNode: _REAL_DATETIME,
}


class _Patch:
    """A function patched in user code of actors, and the original."""

    def __init__(self, home: Any, name: str, inside: Inside) -> None:
        """Create the replacement of a function; it is not installed yet."""
        self.home, self.name = home, name
        self.real = home.__dict__[name]
        self.before = self.real
        self.function = self._function(inside)
        self.function.__name__ = self.function.__qualname__ = name

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return the replacement."""

        def asks(*args: Any, **options: Any) -> Any:
            life = current.life
            if life is None or not is_called_by_users():
                return self.before(*args, **options)
            return inside(life, *args, **options)

        return asks


class _ClockPatch(_Patch):
    """A clock function, patched in all turns of nodes."""

    def _function(self, inside: Inside) -> Callable[..., Any]:
        """Return a replacement that reads the clock of the current node."""
        measures = self.name in _MEASURES

        def asks(*args: Any, **options: Any) -> Any:
            clock = CurrentClock.clock
            if clock is None or (measures and _asks_for_itself()):
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

    def __init__(self, functions: Iterable[_Patch], classes: dict[type, type]) -> None:
        """Prepare patches of functions, and of classes by their replacement."""
        self._functions = list(functions)
        self._by_id: dict[int, tuple[Any, Any]] = {}
        for function in self._functions:
            self._by_id[id(function.real)] = (function.real, function.function)
        for ours, real in classes.items():
            self._by_id[id(real)] = (real, ours)
        self._classes = {id(real) for real in classes.values()}
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
            is_ours = title.partition(".")[0] == "callboard"
            if is_ours or not isinstance(names, dict):
                continue
            is_own = title.partition(".")[0] in _LEFT_ALONE and title != "datetime"
            for name, value in list(names.items()):
                replaced = self._by_id.get(id(value))
                if replaced is None or replaced[0] is not value or (id(module), name) in homes:
                    continue
                if not (is_own and id(value) in self._classes):
                    self._places.append((module, name, replaced[1]))


#: Modules whose references to classes are not patched, because they need the real classes.
_LEFT_ALONE: Final = sys.stdlib_module_names | {"numpy", "pandas", "pyarrow", "pytest"}

#: The patches of every simulation; global, because the standard library is global.
patches: Final = StdlibPatches(
    (
        *(_ClockPatch(*entry) for entry in _TIMES),
        *(_Patch(*entry) for entry in _CALLS),
    ),
    _STANDS_FOR,
)
