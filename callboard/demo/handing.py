"""What nodes have to do with Spark: A records metrics and hands results on, D counts them."""

from pathlib import Path

from callboard.broker.recording import Recording
from callboard.commitlog import CommitLog
from callboard.demo.aggregator import METRICS
from callboard.demo.outcome import KINDS
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Item
from callboard.endpoint.message_queue import MessageQueue
from callboard.pipeline.bridge import Bridge, Entries


class Handing:
    """Records the metrics, and hands results on as messages and entries."""

    def __init__(self, hub: Hub, folder: Path, store: Entries) -> None:
        log = folder / "metrics"
        self._recording = Recording(hub, (METRICS,), lambda: CommitLog(log, sync="none"))
        self._bridge = Bridge(folder / "results", endpoint=hub, store=store)

    def close(self) -> None:
        """Hand on what is there, and end."""
        self._bridge.close()
        self._recording.close()


class Counting:
    """Counts the results that come here as messages."""

    def __init__(self, hub: Hub) -> None:
        self._queue: MessageQueue[Item] = MessageQueue()
        hub.add_receiver(self._queue, KINDS)
        self._counts = dict.fromkeys(KINDS, 0)

    def counts(self) -> dict[str, int]:
        """Return how many came, by the beginning of their topic."""
        for topic, _ in self._queue.poll():
            self._counts["/" + topic.split("/")[1]] += 1
        return self._counts
