"""Lost links, other paths, and nodes out of reach."""

import pytest

from callboard.actors.errors import (
    NodeUnreachable,
)
from callboard.basp.routing.update import NAME_LIMIT
from callboard.proxies.events import NodeDown
from callboard.proxies.ledger import tombstones
from tests.proxies.cast import (
    Echo,
    Later,
    Sink,
    Size,
    bare,
    connect,
    cut,
    eventually,
    everybody_knows,
    heal,
    law_holds,
    line,
    recorded,
    settled,
)


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
        eventually(lambda: [node.name for node in a.nodes()] == ["b"])
        eventually(lambda: sum(isinstance(event, NodeDown) for event in events) >= 2)
    with pytest.raises(NodeUnreachable):
        echo.ask("x").result(5)
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


# --- nodes that do not come back ---


def test_a_node_that_stays_away_is_forgotten_and_the_law_holds(make_node, monkeypatch):
    monkeypatch.setattr(tombstones, "ARRIVALS_KEPT", 0.0)
    monkeypatch.setattr(tombstones, "ACCOUNTS_KEPT", 0.0)
    a, b, c = make_node("a"), make_node("b"), make_node("c")
    line(a, b, c)
    c.listen()
    echo = a.ref(str(c.spawn(Echo)))
    assert echo.ask("x").result(5) == "x"
    c.ref(str(a.spawn(Echo))).ask("back").result(5)
    settled(a, b, c)
    broker = a._broker
    sent = broker.routes.accounts.totals()[0]
    tables = (
        broker.routes.accounts.accounts,
        broker.routes.accounts.arrivals,
        broker.incoming._orders,
        broker.routes.names,
        broker.paths._hops,
    )
    assert all(c.node_id in table for table in tables)

    c.close()
    eventually(lambda: [node.name for node in a.nodes()] == ["b"])
    eventually(lambda: not any(c.node_id in table for table in tables))

    total, confirmed, lost, in_flight = broker.routes.accounts.totals()
    assert (total, in_flight) == (confirmed + lost, 0)
    assert total >= sent
    assert len(broker.routes.departed) == 0


def test_a_node_that_was_forgotten_is_as_good_as_a_new_one(make_node, monkeypatch):
    """Its sender begins with epoch 0 again, which its receiver takes because it forgot, too."""
    monkeypatch.setattr(tombstones, "ARRIVALS_KEPT", 0.0)
    monkeypatch.setattr(tombstones, "ACCOUNTS_KEPT", 0.0)
    a, b = make_node("a"), make_node("b")
    line(a, b)
    sink = b.spawn(Sink)
    for expected in (1, 2, 3):
        there = a.ref(str(sink))
        there.tell(expected)
        assert there.ask(Size()).result(5) == expected
        cut(a, b)
        for node in (a, b):
            eventually(lambda node=node: node.nodes() == [])
            node.runtime.runner.post(node._broker.forget_departed)
            eventually(lambda node=node: node.accounts() == {})
        heal(a, b)
        everybody_knows(a, b)

    assert a.ref(str(sink)).call(Sink.everything).result(5) == [1, 2, 3]


def test_names_come_with_the_paths_and_nobody_asks_for_them(cluster):
    nodes = cluster(4, topology="line")
    assert {n.name: [m.name for m in n.nodes()] for n in nodes} == {
        "a": ["b", "c", "d"],
        "b": ["a", "c", "d"],
        "c": ["b", "d", "a"],
        "d": ["c", "b", "a"],
    }
    assert [node.accounts() for node in nodes] == [{}] * 4


def test_a_node_with_a_name_too_long_to_be_told_on_is_asked_for_it(cluster):
    longest, longer = "x" * NAME_LIMIT, "y" * (NAME_LIMIT + 1)
    a, hub, b = (cluster.node(name) for name in (longest, "hub", longer))
    for leaf in (a, b):
        leaf.connect(hub.address)
    cluster.run_until(lambda: len(a.accounts()) == 1 and len(b.nodes()) == 2, 5)
    cluster.advance(0.1)
    assert [node.name for node in a.nodes()] == ["hub", longer]
    assert [node.name for node in b.nodes()] == ["hub", longest]
    assert b.accounts().keys() == {a.node_id}, "b only answers"
    assert hub.accounts() == {}


def test_a_hub_that_closes_loses_each_node_once_and_so_do_the_others(cluster):
    hub, *leaves = cluster(8, topology="star")
    with recorded(hub) as events, recorded(leaves[0]) as seen:
        hub.close()
        cluster.run_until(lambda: not leaves[0].nodes(), 5)
    assert sorted(e.name for e in events if isinstance(e, NodeDown)) == list("bcdefgh")
    assert sorted(e.name for e in seen if isinstance(e, NodeDown)) == list("acdefgh")
