"""`data_outputs` and `command_outputs`: who takes messages on this endpoint."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from callboard.endpoint.core_effect import CoreCounters, Deliver, Item, Pair
from callboard.endpoint.message import MessageType, pack_runs
from callboard.endpoint.run_cbor import decode_run
from callboard.endpoint.subscriptions import SubscriptionTable

__all__ = ["CoreOutput"]

_topic_of: Final = itemgetter(0)


class CoreOutput:
    """The local receivers of one kind of message. Only here are messages decoded."""

    def __init__(self, kind: MessageType, counters: CoreCounters) -> None:
        self.index: SubscriptionTable[object] = SubscriptionTable()
        #: Who also sees what this endpoint itself publishes.
        self.sees_own: set[object] = set()
        self._kind = kind
        self._counters = counters

    def deliver(self, items: list[Item], sender: bytes, size: int) -> list[Deliver]:
        """Hand a run from another endpoint to whoever wants it."""
        self._counters.deserialized += len(items)
        return [
            Deliver(receiver, batch, sender, size)
            for receiver, batch in self._sorted(items, None)
        ]

    def deliver_own(self, run: Sequence[Pair]) -> list[Deliver]:
        """Hand a run of this endpoint's own messages to those who see these too."""
        match, sees_own = self.index.match, self.sees_own
        wanted = [pair for topic, pair in run if not sees_own.isdisjoint(match(topic))]
        delivered: list[Deliver] = []
        for payload, count in pack_runs(self._kind, 0, wanted) if wanted else ():
            self._counters.deserialized += count
            _, items = decode_run(payload)
            delivered += [
                Deliver(receiver, batch, size=len(payload))
                for receiver, batch in self._sorted(items, sees_own)
            ]
        return delivered

    def _sorted(
        self, items: list[Item], only: set[object] | None
    ) -> Iterable[tuple[object, list[Item]]]:
        """Sort a run by receiver; runs of one topic are looked up once.

        Several receivers may be given the same list, which none of them changes.
        """
        topics = {*map(_topic_of, items)}
        if len(topics) == 1:  # nearly always
            receivers = [
                one for one in self.index.match(*topics) if only is None or one in only
            ]
            if receivers:
                self._counters.delivered += len(receivers) * len(items)
            else:
                self._counters.unwanted += len(items)
            return [(receiver, items) for receiver in receivers]
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
