"""The journal of a type: all events in the order of commits, on any node, none missed."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from callboard import Node
from callboard.entity.journal import journal as journal_module
from callboard.entity.journal.entry import RawEvent
from callboard.errors import (
    Fenced,
    StateCorrupt,
    StateUnavailable,
    StateVersion,
    WouldBlock,
    WrongArgument,
    WrongValue,
)
from callboard.simulation import Cluster
from tests.callboard.entity.journal.carts import Added, Cart, LaterCart, OddCart
from tests.polling import eventually


@pytest.fixture
def state(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/shop.db"


@pytest.fixture
def node(state: str) -> Iterator[Node]:
    with Node("host") as made:
        made.host(Cart, state=state)
        yield made


def put(node: Node, *items: str, key: str = "k") -> None:
    asked = [node.entity(Cart, key).ask(item) for item in items]
    for each in asked:
        each.result(10)


def positions(journal: Any) -> list[int]:
    return [entry.position for entry in journal]


def test_entries_tell_all_of_an_event(node: Node) -> None:
    put(node, "tea", "milk")
    put(node, "nuts", key="k-2")

    first, second, third = node.journal(Cart)

    assert first[:3] == (1, "k", 1)
    assert (second.position, second.key, second.number) == (2, "k", 2)
    assert (third.position, third.key, third.number) == (3, "k-2", 1)
    assert [each.event for each in (first, second, third)] == [
        Added("tea", 0),
        Added("milk", 1),
        Added("nuts", 0),
    ]
    assert abs(datetime.now(UTC) - third.time) < timedelta(minutes=1)
    assert third.epoch == 1


def test_it_begins_behind_a_position_on_a_node_that_hosts_nothing(
    node: Node, state: str
) -> None:
    put(node, *map(str, range(10)))
    with Node("other") as other:
        assert positions(other.journal(Cart, state=state, after=7)) == [8, 9, 10]
        assert positions(other.journal(Cart.name, state=state, after=10)) == []


def test_pages_follow_each_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "PAGE", 3)
    put(node, *map(str, range(10)))
    journal = node.journal(Cart)

    assert positions(journal) == list(range(1, 11))
    assert journal.position == 10


def test_none_is_missed_or_doubled_while_commits_go_on(node: Node) -> None:
    writers = [
        threading.Thread(target=put, args=(node, *map(str, range(150))), kwargs={"key": str(i)})
        for i in range(4)
    ]
    seen: list[Any] = []
    with node.journal(Cart, follow=True) as journal:
        for writer in writers:
            writer.start()
        for entry in journal:
            seen.append(entry)
            if len(seen) == 600:
                break
    for writer in writers:
        writer.join()

    assert positions(seen) == list(range(1, 601))
    for key in "0123":
        assert [e.event.item for e in seen if e.key == key] == [str(i) for i in range(150)]


def test_closing_ends_one_that_waits(node: Node) -> None:
    put(node, "tea")
    journal, seen = node.journal(Cart, follow=True), []
    thread = threading.Thread(target=lambda: seen.extend(journal))
    thread.start()
    eventually(lambda: journal.position == 1)

    journal.close()
    thread.join(10)

    assert not thread.is_alive()
    assert positions(seen) == [1]
    assert list(journal) == []


def test_a_task_that_is_cancelled_loses_nothing(node: Node) -> None:
    async def work() -> list[int]:
        async with node.journal(Cart, follow=True) as journal:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(journal), 0.05)
            await node.entity(Cart, "k").ask("tea")
            await node.entity(Cart, "k").ask("milk")
            return [(await anext(journal)).position for _ in range(2)]

    assert asyncio.run(work()) == [1, 2]


def test_a_loop_is_not_blocked(node: Node) -> None:
    async def work() -> None:
        list(node.journal(Cart))

    with pytest.raises(WouldBlock, match="async for"):
        asyncio.run(work())


def test_events_are_upcast_as_on_recovery(node: Node, state: str) -> None:
    put(node, "tea")
    with Node("later") as later:
        (entry,) = later.journal(LaterCart, state=state)
        assert entry.event == Added("TEA", 0)
        with pytest.raises(StateVersion, match="nothing but the fields"):
            list(later.journal(OddCart, state=state))


def test_a_class_that_is_unknown_or_too_old_is_told_and_raw_events_are_read(
    node: Node, state: str
) -> None:
    put(node, "tea", "milk")
    with sqlite3.connect(state.removeprefix("sqlite:")) as connection:
        connection.execute("UPDATE callboard_events SET version = 2 WHERE position = 1")
        connection.execute("UPDATE callboard_events SET kind = 'shop.New' WHERE position = 2")

    journal = node.journal(Cart)
    for _ in range(2):  # an entry that cannot be read is not passed over
        with pytest.raises(StateVersion, match=r"position|version 2"):
            next(journal)
    with pytest.raises(StateVersion, match=r"shop\.New.*raw=True"):
        list(node.journal(Cart, after=1))

    first, second = node.journal(Cart, raw=True)
    assert first.event == RawEvent("journal-tests.Added", 2, {"item": "tea", "cents": 0})
    assert second.event.kind == "shop.New"


def test_damage_is_told(node: Node, state: str) -> None:
    put(node, "tea")
    with sqlite3.connect(state.removeprefix("sqlite:")) as connection:
        connection.execute("UPDATE callboard_events SET body = '[1'")
    for is_raw in (False, True):
        with pytest.raises(StateCorrupt):
            list(node.journal(Cart, raw=is_raw))


def test_a_state_that_ends_before_is_another_one(node: Node) -> None:
    put(node, "tea")
    with pytest.raises(StateCorrupt, match="ends at 1, so it cannot be read after 2"):
        list(node.journal(Cart, after=2))


def test_a_reader_goes_on_where_it_was(node: Node, state: str) -> None:
    put(node, "a", "b", "c")
    first = node.journal(Cart, reader="mails")
    next(first)
    first.done(next(first))
    next(first)

    with Node("other") as other:
        again = other.journal(Cart, state=state, reader="mails")
        assert positions(again) == [3]
        again.done()
        with pytest.raises(Fenced, match="mails"):
            first.done()
        assert positions(other.journal(Cart, state=state, reader="mails")) == []
    with pytest.raises(WrongValue, match="reader=NAME"):
        node.journal(Cart).done()


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (WrongValue, {"after": -1}),
        (WrongArgument, {"after": "1"}),
        (WrongArgument, {"follow": 1}),
        (WrongArgument, {"state": 1}),
        (WrongArgument, {"reader": 1}),
        (WrongValue, {"reader": "a b"}),
        (WrongArgument, {"raw": "yes"}),
    ],
)
def test_arguments_are_checked(node: Node, error: type, arguments: dict[str, Any]) -> None:
    with pytest.raises(error):
        node.journal(Cart, **arguments)


def test_an_unknown_place_is_told(tmp_path: Path) -> None:
    with Node("n") as node:
        with pytest.raises(WrongValue, match=r"state=…"):
            node.journal("Crat")
        node.host(Cart)
        with pytest.raises(WrongValue, match="hosted without a state"):
            node.journal(Cart)
        with pytest.raises(StateUnavailable, match="there is no file"):
            list(node.journal(Cart, state=f"sqlite:{tmp_path}/none.db"))
        assert list(tmp_path.iterdir()) == []


# --- simulated: hosts tell, databases that are away, failovers ---

SERVER = "postgresql://simulated/shop"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(7)) as made:
        yield made


def followed(cluster: Cluster) -> tuple[Node, Node, Any, list[int]]:
    """Follow a journal on a node that hosts nothing; what comes is noted."""
    host, other = cluster(2, topology="mesh")
    host.host(Cart, state=SERVER)
    journal, seen = other.journal(Cart, state=SERVER, follow=True), []

    async def follow() -> None:
        async for entry in journal:
            seen.append(entry.position)  # noqa: PERF401 - it is looked at meanwhile

    other._start(follow())
    cluster.advance(1.0)
    return host, other, journal, seen


def test_hosts_tell_those_that_follow(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "POLL_SECONDS", 3600.0)
    host, _, journal, seen = followed(cluster)
    host.entity(Cart, "k").ask("tea").result(5)
    cluster.advance(0.05)
    assert seen == [1]

    cluster.advance(60.0)
    host.entity(Cart, "k").ask("milk").result(5)
    cluster.advance(0.05)
    assert seen == [1, 2]
    journal.close()


def test_one_that_nobody_tells_looks_by_itself(cluster: Cluster) -> None:
    host, other, _, seen = followed(cluster)
    cluster.partition(host, other)
    cluster.advance(10.0)
    host.entity(Cart, "k").ask("tea").result(5)
    cluster.advance(0.5)
    assert seen == [1]


def test_one_that_is_followed_waits_for_its_database(cluster: Cluster) -> None:
    host, other, _, seen = followed(cluster)
    host.entity(Cart, "k").ask("tea").result(5)
    cluster.advance(0.1)
    database = cluster.database(SERVER)

    database.down()
    cluster.advance(10.0)
    with pytest.raises(StateUnavailable):
        list(other.journal(Cart, state=SERVER))
    database.up()
    cluster.advance(3.0)
    host.entity(Cart, "k").ask("milk").result(5)
    cluster.advance(0.5)

    assert seen == [1, 2]


def test_a_failover_that_loses_events_is_told(cluster: Cluster) -> None:
    host, other = cluster(2, topology="mesh")
    host.host(Cart, state=SERVER)
    journal = other.journal(Cart, state=SERVER, follow=True)
    host.entity(Cart, "k").ask("tea").result(5)
    assert next(journal).position == 1

    cluster.database(SERVER).fail_over(lost=cluster.now)
    with pytest.raises(StateCorrupt, match="ends at 0, so it cannot be read after 1"):
        next(journal)


def test_times_are_written_by_the_database(cluster: Cluster) -> None:
    host, _, _, _ = followed(cluster)
    host.entity(Cart, "k").ask("tea").result(5)
    (entry,) = host.journal(Cart)
    assert json.loads(json.dumps(entry.event.item)) == "tea"
    assert entry.time.tzinfo is UTC
