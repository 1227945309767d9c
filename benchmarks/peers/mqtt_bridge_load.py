"""Load of a bridge: `python mqtt_bridge_load.py NEAR FAR COUNT`, with two ports.

Publishes messages with QoS 1 and 64 bytes at the near broker, at most 5,000 of them
unacknowledged, and prints how many arrive at the far one each second.
"""

import asyncio
import sys
import time

from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.framing import Deframer, split_packets
from callboard.mqtt.wire.packet import V4, Connect, Publish, Subscribe, Subscription

WINDOW = 5_000
PUBLISH, PUBACK = 3, 4
PACKET = encode(Publish("load/t", bytes(64), 1, packet_id=1), V4)
#: Where the packet identifier is in this packet.
ID = slice(10, 12)
PATIENCE = 50.0
"""Seconds for all messages."""


class Client(asyncio.Protocol):
    """A client of 3.1.1 that acknowledges all messages, and counts."""

    def __init__(self, name: str) -> None:
        self.name, self.deframer = name, Deframer()
        self.received = self.acknowledged = 0
        self.changed = asyncio.Event()
        self.is_ready = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send a CONNECT."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.transport.write(encode(Connect(self.name, version=V4), V4))

    def data_received(self, data: bytes) -> None:
        """Count and acknowledge."""
        answers = []
        for packet in split_packets(self.deframer.receive(data)):
            kind = packet[0] >> 4
            if kind == PUBLISH:
                self.received += 1
                answers.append(b"\x40\x02" + packet[ID])
            elif kind == PUBACK:
                self.acknowledged += 1
            else:  # CONNACK, SUBACK
                self.is_ready = True
        self.transport.write(b"".join(answers))
        self.changed.set()

    async def until(self, reached: int, attribute: str) -> None:
        """Wait until a count is reached."""
        while getattr(self, attribute) < reached:
            self.changed.clear()
            await self.changed.wait()


async def connect(name: str, port: int) -> Client:
    """Return a connected client."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(name), "127.0.0.1", port)
    await client.until(1, "is_ready")
    return client


async def publish(client: Client, count: int) -> None:
    """Publish messages within the window."""
    for first in range(0, count, 100):
        await client.until(first - WINDOW + 100, "acknowledged")
        ids = [number % 65_535 + 1 for number in range(first, min(first + 100, count))]
        packets = [PACKET[: ID.start] + i.to_bytes(2, "big") + PACKET[ID.stop :] for i in ids]
        client.transport.write(b"".join(packets))


async def main() -> None:
    """Wait for the bridge, then measure."""
    near_port, far_port, count = map(int, sys.argv[1:])
    reader, writer = await connect("reader", far_port), await connect("writer", near_port)
    reader.is_ready = False
    reader.transport.write(encode(Subscribe(1, (Subscription("load/#", 1),)), V4))
    await reader.until(1, "is_ready")
    while not reader.received:  # the bridge connects
        await publish(writer, 1)
        await asyncio.sleep(0.3)
    await asyncio.sleep(1.0)  # the rest of these have arrived
    reader.received = writer.acknowledged = 0
    began = time.perf_counter()
    await asyncio.gather(publish(writer, count), reader.until(count, "received"))
    print(f"rate {count / (time.perf_counter() - began)}")


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(), PATIENCE))
