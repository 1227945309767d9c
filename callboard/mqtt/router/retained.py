"""Retained messages: the last message of each topic that was published with the retain flag.

Routers of a cluster have the same ones. To compare them they have `Heads`: the last write of
each topic, whether it set or removed the message, with its stamp and its origin. The write with
the greatest (stamp, origin) is the last, on all routers alike. The head of a removal is kept
for a while: a router that was disconnected must not bring the removed message back.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.record import Retained, key_of
from callboard.mqtt.wire.topic import TopicTree, weight_of_way

#: Seconds between two searches for expired messages, while the limits are reached.
POLL_SECONDS: Final = 1.0

#: Estimated bytes of memory for the head of one topic.
HEAD_BYTES: Final = 500

#: Nanoseconds for which removals are remembered: as long as sessions remain.
GRAVE: Final = 7 * 86_400 * 10**9

#: The most removals that are remembered, the latest ones: about 10 MB.
GRAVES: Final = 20_000

#: Parts of the topics, by the first byte of their keys; each has a digest.
BUCKETS: Final = 256


class Head(NamedTuple):
    """The last write of one topic.

    Attributes:
        stamp: greater than the stamps of all writes that its router knew; nanoseconds since
            1970, or more.
        origin: the router that received the write; it makes one write per stamp.
        topic: the topic of the message stored here; empty if it was removed or has expired,
            None if it did not fit.
    """

    stamp: int
    origin: bytes
    topic: bytes | None


class Heads:
    """The last writes of topics, by key.

    Attributes:
        changed: keys of writes made on this router, to be sent to the others.
    """

    def __init__(self, make_stamp: Callable[[], int], origin: bytes) -> None:
        self.changed: dict[bytes, None] = {}
        self._digests = [0] * BUCKETS
        self._latest = 0
        #: Heads of the journal, until something reads them: a router without a cluster starts
        #: faster, because it reads them only for its next snapshot.
        self._saved: dict[bytes, tuple[int, bytes, bytes]] | None = None
        self._saved_topics: set[bytes] = set()
        self._make_stamp = make_stamp
        self._origin = origin
        self._heads: dict[bytes, Head] = {}
        #: By bucket, so that buckets can be compared separately.
        self._buckets: list[dict[bytes, None]] = [{} for _ in range(BUCKETS)]
        #: Keys of removed messages, the oldest first, and of messages that there was no room
        #: for.
        self._graves: dict[bytes, None] = {}
        self._refused: dict[bytes, None] = {}

    @property
    def digests(self) -> list[int]:
        """The digests by bucket; equal on two routers that know the same writes."""
        self._load()
        return self._digests

    @property
    def latest(self) -> int:
        """The greatest stamp."""
        self._load()
        return self._latest

    def get(self, key: bytes) -> Head | None:
        """Return the last write of a topic."""
        self._load()
        return self._heads.get(key)

    def of_bucket(self, bucket: int) -> Iterator[tuple[bytes, Head]]:
        """Return the keys and heads of a bucket."""
        self._load()
        return ((key, self._heads[key]) for key in self._buckets[bucket])

    def graves(self) -> Iterator[tuple[bytes, Head]]:
        """Return the writes that removed a message."""
        self._load()
        return ((key, self._heads[key]) for key in self._graves)

    def write(self, topic: bytes, *, is_kept: bool) -> Head | None:
        """Record a write of a client of this router; None if the router makes no stamps."""
        stamp = self._make_stamp()
        if not stamp:
            return None
        head = Head(max(stamp, self.latest + 1), self._origin, topic if is_kept else b"")
        key = key_of(topic)
        self.set(key, head)
        self.changed[key] = None
        return head

    def adopt(self, saved: dict[bytes, tuple[int, bytes, bytes]], kept: set[bytes]) -> None:
        """Restore the heads of a journal; a write without a stamp is older than all others."""
        self._saved, self._saved_topics = saved, kept

    def _load(self) -> None:
        """Add the heads of the journal, at the first use."""
        if self._saved is None:
            return
        saved, self._saved = self._saved, None
        topics, self._saved_topics = self._saved_topics, set()
        for key, (stamp, origin, topic) in saved.items():
            stored = topic if topic in topics or not topic else None
            self.set(key, Head(stamp or 1, origin or self._origin, stored))

    def set(self, key: bytes, head: Head) -> None:
        """Replace the last write of a topic."""
        self._load()
        previous = self._heads.get(key)
        bucket = key[0]
        if previous is not None:
            self._digests[bucket] ^= _digest(key, previous)
        else:
            self._buckets[bucket][key] = None
        self._heads[key] = head
        self._digests[bucket] ^= _digest(key, head)
        self._latest = max(self._latest, head.stamp)
        self._graves.pop(key, None)
        self._refused.pop(key, None)
        if not head.topic:
            (self._refused if head.topic is None else self._graves)[key] = None

    def bury(self, topic: bytes) -> None:
        """Record that the message of a topic has expired and is no longer stored here."""
        key = key_of(topic)
        head = self.get(key)
        if head is not None and head.topic:
            self.set(key, head._replace(topic=b""))

    def forget(self, horizon: int, *, retries: bool) -> None:
        """Forget removals with stamps below a horizon, and the oldest if there are too many.

        `retries` also forgets messages that did not fit: they are requested again.
        """
        self._load()
        graves = list(self._graves)
        keys = {key for key in graves if self._heads[key].stamp < horizon}
        keys.update(graves[: max(len(graves) - GRAVES, 0)], self._refused if retries else ())
        for key in keys:
            self._graves.pop(key, None)
            self._refused.pop(key, None)
            del self._buckets[key[0]][key]
            self._digests[key[0]] ^= _digest(key, self._heads.pop(key))


def _order_of(head: Head | None) -> tuple[int, bytes]:
    """Return the sort key of writes; a missing write is the first."""
    return (0, b"") if head is None else head[:2]


def _digest(key: bytes, head: Head) -> int:
    """Return a hash of a write; the same on all routers, even on one without room for it."""
    data = key + head.stamp.to_bytes(16, "big") + head.origin
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


class RetainedMessages:
    """The retained messages by topic, within the limits of the router, and their heads.

    Attributes:
        heads: the last writes.
        released: total bytes of removed messages, which a slow reader may still hold.
    """

    def __init__(self, effects: Effects, heads: Heads) -> None:
        self.heads = heads
        self._tree: TopicTree[MessageRun] = TopicTree()
        self._effects = effects
        self._messages_weight = self.released = 0
        self._looked = -POLL_SECONDS

    def __len__(self) -> int:
        return len(self._tree)

    def __iter__(self) -> Iterator[MessageRun]:
        return iter(list(self._tree.values.values()))

    @property
    def weight(self) -> int:
        """Estimated bytes of memory."""
        return self._messages_weight + self._tree.weight + HEAD_BYTES * len(self._tree)

    def get(self, topic: str) -> MessageRun | None:
        """Return the message of a topic."""
        return self._tree.values.get(topic)

    def replace(self, run: MessageRun) -> None:
        """Replace the message of a topic with the last one of a run; an empty one removes it.

        A message that does not fit also removes it. Otherwise subscribers would accept the old
        message for the last one.
        """
        topic = run.topic.decode()
        is_kept = bool(run.payloads[-1]) and self.keep(run)
        is_news = is_kept or self._remove(topic)
        message = self.get(topic)
        own = topic.startswith("$SYS/")
        head = None if own else self.heads.write(run.topic, is_kept=is_kept)
        if is_news or head is not None:
            self._record(run.topic, message, head)

    def take(self, key: bytes, head: Head, run: MessageRun | None) -> bool:
        """Apply another router's write if it is the last; return False if it does not fit."""
        previous = self.heads.get(key)
        if previous is not None and previous[:2] >= head[:2]:
            return True
        if previous is not None and previous.topic:
            self._remove(previous.topic.decode())
        is_kept = run is None or self.keep(run)
        self.heads.set(key, head if is_kept else head._replace(topic=None))
        if is_kept:
            self._record(head.topic or b"", run, head, key)
        elif previous is not None and previous.topic:
            self._record(previous.topic, None, None)
        return is_kept

    def _record(
        self, topic: bytes, run: MessageRun | None, head: Head | None, key: bytes = b""
    ) -> None:
        """Add the last write of a topic to the journal."""
        if self._effects.is_durable:
            if head is not None and run is None:
                topic = key or key_of(topic)
            self._effects.records.append(Retained(topic, run, *_order_of(head)))

    def records(self) -> list[Retained]:
        """Return the records of all messages and heads, for a snapshot."""
        heads = [(run, self.heads.get(key_of(run.topic))) for run in self]
        records = [Retained(run.topic, run, *_order_of(head)) for run, head in heads]
        return records + [Retained(key, None, *head[:2]) for key, head in self.heads.graves()]

    def keep(self, run: MessageRun) -> bool:
        """Store the last message of a run; return False, and count it, if it does not fit."""
        if not self.has_room(run):
            self._effects.meters.not_retained += 1
            return False
        message, topic = run.kept(), run.topic.decode()
        self._release(topic)
        self._messages_weight += message.weight
        self._tree.set(topic, message)
        return True

    def restore(self, runs: dict[bytes, MessageRun]) -> set[bytes]:
        """Store the messages of a journal by topic; return the topics of those that fit.

        Nothing is stored yet. Usually all of them fit, so the limits are checked once, at the
        end; only if they do not, for each message.
        """
        limits, tree = self._effects.limits, self._tree
        for topic, run in runs.items():
            self._messages_weight += run.weight
            tree.set(topic.decode(), run)
        if len(tree) <= limits.retained and self.weight <= limits.retained_bytes:
            return set(runs)
        self._tree, self._messages_weight = TopicTree(), 0
        return {topic for topic, run in runs.items() if self.keep(run)}

    def has_room(self, run: MessageRun) -> bool:
        """Return whether the last message of a run can be retained now."""
        if run.topic.startswith(b"$SYS/"):  # the router's own topics, which are few
            return True
        if self._fits(run):
            return True
        now = self._effects.now
        if now - self._looked < POLL_SECONDS:
            return False
        self._looked = now
        self._expire(self, now)
        return self._fits(run)

    def _fits(self, run: MessageRun) -> bool:
        """Return whether a message fits into the limits, replacing the one of its topic."""
        limits, topic = self._effects.limits, run.topic.decode()
        previous = self.get(topic)
        if previous is None and len(self._tree) >= limits.retained:
            return False
        weight = HEAD_BYTES + weight_of_way(topic) if previous is None else -previous.weight
        return self.weight + run.kept_weight + weight <= limits.retained_bytes

    def _remove(self, topic: str) -> bool:
        """Remove the message of a topic; return whether there was one."""
        self._release(topic)
        return self._tree.remove(topic)

    def _release(self, topic: str) -> None:
        """Subtract the weight of a topic's message."""
        if (message := self.get(topic)) is not None:
            self._messages_weight -= message.weight
            self.released += message.weight

    def _expire(self, runs: Iterable[MessageRun], now: float) -> list[MessageRun]:
        """Remove the expired messages, and return the others."""
        fresh = []
        for run in runs:
            if run.expires_at is not None and run.expires_at <= now:
                self._remove(run.topic.decode())
                self.heads.bury(run.topic)
            else:
                fresh.append(run)
        return fresh

    def match(self, topic_filter: str, now: float) -> list[MessageRun]:
        """Return the messages that match an unshared filter; remove expired ones."""
        return self._expire(self._tree.match(topic_filter), now)
