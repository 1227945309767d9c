"""A program that uses logs, MQTT links, flows and gateways from inside their own calls.

    python -m tests.callboard.support.reentrant_parts PART OUTER INNER STEP

It calls OUTER repeatedly. Each time it calls INNER before another opcode: each STEP-th opcode
that OUTER executes in callboard, and all opcodes of `threading`. An inner call may raise
`WouldDeadlock`, an outer one never. In the end, acknowledged data is there, once and in order,
and refused data is not.

Like `reentrant`, it runs without the checked locks of the suite.
"""

import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import wait
from pathlib import Path

from callboard import Node
from callboard.actors.errors import WouldDeadlock
from callboard.actors.mailbox import Mailbox
from callboard.commitlog import CommitLog, LogReader
from callboard.flow import Bot, Flow, FlowBroker, FlowHandler
from callboard.flow.factories import FlowSpawn
from callboard.flow.protocol.message import Message as FlowMessage
from callboard.flow.record_file import RecordFile, read_records
from callboard.gateway import Gateway, Module
from callboard.gateway.handle import ModuleOptions
from callboard.mqtt import Router, RouterConfig
from tests.callboard.support.reentrant import HANG, OURS, PAUSE, Interruption, fail, run

#: Highest number of nested calls that may be refused.
REFUSED_INSIDE = Counter()


class Part:
    """A call, and the check of its effects at the end."""

    def __init__(self):
        self.numbers = Counter()

    def next(self, sender):
        self.numbers[sender] += 1
        return f"{sender} {self.numbers[sender]}"

    def call(self, name, sender):
        """Call; a call inside another one may be refused, and has done nothing then."""
        before = self.numbers[sender]
        try:
            getattr(self, name)(sender)
        except WouldDeadlock:
            if sender == "outer":
                raise
            REFUSED_INSIDE[name] += 1
            self.numbers[sender] = before

    def check_order(self, got):
        """Fail unless all texts of each sender have come, once and in order."""
        numbers = defaultdict(list)
        for text in got:
            sender, number = text.split()
            numbers[sender].append(int(number))
        for sender, last in self.numbers.items():
            if numbers[sender] != list(range(1, last + 1)):
                fail(f"{sender} sent {last}, and these came: {numbers[sender][-20:]}")

    def await_order(self, got):
        """Wait until all messages have arrived, and check their order."""
        deadline = time.monotonic() + HANG
        while len(got) < sum(self.numbers.values()) and time.monotonic() < deadline:
            PAUSE.wait(0.01)
        self.check_order(list(got))


class LogPart(Part):
    """A log with a waiting reader, and with small segments, so that many appends start one."""

    sync = "group"

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.log = CommitLog(self.folder.name, sync=self.sync, segment_bytes=400)
        self.producer = self.log.producer("outer")
        self.acknowledged = {}

    def append(self, sender):
        self.log.growth.add(int)
        text = self.next(sender)
        self.acknowledged[self.log.append("topic", text)] = text

    def append_batch(self, sender):
        texts = [self.next(sender) for _ in range(2)]
        offsets = self.log.append_batch(texts, topic="topic")
        self.acknowledged.update(zip(offsets, texts, strict=True))

    def produce(self, sender):
        text = self.next(sender)
        self.acknowledged[self.producer.append("topic", text)] = text

    def flush(self, sender):
        self.log.flush()

    def trim(self, sender):
        self.log.trim()

    def close(self, sender):
        if sender == "inner" and is_inside(self.log):
            self.log.close()
            fail("a log was closed inside its own call")

    def settle(self):
        self.log.flush()
        with LogReader(self.folder.name) as reader:
            there = {record.offset: record.payload for record in reader.read(0)}
        if there != self.acknowledged:
            fail(f"the log has {there}, and acknowledged {self.acknowledged}")


def is_inside(log):
    writer = log._writer
    return writer._lock._is_owned() or writer._sync_lock._is_owned()


class EachLogPart(LogPart):
    sync = "each"


class MqttPart(Part):
    """Two links with a router in this process."""

    def __init__(self):
        super().__init__()
        self.router = Router(RouterConfig(sys_interval=0)).start()
        self.reader, self.writer = self.router.link("reader"), self.router.link("writer")
        self.reader.subscribe("a/#", qos=2).result(HANG)
        self.futures, self.got = [], []

    def publish(self, sender, qos=1):
        self.futures.append(self.writer.publish("a/b", self.next(sender).encode(), qos=qos))

    def publish_0(self, sender):
        self.publish(sender, 0)

    def publish_2(self, sender):
        self.publish(sender, 2)

    def subscribe(self, sender):
        self.futures.append(self.writer.subscribe("b"))

    def receive(self, sender):
        while (message := self.reader.try_recv()) is not None:
            self.got.append(message.payload.decode())

    def close(self, sender):
        link = self.router.link()
        future = link.publish("c", b"", qos=1)
        link.close()
        wait([future], HANG)  # either outcome is right
        if not future.done():
            fail("a publish of a closed link does not end")

    def settle(self):
        for future in self.futures:
            future.result(HANG)
        self.futures.clear()
        deadline = time.monotonic() + HANG
        while len(self.got) < sum(self.numbers.values()) and time.monotonic() < deadline:
            self.receive("outer")
            PAUSE.wait(0.001)
        self.check_order(self.got)


