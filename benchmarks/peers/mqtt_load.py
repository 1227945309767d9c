"""Load for MQTT brokers: publishers and subscribers in one process, which has to outrun them.

    python mqtt_load.py PORT PID flow QOS PUBLISHERS SUBSCRIBERS MESSAGES [--pairs]
    python mqtt_load.py PORT PID connect COUNT
    python mqtt_load.py PORT PID idle COUNT

`flow` prints `rate X`, deliveries for each second that the process PID computed: on a machine
that does other things too, this says more than the clock. Every subscriber gets every message,
or with `--pairs` that of its own publisher; one that does not come is an error. With QoS 1 and
2 a publisher waits for acknowledgements, with QoS 0 the broker's socket holds it up. `connect`
prints connections for each of those seconds, `idle` KiB of memory that a connection takes.

MQTT 3.1.1 in a way that costs next to nothing: messages of one flow are of one length, so a
read is cut and answered by slices.
"""

import argparse
import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

PAYLOAD: Final = bytes(64)
WINDOW: Final = {0: 0, 1: 100, 2: 20}
"""Messages of a publisher that may be unacknowledged; Mosquitto's default for QoS 2 is 20."""

BATCH: Final = 100
"""Messages in one write, except with `--pairs`, where it is one."""

LIMIT: Final = 45.0
"""Seconds after which a flow has failed."""

TICKS: Final = os.sysconf("SC_CLK_TCK")
CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = (
    0x20, 0x30, 0x40, 0x50, 0x62, 0x70, 0x90
)  # fmt: skip


def processes(pid: int) -> list[int]:
    """Return a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [pid]
    for child in children.read_text().split() if children.exists() else ():
        found += processes(int(child))
    return found


def seconds_of(pid: int) -> float:
    """Return the CPU time of a process and its children."""
    total = 0
    for each in processes(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def memory_of(pid: int) -> int:
    """Return the resident memory of a process and its children, in KiB."""
    total = 0
    for each in processes(pid):
        status = Path(f"/proc/{each}/status").read_text()
        total += int(status.partition("VmRSS:")[2].split()[0])
    return total


def frame(first: int, body: bytes) -> bytes:
    """Return a packet; its body is below 16 KiB."""
    size = len(body)
    length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
    return bytes((first,)) + length + body


def text(value: str) -> bytes:
    """Return a string with its length."""
    return len(value).to_bytes(2, "big") + value.encode()


class Client(asyncio.Protocol):
    """One connection: counts and answers packets."""

    transport: asyncio.Transport

    def __init__(self, name: str) -> None:
        self.name = name
        self.connected = asyncio.get_running_loop().create_future()
        self.subscribed = asyncio.get_running_loop().create_future()
        self.room = asyncio.Event()
        self.room.set()
        self.received = self.acknowledged = self.sent = 0
        self.is_lost = False
        #: Called after each read.
        self.progress: Callable[[], None] = lambda: None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.write(frame(0x10, text("MQTT") + b"\x04\x02\x02\x58" + text(self.name)))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the waiting futures."""
        self.is_lost = True
        for waiting in (self.connected, self.subscribed):
            if not waiting.done():
                waiting.set_exception(error or ConnectionError(f"{self.name} was cut off"))

    def pause_writing(self) -> None:
        """Pause the publisher."""
        self.room.clear()

    def resume_writing(self) -> None:
        """Resume the publisher."""
        self.room.set()

    def subscribe(self, topic: str, qos: int) -> None:
        """Ask for a topic."""
        self.transport.write(frame(0x82, b"\0\1" + text(topic) + bytes((qos,))))

    def data_received(self, data: bytes) -> None:
        """Handle runs of equal packets."""
        data = self._rest + data
        position, end = 0, len(data)
        while end - position >= 2:
            size = data[position + 1] + 2
            head = 2
            if size >= 130:
                if end - position < 3:
                    break
                size = (data[position + 1] & 127) + (data[position + 2] << 7) + 3
                head = 3
            most = (end - position) // size
            if not most:
                break
            start = data[position : position + head]
            count = 1
            while count < most and data.startswith(start, position + count * size):
                count += 1
            stop = position + count * size
            self._take(data[position:stop], size, head, count)
            position = stop
        self._rest = data[position:]
        self.progress()

    def _take(self, run: bytes, size: int, head: int, count: int) -> None:
        kind = run[0]
        if kind & 0xF0 == PUBLISH:
            self.received += count
            qos = kind >> 1 & 3
            if qos:
                at = head + 2 + (run[head] << 8 | run[head + 1])
                self._answer(PUBACK if qos == 1 else PUBREC, run[at::size], run[at + 1 :: size])
        elif kind in {PUBACK, PUBCOMP}:
            self.acknowledged += count
        elif kind == PUBREC:
            self._answer(PUBREL, run[2::size], run[3::size])
        elif kind == PUBREL:
            self._answer(PUBCOMP, run[2::size], run[3::size])
        elif kind == CONNACK:
            self.connected.set_result(run[3])
        elif kind == SUBACK:
            self.subscribed.set_result(run[4])

    def _answer(self, kind: int, high: bytes, low: bytes) -> None:
        answers = bytearray(bytes((kind, 2, 0, 0)) * len(high))
        answers[2::4] = high
        answers[3::4] = low
        self.transport.write(bytes(answers))


