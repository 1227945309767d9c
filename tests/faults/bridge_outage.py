"""A bridge between two routers whose uplink breaks, and which are killed, again and again.

The far one can be mosquitto, which is stopped with SIGTERM.
"""

import contextlib
import itertools
import random
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from callboard.mqtt.wire.packet import V5
from tests.faults.peers import relay
from tests.faults.test_mqtt_kill import Wire, pump, start
from tests.polling import eventually
from tests.simulation.mqtt_client import Message, SimulatedClient


class Outages(NamedTuple):
    """How many messages are carried, and what happens meanwhile.

    Attributes:
        messages: half of them with QoS 1, half with QoS 2.
        cuts: how often the connections of the uplink break.
        freezes: how often the uplink is silent for a while.
        kills: how often a router is killed, in turn the near and the far one.
    """

    messages: int
    cuts: int
    freezes: int
    kills: int


class Result(NamedTuple):
    """What was published at the near router, and how often each arrived at the far one."""

    sent: list[Message]
    arrived: Counter[bytes]
    problems: list[str]
    seconds: float

    def lost(self) -> list[bytes]:
        return [each.payload for each in self.sent if not self.arrived[each.payload]]

    def doubled(self) -> list[bytes]:
        return [
            each.payload
            for each in self.sent
            if each.qos == 2 and self.arrived[each.payload] > 1
        ]


class Site:
    """A router in a process, and its client."""

    def __init__(self, folder: Path, client: SimulatedClient, *arguments: str) -> None:
        self._folder, self.client, self._arguments = folder, client, arguments
        self._process: subprocess.Popen[Any]
        self.start()

    def start(self) -> None:
        self._process, self.port = start(self._folder, *self._arguments)
        self.wire = Wire(self.port)
        self.client.connect(self.wire)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        self.client.lose(tells=False)

    def pump(self) -> None:
        pump(self.wire, [self.client])


MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
_SETTINGS = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {folder}/
max_queued_messages 0
user root
"""
"""Mosquitto writes its file when it is stopped, and nothing may be dropped."""


class MosquittoSite(Site):
    """A mosquitto in a process, and its client; it is stopped with SIGTERM."""

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        conf = self._folder / "mosquitto.conf"
        conf.write_text(_SETTINGS.format(port=self.port, folder=self._folder))
        assert MOSQUITTO is not None
        self._process = subprocess.Popen([MOSQUITTO, "-c", conf], stderr=subprocess.DEVNULL)
        eventually(self._is_open)
        self.wire = Wire(self.port)
        self.client.connect(self.wire)

    def _is_open(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1),
        ):
            return True
        return False

    def kill(self) -> None:
        self._process.terminate()
        self._process.wait()
        self.client.lose(tells=False)


def play(
    folder: Path, outages: Outages, patience: float, far_site: type[Site] = Site
) -> Result:
    """Carry messages over a bridge, and do everything to it that may happen."""
    rng, ticks, began = random.Random(11), itertools.count(1), time.monotonic()
    clients = [
        SimulatedClient(n, V5, rng, lambda: next(ticks)) for n in ("publisher", "reader")
    ]
    for client in clients:
        client.receive_maxima = (None, 100)
    publisher, reader = clients
    reader.subscribe(["load/#"], 2)
    far = far_site(folder / "far", reader)
    with relay(f"127.0.0.1:{far.port}") as uplink:
        near = Site(folder / "near", publisher, uplink.address.removeprefix("basp://"))
        try:
            events = ["cut"] * outages.cuts + ["freeze"] * outages.freezes
            events += [("near", "far")[number % 2] for number in range(outages.kills)]
            rng.shuffle(events)
            sent: list[Message] = []
            thaw = 0.0

            def go_on(is_done: Callable[[], bool]) -> None:
                """Let everybody send and take until something is true."""
                deadline = time.monotonic() + patience
                while not is_done():
                    near.pump()
                    far.pump()
                    if thaw and time.monotonic() > thaw:
                        uplink.forward()
                    assert time.monotonic() < deadline, (len(sent), len(reader.taken))

            go_on(lambda: not reader.session.asked)
            share = outages.messages // (len(events) + 1)
            for number in range(len(events) + 1):
                size = share if number < len(events) else outages.messages - len(sent)
                fresh = [
                    Message("publisher", f"load/{n % 3}", n, 1 + n % 2, retain=False)
                    for n in range(len(sent), len(sent) + size)
                ]
                sent += fresh
                publisher.waiting.extend(fresh)
                go_on(lambda: len(publisher.waiting) < max(share // 2, 1))
                if number == len(events):
                    break
                event = events[number]
                if event == "cut":
                    uplink.cut()
                elif event == "freeze":
                    uplink.swallow()
                    thaw = time.monotonic() + rng.uniform(0.05, 0.5)
                else:
                    site = near if event == "near" else far
                    site.kill()
                    site.start()
                    uplink.lead_to(far.port)
            uplink.forward()
            wanted = {message.payload for message in sent}
            go_on(lambda: wanted <= {payload for _, _, payload, _ in reader.taken})
            settled = time.monotonic() + 1.0  # what would be doubled has time to come
            go_on(lambda: time.monotonic() > settled and not reader.session.received)
        finally:
            for site in (near, far):
                site.kill()
    arrived = Counter(payload for _, _, payload, _ in reader.taken)
    problems = [problem for client in clients for problem in client.problems]
    return Result(sent, arrived, problems, time.monotonic() - began)
