"""Who wants what: the filters of all endpoints in reach, kept equal to their owners'.

Each endpoint tells its filter (the topics that somebody there wants) to every other one, and
each knows of every other one how much of its own filter has arrived there:

- A filter has a version, a Lamport timestamp that grows with each change.
- An update says version, the version that it builds on, and what was added and removed. One
  that builds on 0 is the whole filter; a large one comes in several parts.
  A part counts only behind all parts before it, of the same version.
- Whoever takes an update says which version it has (`seen`). One that does not build on what
  the receiver has is answered with what it has, and the owner sends the whole filter.
- What was not confirmed is sent again: updates travel as messages do, and those can be lost
  when a path breaks.

Updates to one endpoint keep their order, as all messages of a pair do.
"""

from dataclasses import field
from typing import Any, Final, NamedTuple

from callboard.model.errors import MalformedMessage
from callboard.support.dataclass import dataclass

#: Topics in one update: with topics of 60 bytes it stays below the 256 KiB of a chunk.
PART_SIZE: Final = 4096

#: Seconds after which an update that was not confirmed is sent again, as a whole filter.
REPEAT_AFTER: Final = 2.0

#: Bytes of one topic.
TOPIC_LIMIT: Final = 4096

#: Topics that one other endpoint may want; twice what is stated to work.
FILTER_LIMIT: Final = 2_000_000

_ID_LENGTH: Final = 16


class FilterUpdate(NamedTuple):
    """One message of the exchange; it travels as an array of these fields.

    Attributes:
        endpoint: the sender's endpoint id, 16 bytes.
        forwards: whether messages for others may pass through the sender.
        version: the version of the sender's filter; 0 tells nothing about it.
        base: the version that this update builds on; 0 for a whole filter.
        seen: the version of the receiver's filter that the sender has.
        added: topics that the filter gained.
        removed: topics that it lost.
        is_last: False when more parts of the same version follow.
        part: which part of a whole filter this is, from 0.
    """

    endpoint: bytes
    forwards: bool
    version: int
    base: int
    seen: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    is_last: bool = True
    part: int = 0


def read_update(plain: Any) -> FilterUpdate:
    """Check what a peer sent.

    Raises:
        MalformedMessage: it is no update.
    """
    match plain:
        case [
            bytes() as endpoint,
            bool() as forwards,
            int() as version,
            int() as base,
            int() as seen,
            [*added],
            [*removed],
            bool() as is_last,
            int() as part,
        ] if len(endpoint) == _ID_LENGTH and min(version, base, seen, part) >= 0:
            for topic in (*added, *removed):
                if type(topic) is not str or len(topic) > TOPIC_LIMIT:
                    msg = f"a filter holds {str(topic)[:40]!r}, which is not a topic"
                    raise MalformedMessage(msg)
            return FilterUpdate(
                *(endpoint, forwards, version, base, seen),
                *(tuple(added), tuple(removed), is_last, part),
            )
    msg = "a filter update has nine fields of other types"
    raise MalformedMessage(msg)


@dataclass(slots=True)
class Parts:
    """The parts of a whole filter that have arrived, all from the first on."""

    version: int
    topics: set[str]
    count: int = 0


@dataclass(slots=True)
class RemoteFilter:
    """What this endpoint knows of another one, and the other one of this one.

    Attributes:
        endpoint: its id; empty until its first update.
        forwards: whether it lets messages for others pass.
        version: the version of its filter that is known here.
        topics: that filter.
        confirmed: the version of ours that it has.
        told_at: when it was last told.
        parts: what has come of a whole filter that is not complete.
    """

    endpoint: bytes = b""
    forwards: bool = True
    version: int = 0
    topics: set[str] = field(default_factory=set)
    confirmed: int = 0
    told_at: float = 0.0
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class FilterChange:
    """How the filter of another endpoint changed."""

    node: bytes
    added: tuple[str, ...]
    removed: tuple[str, ...]


