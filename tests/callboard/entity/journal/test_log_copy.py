"""Journals in logs: each event once, whatever ended the copy before."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from callboard import Entity, Node, event, handler, message
from callboard.commitlog import CommitLog, LogLocked, LogReader, Retention
from callboard.entity.journal import journal as journal_module
from callboard.entity.journal import log_copy
from callboard.entity.journal.log_copy import producer_name
from callboard.errors import StateCorrupt, WrongState, WrongValue
from tests.callboard.entity.journal.carts import Cart


@message("journal-tests.Sold")
@dataclass(frozen=True)
class Sold:
    when: datetime
    price: Decimal
    raw: bytes
    pair: tuple[int, int]
    large: int


class Till(Entity):
    name = "journal-tests.Till"

    @handler
    def on_sold(self, msg: Sold) -> None:
        self.persist(msg)

    @event
    def on_stored(self, event: Sold) -> None:
        pass


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node("host") as made:
        made.host(Cart, state=f"sqlite:{tmp_path}/shop.db")
        yield made


def put(node: Node, *items: str, key: str = "k") -> None:
    for each in [node.entity(Cart, key).ask(item) for item in items]:
        each.result(10)


def items(folder: Path) -> list[str]:
    return [record.payload["item"] for record in LogReader(folder).read(0)]


def test_records_have_all_of_an_event(node: Node, tmp_path: Path) -> None:
    put(node, "tea", key="a/b")
    (entry,) = node.journal(Cart)

    assert node.journal(Cart).to_log(tmp_path / "log") == 1

    log = LogReader(tmp_path / "log")
    (record,) = log.read(0)
    assert record.topic == "/journal-tests.Cart/a%2Fb"
    assert record.key == "a/b"
    assert record.payload == {"item": "tea", "cents": 0}
    assert record.time == int(entry.time.timestamp() * 1000) * 1_000_000
    assert record.headers == {
        "epoch": "1",
        "kind": "journal-tests.Added",
        "number": "1",
        "position": "1",
        "version": "1",
    }
    assert {field.name: field.type for field in log.fields} == {"item": "text", "cents": "int"}


def test_a_copy_goes_on_where_the_last_one_ended(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "PAGE", 4)
    put(node, *map(str, range(10)))
    assert node.journal(Cart).to_log(tmp_path / "log") == 10
    assert node.journal(Cart).to_log(tmp_path / "log") == 0
    put(node, *map(str, range(10, 15)))
    assert node.journal(Cart, after=3).to_log(tmp_path / "log") == 5
    assert items(tmp_path / "log") == [str(i) for i in range(15)]


def test_a_copy_that_is_torn_anywhere_is_made_whole(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(node, *map(str, range(12)))
    monkeypatch.setattr(log_copy, "BATCH_BYTES", 60)  # some events each
    whole = tmp_path / "whole"
    node.journal(Cart).to_log(whole)
    (segment,) = whole.glob("*.log")
    octets = segment.read_bytes()
    for number, end in enumerate(range(0, len(octets), 97)):
        torn = tmp_path / str(number)
        torn.mkdir()
        (torn / segment.name).write_bytes(octets[:end])
        node.journal(Cart).to_log(torn)
        assert items(torn) == [str(i) for i in range(12)]


def test_it_begins_where_it_is_told(node: Node, tmp_path: Path) -> None:
    put(node, "a", "b", "c")
    assert node.journal(Cart, after=2).to_log(tmp_path / "log") == 1
    assert items(tmp_path / "log") == ["c"]


def test_the_log_of_another_state_is_refused(node: Node, tmp_path: Path) -> None:
    put(node, "tea")
    node.journal(Cart).to_log(tmp_path / "log")
    with Node("other") as other:
        other.host(Cart, state=f"sqlite:{tmp_path}/other.db")
        put(other, "a", "b")
        with pytest.raises(WrongState, match="another state"):
            other.journal(Cart).to_log(tmp_path / "log")
    assert items(tmp_path / "log") == ["tea"]


def test_a_log_that_lost_its_last_record_is_told(node: Node, tmp_path: Path) -> None:
    put(node, "tea")
    with CommitLog(tmp_path / "log", retain=Retention(bytes=2_000), segment_bytes=1_000) as log:
        node.journal(Cart).to_log(log)
        for _ in range(100):
            log.append("/others", "x" * 100)
        log.trim()
        with pytest.raises(StateCorrupt, match="copy into a new log"):
            node.journal(Cart).to_log(log)


def test_a_log_that_is_written_elsewhere_is_refused(node: Node, tmp_path: Path) -> None:
    with CommitLog(tmp_path / "log"), pytest.raises(LogLocked):
        node.journal(Cart).to_log(tmp_path / "log")
    with pytest.raises(WrongValue, match="leave reader= away"):
        node.journal(Cart, reader="r").to_log(tmp_path / "log")


def test_values_that_json_lacks_are_themselves(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    with Node("host") as node:
        node.host(Till, state=f"sqlite:{tmp_path}/till.db")
        sold = Sold(when, Decimal("1.50"), b"\0\xff", (1, 2), 2**60)
        node.entity(Till, "t").ask(sold).result(5)
        node.journal(Till).to_log(tmp_path / "log")
    (record,) = LogReader(tmp_path / "log").read(0)
    payload: dict[str, Any] = record.payload
    assert payload.pop("pair").keys() == {"$cbor"}
    assert payload == {
        "when": when,
        "price": Decimal("1.50"),
        "raw": b"\0\xff",
        "large": 2**60,
    }


def test_any_name_of_a_type_names_a_producer() -> None:
    assert producer_name("shop.Cart") == "journal/shop.Cart"
    odd = producer_name("Körbe" * 20)
    assert odd.startswith("journal/")
    assert odd.isascii()


def test_events_without_json_objects_are_told(node: Node, tmp_path: Path) -> None:
    put(node, "tea")
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("UPDATE callboard_events SET body = '{'")
    with pytest.raises(StateCorrupt):
        node.journal(Cart).to_log(tmp_path / "log")
