"""The index by key of a file of SQLite, which may be behind the events."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.entity.state import client as state_client
from callboard.entity.state import schema
from callboard.entity.state import sqlite as state_sqlite
from callboard.entity.state.backends import open_view
from callboard.entity.state.client import ThreadedStateClient
from callboard.entity.state.interface import (
    Committed,
    EntitySnapshot,
    EntityState,
    NewEvent,
    SlotBatch,
)
from callboard.entity.state.memory import MemoryState
from callboard.entity.state.sqlite import SqliteState
from callboard.lease.errors import StateCorrupt
from tests.polling import eventually

SLOT = "Cart", 1


@pytest.fixture(autouse=True)
def _soon_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small numbers be many."""
    monkeypatch.setattr(state_sqlite, "INDEXED_AT_ONCE", 2)
    monkeypatch.setattr(state_sqlite, "INDEXED_TOGETHER", 20)
    monkeypatch.setattr(state_sqlite, "INDEXED_FOR_READERS", 8)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    """A state that has a slot."""
    opened = opened_at(tmp_path / "a.db")
    yield opened
    opened.close()


def opened_at(path: Path, writer: str = "a", epoch: int = 1) -> SqliteState:
    """Open a state and claim the slot."""
    state = SqliteState(path, writer)
    state.claim("Cart", {1: epoch})
    return state


def written(names: Sequence[tuple[str, int]], epoch: int = 1) -> SlotBatch:
    """Return the batch of events of keys with their numbers."""
    events = [NewEvent(key, number, "Added", 1, f'"{key} {number}"') for key, number in names]
    return SlotBatch(SLOT, epoch, events)


def lag_of(state: SqliteState) -> int:
    """Return how many events are in no index, by the tables."""
    sql = "SELECT count(*) FROM callboard_events e WHERE NOT EXISTS (SELECT 1 FROM"
    sql += " callboard_events_of_key k WHERE k.type = e.type AND k.position = e.position)"
    return int(state.rows(sql)[0][0])


def numbers(state: EntityState, key: str) -> list[int]:
    """Return the numbers of the events of a key."""
    return [event.number for event in state.recover("Cart", key, 1).events]


def test_few_events_enter_at_once_and_many_later(state: SqliteState) -> None:
    state.commit([written([("a", 1), ("b", 1)])])
    assert lag_of(state) == 0
    state.commit([written([("a", 2), ("b", 2), ("c", 1)])])
    assert lag_of(state) == 3
    state.commit([written([("b", 3)])])
    assert lag_of(state) == 4, "behind others, one waits as well"
    assert [numbers(state, key) for key in "abc"] == [[1, 2], [1, 2, 3], [1]]
    state.commit([written([("b", number) for number in range(4, 8)])])
    assert lag_of(state) == 0, "there are eight, and the events of a key were read"
    state.commit([written([("a", number) for number in range(3, 20)])])
    assert lag_of(state) == 17, "and since then they were not"
    state.commit([written([("a", number) for number in range(20, 23)])])
    assert lag_of(state) == 0
    assert numbers(state, "a") == list(range(1, 23))


def test_what_is_left_enters_when_nothing_else_is_to_do_or_at_the_end(tmp_path: Path) -> None:
    state = opened_at(tmp_path / "a.db")
    state.commit([written([("a", 1), ("b", 1), ("c", 1)])])
    assert state.settle() is False
    assert lag_of(state) == 3
    assert state.settle(is_idle=True) is True
    assert lag_of(state) == 0
    state.commit([written([("a", 2), ("b", 2), ("c", 2)])])
    state.close()
    state = SqliteState(tmp_path / "a.db", "b")
    assert lag_of(state) == 0
    state.close()


COMMITS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=6),
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 30), max_size=1),
        st.sampled_from([None, "settle", "read", "reopen", "other"]),
    ),
    max_size=12,
)


