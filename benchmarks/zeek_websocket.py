"""Zeek's WebSocket JSON: events of three arguments, in to one handler and out, 4 connections.

Events for each second that the process computes: on a machine that does other things too, this
says more than the clock. In: from the first event that the handler has to the last one; its
arguments come as Python values by its annotations. Out: from the first `publish` until the
other side has all; an event counts once for each connection that it goes to. Callboard's are
clients of a port of an endpoint, and each message goes to all of them. zeekpy has a connection
for each of its objects: four `AsyncZeek` of one event loop read (a `Zeek` is no faster), and
each event is published by all four. At their other side is a plain server. It and our clients
are the same program, which costs next to nothing and sends the same bytes:
`peers/web_socket_load.py`.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Self

from websockets.exceptions import ConnectionClosed

from benchmarks.measure import Measure, PeerMissingError, Subject
from benchmarks.ours import LIMIT, Taken
from benchmarks.processes import RunFailedError
from callboard import Actor, Endpoint, Node, handler
from callboard.broker import zeek
from callboard.model.scalar import Count
from callboard.zeek import zeek_event, zeek_events

LOAD = Path(__file__).parent / "peers" / "web_socket_load.py"
CONNECTIONS = 4
TOPIC = "/zeek/event/ping"
SOURCE = IPv4Address("10.0.0.1")
EVENTS = {"in": 200_000, "out": 50_000}

Pair = tuple[Subject, Subject]


@zeek_event("Test::ping")
@dataclass(frozen=True)
class Ping:
    """The event."""

    text: str
    number: Count
    source: IPv4Address


class Detector(Actor):
    """The one handler."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    @handler
    def ping(self, event: Ping) -> None:
        """Count an event."""
        assert event.text
        assert event.source
        self._taken.take()


class Load:
    """The other side, as a process."""

    def __init__(self, role: str, events: int, *port: int) -> None:
        words = [role, CONNECTIONS, events, *port]
        command = [sys.executable, LOAD, *map(str, words)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        #: Where it listens, if it is a server.
        self.port = 0 if port else int(self.line())

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"ws://127.0.0.1:{self.port}/v1/messages/json"

    def line(self) -> str:
        """Return the next line that it prints."""
        return self._stdout.readline().strip()

    def begin(self) -> None:
        """Start, once its clients are connected."""
        if self.line() != "ready":
            message = "the peer has no connections"
            raise RunFailedError(message)
        self._stdin.write("\n")
        self._stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stdin.close()
        self._process.wait(LIMIT)


def shared(events: int) -> int:
    """Return the number of events, a multiple of the number of connections."""
    return max(1, events // CONNECTIONS) * CONNECTIONS


def ours_in(share: float) -> float:
    """Publish from clients to an actor."""
    taken = Taken(shared(int(EVENTS["in"] * share)), time.process_time)
    with Node() as node, Endpoint(node=node) as endpoint:
        detector = node.spawn(Detector, taken)
        read = zeek_events(Ping)
        endpoint.subscribe(detector, "/zeek", message=read, limit=taken.events, on_full="wait")
        with Load("send", taken.events, endpoint.listen_web_socket()) as load:
            load.begin()
            return taken.rate()


def ours_out(share: float) -> float:
    """Publish to the clients of a port."""
    events = max(1, int(EVENTS["out"] * share))
    with Endpoint() as endpoint, Load("receive", events, endpoint.listen_web_socket()) as load:
        load.begin()
        began = time.process_time()
        for number in range(events):
            event = zeek.Event("Test::ping", "hello world", Count(number), SOURCE)
            endpoint.publish(TOPIC, event)
        return delivered(load, events, began)


def delivered(load: Load, events: int, began: float) -> float:
    """Return deliveries for each second of the process, once all have arrived."""
    if load.line() != "done":
        message = "events were lost on their way out"
        raise RunFailedError(message)
    return events * CONNECTIONS / (time.process_time() - began)


def zeekpy_in(share: float) -> float:
    """Consume the events of a plain server with zeekpy."""
    zeekpy = import_module("zeekpy")
    taken = Taken(shared(int(EVENTS["in"] * share)), time.process_time)

    def ping(text: Any, number: Any, source: Any) -> None:
        assert text
        assert number >= 0
        assert source
        taken.take()

    ping.__annotations__ = {"text": str, "number": zeekpy.count, "source": zeekpy.addr}

    async def consume(client: Any) -> None:
        client.on("Test::ping", ping)
        with suppress(ConnectionClosed):
            async with client:
                await client.consume()

    async def consume_all() -> float:
        with Load("feed", taken.events) as load:
            clients = [zeekpy.AsyncZeek(load.url, topics=[TOPIC]) for _ in range(CONNECTIONS)]
            tasks = [asyncio.create_task(consume(client)) for client in clients]
            await asyncio.to_thread(load.begin)
            rate = await asyncio.to_thread(taken.rate)
        await asyncio.gather(*tasks)
        return rate

    return asyncio.run(consume_all())


def zeekpy_out(share: float) -> float:
    """Publish to a plain server with zeekpy."""
    zeekpy = import_module("zeekpy")
    events = max(1, int(EVENTS["out"] * share))

    async def publish_all() -> float:
        with Load("take", events) as load:
            made = (zeekpy.AsyncZeek(load.url) for _ in range(CONNECTIONS))
            clients = [await client.__aenter__() for client in made]
            await asyncio.to_thread(load.begin)
            began = time.process_time()
            for number in range(events):
                arguments = ["hello world", zeekpy.count(number), SOURCE]
                for client in clients:
                    await client.publish(TOPIC, "Test::ping", arguments)
            return await asyncio.to_thread(delivered, load, events, began)

    return asyncio.run(publish_all())


def needs_zeekpy() -> None:
    """Check that zeekpy is installed.

    Raises:
        PeerMissingError: it is not installed.
    """
    try:
        import_module("zeekpy")
    except ImportError as error:
        message = "pip install zeekpy"
        raise PeerMissingError(message) from error


def subjects(way: str, ours: Callable[[float], float], peer: Callable[[float], float]) -> Pair:
    """Return ours and the peer's, one way."""
    us = f"callboard, {way}"
    return Subject(us, ours), Subject(f"zeekpy, {way}", peer, needs_zeekpy, against=us)


MEASURE = Measure(
    title="WebSocket JSON of Zeek, events of three arguments",
    unit="events/CPU-s",
    subjects=(*subjects("in", ours_in, zeekpy_in), *subjects("out", ours_out, zeekpy_out)),
)
