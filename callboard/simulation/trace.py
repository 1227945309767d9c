"""What happened in a simulation, in order: time, where, what. Two runs of a seed are equal.

A failed simulation leaves one JSON file for its seed, `.callboard/failures/SEED.json` in the
root folder of the tests: `seed`, `test` (pytest's id of the test that failed) and `events`, one
line of text each. A replay is compared with it.
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

#: Events that are kept, the first ones: some 50 MB. Later ones count for the checksum only.
EVENT_LIMIT: Final = 200_000


class EventTrace:
    """The events of one run."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: list[tuple[float, str, tuple[Any, ...]]] = []
        self._checksum = 0
        self._left_out = 0

    @property
    def count(self) -> int:
        """How many events there were."""
        return len(self._kept) + self._left_out

    def note(self, when: float, where: str, *what: Any) -> None:
        """Note an event; the parts of `what` are printed with spaces between them."""
        if len(self._kept) < EVENT_LIMIT:
            self._kept.append((when, where, what))
        else:
            self._left_out += 1
            self._checksum = zlib.crc32(_line((when, where, what)).encode(), self._checksum)

    def lines(self) -> list[str]:
        """Return the events as text, one line each; the last line tells of those not kept."""
        found = [_line(event) for event in self._kept]
        if self._left_out:
            found.append(f"{self._left_out:,} more, checksum {self._checksum:08x}")
        return found


def _line(event: tuple[float, str, tuple[Any, ...]]) -> str:
    """Return an event as a line of text."""
    when, where, what = event
    return f"{when:.9f} {where} {' '.join(map(str, what))}"


def describe(event: object) -> str:
    """Return an event of a node as text that is the same in each run: no addresses in it."""
    kind: Any = type(event)
    parts = [f"{name}={_text(getattr(event, name))}" for name in _field_names(kind)]
    return f"{kind.__name__} {' '.join(parts)}"


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of an event class's fields."""
    return tuple(field.name for field in fields(kind))


def _text(value: object) -> str:
    """Return a value as it stands in a trace: equal in each run of a seed."""
    if isinstance(value, str | int | float | ActorRef):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    return type(value).__qualname__


def first_difference(
    before: Iterable[str], after: Iterable[str]
) -> tuple[int, str, str] | None:
    """Return number and text of the first line in which two traces differ; None if equal."""
    lines = enumerate(zip_longest(before, after, fillvalue="(the end)"))
    return next(((number, was, is_) for number, (was, is_) in lines if was != is_), None)


#: Where dumps are, below the root folder of the tests.
FOLDER: Final = Path(".callboard") / "failures"


def dump_path(root: Path, seed: int) -> Path:
    """Return where the dump of a seed is."""
    return root / FOLDER / f"{seed}.json"


class UnreadableDump(ValueError):
    """A file is no dump of a failed simulation."""


@dataclass(frozen=True, slots=True)
class Dump:
    """The seed and the events of a simulation that failed.

    Attributes:
        seed: of the simulation.
        test: which test it was, as pytest names it.
        events: what happened, one line each: seconds, where, what.
    """

    seed: int
    test: str
    events: list[str]

    def write(self, root: Path) -> Path:
        """Write the dump below a folder; returns the file."""
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
            FileNotFoundError: there is none.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            seed, test, events = int(found["seed"]), found["test"], found["events"]
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            msg = f"{path} is no dump of a simulation ({error}); run the failing test again"
            raise UnreadableDump(msg) from None
        if not isinstance(test, str) or not isinstance(events, list):
            msg = f"{path} has no test or no events; run the failing test again"
            raise UnreadableDump(msg)
        return cls(seed, test, [str(event) for event in events])

    def difference(self, after: "Dump") -> str:
        """Say in what another run differs; empty when all events are the same."""
        found = first_difference(self.events, after.events)
        if found is None:
            return ""
        number, was, is_ = found
        return f"event {number + 1:,} differs; it was: {was}; it is: {is_}"

    def compare(self, after: "Dump") -> str:
        """Say whether another run had the same events."""
        same = f"the same {len(self.events):,} events as in the run that failed"
        return self.difference(after) or same
