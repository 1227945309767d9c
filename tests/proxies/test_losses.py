"""What happens to messages and monitors while a path is sought, and when there is none."""

import contextlib
import threading
import time

import pytest

from callboard.actors.errors import NodeUnreachable
from callboard.basp.frame import Frame
from callboard.basp.header import Operation
from callboard.basp.routing.update import NAME_LIMIT, Statement
from callboard.proxies.events import LinkDown, NodeDown, NodeUp, PathMoved
from tests.basp.wire import write_update
from tests.proxies.cast import (
    Echo,
    Later,
    Sink,
    Size,
    connect,
    eventually,
    line,
    recorded,
)


def cut(node, other) -> None:
    node.disconnect(other.node_id, 60.0)


def bare(node, ref):
    """Return the ref without an address, so that no node dials it directly."""
    return node.ref(f"basp:///{ref.actor_id}@{ref.node_id.hex()}")


@pytest.fixture
def four(make_node):
    """A line a-b-c-d."""
    nodes = [make_node(name) for name in "abcd"]
    line(*nodes)
    return nodes


@pytest.fixture
def ring(four):
    """A ring a-b-c-d-a."""
    connect(four[3], four[0])
    for node in four:
        eventually(lambda node=node: sorted(n.hops for n in node.nodes()) == [1, 1, 2])
    return four


def test_a_node_far_away_is_lost_as_soon_as_the_news_has_travelled(four):
    """Nobody waits for a while in case that another path turns up."""
    a, b, c, d = four
    echo = bare(a, d.spawn(Echo))
    assert echo.ask("hi").result(5) == "hi"
    order: list[str] = []
    fired, late = a.monitor(echo), threading.Event()
    fired.add_done_callback(lambda _: order.append("down"))
    timer = threading.Timer(1.0, lambda: (order.append("timer"), late.set()))
    timer.start()
    began = time.monotonic()

    c.close()

    assert fired.result(5).reason == "unreachable"
    print(f"told after {(time.monotonic() - began) * 1e3:.1f} ms")
    assert late.wait(5)
    assert order == ["down", "timer"]
    assert [node.name for node in a.nodes()] == ["b"]
    assert a._broker.unrouted.held == a._broker.paths.sought == {}


@pytest.mark.parametrize("lost_link", range(4))
def test_a_ring_loses_no_node_with_any_of_its_links(ring, lost_link):
    echoes = [[bare(n, m.spawn(Echo)) for m in ring if m is not n] for n in ring]
    fired = [n.monitor(e) for n, there in zip(ring, echoes, strict=True) for e in there]
    fired += [n.monitor_node(m.node_id) for n in ring for m in ring if m is not n]
    here, there = ring[lost_link], ring[(lost_link + 1) % 4]
    eventually(lambda: all(m.name for n in ring for m in n.nodes()))  # NodeUp was told

    with contextlib.ExitStack() as stack:
        events = [stack.enter_context(recorded(node)) for node in ring]
        cut(here, there)
        eventually(lambda: len(here.links()) == len(there.links()) == 1)
        answers = [e.ask(str(i)) for some in echoes for i, e in enumerate(some)]
        assert [f.result(5) for f in answers] == ["0", "1", "2"] * 4
        eventually(lambda: {n.hops for n in here.nodes()} == {1, 2, 3})
        eventually(lambda: PathMoved in {type(event) for some in events for event in some})

    assert {type(event) for some in events for event in some} == {LinkDown, PathMoved}
    assert not any(future.done() for future in fired)


