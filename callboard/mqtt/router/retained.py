"""Retained messages: the last one of each topic that was published with the flag."""

from collections.abc import Iterator

from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.record import Retained
from callboard.mqtt.wire.topic import TopicTree


class RetainedMessages:
    """Single messages by topic."""

    def __init__(self, effects: Effects) -> None:
        self._tree: TopicTree[Run] = TopicTree()
        self._effects = effects

    def __len__(self) -> int:
        return len(self._tree)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._tree.values.values()))

    def get(self, topic: str) -> Run | None:
        """Return the message of a topic."""
        return self._tree.values.get(topic)

    def replace(self, run: Run) -> None:
        """Keep the last message of a run for its topic; an empty one removes what was kept."""
        effects = self._effects
        if run.payloads[-1]:
            message = run if run.count == 1 else run.single(run.count - 1)
            if self.keep(message) and effects.is_durable:
                effects.records.append(Retained(run.topic, message))
        elif self._tree.remove(run.topic.decode()) and effects.is_durable:
            effects.records.append(Retained(run.topic, None))

    def keep(self, message: Run) -> bool:
        """Keep a message instead of what was there; returns False when there is no room."""
        topic = message.topic.decode()
        if len(self._tree) >= self._effects.limits.retained and topic not in self._tree.values:
            return False
        self._tree.set(topic, message)
        return True

    def match(self, topic_filter: str, now: float) -> list[Run]:
        """Return the messages that a plain filter matches, and forget those out of time."""
        found = self._tree.match(topic_filter)
        expired = [run for run in found if run.expires_at is not None and run.expires_at <= now]
        for run in expired:
            self._tree.remove(run.topic.decode())
        return [run for run in found if run not in expired] if expired else found
