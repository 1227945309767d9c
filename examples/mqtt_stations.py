"""Each client of an MQTT router is an entity that keeps its last readings; a node is killed.

24 weather stations publish a day of real temperatures each, with paho-mqtt as the client. Each
message goes to the entity with the name of its client. Two processes host the entities in
one file of SQLite; one process is killed (SIGKILL), and no station is lost.

The temperatures are data of the National Oceanic and Atmospheric Administration of the United
States, in the public domain, as shipped with the Python package vega_datasets 0.9.0.

Run it with `python examples/mqtt_stations.py`.
"""

import csv
import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import paho.mqtt.client as paho

from callboard import (
    Actor,
    CallboardError,
    Entity,
    Node,
    Query,
    TopicMessage,
    event,
    handler,
    message,
    topic,
)
from callboard.mqtt import ListenerSettings, MqttDoor, Router, RouterConfig, TopicMap

SERIES: Final = Path(__file__).parent / "series"
PLACES: Final = ("san-francisco", "seattle")


@message("weather.Measured")
@dataclass(frozen=True)
class Measured:
    hour: int
    fahrenheit: float


@message("weather.LastReadings")
@dataclass(frozen=True)
class LastReadings(Query[list[float]]):
    pass


class Station(Entity):
    """One client: its last readings, and the number of all readings."""

    name = "weather.Station"
    idle = 30.0

    def __init__(self) -> None:
        self.count = 0
        self.last: list[float] = []

    @handler
    def on_reading(self, reading: Measured) -> int:
        if reading.hour > self.count:  # a reading that is published twice counts once
            self.persist(reading)
        return self.count

    @event
    def on_measured(self, reading: Measured) -> None:
        self.count = reading.hour
        self.last = [*self.last, reading.fahrenheit][-3:]

    @handler(read_only=True)
    def on_query(self, _: LastReadings) -> list[float]:
        return [self.count, *self.last]


class Intake(Actor):
    """Passes the messages of each client to its entity."""

    def __init__(self) -> None:
        self.kept = 0

    @topic("/mqtt/weather")
    async def on_topic(self, published: TopicMessage) -> None:
        station = self.node.entity(Station, published.topic.rpartition("/")[2])
        reading = Measured(published.value["hour"], published.value["fahrenheit"])
        await station.ask(reading)  # the answer means that it is durable
        self.kept += 1

    @handler
    def on_text(self, _: str) -> int:
        return self.kept


def load_days() -> dict[str, list[float]]:
    """Return the first day of each month of each place, by the name of a client."""
    days: dict[str, list[float]] = {}
    for place in PLACES:
        for row in csv.DictReader((SERIES / f"{place}-2010.csv").read_text().splitlines()):
            if row["date"][8:10] == "01":
                days.setdefault(f"{place}-{row['date'][5:7]}", []).append(float(row["temp"]))
    return days


def publish_days(port: int, days: dict[str, list[float]]) -> None:
    """Publish the day of each client with QoS 1."""
    for name, degrees in days.items():
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name)
        client.connect("127.0.0.1", port)
        client.loop_start()
        for hour, fahrenheit in enumerate(degrees, 1):
            text = json.dumps({"hour": hour, "fahrenheit": fahrenheit})
            client.publish(f"weather/{name}", text, qos=1).wait_for_publish(10)
        client.disconnect()
        client.loop_stop()


def start_host(address: str, state: str) -> subprocess.Popen[str]:
    """Start a process that hosts stations; returns once it is a member."""
    command = [sys.executable, __file__, "host", address, state]
    host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    host.stdout.readline()
    return host


def host_stations(address: str, state: str) -> None:
    """Host stations until the parent ends."""
    with Node("host") as node:
        node.connect(address)
        node.host(Station, state=state)
        print(node.node_id.hex(), flush=True)
        sys.stdin.read()


def ask_again(node: Node, name: str) -> list[float]:
    """Ask a station until it answers: its node may have died just now."""
    while True:
        try:
            return node.entity(Station, name).ask(LastReadings(), timeout=5.0).result(10)
        except (CallboardError, TimeoutError):
            continue


def main() -> None:
    days = load_days()
    with (
        tempfile.TemporaryDirectory() as folder,
        Node("router") as node,
        Router(RouterConfig(listeners=(ListenerSettings("127.0.0.1:0"),)), node=node) as router,
        MqttDoor(router, node, [TopicMap(values="json")]),
    ):
        node.listen("127.0.0.1", 0)
        hosts = [start_host(node.address, f"sqlite:{folder}/stations.db") for _ in range(2)]
        try:
            intake = node.spawn(Intake)
            publish_days(router.port, days)
            count = sum(map(len, days.values()))
            while intake.ask("kept").result(10) < count:
                pass
            print(f"{len(days)} clients published {count} readings")

            owners = {node.entity(Station, name).node_id for name in days}
            hosts[0].send_signal(signal.SIGKILL)
            hosts[0].wait()
            print(f"one of {len(owners)} hosts is killed")

            answers = {name: ask_again(node, name) for name in days}
            correct = sum(answers[name] == [len(day), *day[-3:]] for name, day in days.items())
            print(f"{correct} of {len(days)} stations know their last readings")
            print("seattle-07:", answers["seattle-07"][1:])
        finally:
            for host in hosts:
                host.kill()
                host.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["host"]:
        host_stations(*sys.argv[2:4])
    else:
        main()