def test_messages_commands_and_answers_wait_while_a_path_is_sought(make_node):
    """In a ring of five e's path to b leads through a; e reads nothing of a for a while."""
    a, b, c, d, e = (make_node(name) for name in "abcde")
    line(a, b, c, d, e)
    connect(e, a)
    eventually(lambda: e._broker.routes.router.path(b.node_id) == (a.node_id, b.node_id))
    sink, later = bare(a, b.spawn(Sink)), bare(b, a.spawn(Later))
    mortal = bare(a, b.spawn(Echo))
    assert sink.ask(Size()).result(5) == 0
    owed = later.ask("x")
    later.call(Later.count).result(5)
    held: list[tuple] = []
    take = e._broker.incoming.handle_control

    def hold(wire, frame):
        if frame[0] == Operation.ROUTING_UPDATE:
            held.append((wire, frame))
        else:
            take(wire, frame)

    e._broker.incoming.handle_control = hold
    cut(a, b)
    eventually(lambda: b.node_id in a._broker.routes.router.active)

    for number in range(100):
        sink.tell(number)
    size = sink.ask(Size())
    mortal.stop()
    a.ref(str(later)).tell(0.0)
    late = a.monitor(sink)
    eventually(lambda: b.node_id in a._broker.unrouted.held)
    assert not any(future.done() for future in (owed, size, late))
    e._broker.incoming.handle_control = take
    e._broker.runtime.runner.post(lambda: [take(*args) for args in held])

    assert size.result(5) == 100
    assert owed.result(5) == "X"
    assert a.monitor(mortal).result(5).reason in ("normal", "not_found")
    assert sink.call(Sink.everything).result(5) == list(range(100))
    assert not late.done()


def test_what_waited_for_a_path_is_refused_when_there_is_none(four):
    a, b, c, d = four
    echo, later = bare(a, d.spawn(Echo)), bare(d, a.spawn(Later))
    owed = later.ask("x")
    later.call(Later.count).result(5)
    held: list[tuple] = []
    take = b._broker.incoming.handle_control

    def hold(wire, frame):
        if frame[0] == Operation.ROUTING_UPDATE and wire.peer == a.node_id:
            held.append((wire, frame))
        else:
            take(wire, frame)

    b._broker.incoming.handle_control = hold
    take_of_a, unread = a._broker.incoming.handle_control, []
    a._broker.incoming.handle_control = lambda _, frame: unread.append(frame[0])
    cut(b, c)
    eventually(lambda: d.node_id in b._broker.routes.router.active)
    eventually(lambda: Operation.ROUTING_UPDATE in unread)
    asked = bare(b, echo).ask("passed on, then refused")
    a._broker.incoming.handle_control = take_of_a
    passing = echo.ask("in transit")
    eventually(lambda: d.node_id in b._broker.unrouted.held)
    before = b.stats().undeliverable
    assert not asked.done()
    assert not passing.done()

    statement = Statement(a.node_id, 10**6, {b.node_id}, {c.node_id, d.node_id})
    payload = write_update([], [], [], [statement])
    frame = Frame(11, len(payload), 0, a.node_id, b.node_id, 0, 0, payload)
    b._broker.runtime.runner.post(take, b._broker.routes.wires[a.node_id], frame)

    with pytest.raises(NodeUnreachable):
        asked.result(5)
    eventually(lambda: b.stats().undeliverable == before + 1)
    assert b._broker.unrouted.held == {}
    with pytest.raises(NodeUnreachable):
        owed.result(5)


def test_a_node_far_away_is_told_with_its_name(make_node):
    a, b, c = (make_node(name) for name in "abc")
    with recorded(a) as events:
        line(a, b, c)
        eventually(lambda: sum(type(event) is NodeUp for event in events) == 2)

    assert {(e.name, e.hops) for e in events if type(e) is NodeUp} == {("b", 1), ("c", 2)}


def test_a_node_that_goes_before_it_said_its_name_is_told_in_order(make_node):
    a, b, c = (make_node(name) for name in ("a", "b", "c" * (NAME_LIMIT + 1)))
    c._broker.deliver = lambda wire, frames: None  # it says nothing
    c._broker.connector.start(c._broker)
    with recorded(a) as events:
        connect(a, b)
        connect(b, c)
        eventually(lambda: c.node_id in a._broker.routes.router.next_hops)
        cut(b, c)
        eventually(lambda: any(type(event) is NodeDown for event in events))

    told = [(type(e), e.name) for e in events if getattr(e, "node_id", b"") == c.node_id]
    assert told == [(NodeUp, ""), (NodeDown, "")]
