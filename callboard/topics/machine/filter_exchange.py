"""Exchange of filters between endpoints.

The filter of an endpoint is the set of topics to which it has subscribers. Each endpoint sends
its filter to all others in reach, and records for each of them which version has arrived there.

- A filter has a version, a Lamport timestamp that grows with each change.
- An update contains the new version, the version on which it builds, and the added and removed
  topics. An update that builds on 0 is the whole filter. A large filter is sent in several
  parts; a part counts only after all previous parts of the same version.
- The receiver of an update confirms it by sending the version that it has (`seen`). If an
  update does not build on this version, the receiver requests the whole filter.
- An update that is not confirmed is sent again, because updates are messages, and messages are
  lost when a path breaks.

Updates to one endpoint keep their order, as all messages between two endpoints do.
"""

from dataclasses import field
from typing import Any, Final, NamedTuple

from callboard.model.errors import MalformedMessage
from callboard.support.dataclass import dataclass

#: Maximum number of topics in one update. With topics of 60 bytes each, the update has less
#: than the 256 KiB of a chunk.
PART_SIZE: Final = 4096

#: Seconds after which the whole filter is sent instead of an update that was not confirmed.
REPEAT_AFTER: Final = 2.0

#: Maximum number of characters of one topic.
TOPIC_LIMIT: Final = 4096

#: Maximum number of topics in the filter of another endpoint: twice the documented number.
FILTER_LIMIT: Final = 2_000_000

_ID_LENGTH: Final = 16


class FilterUpdate(NamedTuple):
    """One message of the exchange; encoded as an array of these fields.

    Attributes:
        endpoint: the sender's endpoint id, 16 bytes.
        forwards: whether the sender forwards messages between other endpoints.
        version: the version of the sender's filter; 0 if the update only confirms.
        base: the version on which this update builds; 0 for a whole filter. In an update that
            only confirms, 1 requests the whole filter.
        seen: the version of the receiver's filter that the sender has.
        added: topics added to the filter.
        removed: topics removed from it.
        is_last: False when more parts of the same version follow.
        part: number of the part of a whole filter, from 0.
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
    """Return the update in a decoded message from a peer.

    Raises:
        MalformedMessage: the message is not a filter update.
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
                    msg = f"a filter contains {str(topic)[:40]!r}, which is not a topic"
                    raise MalformedMessage(msg)
            return FilterUpdate(
                *(endpoint, forwards, version, base, seen),
                *(tuple(added), tuple(removed), is_last, part),
            )
    msg = "the message is not a filter update: it needs nine fields of the right types"
    raise MalformedMessage(msg)


@dataclass(slots=True)
class Parts:
    """The received parts of a whole filter, from the first one on without a gap."""

    version: int
    topics: set[str]
    count: int = 0


