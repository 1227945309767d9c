"""One node of the demo: `python -m callboard.demo.node_process NAME PORT STORE [JOIN]`.

STORE is the file of the store's master, which runs on one of the nodes.

The parent has no node. It sends commands as JSON lines to the standard input of this process
and reads reports as JSON lines from its standard output, so control messages are not among the
counted messages. The process ends when its input ends, so it does not outlive its parent.

| command | effect |
|---|---|
| `{"do": "rest"}` | sensors send, and the overseer heals, nothing more |
| `{"do": "part"}` | the master or clone here is closed; reports have its last figures |
| `{"do": "settle", "round": N}` | delivery reports go out; one with this round comes |
| `{"do": "cut", "peer": NAME, "seconds": S}` | that link is cut and refused for S seconds |
| `{"do": "close"}` | the node closes and the process ends |
"""

import dataclasses
import json
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard.demo.aggregator import Aggregator, TakeSnapshot
from callboard.demo.story import ANALYSIS
from callboard.kernel.actors import ActorRef
from callboard.kernel.events import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    LinkDown,
    LinkUp,
    NodeDown,
    NodeUp,
)
from callboard.node import Node
from callboard.topics.hub import Hub

if TYPE_CHECKING:
    from callboard.demo.demo_store import Keeping
    from callboard.demo.entities.daily_peak import PeakWatch, PeakWriter
    from callboard.demo.mqtt_side import MqttSide
    from callboard.demo.result_forwarder import Counting, ResultForwarder

#: Maximum pending notes; the oldest are dropped if the parent stops reading.
NOTES_KEPT: Final = 1000

#: Timeout of the query to the aggregator on this node, in seconds.
SNAPSHOT_LIMIT: Final = 2.0


#: Seconds between two reports.
REPORT_INTERVAL: Final = 0.1

#: Seconds until an alarm ends a process that does not close.
CLOSE_LIMIT: Final = 3

OVERSEER_ON: Final = "A"
#: The nodes with sensors; they also have clones of the store.
SENSORS_ON: Final = ("A", "D")

MASTER_ON: Final = "C"

#: The node whose readings are also published by MQTT.
MQTT_ON: Final = "A"


