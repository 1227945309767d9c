"""Zeek's ZeroMQ backend: events of three arguments in, through the transcoder, to one handler.

A separate process is the manager, whose proxy joins XPUB and XSUB, and the node that
publishes; nothing is dropped on the way, so both wait for who reads. The peer is a plain
subscriber of pyzmq that reads the same messages and does nothing: what the sockets alone take.
Once by the clock, once for each second that the reading process computes, which says more on a
machine that does other things too. From the first event until the last one.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from multiprocessing import get_context
from typing import Any

import zmq

from benchmarks.measure import Measure, Subject
from benchmarks.ours import LIMIT, Clock, Taken
from callboard import Actor, Endpoint, handler
from callboard.model.data import Data
from callboard.model.scalar import Count
from callboard.zeek import zeek_event, zeek_events
from callboard.zeek.doors.zeromq_peer import ZeroMq
from callboard.zeek.value import value_to_bytes

TOPIC = "zeek.cluster.worker"
EVENTS = 300_000


@zeek_event("Test::seen")
@dataclass(frozen=True)
class Seen:
    """The event."""

    text: str
    number: Count
    source: IPv4Address


def cluster(pipe: Any, events: int) -> None:
    """Run the manager, and a node that publishes once it has a subscriber."""
    context = zmq.Context()
    xpub, xsub = context.socket(zmq.XPUB), context.socket(zmq.XSUB)
    xpub.setsockopt(zmq.XPUB_VERBOSER, 1)
    xpub.setsockopt(zmq.XPUB_NODROP, 1)
    for each in (xpub, xsub):
        each.bind("tcp://127.0.0.1:0")
    node = context.socket(zmq.XPUB)
    node.setsockopt(zmq.XPUB_NODROP, 1)
    node.connect(xsub.last_endpoint)
    pipe.send([each.last_endpoint.decode() for each in (xpub, xsub)])
    threading.Thread(target=zmq.proxy, args=(xsub, xpub), daemon=True).start()
    while node.recv() != b"\1" + TOPIC.encode():
        pass
    arguments = ("hello world", Count(42), IPv4Address("10.0.0.1"))
    payload = value_to_bytes(Data((Count(1), Count(1), ("Test::seen", arguments))))
    parts = [TOPIC.encode(), b"zeromq_worker-1_host_1_N", b"broker-bin-v1", payload]
    for _ in range(events):
        node.send_multipart(parts)
    pipe.recv()  # until all was read


class Detector(Actor):
    """The one handler."""

    def __init__(self, taken: Taken) -> None:
        self._take = taken.take

    @handler
    def seen(self, event: Seen) -> None:
        """Count an event."""
        assert event.source
        self._take()


def measured(read: Callable[[list[str], Taken], float], clock: Clock, share: float) -> float:
    """Publish from a cluster, and read the events."""
    taken = Taken(max(2, int(EVENTS * share)), clock)
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=cluster, args=(theirs, taken.events))
    process.start()
    try:
        figure = read(ours.recv(), taken)
        ours.send("over")
        process.join(LIMIT)
    finally:
        process.kill()
    return figure


def through_the_door(addresses: list[str], taken: Taken) -> float:
    """Read with a handler that subscribes to the adapter."""
    with Endpoint() as endpoint:
        detector = endpoint.node.spawn(Detector, taken)
        endpoint.subscribe(detector, TOPIC, message=zeek_events(Seen))
        with ZeroMq(endpoint, *addresses, queue=EVENTS):
            return taken.rate()


def with_pyzmq(addresses: list[str], taken: Taken) -> float:
    """Read and do nothing."""
    with zmq.Context() as context, context.socket(zmq.XSUB) as socket:
        socket.connect(addresses[0])
        socket.send(b"\1" + TOPIC.encode())
        for _ in range(taken.events):
            socket.recv_multipart()
            taken.take()
        return taken.rate()


def pair(name: str, clock: Clock) -> tuple[Subject, Subject]:
    """Return ours and the peer, by one clock."""
    ours = f"callboard, {name}"
    return (
        Subject(ours, partial(measured, through_the_door, clock)),
        Subject(f"pyzmq, {name}", partial(measured, with_pyzmq, clock), against=ours),
    )


BY_CLOCK = pair("by the clock", time.perf_counter)
BY_PROCESSOR = pair("by processor time", time.process_time)

MEASURE = Measure(
    title="events of Zeek over ZeroMQ, in",
    unit="events/s",
    subjects=(BY_CLOCK[0], BY_PROCESSOR[0], BY_CLOCK[1], BY_PROCESSOR[1]),
)