class FilterExchange:
    """One endpoint's side of the exchange. Pure: updates in, updates and changes out."""

    def __init__(self, endpoint: bytes, *, forwards: bool = True) -> None:
        self.endpoint = endpoint
        self.forwards = forwards
        self.version = 1  # the empty filter
        self.topics: set[str] = set()
        self.remotes: dict[bytes, RemoteFilter] = {}

    # --- our own filter ---

    def change(
        self, added: set[str], removed: set[str], now: float
    ) -> list[tuple[bytes, FilterUpdate]]:
        """Change our filter; returns what to tell whom."""
        added = added - self.topics
        removed = removed & self.topics - added
        if not added and not removed:
            return []
        base = self.version
        self.version = base + 1
        self.topics |= added
        self.topics -= removed
        updates: list[tuple[bytes, FilterUpdate]] = []
        for node, remote in self.remotes.items():
            if remote.told_at == 0.0:
                continue  # it is greeted when it is known to be there
            if len(added) + len(removed) <= PART_SIZE:
                told = self._update(remote, self.version, base)._replace(
                    added=tuple(sorted(added)), removed=tuple(sorted(removed))
                )
                updates.append((node, told))
            else:
                updates += self._whole(node, remote)
            remote.told_at = now
        return updates

    def greet(self, node: bytes, now: float) -> list[tuple[bytes, FilterUpdate]]:
        """Tell an endpoint that came into reach our whole filter."""
        remote = self.remotes.setdefault(node, RemoteFilter())
        if remote.told_at:
            return []
        remote.told_at = now
        return self._whole(node, remote)

    def _whole(self, node: bytes, remote: RemoteFilter) -> list[tuple[bytes, FilterUpdate]]:
        """Return our whole filter for one endpoint, in parts."""
        topics = sorted(self.topics)
        starts = range(0, len(topics) or 1, PART_SIZE)
        told = self._update(remote, self.version, 0)
        updates = []
        for part, start in enumerate(starts):
            added, is_last = tuple(topics[start : start + PART_SIZE]), start == starts[-1]
            updates.append((node, told._replace(added=added, is_last=is_last, part=part)))
        return updates

    def _update(self, remote: RemoteFilter, version: int, base: int) -> FilterUpdate:
        """Return what tells which version of ours and of a remote filter is here."""
        return FilterUpdate(self.endpoint, self.forwards, version, base, remote.version)

    def tick(self, now: float) -> list[tuple[bytes, FilterUpdate]]:
        """Tell again what was not confirmed in time."""
        updates: list[tuple[bytes, FilterUpdate]] = []
        for node, remote in self.remotes.items():
            is_due = remote.told_at and now - remote.told_at >= REPEAT_AFTER
            if remote.confirmed != self.version and is_due:
                remote.told_at = now
                updates += self._whole(node, remote)
        return updates

    # --- the filters of others ---

    def receive(
        self, node: bytes, update: FilterUpdate, now: float, limit: int | None = None
    ) -> tuple[list[FilterChange], list[tuple[bytes, FilterUpdate]]]:
        """Take an update of another endpoint; returns what changed and what to answer.

        Raises:
            MalformedMessage: its filter would have more than `limit` topics, or the usual ones.
        """
        remote = self.remotes.setdefault(node, RemoteFilter())
        changes: list[FilterChange] = []
        if remote.endpoint not in (b"", update.endpoint):  # another endpoint on the same node
            changes.append(FilterChange(node, (), tuple(sorted(remote.topics))))
            remote = self.remotes[node] = RemoteFilter(told_at=remote.told_at)
        remote.forwards = update.forwards
        remote.confirmed = update.seen
        answers: list[tuple[bytes, FilterUpdate]] = []
        is_gap = False
        if update.version:
            _check_size(remote, update, limit or FILTER_LIMIT)
            is_gap = not self._apply(node, remote, update, changes)
        if not remote.told_at:
            answers += self.greet(node, now)
        elif update.version and update.is_last:
            answers.append((node, self._update(remote, 0, 0)))
        elif not update.version and update.seen < self.version and update.base:
            # The other side found a gap: `base` says that it waits for the whole filter.
            remote.told_at = now
            answers += self._whole(node, remote)
        if is_gap:
            # A base says that this endpoint waits for the whole filter.
            answers = [(node, self._update(remote, 0, 1))]
        return changes, answers

    def _apply(
        self,
        node: bytes,
        remote: RemoteFilter,
        update: FilterUpdate,
        changes: list[FilterChange],
    ) -> bool:
        """Take what an update says of a filter; False when something before it is missing."""
        is_first = not remote.endpoint
        if update.base:
            if update.base != remote.version:
                return update.version <= remote.version  # known already: only a repetition
            added = set(update.added) - remote.topics
            removed = set(update.removed) & remote.topics
        else:
            parts = self._gather(remote, update)
            if parts is None or not update.is_last:
                return parts is not None or not update.is_last
            remote.parts = None
            added, removed = parts - remote.topics, remote.topics - parts
        remote.endpoint = update.endpoint
        remote.version = update.version
        remote.topics |= added
        remote.topics -= removed
        if added or removed or is_first:
            changes.append(FilterChange(node, tuple(sorted(added)), tuple(sorted(removed))))
        return True

    def _gather(self, remote: RemoteFilter, update: FilterUpdate) -> set[str] | None:
        """Put a part to those before it; None when one of those was lost."""
        if not update.part:
            remote.parts = Parts(update.version, set())
        parts = remote.parts
        if parts is None or (parts.version, parts.count) != (update.version, update.part):
            return None
        parts.topics.update(update.added)
        parts.count += 1
        return parts.topics

    def is_confirmed(self, node: bytes) -> bool:
        """Return whether another endpoint has our filter as it is."""
        remote = self.remotes.get(node)
        return remote is not None and remote.confirmed == self.version

    def forget(self, node: bytes) -> list[FilterChange]:
        """Drop an endpoint that ended or is out of reach."""
        remote = self.remotes.pop(node, None)
        if remote is None or not remote.endpoint:
            return []
        return [FilterChange(node, (), tuple(sorted(remote.topics)))]


def _check_size(remote: RemoteFilter, update: FilterUpdate, limit: int) -> None:
    """Refuse an update after which a filter may have too many topics.

    Raises:
        MalformedMessage: it may.
    """
    waiting = 0 if remote.parts is None else len(remote.parts.topics)
    if max(len(remote.topics), waiting) + len(update.added) > limit:
        msg = f"a filter has more than {limit:,} topics"
        raise MalformedMessage(msg)