class DemoNodeProcess:
    """A node with its actors, and the pipes to the parent."""

    def __init__(self, name: str, node: Node, path: str) -> None:
        self._name = name
        self._path = path
        self._keeping: Keeping | None = None
        self._handing: ResultForwarder | None = None
        self._counting: Counting | None = None
        self._mqtt: MqttSide | None = None
        self._peaks: PeakWriter | None = None
        self._watch: PeakWatch | None = None
        self._node = node
        self._hub = Hub.of(node)
        self._resting: list[ActorRef] = []
        self._round = 0
        self._is_closing = False
        self._notes: deque[dict[str, Any]] = deque(maxlen=NOTES_KEPT)
        self._aggregator: ActorRef | None = None
        self._snapshot: dict[str, Any] | None = None
        self._is_serving = False
        self._last_passage_ns = 0
        # Notified of reachable nodes, on the node that has it.
        self._overseer: ActorRef | None = None

    def run(self, port: int) -> None:
        """Spawn the actors, then serve the parent until it sends `close` or has ended."""
        with self._node.subscribed(self._on_event):
            self._spawn()
            self._node.listen("127.0.0.1", port)
            self._report(ready=self._node.node_id.hex(), port=port)
            self._attach()
            for command in _commands(REPORT_INTERVAL):
                if command is not None:
                    self._obey(command)
                if self._is_closing:
                    break
                self._report()
            self._detach_mqtt()

    def _spawn(self) -> None:
        """Spawn the sensors of this node, and on A the overseer."""
        if self._name not in SENSORS_ON:
            return
        from callboard.demo.overseer import Overseer
        from callboard.demo.sensor import SUBJECTS, Sensor, machine_samplers

        note, sensors = self._note, {}
        for subject, sample in machine_samplers().items():
            name = f"{self._name}.{subject}"
            is_followed = name == f"{OVERSEER_ON}.cpu"
            callbacks = (self._publish, self._keep, note)
            ref = self._node.spawn(Sensor, name, sample, *callbacks, is_followed=is_followed)
            self._node.register(name, ref)
            sensors[name] = ref
        self._resting.extend(sensors.values())
        if self._name == OVERSEER_ON:
            elsewhere = {
                node: [f"{node}.{subject}" for subject in SUBJECTS]
                for node in SENSORS_ON
                if node != self._name
            }
            self._overseer = self._node.spawn(Overseer, note, sensors, elsewhere)
            self._resting.append(self._overseer)

    def _attach(self) -> None:
        """Attach store, entities and MQTT; imported late, so that the node starts sooner."""
        from callboard.demo.demo_store import CloneKeeping, DemoStore
        from callboard.demo.entities import daily_peak as peaks

        if self._name in peaks.HOSTS:
            file = str(Path(self._path).with_name("peaks.db"))
            peaks.host_peaks(self._node, file, self._note)
        if self._name in SENSORS_ON:
            self._peaks = peaks.PeakWriter(self._node)
        if self._name == OVERSEER_ON and self._peaks is not None:
            self._watch = peaks.PeakWatch(self._node, self._peaks, self._note)
        if self._name == MASTER_ON:
            self._keeping = DemoStore(self._hub, self._note, self._path)
        elif self._name in SENSORS_ON:
            clone = CloneKeeping(self._hub)
            self._keeping = clone
            if analysis := os.environ.get(ANALYSIS):
                from callboard.demo import result_forwarder as results

                if self._name == OVERSEER_ON:
                    self._handing = results.ResultForwarder(
                        self._hub, Path(analysis), clone.store
                    )
                    replay = self._node.spawn(results.FlightReplay, *self._handing.replay)
                    self._resting.append(replay)
                else:
                    self._counting = results.Counting(self._hub)
        if self._name != MQTT_ON:
            return
        from callboard.demo.mqtt_side import MqttSide, is_possible

        if is_possible():
            folder = Path(self._path).parent / f"readings-{os.getpid()}"
            self._mqtt = MqttSide(self._node, self._name, folder)
        else:
            self._note("mqtt_missing")

    def _detach_mqtt(self) -> None:
        """Let the MQTT client publish the rest, and report the result."""
        mqtt = self._mqtt
        if mqtt is not None and mqtt.published is None:
            mqtt.close()
            self._note("mqtt_over", **mqtt.report())

    def _publish(self, topic: str, reading: list[Any]) -> None:
        """Publish a reading as a topic message, and by MQTT if available."""
        self._hub.publish(topic, reading)
        if self._mqtt is not None:
            self._mqtt.pass_on(topic, reading)

    def _keep(self, sensor: str, level: float) -> None:
        """Write a reading to the store, and send it to the entity that keeps its peak."""
        if self._keeping is not None:
            self._keeping.keep(sensor, level)
        if self._peaks is not None:
            self._peaks.keep(sensor, level)

    def _obey(self, command: dict[str, Any]) -> None:
        """Execute a command of the parent."""
        match command["do"]:
            case "rest":
                self._rest()
            case "part":
                self._detach_mqtt()
                if self._keeping is not None:
                    self._keeping.close()
            case "settle":
                self._round = command["round"]
                self._node.report_now()
            case "cut":
                for link in self._node.links():
                    if link.peer_name == command["peer"]:
                        self._node.disconnect(link.peer, command["seconds"])
            case "close":
                self._is_closing = True

    def _rest(self) -> None:
        """Stop the sensors and the overseer."""
        from callboard.demo.sensor import Rest

        for ref in self._resting:
            ref.tell(Rest())
        if self._peaks is not None:
            self._peaks.is_resting = True
        if self._handing is not None:
            self._handing.close()
            self._handing = None

    def _report(self, **more: Any) -> None:
        """Write a report about the node for the parent."""
        node = self._node
        self._ask_aggregator()
        report = {
            "notes": [self._notes.popleft() for _ in range(len(self._notes))],
            "nodes": node.nodes(),
            "links": node.links(),
            "accounts": list(node.accounts().values()),
            "topics": {
                "peers": len(self._hub.core.peers()),
                "published": self._hub.counters.data_published,
                "received": self._hub.counters.received,
            },
            "passages": self._fresh_passages(),
            "snapshot": self._snapshot,
            "at": time.monotonic_ns(),
            "round": self._round,
            "mqtt": None if self._mqtt is None else self._mqtt.report(),
            "store": None if self._keeping is None else self._keeping.report(),
            "results": None if self._counting is None else self._counting.counts(),
            **more,
        }
        sys.stdout.write(json.dumps(report, default=_plain) + "\n")
        sys.stdout.flush()

    def _note(self, kind: str, /, **fields: Any) -> None:
        """Add a note to the next report; thread-safe."""
        self._notes.append({"kind": kind, "at": time.monotonic_ns(), **fields})

    def _on_event(self, event: object) -> None:
        """Add an event of the node as a note: its class and its fields."""
        match event:
            case ActorStarted(ref, Aggregator.__qualname__):
                self._aggregator, self._snapshot, self._is_serving = ref, None, False
            case ActorStopped(ref) if ref == self._aggregator:
                self._aggregator = self._snapshot = None
            case NodeUp() | NodeDown() | LinkUp() | LinkDown() | ActorFailed():
                self._note(type(event).__name__, **_fields(event))
                if isinstance(event, NodeDown) and self._watch is not None:
                    self._watch.lost(event.node_id, event.name)
                if isinstance(event, NodeUp) and self._overseer is not None:
                    from callboard.demo.overseer import NodeAppeared

                    self._overseer.tell(NodeAppeared(event.name))

    def _fresh_passages(self) -> list[list[Any]]:
        """Return [asker, message id, nanoseconds] of each passage since the last report."""
        last = self._last_passage_ns
        fresh = [passage for passage in self._node.passages() if passage.at > last]
        self._last_passage_ns = max((passage.at for passage in fresh), default=last)
        return [
            [(p.destination if p.is_response else p.source).hex(), p.message_id, p.at]
            for p in fresh
        ]

    def _ask_aggregator(self) -> None:
        """Ask the aggregator on this node for its figures, for a later report."""
        aggregator = self._aggregator
        if aggregator is None:
            return
        future = aggregator.ask(TakeSnapshot(), timeout=SNAPSHOT_LIMIT)

        def answered(_: object) -> None:
            if future.exception() is None and aggregator is self._aggregator:
                self._snapshot = snapshot = future.result()
                if snapshot["first_handled_ns"] and not self._is_serving:
                    self._is_serving = True
                    self._notes.append({"kind": "serving", "at": snapshot["first_handled_ns"]})

        future.add_done_callback(answered)


def _fields(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    """Convert values for JSON: dataclasses to objects, ids and refs to texts."""
    if dataclasses.is_dataclass(value):
        return _fields(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _commands(interval: float) -> Iterator[dict[str, Any] | None]:
    """Yield each command, and None after each `interval`; end with the input."""
    source = sys.stdin.fileno()
    buffer = b""
    due = time.monotonic() + interval
    while True:
        ready, _, _ = select.select([source], [], [], max(due - time.monotonic(), 0.0))
        if not ready:
            due = time.monotonic() + interval
            yield None
            continue
        chunk = os.read(source, 65536)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


def main(arguments: list[str]) -> int:
    """Run one node; the parent starts this."""
    name, port, path, *join = arguments
    node = Node(name=name, spawnable={"aggregator": Aggregator}, join=join)
    try:
        DemoNodeProcess(name, node, path).run(int(port))
    except BrokenPipeError:
        pass  # the parent has ended
    finally:
        signal.alarm(CLOSE_LIMIT)
        node.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
