"""The trace of a simulation: all events with time and place. Two runs of a seed are equal.

A failed simulation writes one JSON file for its seed, `.callboard/failures/SEED.json` in the
root folder of the tests: `seed`, `test` (pytest's id of the failed test) and `events`, each a
line of text. A replay is compared with it.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, fields
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from callboard.kernel.actors import ActorRef
from callboard.support.dataclass import dataclass

#: Number of events that are kept, about 50 MB. Later events only enter the checksum.
EVENT_LIMIT: Final = 200_000


class EventTrace:
    """The events of one run."""

    def __init__(self) -> None:
        """Create an empty trace."""
        self._kept: list[tuple[float, str, tuple[Any, ...]]] = []
        self._checksum = 0
        self._left_out = 0

    @property
    def count(self) -> int:
        """The number of events, including those not kept."""
        return len(self._kept) + self._left_out

    def note(self, when: float, where: str, *what: Any) -> None:
        """Record an event; the parts of `what` are joined by spaces when printed."""
        if len(self._kept) < EVENT_LIMIT:
            self._kept.append((when, where, what))
        else:
            self._left_out += 1
            self._checksum = zlib.crc32(_line((when, where, what)).encode(), self._checksum)

    def lines(self) -> list[str]:
        """Return the events as lines of text; the last line counts the events not kept."""
        texts = [_line(event) for event in self._kept]
        if self._left_out:
            texts.append(f"{self._left_out:,} more, checksum {self._checksum:08x}")
        return texts


def _line(event: tuple[float, str, tuple[Any, ...]]) -> str:
    """Format an event as a line of text."""
    when, place, parts = event
    return f"{when:.9f} {place} {' '.join(map(str, parts))}"


def describe(event: object) -> str:
    """Format an event of a node without memory addresses, so that runs can be compared."""
    kind: Any = type(event)
    parts = [f"{name}={_text(getattr(event, name))}" for name in _field_names(kind)]
    return f"{kind.__name__} {' '.join(parts)}"


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of an event class's fields."""
    return tuple(field.name for field in fields(kind))


def _text(value: object) -> str:
    """Format a value so that it is equal in all runs of a seed."""
    if isinstance(value, str | int | float | ActorRef):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    return type(value).__qualname__


def first_difference(
    before: Iterable[str], after: Iterable[str]
) -> tuple[int, str, str] | None:
    """Return index and both texts of the first line where traces differ; None if equal."""
    lines = enumerate(zip_longest(before, after, fillvalue="(the end)"))
    return next(((number, was, is_) for number, (was, is_) in lines if was != is_), None)


#: Folder of dumps, below the root folder of the tests.
FOLDER: Final = Path(".callboard") / "failures"


def dump_path(root: Path, seed: int) -> Path:
    """Return the path of the dump of a seed."""
    return root / FOLDER / f"{seed}.json"


class UnreadableDump(ValueError):
    """A file is not a dump of a failed simulation."""


@dataclass(frozen=True, slots=True)
class Dump:
    """The seed and the events of a failed simulation.

    Attributes:
        seed: seed of the simulation.
        test: pytest's id of the test.
        events: events as lines: seconds, place, description.
    """

    seed: int
    test: str
    events: list[str]

    def write(self, root: Path) -> Path:
        """Write the dump below a root folder; return the file."""
        path = dump_path(root, self.seed)
        self.write_to(path)
        return path

    def write_to(self, path: Path) -> None:
        """Write the dump to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=0) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Dump":
        """Read a dump.

        Raises:
            UnreadableDump: the file is something else, or damaged.
            FileNotFoundError: the dump does not exist.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            seed, test, events = int(values["seed"]), values["test"], values["events"]
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            msg = f"{path} is not a dump of a simulation ({error}); run the failing test again"
            raise UnreadableDump(msg) from None
        if not isinstance(test, str) or not isinstance(events, list):
            msg = f"{path} has no test or no events; run the failing test again"
            raise UnreadableDump(msg)
        return cls(seed, test, [str(event) for event in events])

    def difference(self, after: "Dump") -> str:
        """Return the first difference from another run; empty if all events are equal."""
        first = first_difference(self.events, after.events)
        if first is None:
            return ""
        number, was, is_ = first
        return f"event {number + 1:,} differs; it was: {was}; it is: {is_}"

    def compare(self, after: "Dump") -> str:
        """Return a line that says whether another run had the same events."""
        same = f"the same {len(self.events):,} events as in the run that failed"
        return self.difference(after) or same
