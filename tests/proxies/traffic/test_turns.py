"""What one link brings is carried out in turns, between those of others."""

from contextlib import ExitStack

import pytest

from callboard.basp.control import pack_announce, pack_down, pack_release
from callboard.basp.frame import pack_frame
from callboard.basp.header import FIRST_ACTOR, NODE_ACTOR, Operation
from callboard.basp.node_id import NodeId
from callboard.basp.routing.update import PathVector
from callboard.proxies.events import NodeDown, NodeUp
from callboard.proxies.lifetime.lifetimes import AT_ONCE
from callboard.proxies.traffic import paths
from callboard.proxies.traffic.incoming import CONTROLS_AT_ONCE, Incoming
from tests.basp.wire import write_update
from tests.proxies.cast import Echo, recorded


@pytest.fixture
def turns(monkeypatch):
    """A list that gets a number for each portion of what a node is brought."""
    numbers = [0]
    for method in ("deliver", "_step"):
        monkeypatch.setattr(Incoming, method, beginning(getattr(Incoming, method), numbers))
    return numbers


def beginning(method, turns):
    """Begin a turn with each call."""

    def begin(*args, **options):
        turns.append(0)
        return method(*args, **options)

    return begin


def linked(cluster, *names):
    """Return nodes that are linked with the last of them, and their wires to it."""
    *others, host = [cluster.node(name) for name in names]
    for node in others:
        node.connect(host.address)
    cluster.advance(5.0)
    return host, others, [node._broker.routes.wires[host.node_id] for node in others]


def counted(owner, method, turns):
    """Count in the last of some turns how often a method is called."""
    whole = getattr(owner, method)

    def counting(*args):
        turns[-1] += 1
        return whole(*args)

    setattr(owner, method, counting)


def test_so_many_frames_of_one_link_are_carried_out_in_a_turn(cluster, turns):
    host, (a, bystander), (wire, _) = linked(cluster, "a", "bystander", "host")
    echo = bystander.ref(str(host.spawn(Echo)))
    numbers = []
    counted(host._broker.lifetimes, "on_announce", turns)
    announced = host._broker.lifetimes.holders.announced
    host._broker.lifetimes.holders.announced = lambda node, number, *rest: (
        numbers.append(number) or announced(node, number, *rest)
    )

    for number in range(FIRST_ACTOR, FIRST_ACTOR + 1_000):
        wire.write(pack_announce(a.node_id, host.node_id, number, number))
    asked = echo.ask("x")
    cluster.advance(1.0)

    assert asked.result(1.0) == "x"
    assert [n for n in numbers if n < FIRST_ACTOR + 1_000] == sorted(numbers)[:1_000]
    assert sum(turns) >= 1_000
    assert max(turns) <= CONTROLS_AT_ONCE


def test_a_release_of_very_many_proxies_is_carried_out_in_turns(cluster, turns):
    host, (a,), (wire,) = linked(cluster, "a", "host")
    holders = host._broker.lifetimes.holders
    for number in range(FIRST_ACTOR, FIRST_ACTOR + 10_000):
        holders.announced(a.node_id, number, 1)
    counted(holders, "released", turns)

    for _ in range(3):  # the latter ones in vain
        wire.write(pack_release(a.node_id, host.node_id, NODE_ACTOR, 1))
    wire.write(pack_announce(a.node_id, host.node_id, FIRST_ACTOR, 2))
    cluster.advance(1.0)

    assert holders.count(a.node_id) == 1
    assert max(turns) <= AT_ONCE


def test_a_link_that_ends_is_done_with_before_its_node_is_lost(cluster):
    host, (a,), (wire,) = linked(cluster, "a", "host")
    numbers = range(FIRST_ACTOR, FIRST_ACTOR + 1_000)
    refs = [host.ref(f"basp:///{number}@{a.node_id.hex()}") for number in numbers]
    downs = [host.monitor(ref) for ref in refs]
    cluster.advance(1.0)

    for number in numbers:
        wire.write(pack_down(a.node_id, number, host.node_id, 3, "why"))
    a.close()
    cluster.advance(1.0)

    assert {str(down.result(1.0).reason) for down in downs} != {"unreachable"}
    assert len({str(down.result(1.0).reason) for down in downs}) == 1


def test_a_link_that_is_not_read_is_not_taken_for_silent(cluster):
    host, (a,), _ = linked(cluster, "a", "host")
    echo = a.ref(str(host.spawn(Echo)))
    wire = host._broker.routes.wires[a.node_id]

    wire.hold()
    wire.hold()
    asked = echo.ask("x")
    cluster.advance(30.0)
    assert not asked.done()
    wire.release()
    assert wire.is_held
    wire.release()

    assert asked.result(5.0) == "x"
    assert {link.peer for link in host.links()} == {a.node_id}


def crowd_of(node, peer, first, count, *, gone=False):
    """Return a frame in which a node tells of neighbors that there are not."""
    ids = [NodeId(number.to_bytes(18, "big")) for number in range(first, first + count)]
    vectors = [] if gone else [PathVector((node.node_id, one), (1, 1)) for one in ids]
    payload = write_update(vectors, ids if gone else [], names=["x"] * len(vectors))
    source, destination = node.node_id, peer.node_id
    return pack_frame(Operation.ROUTING_UPDATE, 0, source, destination, 0, 0, payload)


def test_a_flood_of_nodes_is_concluded_on_at_a_pace_here_and_beyond(cluster, monkeypatch):
    monkeypatch.setattr(paths, "RECOMPUTATIONS_SAVED", 128.0)
    monkeypatch.setattr(paths, "RECOMPUTATIONS_PER_SECOND", 200.0)
    host, (hostile, member, other), (wire, _, _) = linked(
        cluster, "hostile", "member", "other", "host"
    )
    beyond = cluster.node("beyond")
    beyond.connect(member.address)
    cluster.advance(5.0)
    concluded = dict.fromkeys((host, member, beyond), 0)
    with ExitStack() as listening:
        for node in concluded:

            def note(event, node=node):
                concluded[node] += isinstance(event, NodeUp | NodeDown)

            listening.enter_context(node.subscribed(note))
        for second in range(5):
            for first in range(1, 501, 100):
                number = 1_000 * second + first
                wire.write(crowd_of(hostile, host, number, 100))
                wire.write(crowd_of(hostile, host, number + 500, 100))
                wire.write(crowd_of(hostile, host, number, 100, gone=True))
            cluster.advance(1.0)
            if second == 2:
                lost = beyond.monitor_node(other.node_id)
                other.close()

    assert lost.result(1.0).node_id == other.node_id
    assert max(concluded.values()) <= 2 * (128 + 5 * 200)
    for node, count in ((host, 2), (member, 2), (beyond, 1)):
        assert len(node.links()) == count
    hostile.close()
    cluster.advance(120.0)
    for node in concluded:
        routes = node._broker.routes
        assert len(routes.router.reachable) == 2
        assert len(routes.names) + len(routes.departed) < 10


def test_an_announce_of_no_actor_ends_no_link_of_others(cluster):
    host, (hostile,), _ = linked(cluster, "hostile", "host")
    target = cluster.node("target")
    target.connect(host.address)
    cluster.advance(5.0)
    hostile._broker.routes.send_to(
        target.node_id, pack_announce(hostile.node_id, target.node_id, NODE_ACTOR, 1)
    )
    with recorded(host) as events, recorded(target) as others:
        cluster.advance(5.0)

    assert events == others == []
    assert len(host.links()) == 2
