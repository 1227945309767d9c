"""What a scenario asks that no seed answers: the real time, real chance, threads.

A run is lived with a watch on the functions that give each run something else. Only calls from
outside of callboard and of Python's own library count, since these two know what they do.
"""

import os
import random
import secrets
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from callboard.simulation.programs import substitutes

#: Modules and their functions that depend on more than a seed.
_WATCHED: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")),
    (
        random,
        ("random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform"),
    ),
    (os, ("urandom", "getpid")),
    (uuid, ("uuid1", "uuid4")),
    (secrets, ("token_hex", "token_bytes", "token_urlsafe", "randbelow", "choice")),
    (threading.Thread, ("start",)),
)

SUBSTITUTES: Final = substitutes.__file__

_HERE: Final = Path(__file__).parents[2]

#: Folders whose code is not a user's; three rooms of callboard are links in a checkout of it.
_OURS: Final = tuple(
    str(folder.resolve())
    for folder in (
        *(_HERE, _HERE / "actors", _HERE / "basp", _HERE / "proxies"),
        Path(sysconfig.get_paths()["stdlib"]),
    )
)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Return a list that fills with what is called, and where, once for each place.

    What threads call that ran before belongs to something else.
    """
    calls: list[str] = []
    own = threading.get_ident()
    others = {each.ident for each in threading.enumerate() if each.ident != own}
    with ExitStack() as patches:
        for home, names in _WATCHED:
            for name in names:
                spied = _spied(getattr(home, name), f"{home.__name__}.{name}", calls, others)
                patches.enter_context(patch.object(home, name, spied))
        yield calls


def _spied(
    function: Callable[..., Any], name: str, calls: list[str], others: set[int | None]
) -> Callable[..., Any]:
    """Return a function that notes who calls it, if that is a user's file.

    Args:
        function: what is called.
        name: how it is shown.
        calls: what fills.
        others: threads whose calls are not noted.
    """

    def spy(*args: Any, **options: Any) -> Any:
        if threading.get_ident() in others:
            return function(*args, **options)
        frame: Any = sys._getframe(1)  # noqa: SLF001 - the documented way to a caller
        while frame.f_code.co_filename == SUBSTITUTES:  # what programs of hosts find
            frame = frame.f_back
        path = frame.f_code.co_filename
        if not str(Path(path).resolve()).startswith(_OURS) or "site-packages" in path:
            place = f"{name}() in {Path(path).name}, line {frame.f_lineno}"
            if place not in calls:
                calls.append(place)
        return function(*args, **options)

    return spy
