"""The demo's MQTT on one node: a router, its bridge to the hub, a client process, a log.

    sensor ──> line on a pipe ──> paho-mqtt in another process ──> router ──> bridge ──> hub

So each reading of this node's sensors is published twice, by the sensor and by MQTT, and the
log of the node records both. At the end, the demo prints how many arrived by MQTT.
"""

import importlib.util
import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from callboard.backoff import is_reached
from callboard.broker import Endpoint
from callboard.commitlog import LogReader
from callboard.demo.aggregator import METRICS
from callboard.demo.line import start_child
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.service.topic_bridge import MqttDoor, TopicMap
from callboard.node import Node

#: The topics that the bridge carries.
TOPICS: Final = TopicMap("metrics/", "/mqtt/metrics/", "in", values="json")

#: The package that the client process needs.
CLIENT: Final = "paho"

#: Seconds until the client must end, and for each later step of closing.
LAST_WORDS: Final = 30.0


def is_possible() -> bool:
    """Return whether the package of the client process is installed."""
    return importlib.util.find_spec(CLIENT) is not None


class MqttSide:
    """Readings of one node, by MQTT.

    Attributes:
        passed: number of readings passed to the client.
        published: number of readings that the client published; known at the end.
        recorded: number of these readings in the log; known at the end.
    """

    def __init__(self, node: Node, name: str, folder: Path) -> None:
        self.passed = 0
        self.published: int | None = None
        self.recorded = 0
        self._prefix = f"{METRICS}{name}/"
        self._stack = ExitStack()
        with ExitStack() as stack:
            endpoint = Endpoint(node=node)
            stack.callback(endpoint.shutdown)
            self._recording = endpoint.record([TOPICS.endpoint, self._prefix], folder)
            stack.callback(self._recording.close)
            router = stack.enter_context(Router(RouterConfig(sys_interval=0), node=node))
            self._door = stack.enter_context(MqttDoor(router, node, [TOPICS]))
            self._client = _start_client(router.port, name)
            stack.callback(self._end_client)
            self._stack = stack.pop_all()

    def pass_on(self, topic: str, reading: list[Any]) -> None:
        """Pass a reading to the client without blocking, because this is the node's thread."""
        line = json.dumps([topic.removeprefix("/"), reading]).encode() + b"\n"
        assert self._client.stdin is not None
        try:
            written = os.write(self._client.stdin.fileno(), line)
        except (BlockingIOError, BrokenPipeError, ValueError):
            return
        # Writes of this size to a pipe are atomic.
        self.passed += written == len(line)

    def report(self) -> dict[str, Any]:
        """Return the figures for the parent."""
        return {
            "passed": self.passed,
            "published": self.published,
            "brought": self._door.brought,
            "recorded": self.recorded,
        }

    def close(self) -> None:
        """Let the client publish the rest, and count the readings in the log. Idempotent."""
        if self.published is not None:
            return
        self.published = self._end_client()
        published = self.published
        is_reached(lambda: self._door.brought >= published, 0.01, LAST_WORDS)
        self._recording.flush(LAST_WORDS)
        with LogReader(self._recording.folder) as log:
            self.recorded = sum(record.topic.startswith(TOPICS.endpoint) for record in log)
        self._stack.close()

    def _end_client(self) -> int:
        """End the client; return the number of readings that it published."""
        client = self._client
        try:
            out, _ = client.communicate(timeout=LAST_WORDS)
        except (subprocess.TimeoutExpired, ValueError):
            client.kill()
            client.wait()
            return 0
        return int(out or 0)


def _start_client(port: int, name: str) -> subprocess.Popen[bytes]:
    """Start the client process."""
    client = start_child("mqtt_client", str(port), name, errors=subprocess.DEVNULL)
    assert client.stdin is not None
    os.set_blocking(client.stdin.fileno(), False)
    return client
