"""The nodes' side of Spark: A records metrics and publishes results, D counts them."""

from pathlib import Path

from callboard.broker.recording import Recording
from callboard.commitlog import CommitLog
from callboard.demo.aggregator import METRICS
from callboard.demo.outcome import KINDS
from callboard.pipeline.bridge import Bridge, Entries
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item
from callboard.topics.message_queue import MessageQueue


class ResultForwarder:
    """Records the metrics, and publishes results as messages and store entries."""

    def __init__(self, hub: Hub, folder: Path, store: Entries) -> None:
        log = folder / "metrics"
        self._recording = Recording(hub, (METRICS,), lambda: CommitLog(log, sync="none"))
        self._bridge = Bridge(folder / "results", endpoint=hub, store=store)

    def close(self) -> None:
        """Publish the remaining results, and close."""
        self._bridge.close()
        self._recording.close()


class Counting:
    """Counts the results that arrive as messages."""

    def __init__(self, hub: Hub) -> None:
        self._queue: MessageQueue[Item] = MessageQueue()
        hub.add_receiver(self._queue, KINDS)
        self._counts = dict.fromkeys(KINDS, 0)

    def counts(self) -> dict[str, int]:
        """Return the number of results by the prefix of their topic."""
        for topic, _ in self._queue.poll():
            self._counts["/" + topic.split("/")[1]] += 1
        return self._counts
