"""A router of a cluster that is killed has the cluster's retained messages when it is back."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from callboard import Node
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.wire.packet import V4, PubAck, Publish, Subscribe, Subscription
from tests.callboard.mqtt.caller import Caller
from tests.faults import KILLS
from tests.polling import eventually


@contextmanager
def killed_at_the_end(folder: Path, seed: str) -> Iterator[int]:
    """Run a router of the cluster in a process; yields its port."""
    command = [sys.executable, "-m", "tests.faults.mqtt_cluster", str(folder), seed]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def retain(port: int, values: dict[str, bytes]) -> None:
    """Publish with the flag; all is acknowledged when it returns."""
    with Caller(port, version=V4) as caller:
        for number, (topic, payload) in enumerate(values.items(), 1):
            caller.say(Publish(topic, payload, 1, retain=True, packet_id=number))
        answers = caller.hear_packets(len(values))
        assert all(isinstance(each, PubAck) for each in answers)


def kept(port: int) -> dict[str, bytes]:
    """Return what a new subscriber gets."""
    found: dict[str, bytes] = {}
    with Caller(port, version=V4) as caller:
        caller.say(Subscribe(1, (Subscription("r/#", 0),)))
        caller.say(Publish("end", b""), Subscribe(2, (Subscription("end", 0),)))
        caller.say(Publish("end", b"now"))
        while True:
            (packet,) = caller.hear_packets(1)
            if isinstance(packet, Publish):
                if packet.topic == "end":
                    return found
                assert packet.retain
                found[packet.topic] = packet.payload


def test_a_killed_router_brings_back_nothing_that_was_removed(tmp_path: Path) -> None:
    wanted: dict[str, bytes] = {}
    with Node("stays") as node, Router(RouterConfig(sys_interval=0), node=node) as router:
        node.listen("127.0.0.1", 0)
        for kill in range(KILLS):
            with killed_at_the_end(tmp_path / "journal", node.address) as port:
                eventually(lambda p=port, w=wanted: kept(p) == w, 40, interval=0.1)
                news = {
                    f"r/{kill}": b"%d" % kill,
                    f"r/last{kill}": b"x",
                    "r/again": b"%d" % kill,
                }
                retain(port, news)  # acknowledged, then killed
            wanted |= news
            gone = f"r/last{kill - 1}"
            if wanted.pop(gone, None):
                retain(router.port, {gone: b""})
        with killed_at_the_end(tmp_path / "journal", node.address) as port:
            eventually(lambda: kept(port) == kept(router.port) == wanted, 40, interval=0.1)
