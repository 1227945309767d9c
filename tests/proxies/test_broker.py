"""Messages between nodes: over hops, around lost links, in order, counted."""

import asyncio
import threading

import pytest

from actors.errors import (
    ActorDown,
    AskTimeout,
    CallboardError,
    NodeUnreachable,
    NoSuchMethod,
    RemoteError,
    UnexpectedMessage,
)
from basp.frame import DEFAULT_PAYLOAD_LIMIT
from basp.registry import DEFAULT_REGISTRY
from callboard import Actor, ActorRef, handler
from proxies.errors import MessageTooLarge, NotSerializable
from tests.proxies.cast import (
    Big,
    Echo,
    Forward,
    Later,
    Parcel,
    Postman,
    Replier,
    Sink,
    Size,
    Unregistered,
    connect,
    eventually,
    everybody_knows,
    law_holds,
    line,
    recorded,
    settled,
)


@pytest.fixture
def four(make_node):
    """A line a-b-c-d."""
    nodes = [make_node(name) for name in "abcd"]
    line(*nodes)
    return nodes


def cut(node, other) -> None:
    """Cut the link between two neighbours for as long as a test may take."""
    node.disconnect(other.node_id, 60.0)


def bare(node, ref):
    """Return the ref without an address, so that nobody dials it directly."""
    return node.ref(f"basp:///{ref.actor_id}@{ref.node_id.hex()}")


def heal(node, other) -> None:
    node._broker.connector._barred.clear()
    other._broker.connector._barred.clear()
    connect(node, other)


# --- over 0, 1, 2 and 3 hops ---


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_everything_works_over_any_number_of_hops(four, hops):
    near, far = four[0], four[hops]
    echo, sink = far.spawn(Echo), far.spawn(Sink)
    there, sink_there = near.ref(str(echo)), near.ref(str(sink))

    assert there == echo
    assert there.is_local == (hops == 0)
    assert there.ask("hi").result(5) == "hi"
    assert there.call(Echo.double, 4, plus=1).result(5) == 9
    assert there.proxy().slow_double(4).result(5) == 8
    for number in range(100):
        sink_there.tell(number)
    assert sink_there.ask(Size()).result(5) == 100
    assert near.monitor(there).done() is False
    down = near.monitor(there)
    there.stop()
    assert down.result(5).reason == "normal"
    settled(*four)


def test_nodes_tell_how_far_others_are_and_through_whom(four):
    a, b, c, d = four
    eventually(lambda: all(n.name for n in a.nodes()))

    assert [(n.name, n.hops, n.via) for n in a.nodes()] == [
        ("b", 1, b.node_id),
        ("c", 2, b.node_id),
        ("d", 3, b.node_id),
    ]
    eventually(lambda: [(n.name, n.hops) for n in d.nodes()] == [("c", 1), ("b", 2), ("a", 3)])
    assert len(a.links()) == len(d.links()) == 1
    assert len(b.links()) == len(c.links()) == 2


def test_a_ref_deep_inside_a_message_works_where_no_direct_connection_exists(four):
    a, b, _, d = four
    echo = a.spawn(Echo)
    postman = a.ref(str(d.spawn(Postman)))

    parcel = Parcel(None, {"list": [{"ref": echo}]})

    assert postman.ask(parcel).result(5) == "by a ref from deep inside"
    sink = a.ref(str(b.spawn(Sink)))
    postman.tell(Forward(sink, 7))
    eventually(lambda: sink.ask(Size()).result(5) == 1)


def test_refs_are_equal_hash_and_order_alike_on_every_node(four):
    refs = [node.spawn(Echo) for node in four for _ in range(3)]

    seen = [[node.ref(str(ref)) for ref in refs] for node in four]

    assert all(each == refs for each in seen)
    assert all([hash(ref) for ref in each] == [hash(ref) for ref in refs] for each in seen)
    assert all(sorted(each) == sorted(refs) for each in seen)
    assert len({ref for each in seen for ref in each}) == len(refs)


def test_forwarding_nodes_see_the_asks_that_pass(four):
    a, b, c, d = four
    echo = a.ref(str(d.spawn(Echo)))

    echo.ask("x").result(5)

    for node in (b, c):
        passed = [
            (passage.source, passage.is_response)
            for passage in node.passages()
            if {passage.source, passage.destination} == {a.node_id, d.node_id}
        ]
        assert passed[-2:] == [(a.node_id, False), (d.node_id, True)]
        assert node.stats().forwarded >= 2
    assert a.passages() == []


# --- order ---


