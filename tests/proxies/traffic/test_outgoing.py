"""What leaves a node: as it was told, within limits, and counted."""

import logging
import threading

import pytest

from callboard import Actor, handler
from callboard.actors.errors import (
    CallboardError,
    RemoteError,
)
from callboard.basp.frame import DEFAULT_PAYLOAD_LIMIT
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.proxies.errors import MessageTooLarge, NotSerializable
from tests.proxies.cast import (
    Big,
    Blocker,
    Echo,
    Forward,
    Later,
    Parcel,
    Replier,
    Sink,
    Size,
    Unregistered,
    cut,
    law_holds,
    line,
    recorded,
    settled,
)


def test_two_nodes_of_one_process_exchange_bytes_not_objects(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    sink = a.ref(str(b.spawn(Sink)))
    items = [1, [2]]

    sink.tell(items)
    items[1].append(3)

    assert sink.call(Sink.everything).result(5) == [[1, [2]]]


def test_what_cannot_travel_is_refused_at_the_caller_with_its_path(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))
    bad = Parcel(None, {"list": [1, Unregistered()]})

    for send in (echo.tell, echo.ask):
        with pytest.raises(NotSerializable, match=r"more\['list'\]\[1\].*Unregistered"):
            send(bad)

    assert echo.ask("fine").result(5) == "fine"
    settled(a, b)


def test_an_answer_that_cannot_travel_fails_the_ask(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))

    with pytest.raises(NotSerializable, match="Unregistered"):
        echo.call(Echo.give_lock).result(5)

    assert echo.ask("alive").result(5) == "alive"


def test_large_messages_travel_both_ways(make_node):
    a, b, c = make_node("a"), make_node("b"), make_node("c")
    line(a, b, c)
    echo = a.ref(str(c.spawn(Echo)))
    size = 5 * 1024 * 1024

    assert echo.ask(bytes(size)).result(20) == size
    assert len(echo.ask(Big(size)).result(20)) == size


def test_too_large_messages_are_refused_at_the_sender_and_the_link_lives(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))

    with recorded(a) as events:
        with pytest.raises(MessageTooLarge, match="16,777,216"):
            echo.tell(bytes(DEFAULT_PAYLOAD_LIMIT + 1))
        with pytest.raises(MessageTooLarge, match="16,777,216"):
            echo.ask(Big(DEFAULT_PAYLOAD_LIMIT)).result(20)
        assert echo.ask(bytes(DEFAULT_PAYLOAD_LIMIT - 100)).result(20) > 0

    assert events == []


def test_a_message_type_that_the_other_side_does_not_know_fails_the_ask(make_node, monkeypatch):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))
    kind = DEFAULT_REGISTRY.by_name["tests.proxies.Parcel"]
    for table, key in ((DEFAULT_REGISTRY.by_name, kind.name), (DEFAULT_REGISTRY.flat, None)):
        monkeypatch.delitem(table, key or kind.wire_name, raising=False)

    with pytest.raises(CallboardError, match=r"tests\.proxies\.Parcel"):
        echo.ask(Parcel(1)).result(5)
    echo.tell(Parcel(1))

    assert echo.ask("alive").result(5) == "alive"
    settled(a, b)
    assert a.accounts()[b.node_id].dead_letters == 2
    assert len(a.links()) == 1


def test_errors_that_utf8_cannot_express_or_that_are_huge_still_answer(make_node, monkeypatch):
    # What is logged would become part of the test's report, which has to be UTF-8.
    monkeypatch.setattr(logging.getLogger("callboard"), "propagate", False)
    monkeypatch.setattr(logging.getLogger("callboard"), "handlers", [logging.NullHandler()])
    a, b = make_node("a"), make_node("b")
    line(a, b)

    for text in ("broken \udcff", "x" * 20_000_000):
        with pytest.raises(RemoteError):
            a.ref(str(b.spawn(Thrower))).ask(len(text)).result(10)
    assert len(a.links()) == 1


class Thrower(Actor):
    @handler
    def number(self, msg: int) -> None:
        raise ValueError("broken \udcff" if msg < 100 else "x" * msg)


def test_the_account_of_a_node_is_right_at_every_moment(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    sink = a.ref(str(b.spawn(Sink)))
    stop, broken = threading.Event(), []

    def check() -> None:
        while not stop.is_set():
            if not law_holds(a):
                broken.append(a.accounts())

    checker = threading.Thread(target=check)
    checker.start()
    for number in range(3000):
        sink.tell(number)
    sink.ask(Size()).result(10)
    settled(a, b)
    stop.set()
    checker.join()

    assert broken == []
    assert a.accounts()[b.node_id].lost == 0


def test_messages_to_dead_actors_are_confirmed_as_dead_letters(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    sink = a.ref(str(b.spawn(Sink)))
    sink.tell(1)
    settled(a, b)
    before = a.accounts()[b.node_id]

    fresh = a.ref(f"basp:///{sink.actor_id + 1000}@{b.node_id.hex()}")
    for message in (1, 2):  # also when the answer to the announce was quicker
        a._broker.outgoing.dispatch(fresh.target, message, None)
    settled(a, b)

    after = a.accounts()[b.node_id]
    assert after.sent == after.confirmed
    assert after.dead_letters - before.dead_letters == after.sent - before.sent == 2
    assert b.stats().dead_letters >= 1


@pytest.mark.parametrize("actor", [Echo, Replier, Later, Sink])
def test_nothing_stays_in_flight_whatever_becomes_of_a_message(make_node, actor):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    ref = a.ref(str(b.spawn(actor)))

    for message in (1, "text", 2.5, [1], Parcel(1), None):
        ref.tell(message)
        ref.ask(message, timeout=0.5)
    settled(a, b)

    assert a.accounts()[b.node_id].lost == 0


def test_what_a_lost_node_did_not_confirm_is_lost(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    gate = threading.Event()
    slow = a.ref(str(b.spawn(Blocker, gate)))
    settled(a, b)
    for _ in range(10):
        slow.tell(Forward(a.spawn(Echo), "x"))

    lost = a.monitor_node(b.node_id)
    cut(a, b)

    assert lost.result(5).lost >= 9
    account = a.accounts()[b.node_id]
    assert account.sent == account.confirmed + account.lost
    gate.set()


def test_messages_that_waited_in_a_dead_actors_mailbox_are_dead_letters(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    gate = threading.Event()
    slow = a.ref(str(b.spawn(Blocker, gate)))
    for _ in range(10):
        slow.tell(Parcel("unexpected, but it never comes to that"))
    slow.tell(Forward(a.spawn(Echo), "x"))
    for _ in range(5):
        slow.tell(1)
    slow.kill()
    gate.set()
    settled(a, b)

    assert a.accounts()[b.node_id].dead_letters >= 5
