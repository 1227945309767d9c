"""What a node tells of its entities: figures, events, rows."""

from pathlib import Path

from callboard import Node
from callboard.entity.node_entities import place_of
from callboard.events import EntityTypeHosted, SlotFenced, SlotsMoved
from callboard.figures import exposition
from callboard.operation.metrics import node_metrics
from tests.callboard.entity.journal.carts import Cart
from tests.polling import eventually


def test_a_host_counts_what_happens(tmp_path: Path) -> None:
    with Node("a") as node:
        assert node.entity_stats() == []
        node.host(Cart, state=f"sqlite:{tmp_path}/shop.db")
        for key in ("k-1", "k-2"):
            for item in ("tea", "milk"):
                node.entity(Cart, key).ask(item).result(10)
        (stats,) = node.entity_stats()
        told = exposition(node_metrics(node))

    assert (stats.type, stats.slots, stats.active, stats.waiting) == (Cart.name, 256, 2, 0)
    assert (stats.activated, stats.commits, stats.events) == (2, 4, 4)
    assert (stats.failures, stats.fenced, stats.gained, stats.moves) == (0, 0, 256, 0)
    assert stats.commit_seconds.count == 1
    labels = f'type="{Cart.name}"'
    assert f"callboard_entity_events_total{{{labels}}} 4" in told
    assert f"callboard_entity_commit_seconds_count{{{labels}}} 1" in told
    assert f'callboard_entity_commit_seconds_bucket{{{labels},le="+Inf"}} 1' in told
    assert "# TYPE callboard_entity_commit_seconds histogram" in told


def test_slots_that_come_and_go_are_told(tmp_path: Path) -> None:
    state = f"sqlite:{tmp_path}/shop.db"
    with Node("a") as a, Node("b") as b:
        told: list[object] = []
        with a.subscribed(told.append):
            a.listen("127.0.0.1", 0)
            b.connect(a.address)
            a.host(Cart, state=state)
            b.host(Cart, state=state)
            eventually(lambda: 0 < b.entity_stats()[0].slots == 256 - a.entity_stats()[0].slots)
            (stats,) = a.entity_stats()
            assert stats.moves == 256 - stats.slots
        seen = [each for each in told if isinstance(each, EntityTypeHosted | SlotsMoved)]
    assert EntityTypeHosted(Cart.name, state) in seen
    assert SlotsMoved(Cart.name, 256, 0, 256) in seen
    moves = [each for each in seen if isinstance(each, SlotsMoved)]
    assert sum(each.lost for each in moves) == stats.moves
    assert moves[-1].owned == stats.slots


def test_a_slot_that_another_took_is_told(tmp_path: Path) -> None:
    import sqlite3

    with Node("a") as node:
        node.host(Cart, state=f"sqlite:{tmp_path}/shop.db")
        told: list[object] = []
        with node.subscribed(told.append), sqlite3.connect(tmp_path / "shop.db") as database:
            database.execute("UPDATE callboard_fences SET epoch = 7, writer = 'other'")
            database.commit()
            node.entity(Cart, "k").tell("tea")
            eventually(lambda: any(isinstance(each, SlotFenced) for each in told))
        fenced = next(each for each in told if isinstance(each, SlotFenced))
        assert (fenced.type_name, fenced.epoch, fenced.writer) == (Cart.name, 7, "other")
        (stats,) = node.entity_stats()
        assert (stats.fenced, stats.failures, stats.events) == (1, 1, 0)


def test_places_have_no_passwords() -> None:
    assert place_of(None) == ""
    assert place_of("sqlite:a.db") == "sqlite:a.db"
    assert place_of("postgresql://u:secret@db:5432/shop?x=1") == "postgresql://db:5432/shop"
