"""What happened in a simulation, in order: time, where, what. Two runs of a seed are equal."""

import zlib
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any, Final

from actors.reference import ActorRef

EVENT_LIMIT: Final = 200_000
"""Events that are kept, the first ones: some 50 MB. Later ones count for the checksum only."""

Event = tuple[float, str, str]
"""Virtual seconds, the node or host, and what happened there."""


class Trace:
    """The events of one run."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._kept: list[tuple[float, str, tuple[Any, ...]]] = []
        self._checksum = 0

    def note(self, when: float, where: str, *what: Any) -> None:
        """Note an event; the parts of `what` are printed with spaces between them."""
        self.count += 1
        if len(self._kept) < EVENT_LIMIT:
            self._kept.append((when, where, what))
        else:
            self._checksum = zlib.crc32(_line((when, where, what)).encode(), self._checksum)

    def note_event(self, when: float, where: str, event: object) -> None:
        """Note an event of a node, one of the dataclasses that `node.events()` gives."""
        self.note(when, where, describe(event))

    def lines(self) -> list[str]:
        """Return the events as text, one line each; the last line tells of those not kept."""
        found = [_line(event) for event in self._kept]
        if self.count > len(self._kept):
            found.append(f"{self.count - len(found):,} more, checksum {self._checksum:08x}")
        return found


def _line(event: tuple[float, str, tuple[Any, ...]]) -> str:
    when, where, what = event
    return f"{when:.9f} {where} {' '.join(map(str, what))}"


def describe(event: object) -> str:
    """Return an event as text that is the same in each run: no addresses of objects in it."""
    kind: Any = type(event)
    parts = [f"{name}={_text(getattr(event, name))}" for name in _field_names(kind)]
    return f"{kind.__name__} {' '.join(parts)}"


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _text(value: object) -> str:
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, ActorRef):
        return str(value)
    return type(value).__qualname__


def first_difference(
    before: Iterable[str], after: Iterable[str]
) -> tuple[int, str, str] | None:
    """Return number and text of the first line in which two traces differ; None if equal."""
    one, other = list(before), list(after)
    for number, (was, is_) in enumerate(zip(one, other, strict=False)):
        if was != is_:
            return number, was, is_
    if len(one) == len(other):
        return None
    number = min(len(one), len(other))
    end = "(the end)"
    return number, (*one[number : number + 1], end)[0], (*other[number : number + 1], end)[0]