@dataclass(slots=True)
class RemoteFilter:
    """State of the exchange with one other endpoint.

    Attributes:
        endpoint: its id; empty until its first update.
        forwards: whether it forwards messages between other endpoints.
        version: the version of its filter that arrived here.
        topics: its filter in this version.
        confirmed: the version of our filter that it has.
        sent_at: the time of our last update to it; 0 before the first.
        parts: the received parts of an incomplete whole filter.
    """

    endpoint: bytes = b""
    forwards: bool = True
    version: int = 0
    topics: set[str] = field(default_factory=set)
    confirmed: int = 0
    sent_at: float = 0.0
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class FilterChange:
    """A change in the filter of another endpoint."""

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
        """Change our filter; return the updates to send, each with its node."""
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
            if remote.sent_at == 0.0:
                # `greet` will send the whole filter to the node when the node is known.
                continue
            if len(added) + len(removed) <= PART_SIZE:
                update = self._update(remote, self.version, base)._replace(
                    added=tuple(sorted(added)), removed=tuple(sorted(removed))
                )
                updates.append((node, update))
            else:
                updates += self._whole(node, remote)
            remote.sent_at = now
        return updates

    def greet(self, node: bytes, now: float) -> list[tuple[bytes, FilterUpdate]]:
        """Send our whole filter to an endpoint that became reachable."""
        remote = self.remotes.setdefault(node, RemoteFilter())
        if remote.sent_at:
            return []
        remote.sent_at = now
        return self._whole(node, remote)

    def _whole(self, node: bytes, remote: RemoteFilter) -> list[tuple[bytes, FilterUpdate]]:
        """Return our whole filter for one endpoint, in parts."""
        topics = sorted(self.topics)
        starts = range(0, len(topics) or 1, PART_SIZE)
        update = self._update(remote, self.version, 0)
        updates = []
        for part, start in enumerate(starts):
            added, is_last = tuple(topics[start : start + PART_SIZE]), start == starts[-1]
            updates.append((node, update._replace(added=added, is_last=is_last, part=part)))
        return updates

    def _update(self, remote: RemoteFilter, version: int, base: int) -> FilterUpdate:
        """Return an update without topics, which confirms the version of the remote filter."""
        return FilterUpdate(self.endpoint, self.forwards, version, base, remote.version)

    def tick(self, now: float) -> list[tuple[bytes, FilterUpdate]]:
        """Send the whole filter to endpoints that did not confirm it in time."""
        updates: list[tuple[bytes, FilterUpdate]] = []
        for node, remote in self.remotes.items():
            is_due = remote.sent_at and now - remote.sent_at >= REPEAT_AFTER
            if remote.confirmed != self.version and is_due:
                remote.sent_at = now
                updates += self._whole(node, remote)
        return updates

    # --- the filters of others ---

    def receive(
        self, node: bytes, update: FilterUpdate, now: float, limit: int | None = None
    ) -> tuple[list[FilterChange], list[tuple[bytes, FilterUpdate]]]:
        """Apply an update of another endpoint; return the changes and the answers to send.

        Raises:
            MalformedMessage: the filter would exceed `limit` topics, by default `FILTER_LIMIT`.
        """
        remote = self.remotes.setdefault(node, RemoteFilter())
        changes: list[FilterChange] = []
        if remote.endpoint not in (b"", update.endpoint):  # the node has a new endpoint
            changes.append(FilterChange(node, (), tuple(sorted(remote.topics))))
            remote = self.remotes[node] = RemoteFilter(sent_at=remote.sent_at)
        remote.forwards = update.forwards
        remote.confirmed = update.seen
        answers: list[tuple[bytes, FilterUpdate]] = []
        is_gap = False
        if update.version:
            _check_size(remote, update, limit or FILTER_LIMIT)
            is_gap = not self._apply(node, remote, update, changes)
        if not remote.sent_at:
            answers += self.greet(node, now)
        elif update.version and update.is_last:
            answers.append((node, self._update(remote, 0, 0)))
        elif not update.version and update.seen < self.version and update.base:
            # A confirmation with a base is a request for the whole filter.
            remote.sent_at = now
            answers += self._whole(node, remote)
        if is_gap:
            # Request the whole filter, because an update was lost, and later ones build on it.
            answers = [(node, self._update(remote, 0, 1))]
        return changes, answers

    def _apply(
        self,
        node: bytes,
        remote: RemoteFilter,
        update: FilterUpdate,
        changes: list[FilterChange],
    ) -> bool:
        """Apply an update to a remote filter; return False if a previous update is missing."""
        is_first = not remote.endpoint
        if update.base:
            if update.base != remote.version:
                return update.version <= remote.version  # a repeated update may be ignored
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
        """Add a part to the previous ones and return all topics; None if a part was lost."""
        if not update.part:
            remote.parts = Parts(update.version, set())
        parts = remote.parts
        if parts is None or (parts.version, parts.count) != (update.version, update.part):
            return None
        parts.topics.update(update.added)
        parts.count += 1
        return parts.topics

    def is_confirmed(self, node: bytes) -> bool:
        """Return whether another endpoint has confirmed the present version of our filter."""
        remote = self.remotes.get(node)
        return remote is not None and remote.confirmed == self.version

    def forget(self, node: bytes) -> list[FilterChange]:
        """Remove an endpoint that ended or is out of reach."""
        remote = self.remotes.pop(node, None)
        if remote is None or not remote.endpoint:
            return []
        return [FilterChange(node, (), tuple(sorted(remote.topics)))]


def _check_size(remote: RemoteFilter, update: FilterUpdate, limit: int) -> None:
    """Refuse an update that may let a filter exceed its limit.

    Raises:
        MalformedMessage: the filter may have more than `limit` topics.
    """
    waiting = 0 if remote.parts is None else len(remote.parts.topics)
    if max(len(remote.topics), waiting) + len(update.added) > limit:
        msg = f"a filter has more than {limit:,} topics"
        raise MalformedMessage(msg)
