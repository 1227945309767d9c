"""Ten thousand MQTT clients at one router in a process of its own, and a message to all."""

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.packet import (
    V4,
    ConnAck,
    Connect,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
CLIENTS = 10_000
AT_ONCE = 100
LARGEST = 12 * 1024
"""Bytes of memory that an idle connection may take in the router."""

GREETING = encode(ConnAck(), V4) + encode(SubAck(1, (1,)), V4)


class Client(asyncio.Protocol):
    """Connects, subscribes one topic with QoS 1, and keeps what comes."""

    def __init__(self, number):
        self.number = number
        self.data = b""
        self.wanted = len(GREETING)
        self.heard = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(
            encode(Connect(f"client-{self.number}"), V4)
            + encode(Subscribe(1, (Subscription("news", 1),)), V4)
        )

    def data_received(self, data):
        self.data += data
        if len(self.data) >= self.wanted and not self.heard.done():
            self.heard.set_result(None)

    def connection_lost(self, error):
        if not self.heard.done():
            self.heard.set_exception(error or ConnectionResetError("closed"))

    async def hear(self, size):
        """Wait until `size` more bytes are there, and return them."""
        await self.heard
        taken, self.data = self.data, b""
        self.wanted = size
        self.heard = asyncio.get_running_loop().create_future()
        return taken


@contextlib.contextmanager
def running(tmp_path):
    file = tmp_path / "mqtt.toml"
    file.write_text(
        'sys_interval = 0\n[[listeners]]\naddress = "127.0.0.1:0"\n'
        f"[limits]\nmax_connections = {CLIENTS + 10}\n"
    )
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-m", "callboard", "mqtt", "run", str(file), "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    ) as process:
        try:
            address = json.loads(process.stdout.readline())["addresses"][0]
            yield psutil.Process(process.pid), int(address.rpartition(":")[2])
        finally:
            process.kill()


async def connect_all(port):
    loop = asyncio.get_running_loop()
    clients = []
    for first in range(0, CLIENTS, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, CLIENTS))
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda n=number: Client(n), "127.0.0.1", port)
                for number in numbers
            )
        )
        fresh = [client for _, client in made]
        for client in fresh:
            assert await client.hear(0) == GREETING
        clients += fresh
    return clients


async def publish_to_all(port, clients):
    news = Publish("news", b"to all of you", 1, packet_id=1)
    size = len(encode(news, V4))
    for client in clients:
        client.wanted = size
    clients[0].transport.write(encode(Publish("news", b"to all of you", 1, packet_id=9), V4))
    for client in clients[1:]:
        assert await client.hear(0) == encode(news, V4)


def test_ten_thousand_clients_get_one_message_and_take_little_memory(tmp_path, figure):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CLIENTS + 200:
        pytest.skip(f"only {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (CLIENTS + 200, hard))

    async def play(port, router):
        before = router.memory_info().rss
        began = time.perf_counter()
        clients = await connect_all(port)
        connected = time.perf_counter()
        await asyncio.sleep(1)  # the router's last allocations
        taken = (router.memory_info().rss - before) / CLIENTS
        started = time.perf_counter()
        await publish_to_all(port, clients)
        done = time.perf_counter()
        for client in clients:
            client.transport.abort()
        return connected - began, taken, done - started

    try:
        with running(tmp_path) as (router, port):
            connecting, taken, delivering = asyncio.run(play(port, router))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    figure(
        f"{CLIENTS:,} MQTT clients connected in {connecting:.1f} s, "
        f"{taken / 1024:.1f} KiB each in the router, all told within {delivering:.2f} s"
    )
    assert taken <= LARGEST
