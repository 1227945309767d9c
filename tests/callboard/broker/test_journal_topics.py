"""Journals of entities as topics."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from callboard import Endpoint, Node
from callboard.broker import journal_topics
from callboard.errors import WouldBlock
from tests.callboard.entity.journal.carts import Cart


@pytest.fixture
def state(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/shop.db"


def put(node: Node, *items: str, key: str = "k") -> None:
    for each in [node.entity(Cart, key).ask(item) for item in items]:
        each.result(10)


def test_events_are_published_in_order_behind_their_keys(state: str) -> None:
    with (
        Node("host") as node,
        Node("other") as other,
        Endpoint(node=node) as here,
        Endpoint(node=other) as there,
        there.make_subscriber("/shop/cart") as subscriber,
    ):
        node.host(Cart, state=state)
        node.listen("127.0.0.1", 0)
        other.connect(node.address)
        here.await_filter_entry("/shop/cart")
        put(node, "tea", "milk", key="u/1")
        put(node, "nuts", key="u-2")

        assert here.publish_journal(node.journal(Cart, reader="topics"), "/shop/cart") == 3

        got: list[Any] = list(subscriber.get(3))
        assert [topic for topic, _ in got] == [
            "/shop/cart/u%2F1",
            "/shop/cart/u%2F1",
            "/shop/cart/u-2",
        ]
        data = got[1][1]
        assert isinstance(data["time"], datetime)
        assert {name: data[name] for name in data if name != "time"} == {
            "position": 2,
            "key": "u/1",
            "number": 2,
            "epoch": 1,
            "kind": "journal-tests.Added",
            "version": 1,
            "fields": {"item": "milk", "cents": 1},
        }
        assert here.publish_journal(node.journal(Cart, reader="topics"), "/shop/cart") == 0


def test_what_was_not_delivered_is_published_again(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node("host") as node, Endpoint(node=node) as endpoint:
        node.host(Cart, state=state)
        put(node, "tea")
        monkeypatch.setattr(journal_topics, "_are_delivered", lambda *_: False)
        assert endpoint.publish_journal(node.journal(Cart, reader="t"), "/c") == 1
        monkeypatch.undo()
        assert endpoint.publish_journal(node.journal(Cart, reader="t"), "/c") == 1
        assert endpoint.publish_journal(node.journal(Cart, reader="t"), "/c") == 0


def test_a_loop_is_not_blocked(state: str) -> None:
    async def work(node: Node, endpoint: Endpoint) -> int:
        with pytest.raises(WouldBlock, match="apublish_journal"):
            endpoint.publish_journal(node.journal(Cart), "/c")
        return await endpoint.apublish_journal(node.journal(Cart), "/c")

    with Node("host") as node, Endpoint(node=node) as endpoint:
        node.host(Cart, state=state)
        assert asyncio.run(work(node, endpoint)) == 0
