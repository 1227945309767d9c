"""Nodes in processes of their own: what is told when one of them is killed."""

import time

from callboard import Node
from tests.proxies.cast import child_node, eventually, law_holds


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

        began = time.monotonic()
        child.kill()

        assert down.result(5).reason == "unreachable"
        assert time.monotonic() - began < 2.9  # silence would take three seconds
        assert lost.result(5).name == "child"
        assert all(law_holds(node) for node in (a, b, c))


def test_a_restarted_process_is_another_node():
    with Node("a") as a:
        with child_node() as (_, address):
            first = a.connect(address)
        with child_node() as (_, address):
            second = a.connect(address)
            found = a.remote_actor(address + "/echo")

        assert first != second
        assert found.node_id == second
