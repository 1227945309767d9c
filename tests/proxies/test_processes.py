"""Nodes in processes of their own: what is told when one of them is killed."""

import pytest

from callboard import Node
from callboard.proxies.events import LinkDown
from tests.proxies.cast import child_node, eventually, law_holds, recorded


@pytest.mark.slow
def test_a_killed_process_three_hops_away_is_told_within_a_second():
    with Node("a") as a, Node("b") as b, Node("c") as c, child_node() as (child, address):
        b.listen()
        c.listen()
        a.connect(b.address)
        b.connect(c.address)
        c.connect(address)
        eventually(lambda: "child" in {node.name for node in a.nodes()})
        echo = a.find("echo").result(5)
        assert [node.hops for node in a.nodes()] == [1, 2, 3]
        assert echo.ask("hi").result(5) == "hi"
        down, lost = a.monitor(echo), a.monitor_node(echo.node_id)

        with recorded(c) as events:
            child.kill()

            assert down.result(5).reason == "unreachable"
            assert lost.result(5).name == "child"
            eventually(lambda: any(isinstance(event, LinkDown) for event in events))

        (link,) = [event for event in events if isinstance(event, LinkDown)]
        assert "silent" not in link.reason  # which would take three seconds
        assert all(law_holds(node) for node in (a, b, c))


@pytest.mark.slow
def test_a_restarted_process_is_another_node():
    with Node("a") as a:
        with child_node() as (_, address):
            first = a.connect(address)
        with child_node() as (_, address):
            second = a.connect(address)
            found = a.remote_actor(address + "/echo")

        assert first != second
        assert found.node_id == second
