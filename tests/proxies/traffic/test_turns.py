"""What one link brings is carried out in turns, between those of others."""

import pytest

from callboard.basp.control import pack_announce, pack_down, pack_release
from callboard.basp.header import FIRST_ACTOR, NODE_ACTOR
from callboard.proxies.lifetime.lifetimes import AT_ONCE
from callboard.proxies.traffic.incoming import CONTROLS_AT_ONCE, Incoming
from tests.proxies.cast import Echo


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
    counted(host._broker.lifetimes, "take_announce", turns)
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
