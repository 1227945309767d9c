"""Large messages: read in pieces, in order, and no larger than they may be."""

import gc
import sys
import threading
import time
from collections import deque

import cbor2
import pytest

from callboard import Actor, handler
from callboard.basp.errors import PayloadTooHeavy
from callboard.basp.frame import pack_frame
from callboard.basp.header import POSITION_SHIFT, Operation
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import MessageRegistry
from callboard.basp.routing import path_order
from callboard.basp.routing.path_order import PathOrder
from callboard.cbor import tags
from callboard.proxies.errors import MessageTooLarge
from callboard.proxies.link.limits import Limits
from callboard.proxies.traffic.incoming import POSTED_AT_ONCE
from callboard.proxies.traffic.large import WAITING_BYTES, LargeMessages
from tests.basp.wire import empty_lists
from tests.proxies.cast import Echo, eventually, line


def many(count: int = 200_000) -> list[list[object]]:
    """Many lists, made by the test that sends them: every process of the suite imports this."""
    return [[] for _ in range(count)]


class Collector(Actor):
    """Notes what comes, and answers."""

    def __init__(self):
        self.taken = []

    @handler
    def take(self, message: list) -> int:
        self.taken.append(len(message))
        return len(message)

    @handler
    def number(self, message: int) -> list:
        self.taken.append(message)
        return self.taken

    @handler
    def many(self, message: str) -> list:
        return [[message] for _ in range(100_000)]


