"""Large messages: read in pieces, in order, and no larger than they may be."""

import threading
import time

import cbor2
import pytest

from callboard import Actor, handler
from callboard.basp.frame import pack_frame
from callboard.basp.header import Operation
from callboard.proxies.errors import MessageTooLarge
from callboard.proxies.link.limits import Limits
from tests.proxies.cast import Echo, eventually, line

MANY = [[] for _ in range(200_000)]
TOO_MANY = [[] for _ in range(500_001)]


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


def test_a_large_message_keeps_its_place_among_the_others(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    collector = a.ref(str(b.spawn(Collector)))

    for number in range(50):
        collector.tell(number)
        if number % 20 == 10:
            collector.tell(MANY)
    answer = collector.ask(MANY)

    assert answer.result(30) == 200_000
    expected = [*range(11), 200_000, *range(11, 31), 200_000, *range(31, 50), 200_000]
    assert collector.ask(99).result(10) == [*expected, 99]


def test_a_large_answer_and_one_behind_a_deadline(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    collector = a.ref(str(b.spawn(Collector)))

    assert collector.ask("x", timeout=30).result(30) == [["x"]] * 100_000
    assert collector.ask(MANY, timeout=30).result(30) == 200_000


def test_what_holds_too_much_is_refused_where_it_is_sent(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    collector = a.ref(str(b.spawn(Collector)))

    with pytest.raises(MessageTooLarge, match=r"500,000 containers.*Limits\(items="):
        collector.tell(TOO_MANY)
    with pytest.raises(MessageTooLarge, match="list"):
        collector.ask(TOO_MANY).result(10)
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
    payload = b"\x81" + cbor2.dumps([[]] * 4_000_000)
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
    stop.set()
    asker.join()

    assert {link.peer for link in b.links()} == {hostile.node_id, bystander.node_id}
    assert len(delays) >= 3
