"""One reading, followed hop by hop: where it was at which microsecond.

A sensor on A sends one reading a second as an ask. A knows when it sent it and when the answer
came, the nodes in between know when it passed, the aggregator says when it handled it. All
processes of one machine share the monotonic clock, so the times can be put in one row.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

PASSAGES_KEPT: Final = 512
"""Passages that wait for their ask to be answered; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An ask that was answered, as its sender saw it. Times in nanoseconds."""

    source: str
    host: str
    message_id: int
    number: int
    sent_ns: int
    handled_ns: int
    answered_ns: int


@dataclass(frozen=True, slots=True)
class Hop:
    """One station of the way: who, and microseconds since the reading was sent."""

    node: str
    microseconds: float


@dataclass(frozen=True, slots=True)
class Journey:
    """The whole way of one reading, there and back."""

    number: int
    hops: tuple[Hop, ...]

    def line(self) -> str:
        """Return the way as text: `A 0 µs → B 85 µs → C 170 µs → B 260 µs → A 340 µs`."""
        return " → ".join(f"{hop.node} {hop.microseconds:,.0f} µs" for hop in self.hops)


class Follower:
    """Puts what the nodes report about one ask together, in whatever order the reports come."""

    def __init__(self) -> None:
        # (who asked, message id): the nodes that ask and answer passed, with nanoseconds
        self._passages: OrderedDict[tuple[str, int], list[tuple[str, int]]] = OrderedDict()
        self._newest: Asked | None = None
        self._previous: Asked | None = None

    def passed(self, source: str, message_id: int, node: str, at_ns: int) -> None:
        """Note that a node forwarded an ask of `source`, or the answer to it."""
        self._passages.setdefault((source, message_id), []).append((node, at_ns))
        while len(self._passages) > PASSAGES_KEPT:
            self._passages.popitem(last=False)

    def answered(self, asked: Asked) -> None:
        """Note that an ask was answered."""
        self._newest, self._previous = asked, self._newest

    @property
    def last(self) -> Journey | None:
        """The latest journey that is complete, as far as one can know.

        The nodes in between may report later than the asker: until they do, the one before is
        shown.
        """
        newest, previous = self._newest, self._previous
        if newest is None:
            return None
        is_waiting = (
            previous is not None
            and previous.host == newest.host
            and self._between(previous)
            and not self._between(newest)
        )
        return self._journey(previous if is_waiting and previous is not None else newest)

    def _between(self, asked: Asked) -> list[tuple[str, int]]:
        return self._passages.get((asked.source, asked.message_id), [])

    def _journey(self, asked: Asked) -> Journey:
        row = [
            (asked.source, asked.sent_ns),
            *self._between(asked),
            (asked.host, asked.handled_ns),
            (asked.source, asked.answered_ns),
        ]
        row.sort(key=lambda station: station[1])
        hops = tuple(Hop(node, (at_ns - asked.sent_ns) / 1000) for node, at_ns in row)
        return Journey(asked.number, hops)