def test_20_000_messages_keep_their_order_over_two_hops_with_asks_between(make_node):
    a, b, c = make_node("a"), make_node("b"), make_node("c")
    line(a, b, c)
    sink = a.ref(str(c.spawn(Sink)))
    counts = []

    for number in range(20_000):
        sink.tell(number)
        if number % 1000 == 999:
            counts.append(sink.ask(Size()))

    assert [count.result(20) for count in counts] == list(range(1000, 21_000, 1000))
    assert sink.call(Sink.everything).result(20) == list(range(20_000))
    settled(a, c)


def test_first_use_of_a_text_dials_and_keeps_the_order_of_what_waited(make_node):
    a, b = make_node("a"), make_node("b")
    b.listen()
    sink = a.ref(str(b.spawn(Sink)))
    assert a.links() == []

    for number in range(5000):
        sink.tell(number)

    assert sink.call(Sink.everything).result(10) == list(range(5000))
    assert len(a.links()) == 1


def test_what_waits_for_a_dial_is_sent_as_it_was_when_it_was_told(make_node):
    a, b = make_node("a"), make_node("b")
    b.listen()
    sink = a.ref(str(b.spawn(Sink)))
    items = [1]

    sink.tell(items)
    items.append(Unregistered())

    assert sink.call(Sink.everything).result(5) == [[1]]


# --- content ---


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


def test_errors_that_utf8_cannot_express_or_that_are_huge_still_answer(make_node):
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


# --- errors of asks ---


