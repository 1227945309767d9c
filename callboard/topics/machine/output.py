"""`data_outputs` and `command_outputs`: delivery to the local receivers."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from callboard.topics.machine.effect import (
    CoreCounters,
    DeliverItems,
    DoorReceiver,
    Item,
    LocalPublications,
    Pair,
)
from callboard.topics.machine.run import PackedType, decode_run, pack_runs
from callboard.topics.machine.subscriptions import SubscriptionTable

_topic_of: Final = itemgetter(0)


class CoreOutput:
    """The local receivers of one type of message. Only this class decodes messages."""

    def __init__(self, kind: PackedType, counters: CoreCounters) -> None:
        self.index: SubscriptionTable[object] = SubscriptionTable()
        #: Receivers that also get this endpoint's own messages.
        self.sees_own: set[object] = set()
        #: The part of `sees_own` that gets own messages encoded.
        self.encoded: set[object] = set()
        #: By receiver whose subscription belongs to a publisher: that publisher.
        self.publishers: dict[object, object] = {}
        self._kind = kind
        self._counters = counters

    def deliver(self, items: list[Item], sender: bytes, size: int) -> list[DeliverItems]:
        """Deliver a run of another endpoint to the matching receivers."""
        self._counters.deserialized += len(items)
        return [
            DeliverItems(receiver, batch, sender, size)
            for receiver, batch in self._sorted(items, None)
        ]

    def hearers_of(self, origins: frozenset[object]) -> set[object]:
        """Return the receivers of own messages with these origins."""
        publishers = self.publishers
        return {
            receiver
            for receiver in self.sees_own | publishers.keys()
            if publishers.get(receiver, receiver) not in origins
        }

    def deliver_own(
        self, run: Sequence[Pair], hearers: set[object] | None = None
    ) -> list[DeliverItems]:
        """Deliver a run of this endpoint's own messages to some receivers, or `sees_own`."""
        match = self.index.match
        sees_own = self.sees_own if hearers is None else hearers
        delivered: list[DeliverItems] = []
        if self.encoded:
            delivered += [
                DeliverItems(LocalPublications(receiver), batch)
                for receiver, batch in self._sorted(run, self.encoded & sees_own)
                if isinstance(receiver, DoorReceiver)
            ]
            sees_own = sees_own - self.encoded
        pairs = [pair for topic, pair in run if not sees_own.isdisjoint(match(topic))]
        for payload, count in pack_runs(self._kind, 0, pairs) if pairs else ():
            self._counters.deserialized += count
            _, items = decode_run(payload)
            delivered += [
                DeliverItems(receiver, batch, size=len(payload))
                for receiver, batch in self._sorted(items, sees_own)
            ]
        return delivered

    def takes_own(self, topic: str, origins: frozenset[object] | None = None) -> bool:
        """Return whether a receiver of own messages with these origins matches a topic."""
        hearers = self.sees_own
        if origins is not None and self.publishers:
            hearers = self.hearers_of(origins)
        return bool(hearers) and not hearers.isdisjoint(self.index.match(topic))

    def _sorted(
        self, items: Sequence[Item], only: set[object] | None
    ) -> Iterable[tuple[object, list[Item]]]:
        """Return the items for each receiver; a run of one topic needs one look-up.

        Several receivers may get the same list, which they must not change.
        """
        topics = {*map(_topic_of, items)}
        if len(topics) == 1:
            matches = self.index.match(*topics)
            receivers = [receiver for receiver in matches if only is None or receiver in only]
            self._counters.delivered += len(receivers) * len(items)
            self._counters.unwanted += 0 if receivers else len(items)
            batch = items if isinstance(items, list) else [*items]
            return [(receiver, batch) for receiver in receivers]
        batches: dict[object, list[Item]] = {}
        match, last_topic = self.index.match, None
        lists: list[list[Item]] = []
        for item in items:
            topic = item[0]
            if topic != last_topic:
                last_topic = topic
                lists = [
                    batches.setdefault(receiver, [])
                    for receiver in match(topic)
                    if only is None or receiver in only
                ]
            if not lists:
                self._counters.unwanted += 1
            for batch in lists:
                batch.append(item)
        self._counters.delivered += sum(map(len, batches.values()))
        return batches.items()
