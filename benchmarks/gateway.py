"""The module broker: messages of 64 bytes from one publisher to one sink, or to ten.

A publish takes bytes; each sink receives its own message as bytes. The time ends when every
sink has all messages. Ours serializes, queues, delivers to an actor and reads the message
again; `in Python` does the same with plain threads (serialize, a lock, a queue and a thread for
each sink, read). blinker and PyPubSub call the sinks directly, one after the other, on the
publisher's thread: sinks are not isolated, and a slow sink stops the publisher. pyzmq is
PUB/SUB with one socket and thread for each sink; a message that its sinks lose is an error
here.

The C original is not run: its figures, measured elsewhere with 5 runs of `broker.c` on nanomsg,
are 316,000/s to one sink and 28,500/s to ten, where the publisher waits for the sinks by hand.
"""

import queue
import struct
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.measure import Measure, PeerMissingError, Subject
from benchmarks.processes import RunFailedError
from callboard.gateway import Message, Module, ModuleBroker

CONTENT = bytes(64)
LIMIT = 50.0
"""Seconds for one measure."""

QUEUE = 1000
"""What may wait before a sink, as at ours."""


class Counting:
    """Counts what a sink receives, and tells when it has everything."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.bytes = 0
        self.done = threading.Event()

    def take(self, content: bytes) -> None:
        """Count a message."""
        self.bytes += len(content)
        self.left -= 1
        if not self.left:
            self.done.set()


class Sink(Module):
    """Counts."""

    def create(self, args: Any) -> None:
        """Store the counter."""
        self.take = args["counting"].take

    def receive(self, message: Message) -> None:
        """Count."""
        self.take(message.content)


class Source(Module):
    """Only publishes."""


def timed(publish: Callable[[], object], sinks: list[Counting], count: int) -> float:
    """Return publishes for each second, all of them received."""
    started = time.perf_counter()
    for _ in range(count):
        publish()
    for sink in sinks:
        if not sink.done.wait(LIMIT):
            message = f"a sink still waits for {sink.left} of {count}"
            raise RunFailedError(message)
    took = time.perf_counter() - started
    if any(sink.bytes != count * len(CONTENT) for sink in sinks):
        message = "bytes are missing"
        raise RunFailedError(message)
    return count / took


def ours(sinks: int, count: int, *, detached: bool = False) -> float:
    """Publish through a module broker."""
    from callboard.gateway import ModuleOptions

    counted = [Counting(count) for _ in range(sinks)]
    with ModuleBroker() as broker:
        source = broker.add(Source)
        for counting in counted:
            options = ModuleOptions(detached=detached)
            sink = broker.add(Sink, {"counting": counting}, options=options)
            broker.link(source, sink)
        publish = broker.publish
        return timed(lambda: publish(source, Message(CONTENT)), counted, count)


HEAD = struct.Struct(">2siii")


def threads(sinks: int, count: int) -> float:
    """Publish to bounded queues, each with a thread that reads and calls back."""
    counted = [Counting(count) for _ in range(sinks)]
    queues: list[queue.Queue[bytes]] = [queue.Queue(QUEUE) for _ in counted]
    lock = threading.Lock()

    def work(waiting: queue.Queue[bytes], take: Callable[[bytes], None]) -> None:
        for _ in range(count):
            frame = waiting.get()
            magic, size, properties, length = HEAD.unpack_from(frame, 8)
            if magic != b"\xa1\x60" or size != len(frame) - 8 or properties:
                raise ValueError(magic)
            take(frame[22 : 22 + length])

    for waiting, counting in zip(queues, counted, strict=True):
        threading.Thread(target=work, args=(waiting, counting.take), daemon=True).start()

    def publish() -> None:
        head = HEAD.pack(b"\xa1\x60", 14 + len(CONTENT), 0, len(CONTENT))
        frame = b"12345678" + head + CONTENT
        with lock:
            for waiting in queues:
                waiting.put(frame)

    return timed(publish, counted, count)


def blinker(sinks: int, count: int) -> float:
    """Send a signal of blinker."""
    signal = import_module("blinker").Signal()
    counted = [Counting(count) for _ in range(sinks)]
    receivers = [
        lambda _, content, take=counting.take: take(content)  # type: ignore[misc]
        for counting in counted
    ]
    for receiver in receivers:
        signal.connect(receiver)
    return timed(lambda: signal.send(None, content=CONTENT), counted, count)


def pypubsub(sinks: int, count: int) -> float:
    """Send a message of PyPubSub."""
    pub = import_module("pubsub.pub")
    counted = [Counting(count) for _ in range(sinks)]

    def receiver_of(counting: Counting) -> Callable[..., None]:
        def receive(content: bytes) -> None:
            counting.take(content)

        return receive

    receivers = [receiver_of(counting) for counting in counted]
    for receiver in receivers:
        pub.subscribe(receiver, "topic")
    return timed(lambda: pub.sendMessage("topic", content=CONTENT), counted, count)


def pyzmq(sinks: int, count: int) -> float:
    """Publish on a PUB socket, in one process; sinks that are full make the publisher wait."""
    zmq = import_module("zmq")
    context = zmq.Context()
    counted = [Counting(count) for _ in range(sinks)]
    source = context.socket(zmq.XPUB)
    source.setsockopt(zmq.XPUB_NODROP, 1)
    source.setsockopt(zmq.XPUB_VERBOSE, 1)  # each subscription is told, not only the first
    source.setsockopt(zmq.SNDHWM, QUEUE)
    source.bind("inproc://bench")

    def work(counting: Counting) -> None:
        with context.socket(zmq.SUB) as sink:
            sink.setsockopt(zmq.RCVHWM, QUEUE)
            sink.setsockopt(zmq.SUBSCRIBE, b"")
            sink.connect("inproc://bench")
            while counting.left:
                counting.take(sink.recv())

    workers = [threading.Thread(target=work, args=(each,), daemon=True) for each in counted]
    for worker in workers:
        worker.start()
        source.recv()  # its subscription
    try:
        return timed(lambda: source.send(CONTENT), counted, count)
    finally:
        for worker in workers:
            worker.join(LIMIT)
        source.close()
        context.term()


def needs(name: str, package: str) -> Callable[[], None]:
    """Return a check that a peer is installed."""

    def check() -> None:
        try:
            import_module(name)
        except ImportError as error:
            message = f"pip install {package}"
            raise PeerMissingError(message) from error

    return check


def subjects(sinks: int, count: int) -> list[Subject]:
    """Return callboard's subjects and the peers, for a number of sinks."""
    us = f"callboard, 1 to {sinks}"
    peers = (
        ("threads and queues in Python", threads, None),
        ("blinker, direct calls", blinker, needs("blinker", "blinker")),
        ("PyPubSub, direct calls", pypubsub, needs("pubsub", "PyPubSub")),
        ("pyzmq PUB/SUB inproc", pyzmq, needs("zmq", "pyzmq")),
    )
    found = [Subject(us, lambda share: ours(sinks, int(count * share)))]
    for name, function, check in peers:
        more: dict[str, Any] = {} if check is None else {"prepare": check}
        found.append(
            Subject(
                f"{name}, 1 to {sinks}",
                lambda share, run=function: run(sinks, int(count * share)),  # type: ignore[misc]
                against=us,
                **more,
            )
        )
    return found


MEASURE = Measure(
    title="gateway, publishes to modules",
    unit="publishes/s",
    subjects=(*subjects(1, 500_000), *subjects(10, 60_000)),
)
