"""Tools are no members; links and nodes that come and go are written to the log, by name."""

import logging

import pytest

from callboard import Actor, Node, errors, handler
from callboard.basp import MessageRegistry, PayloadCodec
from callboard.basp.errors import UnknownMessageType as UnknownHere
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.kernel.tables import Describe
from callboard.operation import node_metrics
from callboard.proxies.events import LinkDown, LinkUp, NodeDown, NodeUp
from callboard.proxies.messages import ABILITIES, CARRIERS
from callboard.proxies.traffic.paths import describe_node, read_node
from callboard.support.platform.release import RELEASE
from tests.proxies.cast import Echo, connect, eventually

COMINGS = (LinkUp, LinkDown, NodeUp, NodeDown)


def test_a_tool_is_told_nobody_and_counted_nowhere_and_sees_what_it_asks_for():
    with Node("shop") as shop, Node("stock") as stock:
        connect(shop, stock)
        eventually(lambda: shop.nodes() != [] != stock.nodes())
        echo, told = stock.spawn(Echo), []

        def note(event):
            if isinstance(event, COMINGS):
                told.append(event)

        with shop.subscribed(note), stock.subscribed(note):
            with Node("look", is_tool=True) as look:
                connect(look, shop)
                eventually(lambda: len(look.nodes()) == 2)
                assert look.ref(str(echo)).ask("x").result(5) == "x"
                for node, other in ((shop, "stock"), (stock, "shop")):
                    assert [each.name for each in node.nodes()] == [other]
                    assert look.node_id in node.overlay.nodes()
                assert {link.peer_name: link.is_tool for link in shop.links()} == {
                    "stock": False,
                    "look": True,
                }
                labels = str([each.samples for each in node_metrics(shop)])
                assert "('peer', 'stock')" in labels
                assert "look" not in labels
            eventually(lambda: look.node_id not in stock.overlay.nodes())
            eventually(lambda: look.node_id not in shop.overlay.nodes())
        assert told == []


def test_what_a_node_says_of_itself_is_read_as_by_the_release_before():
    abilities = [*ABILITIES, CARRIERS]
    assert read_node(b"\x81\x64shop") == ("shop", None, False)
    assert read_node(describe_node("shop", is_tool=False)) == ("shop", abilities, False)
    assert read_node(describe_node("look", is_tool=True)) == ("look", abilities, True)
    limited = describe_node("shop", is_tool=False, is_limited=True)
    assert read_node(limited) == ("shop", list(ABILITIES), False)
    for odd in (b"", b"\xff", b"\x80", b"\x81\x01", b"\x81\x61\x00"):
        assert read_node(odd) == ("", None, False)


def test_links_and_nodes_that_come_and_go_are_lines_with_names_and_reasons(cluster, caplog):
    caplog.set_level(logging.INFO, "callboard.nodes")
    a, b, _ = cluster(3, topology="line")
    cluster.advance(1.0)
    texts = "\n".join(caplog.messages)
    assert "link with b (" in texts
    assert "node b is in reach, linked with this one" in texts
    assert "node c is in reach, 2 links away" in texts
    caplog.clear()

    cluster.partition(a, b)
    cluster.advance(30.0)

    lines = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert any(
        level == "WARNING" and "link with b" in text and "silent for" in text
        for level, text in lines
    )
    assert any("node c is out of reach: " in text for _, text in lines)


def test_accounts_have_the_names_of_nodes():
    with Node("shop") as shop, Node("stock") as stock:
        connect(shop, stock)
        assert shop.ref(str(stock.spawn(Echo))).ask("x").result(5) == "x"
        assert shop.accounts()[stock.node_id].name == "stock"


def test_a_node_that_is_named_in_its_own_seeds_does_not_warn(caplog, tmp_path):
    caplog.set_level(logging.INFO, "callboard.links")
    with Node("first", join=[f"unix:{tmp_path}/first"]) as first:
        first.listen(f"unix:{tmp_path}/first")

        eventually(lambda: "is connected to itself" in caplog.text)

    assert [each.levelname for each in caplog.records if "itself" in each.message] == ["INFO"]


class Old(Actor):
    """Answers like the release before to a request that came later."""

    @handler
    def on_request(self, name: str) -> None:
        with pytest.raises(UnknownHere) as caught:
            PayloadCodec(MessageRegistry()).decode_message(UNHEARD)
        self.promise().set_exception(errors.UnknownMessageType(str(caught.value)))


UNHEARD = PayloadCodec(DEFAULT_REGISTRY).encode(Describe())


def test_an_older_node_is_named_with_its_release_when_it_lacks_a_request():
    with Node("old") as old, Node("look", is_tool=True) as look:
        connect(look, old)
        asked = look.ref(str(old.spawn(Old))).ask("anything")

        with pytest.raises(errors.UnknownMessageType) as caught:
            asked.result(5)

    text = str(caught.value)
    assert text.startswith(f"node old is of release {RELEASE} (")
    assert "does not know callboard.Describe; upgrade that node" in text
