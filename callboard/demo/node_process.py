"""One node of the demo: `python -m callboard.demo.node_process NAME PORT STORE [JOIN]`.

STORE is the file of the store's master, which one of the nodes has.

The parent holds no node: it sends commands as JSON lines to this process's standard input and
reads reports as JSON lines from its standard output, so nothing of the control is among the
messages that are counted. The process ends when its input does: a parent that died leaves
nothing behind.

| command | effect |
|---|---|
| `{"do": "rest"}` | sensors send, and the overseer heals, nothing more |
| `{"do": "part"}` | the master or clone here is closed; reports have its last figures |
| `{"do": "settle", "round": N}` | delivery reports go out; one with this round comes |
| `{"do": "cut", "peer": NAME, "seconds": S}` | that link is cut and refused for S seconds |
| `{"do": "close"}` | the node closes and the process ends |
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard import ActorRef, Node
from callboard.demo.aggregator import Aggregator
from callboard.demo.desk import Desk
from callboard.demo.options import ANALYSIS
from callboard.endpoint.hub import Hub

if TYPE_CHECKING:
    from callboard.demo.handing import Counting, Handing
    from callboard.demo.keeping import CloneKeeping, Keeping
    from callboard.demo.mqtt_side import MqttSide

REPORT_INTERVAL: Final = 0.1
"""Seconds between two reports."""

CLOSE_LIMIT: Final = 3
"""Seconds that closing may take before the process is ended by an alarm."""

OVERSEER_ON: Final = "A"
SENSORS_ON: Final = ("A", "D")
"""These have clones of the store too."""

MASTER_ON: Final = "C"

MQTT_ON: Final = "A"
"""Its readings are published by MQTT too."""


class NodeProcess:
    """A node, its desk, and the pipes to the parent."""

    def __init__(self, name: str, node: Node, path: str) -> None:
        self._name = name
        self._path = path
        self._keeping: Keeping | None = None
        self._handing: Handing | None = None
        self._counting: Counting | None = None
        self._mqtt: MqttSide | None = None
        self._node = node
        self._hub = Hub.of(node)
        self._desk = Desk(node, self._hub)
        self._resting: list[ActorRef[Any]] = []
        self._round = 0
        self._is_closing = False

    def run(self, port: int) -> None:
        """Spawn the actors, then serve the parent until it says close or is gone."""
        with self._node.subscribed(self._desk.on_event):
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
        if self._name not in SENSORS_ON:
            return
        from callboard.demo.overseer import Overseer
        from callboard.demo.sampling import SUBJECTS, machine_samplers
        from callboard.demo.sensor import Sensor

        note, sensors = self._desk.note, {}
        for subject, sample in machine_samplers().items():
            name = f"{self._name}.{subject}"
            is_followed = name == f"{OVERSEER_ON}.cpu"
            ref = self._node.spawn(
                Sensor,
                name,
                sample,
                self._publish,
                self._keep,
                note,
                is_followed=is_followed,
            )
            self._node.register(name, ref)
            sensors[name] = ref
        self._resting.extend(sensors.values())
        if self._name == OVERSEER_ON:
            elsewhere = {
                node: [f"{node}.{subject}" for subject in SUBJECTS]
                for node in SENSORS_ON
                if node != self._name
            }
            self._desk.overseer = self._node.spawn(Overseer, note, sensors, elsewhere)
            self._resting.append(self._desk.overseer)

    def _attach(self) -> None:
        """Take part in the store; imported late, the line stands sooner without it."""
        from callboard.demo.keeping import CloneKeeping, MasterKeeping

        if self._name == MASTER_ON:
            self._keeping = MasterKeeping(self._hub, self._desk.note, self._path)
        elif self._name in SENSORS_ON:
            clone = CloneKeeping(self._hub, self._desk.note)
            self._keeping = clone
            if folder := os.environ.get(ANALYSIS):
                self._take_part_in_analysis(Path(folder), clone)
        if self._name == MQTT_ON:
            self._attach_mqtt()

    def _attach_mqtt(self) -> None:
        """Publish the readings by MQTT as well, through a client of somebody else's."""
        from callboard.demo.mqtt_side import MqttSide, is_possible

        if is_possible():
            folder = Path(self._path).parent / f"readings-{os.getpid()}"
            self._mqtt = MqttSide(self._node, self._name, folder)
        else:
            self._desk.note("mqtt_missing")

    def _detach_mqtt(self) -> None:
        mqtt = self._mqtt
        if mqtt is not None and mqtt.published is None:
            mqtt.close()
            self._desk.note("mqtt_over", **mqtt.report())

    def _publish(self, topic: str, reading: list[Any]) -> None:
        self._hub.publish(topic, reading)
        if self._mqtt is not None:
            self._mqtt.pass_on(topic, reading)

    def _take_part_in_analysis(self, folder: Path, clone: "CloneKeeping") -> None:
        from callboard.demo.handing import Counting, Handing

        if self._name == OVERSEER_ON:
            self._handing = Handing(self._hub, folder, clone.store)
        else:
            self._counting = Counting(self._hub)

    def _keep(self, sensor: str, level: float) -> None:
        if self._keeping is not None:
            self._keeping.keep(sensor, level)

    def _obey(self, command: dict[str, Any]) -> None:
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
        from callboard.demo.sensor import Rest

        for ref in self._resting:
            ref.tell(Rest())
        if self._handing is not None:
            self._handing.close()
            self._handing = None

    def _report(self, **more: Any) -> None:
        report = {
            **self._desk.report(),
            "at": time.monotonic_ns(),
            "round": self._round,
            "mqtt": None if self._mqtt is None else self._mqtt.report(),
            "store": None if self._keeping is None else self._keeping.report(),
            "results": None if self._counting is None else self._counting.counts(),
            **more,
        }
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def _commands(interval: float) -> Iterator[dict[str, Any] | None]:
    """Yield each command, and None when `interval` went by; end with the input."""
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
        NodeProcess(name, node, path).run(int(port))
    except BrokenPipeError:
        pass  # the parent is gone, and so is whoever could be told
    finally:
        signal.alarm(CLOSE_LIMIT)
        node.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
