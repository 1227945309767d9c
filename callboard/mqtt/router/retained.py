"""Retained messages: the last one of each topic that was published with the flag.

Routers of a cluster have the same ones. What they compare are `Heads`: the last write of each
topic, made or removed, with its stamp, and who made it. The greater (stamp, origin) wins, at
all routers alike. A removal is kept as a head without a message for a while, so that a router
that was away does not bring back what was removed meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.record import Retained, key_of
from callboard.mqtt.wire.topic import TopicTree, weight_of_way

#: Seconds between two looks for messages whose time is over, while there is no room.
LOOK_INTERVAL: Final = 1.0

#: What is kept of the last write of a topic, in bytes of memory.
HEAD_BYTES: Final = 500

#: Nanoseconds for which a removal is remembered: as long as sessions live.
GRAVE: Final = 7 * 86_400 * 10**9

#: Removals that are remembered, the last ones: some 10 MB.
GRAVES: Final = 20_000

#: Parts into which topics fall by the first byte of their keys; each has a digest.
BUCKETS: Final = 256


class Head(NamedTuple):
    """The last write of one topic.

    Attributes:
        stamp: greater than that of any write that its router knew; nanoseconds since 1970, or
            more.
        origin: of the router that took it, and made no other write with this stamp.
        topic: of the message that is here; empty if it was removed or its time is over, None if
            there was no room for it here.
    """

    stamp: int
    origin: bytes
    topic: bytes | None


class Heads:
    """The last writes of topics, by key.

    Attributes:
        digests: of each bucket: equal where two routers know of the same writes.
        changed: keys of writes that were made here, and that the others are to be told of.
        latest: the greatest stamp.
    """

    def __init__(self, make_stamp: Callable[[], int], origin: bytes) -> None:
        self.digests = [0] * BUCKETS
        self.changed: dict[bytes, None] = {}
        self.latest = 0
        self._make_stamp = make_stamp
        self._origin = origin
        self._heads: dict[bytes, Head] = {}
        #: By bucket, so that one can be compared alone.
        self._buckets: list[dict[bytes, None]] = [{} for _ in range(BUCKETS)]
        #: Keys of what was removed, the oldest first, and of what there was no room for.
        self._graves: dict[bytes, None] = {}
        self._refused: dict[bytes, None] = {}

    def get(self, key: bytes) -> Head | None:
        """Return the last write of a topic."""
        return self._heads.get(key)

    def of_bucket(self, bucket: int) -> Iterator[tuple[bytes, Head]]:
        """Return the keys and heads of a bucket."""
        return ((key, self._heads[key]) for key in self._buckets[bucket])

    def graves(self) -> Iterator[tuple[bytes, Head]]:
        """Return the writes that removed something."""
        return ((key, self._heads[key]) for key in self._graves)

    def write(self, topic: bytes, *, is_kept: bool) -> Head | None:
        """Take note of a write of a client here; None where stamps are not made."""
        stamp = self._make_stamp()
        if not stamp:
            return None
        head = Head(max(stamp, self.latest + 1), self._origin, topic if is_kept else b"")
        key = key_of(topic)
        self.set(key, head)
        self.changed[key] = None
        return head

    def adopt(self, saved: dict[bytes, tuple[int, bytes, bytes]], kept: set[bytes]) -> None:
        """Take what a journal has; a write without a stamp counts as older than all others."""
        for key, (stamp, origin, topic) in saved.items():
            here = topic if topic in kept or not topic else None
            self.set(key, Head(stamp or 1, origin or self._origin, here))

    def set(self, key: bytes, head: Head) -> None:
        """Let a write be the last of a topic."""
        before = self._heads.get(key)
        bucket = key[0]
        if before is not None:
            self.digests[bucket] ^= _digest(key, before)
        else:
            self._buckets[bucket][key] = None
        self._heads[key] = head
        self.digests[bucket] ^= _digest(key, head)
        self.latest = max(self.latest, head.stamp)
        self._graves.pop(key, None)
        self._refused.pop(key, None)
        if not head.topic:
            (self._refused if head.topic is None else self._graves)[key] = None

    def bury(self, topic: bytes) -> None:
        """Take note that the message of a topic is here no more, as its time is over."""
        key = key_of(topic)
        head = self._heads.get(key)
        if head is not None and head.topic:
            self.set(key, head._replace(topic=b""))

    def forget(self, horizon: int, *, retries: bool) -> None:
        """Forget removals with stamps below a horizon, and the oldest of too many.

        `retries` forgets what there was no room for: then it is asked for again.
        """
        graves = list(self._graves)
        gone = {key for key in graves if self._heads[key].stamp < horizon}
        gone.update(graves[: max(len(graves) - GRAVES, 0)], self._refused if retries else ())
        for key in gone:
            self._graves.pop(key, None)
            self._refused.pop(key, None)
            del self._buckets[key[0]][key]
            self.digests[key[0]] ^= _digest(key, self._heads.pop(key))


def _order_of(head: Head | None) -> tuple[int, bytes]:
    """Return what orders writes; a write without a stamp is the first."""
    return (0, b"") if head is None else head[:2]


def _digest(key: bytes, head: Head) -> int:
    """Return a number for a write, whatever it left at a router."""
    said = key + head.stamp.to_bytes(16, "big") + head.origin
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "big")


class RetainedMessages:
    """Single messages by topic, within the limits of the router, and the last writes of topics.

    Attributes:
        heads: the last writes.
        released: bytes of all messages that were, which a slow reader may have yet.
    """

    def __init__(self, effects: Effects, heads: Heads) -> None:
        self.heads = heads
        self._tree: TopicTree[Run] = TopicTree()
        self._effects = effects
        self._messages_weight = self.released = 0
        self._looked = -LOOK_INTERVAL

    def __len__(self) -> int:
        return len(self._tree)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._tree.values.values()))

    @property
    def weight(self) -> int:
        """Bytes in memory, estimated."""
        return self._messages_weight + self._tree.weight + HEAD_BYTES * len(self._tree)

    def get(self, topic: str) -> Run | None:
        """Return the message of a topic."""
        return self._tree.values.get(topic)

    def replace(self, run: Run) -> None:
        """Keep the last message of a run for its topic; an empty one removes what was kept.

        So does one that finds no room: nobody is to take the one before for the last.
        """
        topic = run.topic.decode()
        is_kept = bool(run.payloads[-1]) and self.keep(run)
        is_news = is_kept or self._remove(topic)
        message = self.get(topic)
        own = topic.startswith("$SYS/")
        head = None if own else self.heads.write(run.topic, is_kept=is_kept)
        if is_news or head is not None:
            self._record(run.topic, message, head)

    def take(self, key: bytes, head: Head, run: Run | None) -> bool:
        """Take another router's write if it is the last; returns False if there is no room."""
        before = self.heads.get(key)
        if before is not None and before[:2] >= head[:2]:
            return True
        if before is not None and before.topic:
            self._remove(before.topic.decode())
        is_kept = run is None or self.keep(run)
        self.heads.set(key, head if is_kept else head._replace(topic=None))
        if is_kept:
            self._record(head.topic or b"", run, head, key)
        elif before is not None and before.topic:
            self._record(before.topic, None, None)
        return is_kept

    def _record(
        self, topic: bytes, run: Run | None, head: Head | None, key: bytes = b""
    ) -> None:
        """Make the last write of a topic durable."""
        if self._effects.is_durable:
            if head is not None and run is None:
                topic = key or key_of(topic)
            self._effects.records.append(Retained(topic, run, *_order_of(head)))

    def records(self) -> list[Retained]:
        """Return what makes all of it durable."""
        heads = [(run, self.heads.get(key_of(run.topic))) for run in self]
        found = [Retained(run.topic, run, *_order_of(head)) for run, head in heads]
        return found + [Retained(key, None, *head[:2]) for key, head in self.heads.graves()]

    def keep(self, run: Run) -> bool:
        """Keep the last message of a run; returns False, counted, when there is no room."""
        if not self.has_room(run):
            self._effects.meters.not_retained += 1
            return False
        message, topic = run.kept(), run.topic.decode()
        self._release(topic)
        self._messages_weight += message.weight
        self._tree.set(topic, message)
        return True

    def has_room(self, run: Run) -> bool:
        """Return whether the last message of a run can be retained now."""
        if run.topic.startswith(b"$SYS/"):  # the router's own, which are few
            return True
        if self._fits(run):
            return True
        now = self._effects.now
        if now - self._looked < LOOK_INTERVAL:
            return False
        self._looked = now
        self._expire(self, now)
        return self._fits(run)

    def _fits(self, run: Run) -> bool:
        """Return whether there is room beside what is here, in place of what was there."""
        limits, topic = self._effects.limits, run.topic.decode()
        before = self.get(topic)
        if before is None and len(self._tree) >= limits.retained:
            return False
        way = HEAD_BYTES + weight_of_way(topic) if before is None else -before.weight
        return self.weight + run.kept().weight + way <= limits.retained_bytes

    def _remove(self, topic: str) -> bool:
        """Forget the message of a topic; return whether there was one."""
        self._release(topic)
        return self._tree.remove(topic)

    def _release(self, topic: str) -> None:
        """Give the bytes of a topic's message back."""
        if (before := self.get(topic)) is not None:
            self._messages_weight -= before.weight
            self.released += before.weight

    def _expire(self, runs: Iterable[Run], now: float) -> list[Run]:
        """Forget those messages whose time is over, and return the others."""
        fresh = []
        for run in runs:
            if run.expires_at is not None and run.expires_at <= now:
                self._remove(run.topic.decode())
                self.heads.bury(run.topic)
            else:
                fresh.append(run)
        return fresh

    def match(self, topic_filter: str, now: float) -> list[Run]:
        """Return the messages that a plain filter matches, and forget those out of time."""
        return self._expire(self._tree.match(topic_filter), now)