@pytest.mark.slow
def test_a_large_message_keeps_its_place_among_the_others(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    collector = a.ref(str(b.spawn(Collector)))

    for number in range(50):
        collector.tell(number)
        if number % 20 == 10:
            collector.tell(many())
    answer = collector.ask(many())

    assert answer.result(30) == 200_000
    expected = [*range(11), 200_000, *range(11, 31), 200_000, *range(31, 50), 200_000]
    assert collector.ask(99).result(10) == [*expected, 99]


@pytest.mark.slow
def test_a_large_answer_and_one_behind_a_deadline(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    collector = a.ref(str(b.spawn(Collector)))

    assert collector.ask("x", timeout=30).result(30) == [["x"]] * 100_000
    assert collector.ask(many(), timeout=30).result(30) == 200_000


@pytest.mark.slow
def test_what_holds_too_much_is_refused_where_it_is_sent(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    collector = a.ref(str(b.spawn(Collector)))

    too_many = many(500_001)
    with pytest.raises(MessageTooLarge, match=r"500,000 containers.*Limits\(items="):
        collector.tell(too_many)
    with pytest.raises(MessageTooLarge, match="list"):
        collector.ask(too_many).result(10)
    assert collector.ask(list(range(600_000))).result(30) == 600_000


def test_a_limit_of_ones_own(make_node):
    a, b = make_node("a", limits=Limits(items=100)), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))

    with pytest.raises(MessageTooLarge, match="100 containers"):
        echo.tell([["x" * 50]] * 101)


def test_an_answer_that_holds_too_much_is_an_error(make_node):
    a, b = make_node("a"), make_node("b", limits=Limits(items=1_000))
    line(a, b)
    collector = a.ref(str(b.spawn(Collector)))

    with pytest.raises(MessageTooLarge, match="1,000 containers"):
        collector.ask("x").result(30)


def forged(source, ref, payload):
    """A first dispatch to an actor, as no node would write it."""
    target = ref.node_id
    return pack_frame(
        Operation.DISPATCH_MESSAGE, 0, source.node_id, target, 0, ref.actor_id, payload
    )


def test_a_hostile_message_is_refused_and_bystanders_go_on(make_node):
    hostile, bystander, b = make_node("hostile"), make_node("bystander"), make_node("b")
    line(hostile, b)
    line(bystander, b)
    ref = b.spawn(Echo)
    echo = bystander.ref(str(ref))
    echo.ask("warm").result(10)
    payload = b"\x81" + empty_lists(4_000_000)
    delays = []
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            begin = time.perf_counter()
            echo.ask("x").result(10)
            delays.append(time.perf_counter() - begin)

    asker = threading.Thread(target=ask)
    asker.start()
    hostile._broker.routes.send_to(b.node_id, forged(hostile, ref, payload))
    eventually(lambda: b.runtime.counters.dead_letters == 1)
    eventually(lambda: len(delays) >= 3)  # it may be refused before a second ask
    stop.set()
    asker.join()

    assert {link.peer for link in b.links()} == {hostile.node_id, bystander.node_id}


# --- the messages of a node, without a node ---


class Wire:
    """A link that only notes whether it is read."""

    def __init__(self):
        self.holds = 0

    def hold(self):
        self.holds += 1

    def release(self):
        self.holds -= 1


class Room:
    """The large messages of one node, whose turns the test makes."""

    def __init__(self, items):
        self.time = 0.0
        self.turns = deque()
        self.taken = []
        codec = PayloadCodec(MessageRegistry(), max_items=items)
        self.large = LargeMessages(self, codec, lambda one: self.taken.append(type(one.error)))

    def now(self):
        self.time += 0.0001
        return self.time

    def call_later(self, _, callback):
        self.turns.append(callback)

    def read(self, wire, payload, number=1):
        frame = (2, len(payload), 0, bytes([number]) * 18, bytes(18), 0, 7, payload)
        return self.large.read(wire, PathOrder(), frame)

    def run(self):
        while self.turns:
            self.turns.popleft()()


@pytest.fixture
def _uncollected():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_uncollected")
def test_a_message_that_is_refused_leaves_nothing_to_the_garbage_collection():
    room, wire = Room(1_000), Wire()
    payload = b"\x81" + empty_lists(100_000)
    before = sys.getrefcount(payload)

    room.read(wire, payload)
    room.run()

    assert room.taken == [PayloadTooHeavy]
    assert sys.getrefcount(payload) == before
    assert room.large.octets_of(wire) == 0


@pytest.mark.usefixtures("_uncollected")
@pytest.mark.parametrize(
    "wrong",
    [b"\x82\x01", cbor2.dumps([cbor2.CBORTag(tags.REGISTERED, ["nobody", {}])]), b"\x01\x01"],
)
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_message_that_cannot_be_read_neither(wrong, size):
    codec = PayloadCodec(MessageRegistry(), max_items=100_000)
    payload = b"\x81\x82" + cbor2.dumps(bytes(size)) + wrong
    before = sys.getrefcount(payload)
    if size > 65_536:
        room = Room(100_000)
        room.read(Wire(), payload)
        room.run()
    else:
        with pytest.raises(Exception, match="."):
            codec.decode_message(payload)

    assert sys.getrefcount(payload) == before


@pytest.mark.slow
def test_no_full_collection_goes_through_what_is_being_read():
    room, full = Room(500_000), []

    def note(phase, about):
        full.extend([phase] * (about["generation"] == 2))

    gc.unfreeze()  # what a test before may have frozen keeps the collector out
    gc.collect()  # none is due because of what other tests have left
    gc.callbacks.append(note)
    try:
        room.read(Wire(), b"\x81" + empty_lists(400_000))
        room.run()
    finally:
        gc.callbacks.remove(note)

    assert room.taken == [type(None)]
    assert full == []


@pytest.mark.slow
def test_garbage_among_what_was_read_is_collected_when_much_was_read(monkeypatch):
    monkeypatch.setattr("callboard.actors.runner.collector.BUILT_LIMIT", 300_000)
    gc.unfreeze()  # what a test before may have frozen keeps the collector out
    room, full = Room(500_000), []
    gc.callbacks.append(lambda phase, about: full.append((phase, about["generation"])))
    try:
        for _ in range(4):
            room.read(Wire(), b"\x81" + empty_lists(100_000))
            room.run()
    finally:
        gc.callbacks.pop()

    assert ("stop", 2) in full


@pytest.mark.slow
def test_a_link_is_not_read_while_more_of_it_waits_than_one_message():
    room, wire, other = Room(500_000), Wire(), Wire()
    payload = b"\x81" + empty_lists(200_000)

    readings = [room.read(wire, payload, number) for number in range(1, 6)]
    assert wire.holds == 0
    room.read(other, payload, 7)
    room.large.wait(readings[0], [(2, WAITING_BYTES, 0, b"", b"", 0, 7, bytes(WAITING_BYTES))])
    assert (wire.holds, other.holds) == (1, 0)
    room.run()

    assert len(room.taken) == 6
    assert (wire.holds, room.large.octets_of(wire)) == (0, 0)


def test_what_is_small_counts_with_what_it_takes():
    room, wire = Room(500_000), Wire()
    reading = room.read(wire, b"\x81" + empty_lists(200_000))

    room.large.wait(reading, [(2, 1, 0, b"", b"", 0, 7, b"x")] * 1_000)
    assert wire.holds == 0
    room.large.wait(reading, [(2, 1, 0, b"", b"", 0, 7, b"x")] * 3_000)
    assert wire.holds == 1


def test_what_waited_for_one_that_was_missing_is_posted_in_turns(make_node, monkeypatch):
    monkeypatch.setattr(path_order, "OPEN_PATIENCE", 1000.0)  # writing them may take long
    hostile, b = make_node("hostile"), make_node("b")
    line(hostile, b)
    collector = b.spawn(Collector)
    posted, incoming = [], b._broker.incoming
    post = incoming._post
    incoming._post = lambda wire, frames, *read: (
        posted.append(len(frames)) or post(wire, frames, *read)
    )

    def send(position):
        operation, payload = Operation.DISPATCH_MESSAGE, b"\x81" + cbor2.dumps(position)
        data, here, there = position << POSITION_SHIFT, hostile.node_id, b.node_id
        frame = pack_frame(operation, data, here, there, 0, collector.actor_id, payload)
        hostile._broker.routes.send_to(there, frame)

    for position in range(1, 5_000):
        send(position)
    send(0)
    # At once: what the other node reports soon is not what the ledger of this one says.
    send(5_000)

    eventually(lambda: sum(posted) == 5_001)
    eventually(lambda: 5_000 in collector.ask(-1).result(10))
    taken = [number for number in collector.ask(-1).result(10) if number >= 0]
    assert taken == list(range(5_001))
    assert max(posted) <= POSTED_AT_ONCE
