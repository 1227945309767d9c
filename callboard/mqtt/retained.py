"""The last message of each topic that was published to be kept."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from callboard.mqtt.message import Run
from callboard.mqtt.record import Retained
from callboard.mqtt.topic import TopicTree

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine


class RetainedMessages:
    """Single messages by topic."""

    def __init__(self, most: int) -> None:
        self._tree: TopicTree[Run] = TopicTree()
        self.most = most
        #: Messages that were not kept because there were too many topics.
        self.refused = 0

    def __len__(self) -> int:
        return len(self._tree)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._tree.values.values()))

    def get(self, topic: str) -> Run | None:
        """Return the message of a topic."""
        return self._tree.values.get(topic)

    def keep(self, message: Run) -> bool:
        """Keep a message instead of what was there; returns False when there is no room."""
        topic = message.topic.decode()
        if len(self._tree) >= self.most and topic not in self._tree.values:
            self.refused += 1
            return False
        self._tree.set(topic, message)
        return True

    def remove(self, topic: str) -> bool:
        """Forget the message of a topic; returns whether there was one."""
        was_there = topic in self._tree.values
        self._tree.remove(topic)
        return was_there

    def match(self, topic_filter: str, now: float) -> list[Run]:
        """Return the messages that a plain filter matches, and forget those out of time."""
        found = self._tree.match(topic_filter)
        expired = [run for run in found if run.expires_at is not None and run.expires_at <= now]
        for run in expired:
            self._tree.remove(run.topic.decode())
        return [run for run in found if run not in expired] if expired else found


def retain(machine: "RouterMachine", run: Run) -> None:
    """Keep the last message of a run for its topic; an empty one removes what was kept."""
    topic = run.topic.decode()
    if run.payloads[-1]:
        message = run if run.count == 1 else run.single(run.count - 1)
        if machine.retained.keep(message) and machine.is_durable:
            machine.records.append(Retained(run.topic, message))
    elif machine.retained.remove(topic) and machine.is_durable:
        machine.records.append(Retained(run.topic, None))