@pytest.mark.slow
@given(COMMITS)
def test_what_is_read_does_not_depend_on_the_index(
    commits: list[tuple[list[tuple[str, int]], dict[str, int], str | None]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.db")
        model, state, other = MemoryState("a"), opened_at(path), SqliteState(path, "other")
        model.claim("Cart", {1: 1})
        last = dict.fromkeys("abc", 0)
        for sizes, forget, then in commits:
            events: list[tuple[str, int]] = []
            kept = {key: number for key, number in forget.items() if number <= last[key]}
            for key, count in sizes:
                events += [(key, last[key] + 1 + more) for more in range(count)]
                last[key] += count
            batch = written(events)
            snapshots = [EntitySnapshot(key, last[key], 1, "{}") for key in kept]
            batch = batch._replace(snapshots=snapshots, forget=kept)
            for each in (model, state):
                each.commit([batch])
            if then == "settle":
                state.settle(is_idle=True)
            elif then == "other":
                other.settle(is_idle=True)
            elif then == "reopen":
                state.close()
                state = SqliteState(path, "a")
            for limit in (2, 100):
                for key in "abcd" if then == "read" else ():
                    after = last.get(key, 0) // 2
                    assert_alike(model, state, other, key, after, limit)
        for key in "abcd":
            assert_alike(model, state, other, key, 0, 100)
            assert state.last_number("Cart", key) == last.get(key, 0)
        indexed = state.rows("SELECT count(*) FROM callboard_events_of_key")[0][0]
        assert lag_of(state) + indexed == len(model.journal("Cart", 0, 1000))
        state.close()
        other.close()


def assert_alike(
    model: MemoryState, state: SqliteState, other: SqliteState, key: str, after: int, limit: int
) -> None:
    """Compare what two states of a file and the model find of a key."""
    for each in (state, other):
        assert list(each.past_events("Cart", key, after, limit)) == list(
            model.past_events("Cart", key, after, limit)
        )
        assert timeless(each.events("Cart", key, after, limit)) == timeless(
            model.events("Cart", key, after, limit)
        )
        assert list(each.keys("Cart", "a", limit)) == list(model.keys("Cart", "a", limit))
        assert timeless(each.journal("Cart", after, limit)) == timeless(
            model.journal("Cart", after, limit)
        )


def timeless(events: Sequence[Any]) -> list[Any]:
    """Return events without the time at which they were written."""
    return [event._replace(time_ms=0) for event in events]


def test_two_processes_enter_each_event_once(tmp_path: Path) -> None:
    first = opened_at(tmp_path / "a.db")
    second = SqliteState(tmp_path / "a.db", "b")
    second.claim("Cart", {2: 1})
    for round_ in range(1, 60):
        for state, slot, key in ((first, 1, "a"), (second, 2, "b")):
            new = written([(key, 3 * round_ - left) for left in (2, 1, 0)])
            assert state.commit([new._replace(slot=("Cart", slot))]).failed == {}
    for state in (first, second):
        assert numbers(state, "a") == numbers(state, "b") == list(range(1, 178))
        state.settle(is_idle=True)
    assert first.rows("SELECT count(*) FROM callboard_events_of_key") == [(2 * 177,)]
    for state in (first, second):
        state.close()


_WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
from tests.callboard.entity.state.test_index_by_key import opened_at, written
from callboard.entity.state import sqlite as state_sqlite
state_sqlite.INDEXED_TOGETHER = state_sqlite.INDEXED_FOR_READERS = 100
state = opened_at(Path(sys.argv[1]))
number = 0
while True:
    events = [(f"k-{key}", number + more) for key in range(20) for more in (1, 2)]
    assert not state.commit([written(events)]).failed
    number += 2
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_every_event_to_be_found(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    acknowledged = 0
    for stop in range(4):
        path.unlink(missing_ok=True)
        program = [sys.executable, "-c", _WRITE_UNTIL_KILLED, str(path)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writing:
            assert writing.stdout is not None
            for _ in range(3 + 7 * stop):
                acknowledged = int(writing.stdout.readline())
            os.kill(writing.pid, signal.SIGKILL)
        state = SqliteState(path, "b")
        for key in range(20):
            found = numbers(state, f"k-{key}")
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= acknowledged
        before = {key: numbers(state, f"k-{key}") for key in range(20)}
        while not state.settle(is_idle=True):
            pass
        assert lag_of(state) == 0
        assert before == {key: numbers(state, f"k-{key}") for key in range(20)}
        state.close()
        for beside in tmp_path.iterdir():
            beside.unlink()


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A file of the version before, with four events of two keys."""
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute(schema.STATE_TABLE)
        for step in schema.STEPS[: schema.INDEX_TABLE_VERSION - 1]:
            for sql in step:
                connection.execute(sql.format_map(schema.SQLITE_TYPES))
        connection.execute("INSERT INTO callboard_state VALUES (1, 'one', 3, '', '')")
        connection.execute("INSERT INTO callboard_types VALUES ('Cart', 0)")
        write_as_before(connection, [("b", 1), ("a", 1), ("b", 2), ("a", 2)])
    connection.close()
    return path


def write_as_before(connection: sqlite3.Connection, events: list[tuple[str, int]]) -> None:
    """Write events as the callboard before did."""
    sql = "UPDATE callboard_types SET last = last + ? WHERE type = 'Cart' RETURNING last"
    first = connection.execute(sql, (len(events),)).fetchone()[0] - len(events) + 1
    rows = [
        ("Cart", position, key, number, 7, 1, "Added", 1, '"x"')
        for position, (key, number) in enumerate(events, first)
    ]
    sql = "INSERT INTO callboard_events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    connection.executemany(sql, rows)


def test_an_older_file_gets_the_index_as_a_table(old_file: Path) -> None:
    view = open_view(f"sqlite:{old_file}")
    assert [event.number for event in view.past_events("Cart", "a")] == [1, 2]
    assert [event.position for event in view.events("Cart", "b")] == [1, 3]
    assert (view.last_number("Cart", "a"), list(view.keys("Cart"))) == (2, ["a", "b"])
    view.close()
    state = opened_at(old_file)
    assert lag_of(state) == 0
    assert state.rows("SELECT key, number, position FROM callboard_events_of_key") == [
        ("a", 1, 2), ("a", 2, 4), ("b", 1, 1), ("b", 2, 3),
    ]  # fmt: skip
    state.commit([written([("a", 3), ("b", 3), ("c", 1)])])
    assert [numbers(state, key) for key in "abc"] == [[1, 2, 3], [1, 2, 3], [1]]
    view = open_view(f"sqlite:{old_file}")
    assert [event.number for event in view.events("Cart", "a")] == [1, 2, 3]
    view.close()
    state.close()


def test_what_an_older_callboard_goes_on_to_write_is_found(old_file: Path) -> None:
    with sqlite3.connect(old_file) as older:
        state = opened_at(old_file)
        write_as_before(older, [("a", number) for number in range(3, 103)])
    older.close()
    assert numbers(state, "a") == list(range(1, 103))
    assert state.commit([written([("a", 103)])]).positions == {"Cart": 105}
    lags = [lag_of(state)]
    while not state.settle(is_idle=True):
        lags.append(lag_of(state))
    assert lags == [61, 21], "in parts of twice the number that enters together"
    assert lag_of(state) == 0
    assert numbers(state, "a") == list(range(1, 104))
    state.close()


def test_two_events_of_one_number_hinder_nobody_else(
    state: SqliteState, caplog: pytest.LogCaptureFixture
) -> None:
    state.commit([written([("a", 1), ("a", 2), ("b", 1), ("a", 2)])])
    with pytest.raises(StateCorrupt, match="'a' has event 2 where event 3 should be"):
        state.recover("Cart", "a", 1)
    with caplog.at_level(logging.ERROR, "callboard"):
        assert state.settle(is_idle=True) is True
        assert state.settle(is_idle=True) is True
    assert ["Cart have the same number" in record.message for record in caplog.records] == [
        True
    ]
    state.commit([written([("b", number) for number in range(2, 40)])])
    assert numbers(state, "b") == list(range(1, 40))
    with pytest.raises(StateCorrupt, match="'a' has event 2 where event 3 should be"):
        state.recover("Cart", "a", 1)
    assert len(caplog.records) == 1


def test_without_room_the_index_stays_behind_and_catches_up(state: SqliteState) -> None:
    state.commit([written([(f"k-{number}", 1) for number in range(15)])])
    busy = sqlite3.connect(state.path, isolation_level=None)
    pages = busy.execute("PRAGMA page_count").fetchone()[0]
    state._writing.connection.execute(f"PRAGMA max_page_count = {pages}")
    state.commit([written([("a", number) for number in range(1, 4)])])
    big = "x" * 100
    state._writing.connection.execute(f"PRAGMA max_page_count = {pages + 200}")
    state.commit([written([(f"{big}-{number}", 1) for number in range(900)])])
    lag = lag_of(state)
    pages = busy.execute("PRAGMA page_count").fetchone()[0]
    state._writing.connection.execute(f"PRAGMA max_page_count = {pages}")
    assert state.settle(is_idle=True) is False
    assert lag_of(state) == lag
    assert numbers(state, f"{big}-7") == [1]
    state._writing.connection.execute(f"PRAGMA max_page_count = {pages + 200}")
    while not state.settle(is_idle=True):
        pass
    assert lag_of(state) == 0
    assert numbers(state, f"{big}-7") == [1]
    busy.close()


def test_a_key_is_found_by_the_index_in_the_order_of_its_numbers(state: SqliteState) -> None:
    state.commit([written([("a", 1)])])
    queries = state_sqlite._BY_KEY
    for sql, parameters in (
        (queries.events, ("Cart", "a", 0, 10)),
        (queries.past_events, ("Cart", "a", 0, 10)),
        (queries.last_number, ("Cart", "a", "Cart", "a")),
        (queries.keys, ("Cart", "a", "Cart", "a", 10)),
    ):
        plan = [row[3] for row in state.rows(f"EXPLAIN QUERY PLAN {sql}", *parameters)]
        steps = " | ".join(plan)
        assert "SEARCH callboard_events USING PRIMARY KEY (type=? AND position>?)" in steps
        assert any(step.startswith(("SEARCH k ", "SEARCH callboard_events_of_key"))
                   for step in plan), steps  # fmt: skip
        tables = [step for step in plan if step.startswith("SCAN") and "callboard" in step]
        assert not tables, steps
        assert steps.count("TEMP B-TREE FOR ORDER BY") <= 1, "of the newest alone"


def test_no_answer_waits_for_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, come = opened_at(tmp_path / "a.db"), list[str]()
    is_free = threading.Event()
    enter = SqliteState._enter

    def slowly(self: SqliteState, type_name: str, least: int) -> int:
        come.append("index")
        assert is_free.wait(60)
        return enter(self, type_name, least)

    monkeypatch.setattr(SqliteState, "_enter", slowly)
    client = ThreadedStateClient(state, lambda tell, *args: tell(*args))
    many = [("a", number) for number in range(1, 40)]
    client.commit(written(many), lambda _: come.append("answer"))
    assert eventually(lambda: come == ["answer", "index"]), come
    is_free.set()
    client.close()


def test_a_client_that_is_idle_lets_the_rest_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_client, "IDLE_AFTER", 0.01)
    opened_at(tmp_path / "a.db").close()
    first = SqliteState(tmp_path / "a.db", "b")
    first.claim("Cart", {1: 2})
    first.commit([written([("a", 1), ("b", 1), ("c", 1)], epoch=2)])
    state = SqliteState(tmp_path / "a.db", "a")
    assert lag_of(state) == 3
    client = ThreadedStateClient(state, lambda tell, *args: tell(*args))
    assert eventually(lambda: lag_of(first) == 0), "what another left behind"
    first.close()
    answers: list[Committed | BaseException] = []
    state.claim("Cart", {1: 3})
    new = written([(key, 2) for key in "abc"], epoch=3)
    client.commit(new, answers.append)
    assert eventually(lambda: len(answers) == 1)
    view = open_view(f"sqlite:{tmp_path}/a.db")
    sql = "SELECT count(*) FROM callboard_events_of_key"
    assert eventually(lambda: view.rows(sql) == [(6,)])
    view.close()
    client.close()
