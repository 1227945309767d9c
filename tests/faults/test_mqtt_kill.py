"""An MQTT router that is killed under load, again and again."""

import itertools
import random
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard.mqtt.router.link import (
    ConnectRequested,
    DeviceData,
    DisconnectRequested,
    LinkEvent,
    RouterLink,
)
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.framing import find_frames
from callboard.mqtt.wire.packet import V4, V5
from tests.callboard.mqtt.edge import incoming
from tests.faults import KILLS
from tests.simulation.mqtt_client import Message, SimulatedClient

LIMIT = 1 << 20


class Wire:
    """Carries what a simulated client says over a socket: it takes the router's place."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: dict[RouterLink, socket.socket] = {}
        self._rest: dict[RouterLink, bytes] = {}

    def post(self, event: LinkEvent) -> None:
        """Do what a link wants of its router."""
        link = event.link
        if isinstance(event, ConnectRequested):
            opened = self.sockets[link] = socket.create_connection(("127.0.0.1", self._port))
            self._rest[link] = b""
            opened.sendall(encode(link.connect, link.connect.version))
        elif isinstance(event, DeviceData) and link in self.sockets:
            try:
                self.sockets[link].sendall(b"".join(incoming(link)))
            except OSError:
                self.close(link)
        elif isinstance(event, DisconnectRequested):
            self.close(link)

    def close(self, link: RouterLink) -> None:
        """Forget a connection."""
        closed = self.sockets.pop(link, None)
        if closed is not None:
            closed.close()

    def read(self) -> None:
        """Take what has come."""
        links = {opened: link for link, opened in self.sockets.items()}
        for opened in select.select(list(links), [], [], 0.01)[0]:
            link = links[opened]
            try:
                data = opened.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self.close(link)
                continue
            data = self._rest[link] + data
            end = find_frames(data, LIMIT).end
            link.outgoing.append(data[:end])
            self._rest[link] = data[end:]


def start(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """Run a router; returns its process and port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.mqtt_router", str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def cast(chance: random.Random) -> list[SimulatedClient]:
    """Return a publisher and two subscribers, with QoS 1 and 2."""
    ticks = itertools.count(1)
    clients = [
        SimulatedClient(name, version, chance, lambda: next(ticks))
        for name, version in (("publisher", V5), ("one", V4), ("two", V5))
    ]
    clients[2].receive_maxima = (None, 20)  # with 1, a message takes two syncs of the disk
    clients[1].subscribe(["load/#"], 1)
    clients[2].subscribe(["load/+", "#"], 2)
    return clients


def pump(wire: Wire, clients: list[SimulatedClient]) -> None:
    """Let everybody send and take."""
    wire.read()
    for client in clients:
        client.publish(window=50)
        client.read()
        client.answer(all_of_them=True)


def is_settled(clients: list[SimulatedClient]) -> bool:
    """Whether all that was asked for and published is acknowledged."""
    return not any(
        client.waiting or client.session.outgoing or client.session.asked for client in clients
    )


@pytest.mark.timeout(60 + 10 * KILLS)
def test_no_acknowledged_message_is_lost_and_none_of_qos_2_doubled(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    rng = random.Random(7)
    clients = cast(rng)
    publisher = clients[0]
    sent: list[Message] = []
    slowest = 0.0
    for life in range(KILLS + 1):
        began = time.monotonic()
        process, port = start(tmp_path / "journal")
        slowest = max(slowest, time.monotonic() - began)
        try:
            wire = Wire(port)
            for client in clients:
                client.connect(wire)
            until = time.monotonic() + rng.uniform(0.2, 0.8)
            while life < KILLS and time.monotonic() < until:
                if is_subscribed(clients) and len(publisher.waiting) < 100:
                    sent += publish(publisher, len(sent), rng)
                pump(wire, clients)
            if life == KILLS:
                deliver_all(wire, clients, sent)
        finally:
            process.kill()
            process.communicate()
            for client in clients:
                client.lose(tells=False)
        assert [problem for client in clients for problem in client.problems] == []
    one, two = (Counter(payload for _, _, payload, _ in c.taken) for c in clients[1:])
    wanted = {message.payload: message.qos for message in sent}
    assert [payload for payload in wanted if not one[payload]] == []
    assert [payload for payload in wanted if not two[payload]] == []
    assert [p for p, qos in wanted.items() if qos == 2 and two[p] != 1] == []
    figure(f"{KILLS} kills: {len(sent)} messages, 0 lost, 0 doubled, start {slowest:.2f} s")
    assert len(sent) > 0


def deliver_all(wire: Wire, clients: list[SimulatedClient], sent: list[Message]) -> None:
    """Let everything arrive that is on its way."""
    deadline = time.monotonic() + 60
    while True:
        before = sum(len(client.taken) for client in clients)
        pump(wire, clients)
        if before == sum(len(client.taken) for client in clients) and has_all(clients, sent):
            return
        assert time.monotonic() < deadline, [
            (client.name, len(client.taken), len(client.session.received)) for client in clients
        ]


def is_subscribed(clients: list[SimulatedClient]) -> bool:
    """Whether the subscribers know that they are."""
    return not any(client.session.asked for client in clients)


def publish(publisher: SimulatedClient, count: int, rng: random.Random) -> list[Message]:
    """Let some messages wait to be published."""
    messages = [
        Message("publisher", f"load/{number % 3}", number, rng.choice((1, 2)), retain=False)
        for number in range(count, count + 50)
    ]
    publisher.waiting += messages
    return messages


def has_all(clients: list[SimulatedClient], sent: list[Message]) -> bool:
    """Whether nothing is under way any more."""
    if not is_settled(clients):
        return False
    wanted = {message.payload for message in sent}
    return all(
        wanted <= {payload for _, _, payload, _ in client.taken} and not client.session.received
        for client in clients[1:]
    )
