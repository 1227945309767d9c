"""`data_outputs` and `command_outputs`: who takes messages on this endpoint."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from callboard.endpoint.machine.effect import (
    CoreCounters,
    DeliverItems,
    DoorReceiver,
    Item,
    LocalPublications,
    Pair,
)
from callboard.endpoint.machine.run import PackedType, decode_run, pack_runs
from callboard.endpoint.machine.subscriptions import SubscriptionTable

_topic_of: Final = itemgetter(0)


class CoreOutput:
    """The local receivers of one kind of message. Only here are messages decoded."""

    def __init__(self, kind: PackedType, counters: CoreCounters) -> None:
        self.index: SubscriptionTable[object] = SubscriptionTable()
        #: Who also sees what this endpoint itself publishes.
        self.sees_own: set[object] = set()
        #: Those among them that take these encoded.
        self.encoded: set[object] = set()
        self._kind = kind
        self._counters = counters

    def deliver(self, items: list[Item], sender: bytes, size: int) -> list[DeliverItems]:
        """Hand a run from another endpoint to the receivers here that want it."""
        self._counters.deserialized += len(items)
        return [
            DeliverItems(receiver, batch, sender, size)
            for receiver, batch in self._sorted(items, None)
        ]

    def deliver_own(self, run: Sequence[Pair]) -> list[DeliverItems]:
        """Hand a run of this endpoint's own messages to those who see these too."""
        match, sees_own = self.index.match, self.sees_own
        delivered: list[DeliverItems] = []
        if self.encoded:
            sees_own = sees_own - self.encoded
            delivered += [
                DeliverItems(LocalPublications(receiver), batch)
                for receiver, batch in self._sorted(run, self.encoded)
                if isinstance(receiver, DoorReceiver)
            ]
        wanted = [pair for topic, pair in run if not sees_own.isdisjoint(match(topic))]
        for payload, count in pack_runs(self._kind, 0, wanted) if wanted else ():
            self._counters.deserialized += count
            _, items = decode_run(payload)
            delivered += [
                DeliverItems(receiver, batch, size=len(payload))
                for receiver, batch in self._sorted(items, sees_own)
            ]
        return delivered

    def takes_own(self, topic: str) -> bool:
        """Return whether a receiver of this endpoint's own messages wants a topic."""
        return bool(self.sees_own) and not self.sees_own.isdisjoint(self.index.match(topic))

    def _sorted(
        self, items: Sequence[Item], only: set[object] | None
    ) -> Iterable[tuple[object, list[Item]]]:
        """Sort a run by receiver; runs of one topic are looked up once.

        Several receivers may be given the same list, which none of them changes.
        """
        topics = {*map(_topic_of, items)}
        if len(topics) == 1:  # nearly always
            found = self.index.match(*topics)
            receivers = [one for one in found if only is None or one in only]
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
                receivers = [one for one in match(topic) if only is None or one in only]
                lists = [batches.setdefault(one, []) for one in receivers]
            if not lists:
                self._counters.unwanted += 1
            for batch in lists:
                batch.append(item)
        self._counters.delivered += sum(map(len, batches.values()))
        return batches.items()
