"""The state that a journal's records add up to: lasting sessions and their messages.

Records are applied in their order, each by its own `apply`. A record about a session that is
not there (it ended, or stood before the oldest snapshot that is kept) changes nothing.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from callboard.mqtt.router.datalog import Shelf
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.session import SessionSubscription
from callboard.mqtt.wire.packet import Will

#: Records as they are written: kinds and fields.
EncodedRecords = tuple[tuple[str, Sequence[Any]], ...]

_number_of = attrgetter("number")


class SavedMessage(NamedTuple):
    """A message in flight to a lasting session, as the journal has it.

    Attributes:
        number: of the message.
        is_shared: whether the subscription is a shared one.
        is_retained: whether it was sent because it was retained.
    """

    number: int
    qos: int
    extra: bytes
    retain: bool
    topic_filter: str
    is_shared: bool
    is_retained: bool


class Handed(NamedTuple):
    """A session that went to another router.

    Attributes:
        offer: that the router took.
        stamp: of the session.
        records: messages that came behind the offer.
        expires_at: when nobody will ask for them any more.
    """

    offer: str
    stamp: int
    records: EncodedRecords
    expires_at: float


@dataclass(slots=True)
class SavedSession:
    """A lasting session as the journal has it; places are numbers of messages."""

    expiry: float
    expires_at: float | None
    subscriptions: dict[str, SessionSubscription] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    leaving: dict[SessionSubscription, int] = field(default_factory=dict)
    inflight: dict[int, SavedMessage] = field(default_factory=dict)
    releasing: dict[int, None] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    stamp: int = 0


@dataclass(slots=True)
class SavedGroup:
    """A shared subscription as the journal has it."""

    place: int
    members: set[str] = field(default_factory=set)
    returned: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SavedState:
    """All that the journal has; `adopted` are the offers of copied sessions, by client id."""

    number: int = 0
    sessions: dict[str, SavedSession] = field(default_factory=dict)
    groups: dict[str, SavedGroup] = field(default_factory=dict)
    retained: dict[bytes, Run] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    #: Parts of logs: the filter, how many offsets, starts of runs from the first on, the rest.
    shelved: list[tuple[str, int, Sequence[int], Shelf]] = field(default_factory=list)
    wills: dict[str, tuple[Will, float | None]] = field(default_factory=dict)
    adopted: dict[str, str] = field(default_factory=dict)
    handed: dict[str, Handed] = field(default_factory=dict)

    def count(self, *following: int) -> None:
        """Take note of numbers that later messages are not to have."""
        self.number = max(self.number, *following)

    def copy(self, run: Run) -> None:
        """Keep a message that is in flight, in its place, if it is not there."""
        if self.find(run.number) is None:
            self.runs.insert(bisect_right(self.runs, run.number, key=_number_of), run)
        self.count(run.number + run.count)

    def find(self, number: int) -> tuple[Run, int] | None:
        """Return the run with a message, and its place there; None if it is in none."""
        at = bisect_right(self.runs, number, key=_number_of)
        run = self.runs[at - 1] if at else None
        if run is None or number >= run.number + run.count:
            return None
        return run, number - run.number

    def places_on_the_way(self) -> list[int]:
        """Return where the journal has messages that are on their way, and on a shelf."""
        numbers = {each.number for s in self.sessions.values() for each in s.inflight.values()}
        for group in self.groups.values():
            numbers.update(group.returned)
        places = set()
        for _, _, _, shelf in self.shelved:
            for number in numbers:
                at = bisect_right(shelf.numbers, number) - 1
                if at >= 0 and number < shelf.numbers[at] + shelf.counts[at]:
                    places.add(shelf.places[at])
        return sorted(places)

    def leave(self, client_id: str, topic_filter: str) -> None:
        """Take a session out of a group; the last one ends it."""
        group = self.groups.get(topic_filter)
        if group is not None:
            group.members.discard(client_id)
            if not group.members:
                del self.groups[topic_filter]