def test_asks_fail_with_the_error_that_says_why(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo, later = a.ref(str(b.spawn(Echo))), a.ref(str(b.spawn(Later)))

    with pytest.raises(UnexpectedMessage, match="Echo has no handler for float"):
        echo.ask(1.5).result(5)
    with pytest.raises(NoSuchMethod, match="no_such"):
        echo.proxy().no_such().result(5)
    with pytest.raises(NoSuchMethod, match="text"):
        echo.proxy().text("handlers are not methods").result(5)
    with pytest.raises(AskTimeout):
        later.ask("x", timeout=0.05).result(5)
    with pytest.raises(RemoteError) as caught:
        echo.call(Echo.fail, "why").result(5)
    assert (caught.value.type_name, caught.value.text) == ("ValueError", "why")
    assert "in fail" in caught.value.traceback
    with pytest.raises(ActorDown):
        echo.ask("gone").result(5)


def test_a_promise_answers_later_over_hops(four):
    later = four[0].ref(str(four[3].spawn(Later)))

    owed = [later.ask("one"), later.ask("two")]
    assert later.call(Later.count).result(5) == 2
    assert not any(future.done() for future in owed)
    later.tell(0.0)

    assert [future.result(5) for future in owed] == ["ONE", "TWO"]
    settled(*four)


def test_an_owed_answer_fails_when_its_actor_ends(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    later = a.ref(str(b.spawn(Later)))
    owed = later.ask("never")
    later.call(Later.count).result(5)

    later.stop()

    with pytest.raises(ActorDown) as caught:
        owed.result(5)
    assert caught.value.reason == "normal"


def test_a_reply_sent_to_the_sender_answers_across_nodes(four):
    replier = four[0].ref(str(four[2].spawn(Replier)))

    assert replier.ask("hello").result(5) == "re: hello"


def test_an_actor_that_answers_its_sender_reaches_an_actor_elsewhere(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    asker = a.spawn(Inbox)
    asker.tell(Forward(a.ref(str(b.spawn(Replier))), "hello"))

    eventually(lambda: asker.call(Inbox.everything).result(5) == ["re: hello"])
    settled(a, b)


class Inbox(Actor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    @handler
    def forward(self, msg: Forward) -> None:
        self.send(msg.to, msg.content)

    @handler
    def text(self, msg: str) -> None:
        self.seen.append(msg)

    def everything(self) -> list[str]:
        return self.seen


# --- asks from everywhere ---


def test_threads_ask_at_the_same_time(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))
    wrong: list[object] = []

    def ask(mark: int) -> None:
        for number in range(100):
            text = f"{mark}.{number}"
            if echo.ask(text).result(10) != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    settled(a, b)


def test_asyncio_programs_ask(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))

    async def program() -> list[str]:
        return await asyncio.gather(*(echo.ask(str(number)) for number in range(50)))

    assert asyncio.run(program()) == [str(number) for number in range(50)]


def test_handlers_ask_each_other_back_and_forth(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    ping, pong = a.spawn(Bouncer), b.spawn(Bouncer)

    assert ping.ask(Forward(a.ref(str(pong)), Parcel("x"))).result(5) == "x"
    assert pong.ask(Forward(b.ref(str(ping)), Parcel("y"))).result(5) == "y"


class Bouncer(Actor):
    @handler
    async def forward(self, msg: Forward) -> object:
        return await msg.to.ask(msg.content)

    @handler
    def parcel(self, msg: Parcel) -> object:
        return msg.content


def test_a_handler_that_blocked_sends_without_delay(make_node):
    """It lost the runner's role meanwhile, so nobody flushes for it at the end of a turn."""
    a, b = make_node("a"), make_node("b")
    line(a, b)
    sink = b.spawn(Sink)
    gate = threading.Event()
    blocker = a.spawn(Blocker, gate)
    blocker.tell(Forward(a.ref(str(sink)), 1))
    threading.Event().wait(0.05)

    gate.set()

    eventually(lambda: sink.ask(Size()).result(5) == 1, seconds=0.4)


class Blocker(Actor):
    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate

    @handler
    def forward(self, msg: Forward) -> None:
        self.gate.wait(5)
        msg.to.tell(msg.content)
        threading.Event().wait(0.5)


# --- lost links and nodes ---


@pytest.fixture
def ring(make_node):
    """A ring a-b-c-d-a."""
    nodes = [make_node(name) for name in "abcd"]
    line(*nodes)
    connect(nodes[3], nodes[0])
    eventually(lambda: {n.name: n.hops for n in nodes[0].nodes()} == {"b": 1, "d": 1, "c": 2})
    return nodes


def test_a_ring_that_loses_a_link_sends_the_other_way_and_nothing_goes_down(ring):
    a, b, c, d = ring
    echo = a.ref(str(b.spawn(Echo)))
    down = a.monitor(echo)
    lost = a.monitor_node(b.node_id)
    assert echo.ask("direct").result(5) == "direct"
    settled(*ring)

    cut(a, b)
    eventually(lambda: {n.name: n.hops for n in a.nodes()} == {"d": 1, "c": 2, "b": 3})

    assert echo.ask("around").result(5) == "around"
    assert not down.done()
    assert not lost.done()
    settled(a, b, c, d)


def test_a_partition_tells_monitors_once_fails_asks_and_heals(four):
    a, b, c, d = four
    echo, later = bare(a, d.spawn(Echo)), bare(a, d.spawn(Later))
    downs: list[str] = []
    echo.target.monitor("count", lambda down: downs.append(str(down.reason)))
    down, lost = a.monitor(echo), a.monitor_node(d.node_id)
    owed = later.ask("x")
    later.call(Later.count).result(5)

    with recorded(a) as events:
        cut(b, c)

        assert down.result(5).reason == "unreachable"
        with pytest.raises(NodeUnreachable):
            owed.result(5)
        assert lost.result(5).node_id == d.node_id
    with pytest.raises(NodeUnreachable):
        echo.ask("x").result(5)
    assert [node.name for node in a.nodes()] == ["b"]
    kinds = [type(event).__name__ for event in events]
    assert kinds.count("NodeDown") == 2
    assert kinds.count("LinkDown") == 0
    assert all(law_holds(node) for node in four)

    heal(b, c)
    everybody_knows(*four)

    assert downs == ["unreachable"]
    assert echo.ask("again").result(5) == "again"
    second = a.monitor(echo)
    echo.stop()
    assert second.result(5).reason == "normal"
    assert downs == ["unreachable"]
    settled(*four)


def test_a_monitor_of_an_actor_out_of_reach_says_so_at_once(make_node):
    a, b = make_node("a"), make_node("b")
    nobody = a.ref(f"basp:///77@{b.node_id.hex()}")

    assert a.monitor(nobody).result(5).reason == "unreachable"
    with pytest.raises(NodeUnreachable):
        nobody.ask("x").result(5)
    nobody.tell("x")
    assert a.stats().dead_letters >= 1


def test_a_text_whose_address_is_now_another_nodes_is_unreachable(make_node):
    a, b, c = make_node("a"), make_node("b"), make_node("c")
    b.listen()
    stale = a.ref(b.address + f"/77@{c.node_id.hex()}")

    with pytest.raises(NodeUnreachable, match="another node"):
        stale.ask("x").result(5)


# --- accounts ---


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
        a._broker.dispatch(fresh.target, message, None)
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


# --- proxies come and go ---


def test_a_proxy_that_nobody_holds_is_released_and_announced_again_when_used(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = b.spawn(Echo)
    holders = b._broker._holders
    there: ActorRef | None = a.ref(str(echo))
    eventually(lambda: holders.is_held(echo.actor_id))

    del there
    eventually(lambda: not holders.is_held(echo.actor_id))
    again = a.ref(str(echo))

    eventually(lambda: holders.is_held(echo.actor_id))
    assert again.ask("x").result(5) == "x"


def test_a_monitor_keeps_its_proxy(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = b.spawn(Echo)
    down = a.monitor(a.ref(str(echo)))
    down.asked = None
    eventually(lambda: b._broker._holders.is_held(echo.actor_id))
    a._broker._release_unused()

    echo.stop()

    assert down.result(5).reason == "normal"
