"""The endpoints that the faults of topics happen to; children load them from this file."""

import asyncio
from typing import Any

import psutil

from callboard import Actor
from callboard.topics.hub import Hub, HubOptions
from callboard.topics.message_queue import MessageQueue


class TopicHost(Actor):
    """Publishes and subscribes inside of a node process."""

    def __init__(self) -> None:
        self.queues: list[MessageQueue[Any]] = []
        self.seen: list[int] = []

    def begin(self, policy: str, size: int) -> None:
        """Make the node's hub."""
        Hub.of(self.node, HubOptions(overflow_policy=policy, peer_buffer_size=size))

    async def subscribe(self, topic: str, count: int, limit: int) -> None:
        """Add subscribers, which do not read before `read`."""
        for _ in range(count):
            self.queues.append(MessageQueue(limit))
            self.seen.append(0)
            await Hub.of(self.node).add_receiver(self.queues[-1], [topic])

    def receivers(self, topic: str) -> Any:
        """Return how many nodes want a topic."""
        return len(Hub.of(self.node).core.receivers_of(topic))

    async def publish(self, topic: str, first: int, count: int, size: int) -> None:
        """Publish `[number, text]` as fast as it goes."""
        hub, text = Hub.of(self.node), "x" * size
        for number in range(first, first + count):
            hub.publish(topic, [number, text])
            if number % 100 == 0:
                await asyncio.sleep(0)

    def read(self, first: int) -> tuple[int, int]:
        """Read all subscribers from number `first` on; returns the fewest and the most seen."""
        for index in range(first, len(self.queues)):
            for _, (number, _) in self.queues[index].poll():
                assert number == self.seen[index], "out of order, or lost"
                self.seen[index] += 1
        read = self.seen[first:]
        return min(read), max(read)

    def unread(self) -> tuple[int, int]:
        """Return the first subscriber's waiting messages, and the number of dropped ones."""
        return self.queues[0].available(), self.queues[0].dropped

    def dropped(self) -> int:
        """Return the messages that were dropped for peers."""
        return Hub.of(self.node).counters.dropped

    def peers(self) -> int:
        """Return the links."""
        return len(self.node.links())

    def rss(self) -> int:
        """Return the memory of the process."""
        return int(psutil.Process().memory_info().rss)
