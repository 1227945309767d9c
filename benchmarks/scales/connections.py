"""MQTT clients of one router in a separate process: each subscribes to one topic and waits.

Then one of them publishes several times, and all receive it.
"""

import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.processes import serving
from benchmarks.scale import Processor, Scale, each
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

AT_ONCE = 100
LIMIT = 120.0
TIMES = 9
GREETING = len(encode(ConnAck(), V4) + encode(SubAck(1, (0,)), V4))
NEWS = encode(Publish("news", b"to all of you"), V4)
CONFIG = """
sys_interval = 0
[[listeners]]
address = "127.0.0.1:0"
[limits]
max_connections = {most}
"""


class Client(asyncio.Protocol):
    """Connects, subscribes, and counts bytes up to a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.missing = GREETING
        self.heard = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the packets that open and subscribe a connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        hello = Subscribe(1, (Subscription("news", 0),))
        transport.write(encode(Connect(f"client-{self.number}"), V4) + encode(hello, V4))

    def data_received(self, data: bytes) -> None:
        """Count."""
        self.missing -= len(data)
        if self.missing <= 0 and not self.heard.done():
            self.heard.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the waiting futures."""
        if not self.heard.done():
            self.heard.set_exception(error or ConnectionResetError("closed"))


async def connected(port: int, size: int) -> list[Client]:
    """Connect clients, a hundred at a time."""
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for first in range(0, size, AT_ONCE):
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda n=number: Client(n), "127.0.0.1", port)
                for number in range(first, min(first + AT_ONCE, size))
            )
        )
        clients += (client for _, client in made)
        await asyncio.gather(*(client.heard for _, client in made))
    return clients


async def told(clients: list[Client]) -> float:
    """Publish to all; return the seconds until all have heard it."""
    for client in clients:
        client.missing = len(NEWS)
        client.heard = asyncio.get_running_loop().create_future()
    started = time.perf_counter()
    clients[0].transport.write(NEWS)
    await asyncio.wait_for(asyncio.gather(*(client.heard for client in clients)), LIMIT)
    return time.perf_counter() - started


async def play(port: int, router: psutil.Process, size: int) -> dict[str, float]:
    """Connect and publish."""
    before = router.memory_info().rss
    started = time.perf_counter()
    clients = await connected(port, size)
    took = time.perf_counter() - started
    whole = router.memory_info().rss
    processor = Processor(router)
    seconds = statistics.median([await told(clients) for _ in range(TIMES)])
    used = processor.figures()
    for client in clients:
        client.transport.abort()
    return {
        "heard/s": size / seconds,
        "connected/s": size / took,
        "bytes of the router": whole,
        **each("bytes of a connection", whole - before, size),
        **used,
    }


def measure(size: int) -> dict[str, float]:
    """Connect clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mqtt.toml"
        file.write_text(CONFIG.format(most=size + 10))
        command = [sys.executable, "-m", "callboard", "mqtt", "run", str(file), "--json"]
        with serving(command) as (process, line):
            port = int(json.loads(line)["addresses"][0].rpartition(":")[2])
            figures = asyncio.run(play(port, psutil.Process(process.pid), size))
            process.terminate()
            return figures


SCALE = Scale(
    title="MQTT clients of one router",
    size="clients",
    sizes=(1, 10, 100, 1_000, 10_000),
    run=measure,
)