async def join(port: int, name: str) -> Client:
    """Return a client that is connected.

    Raises:
        ConnectionError: the broker refuses it.
    """
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(name), "127.0.0.1", port)
    if await asyncio.wait_for(client.connected, 20):
        msg = f"{name} was refused"
        raise ConnectionError(msg)
    return client


class Flow:
    """Publishers and subscribers of one measure."""

    def __init__(self, port: int, options: argparse.Namespace) -> None:
        self.port = port
        self.qos: int = options.qos
        self.pairs: bool = options.pairs
        self.messages: int = options.messages
        self.publishers: list[Client] = []
        self.subscribers: list[Client] = []
        self._counts = (options.publishers, options.subscribers)
        self._batch = 1 if options.pairs else BATCH
        #: Set at every read, so that waiting coroutines can continue.
        self._moved = asyncio.Event()

    async def open(self) -> None:
        """Connect and subscribe."""
        publishers, subscribers = self._counts
        for number in range(subscribers):
            client = await join(self.port, f"s{number}")
            client.subscribe(self._topic(number), self.qos)
            granted = await asyncio.wait_for(client.subscribed, 20)
            assert granted == self.qos, f"granted QoS {granted}"
            client.progress = self._moved.set
            self.subscribers.append(client)
        for number in range(publishers):
            client = await join(self.port, f"p{number}")
            client.progress = self._moved.set
            self.publishers.append(client)

    def _topic(self, number: int) -> str:
        return f"bench/{number}" if self.pairs else "bench"

    async def run(self) -> int:
        """Pass all messages through the broker; return the deliveries."""
        await asyncio.gather(
            *(self._publish(client, number) for number, client in enumerate(self.publishers))
        )
        each = self.messages * (1 if self.pairs else len(self.publishers))
        while any(client.received < each for client in self.subscribers):
            self._check()
            self._moved.clear()
            await self._moved.wait()
        return each * len(self.subscribers)

    async def _publish(self, client: Client, number: int) -> None:
        topic = text(self._topic(number))
        window = WINDOW[self.qos]
        while client.sent < self.messages:
            count = min(self._batch, self.messages - client.sent)
            if window:
                room = window - client.sent + client.acknowledged
                if room < min(count, window // 4):
                    await self._wait()
                    continue
                count = min(count, room)
            client.transport.write(self._packets(topic, client.sent, count))
            client.sent += count
            await client.room.wait()
            await asyncio.sleep(0)
            self._check()
        while window and client.acknowledged < self.messages:
            await self._wait()

    async def _wait(self) -> None:
        self._check()
        self._moved.clear()
        await self._moved.wait()

    def _check(self) -> None:
        for client in (*self.publishers, *self.subscribers):
            if client.is_lost:
                msg = f"the broker cut {client.name} off"
                raise ConnectionError(msg)

    def _packets(self, topic: bytes, first: int, count: int) -> bytes:
        """Return messages; with identifiers above QoS 0."""
        packet_id = b"\0\0" if self.qos else b""
        one = frame(PUBLISH | self.qos << 1, topic + packet_id + PAYLOAD)
        packets = bytearray(one * count)
        if self.qos:
            at = len(one) - len(PAYLOAD) - 2
            ids = [(first + number) % 65_535 + 1 for number in range(count)]
            packets[at :: len(one)] = bytes(each >> 8 for each in ids)
            packets[at + 1 :: len(one)] = bytes(each & 255 for each in ids)
        return bytes(packets)


async def flow(options: argparse.Namespace) -> float:
    """Return deliveries for each second that the broker computed."""
    measured = Flow(options.port, options)
    await measured.open()
    before = seconds_of(options.pid)
    delivered = await asyncio.wait_for(measured.run(), LIMIT)
    return delivered / max(seconds_of(options.pid) - before, 1 / TICKS)


async def connect(options: argparse.Namespace) -> float:
    """Return connections for each second that the broker computed, 50 at a time."""
    before = seconds_of(options.pid)
    gate = asyncio.Semaphore(50)

    async def one(number: int) -> Client:
        async with gate:
            return await join(options.port, f"c{number}")

    await asyncio.gather(*(one(number) for number in range(options.count)))
    return options.count / max(seconds_of(options.pid) - before, 1 / TICKS)


async def idle(options: argparse.Namespace) -> float:
    """Return KiB of the broker that a connection with one subscription takes."""
    before = memory_of(options.pid)
    clients = []
    for number in range(options.count):
        client = await join(options.port, f"i{number}")
        client.subscribe(f"idle/{number}", 0)
        await asyncio.wait_for(client.subscribed, 20)
        clients.append(client)
    await asyncio.sleep(1.0)
    return (memory_of(options.pid) - before) / len(clients)


def main() -> None:
    """Measure, and print the rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("pid", type=int)
    kinds = parser.add_subparsers(required=True)
    flowing = kinds.add_parser("flow")
    for name in ("qos", "publishers", "subscribers", "messages"):
        flowing.add_argument(name, type=int)
    flowing.add_argument("--pairs", action="store_true")
    flowing.set_defaults(measure=flow)
    for name, measure in (("connect", connect), ("idle", idle)):
        counting = kinds.add_parser(name)
        counting.add_argument("count", type=int)
        counting.set_defaults(measure=measure)
    options = parser.parse_args()
    print(f"rate {asyncio.run(options.measure(options))}")


if __name__ == "__main__":
    main()
