"""Detect nondeterminism in a scenario: real clocks, global randomness, threads.

A run is repeated while calls of nondeterministic functions are recorded. Only calls from user
code count; callboard and the standard library handle such functions correctly.
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

#: Modules or classes, and their functions whose results do not depend on the seed.
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

#: Folders of callboard and of the standard library. Three packages are links in a checkout.
_OURS: Final = tuple(
    str(folder.resolve())
    for folder in (
        *(_HERE, _HERE / "actors", _HERE / "basp", _HERE / "proxies"),
        Path(sysconfig.get_paths()["stdlib"]),
    )
)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Record calls within the block: yield a list of functions and lines, without repetitions.

    Calls by threads that existed before are ignored; they do not belong to the test.
    """
    calls: list[str] = []
    own = threading.get_ident()
    other_threads = {thread.ident for thread in threading.enumerate() if thread.ident != own}
    with ExitStack() as patches:
        for home, names in _WATCHED:
            for name in names:
                spied = _spied(
                    getattr(home, name), f"{home.__name__}.{name}", calls, other_threads
                )
                patches.enter_context(patch.object(home, name, spied))
        yield calls


def _spied(
    function: Callable[..., Any], name: str, calls: list[str], other_threads: set[int | None]
) -> Callable[..., Any]:
    """Wrap a function to record calls from user code.

    Args:
        function: the function.
        name: its name in the record.
        calls: the record.
        other_threads: identifiers of threads to ignore.
    """

    def spy(*args: Any, **options: Any) -> Any:
        if threading.get_ident() in other_threads:
            return function(*args, **options)
        frame: Any = sys._getframe(1)  # noqa: SLF001 - documented, despite the underscore
        while frame.f_code.co_filename == SUBSTITUTES:  # skip frames of patches
            frame = frame.f_back
        path = frame.f_code.co_filename
        if not str(Path(path).resolve()).startswith(_OURS) or "site-packages" in path:
            place = f"{name}() in {Path(path).name}, line {frame.f_lineno}"
            if place not in calls:
                calls.append(place)
        return function(*args, **options)

    return spy