TAKEN = []


class Taker(FlowHandler):
    flow_timeout = None

    async def serve(self, flow: Flow, bot: Bot) -> None:
        while True:
            TAKEN.append(bytes(await flow.aget()).decode())


class FlowPart(Part):
    """A flow over a socket."""

    def __init__(self):
        super().__init__()
        self.node = Node("handlers")
        self.broker = FlowBroker.bind("basp://127.0.0.1:0", factory=FlowSpawn(self.node, Taker))
        self.node.connect(self.broker.node.address)
        self.flow = Flow.connect(self.broker.address, credit=1000, timeout=HANG)

    def put(self, sender):
        self.flow.put(self.next(sender))

    def settle(self):
        self.await_order(TAKEN)


class FilePart(Part):
    """A file of records."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "records"
        self.file = RecordFile(self.path)

    def append(self, sender):
        message = FlowMessage(payload=(self.next(sender).encode(),))
        self.file.append([message, message])

    def settle(self):
        got = [bytes(each.payload[0]).decode() for each in read_records(self.path)]
        if got[::2] != got[1::2] or self.file.count != len(got):
            fail(f"{self.file.count} were counted, and the file has {got[-20:]}")
        self.check_order(got[::2])
        if len(self.file.read(0, len(got))[0]) != len(got):
            fail("the file does not know its end")


class Received(Module):
    def __init__(self):
        self.got = []

    def receive(self, message):
        self.got.append(bytes(message.content).decode())


class GatewayPart(Part):
    """A source and a sink."""

    queue = Mailbox(limit=3, on_full="wait")
    is_stored = False

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.gateway, self.sink = Gateway(), Received()
        self.gateway.add_module("source", Module)
        store = Path(self.folder.name) if self.is_stored else None
        options = ModuleOptions(queue=self.queue, store=store)
        self.gateway.add_module("sink", self.sink, options=options)
        self.gateway.link("source", "sink")
        self.gateway.start()
        self.handle = self.gateway._handle("sink")
        self.lost = []
        self.gateway.broker.on_dead_letter = self.lost.append

    def publish(self, sender):
        self.gateway.publish("source", self.next(sender).encode())

    def settle(self):
        deadline = time.monotonic() + HANG
        while (
            len(self.sink.got) + len(self.lost) < sum(self.numbers.values())
            and time.monotonic() < deadline
        ):
            PAUSE.wait(0.01)
        lost = [bytes(letter.message.content).decode() for letter in self.lost]
        counted = sum(self.handle.counters.lost.values())
        if counted != len(lost):
            fail(f"{len(lost)} were lost, and {counted} were counted")
        if lost and self.queue.on_full == "wait":
            fail(f"lost: {[(each.reason, each.detail) for each in self.lost]}")
        order = {text: number for number, text in enumerate(sorted(lost, key=number_of))}
        self.check_order(
            sorted([*self.sink.got, *order], key=number_of) if lost else self.sink.got
        )
        if self.handle.inbox.bounds.bytes and self.handle.inbox.pressure.held:
            fail(f"{self.handle.inbox.pressure.held} bytes are counted as waiting")


def number_of(text):
    return int(text.split()[1])


class BytesPart(GatewayPart):
    queue = Mailbox(bytes=1000, on_full="wait")


class DroppingPart(GatewayPart):
    queue = Mailbox(limit=1, bytes=100, on_full="drop_oldest")


class SpoolPart(GatewayPart):
    is_stored = True


PARTS = {
    "log": (LogPart, ("append", "append_batch", "produce", "flush", "trim", "close")),
    "each": (EachLogPart, ("append", "flush", "close")),
    "mqtt": (MqttPart, ("publish", "publish_0", "publish_2", "subscribe", "receive", "close")),
    "flow": (FlowPart, ("put",)),
    "file": (FilePart, ("append",)),
    "gateway": (GatewayPart, ("publish",)),
    "bytes": (BytesPart, ("publish",)),
    "dropping": (DroppingPart, ("publish",)),
    "spool": (SpoolPart, ("publish",)),
}

#: Modules whose opcodes may be interrupted: ours, and `threading`.
TRACED = (*OURS, threading.__file__)


def interrupted(part, outer, at, inner):
    """Call `outer`, interrupted once; return whether it has that many opcodes."""
    interruption = Interruption(at, lambda sender: part.call(inner, sender), TRACED)

    def body():
        sys.settrace(interruption)
        try:
            part.call(outer, "outer")
        finally:
            sys.settrace(None)

    run(body)
    return interruption.count >= at


def main(name, outer, inner, step):
    part = PARTS[name][0]()
    run(part.call, outer, "outer")
    run(part.call, inner, "inner")
    rng, step = random.Random(1), int(step)
    at, times = 1, 0
    while interrupted(part, outer, at, inner):
        at, times = at + rng.randint(1, 2 * step - 1), times + 1
        if times % 100 == 0:
            part.settle()
    part.settle()
    print(f"{name}: {inner} before {times} of {at - 1} opcodes of {outer}", REFUSED_INSIDE)
    if times < 10:
        fail("these are too few: is nothing traced?")
    print("ok", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
