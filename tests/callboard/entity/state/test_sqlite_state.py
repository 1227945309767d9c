"""What goes wrong with a file: no room, damage, another process' lock, a newer version."""

import errno
import itertools
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from callboard.actors.errors import WrongValue
from callboard.entity.state import schema, wal_index
from callboard.entity.state import sqlite as state_sqlite
from callboard.entity.state.backends import open_leases, open_state, open_view
from callboard.entity.state.client import ThreadedStateClient
from callboard.entity.state.interface import (
    NO_FENCE,
    Fence,
    RowChanges,
    SlotBatch,
    StoredReminder,
)
from callboard.entity.state.sqlite import SqliteState
from callboard.lease import sqlite as lease_sqlite
from callboard.lease.errors import (
    OutcomeUnknown,
    StateBusy,
    StateCorrupt,
    StateFull,
    StateUnavailable,
    StateVersion,
    UnsafeDatabase,
)
from callboard.support.platform import system
from tests.callboard.entity.state.stores import batch, reminders_of


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {1: 1})
    pages = state._writing.connection.execute("PRAGMA page_count").fetchone()[0]
    state._writing.connection.execute(f"PRAGMA max_page_count = {pages + 4}")
    numbers = itertools.count(1)

    def fill() -> None:
        while True:
            state.commit([batch(1, [next(numbers)])])

    with pytest.raises(StateFull, match=r"a\.db.*free space"):
        fill()
    number = next(numbers) - 1
    state._writing.connection.execute(f"PRAGMA max_page_count = {pages + 400}")
    assert state.last_position("Cart") == number - 1
    assert state.commit([batch(1, [number])]).positions == {"Cart": number}
    state.close()


def test_a_lock_of_another_is_named_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_sqlite, "BUSY_TIMEOUT", 0.01)
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {1: 1})
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateBusy, match="locked for writing by another process"):
        state.commit([batch(1, [1])])
    assert list(state.recover("Cart", "k-1", 1).events) == [], "reading goes on"
    other.close()
    assert state.commit([batch(1, [1])]).positions == {"Cart": 1}
    state.close()


def test_damage_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database at all, whatever its name says" * 100)
    with pytest.raises(StateCorrupt, match=r"a\.db"):
        SqliteState(tmp_path / "a.db", "a")


def test_a_newer_callboards_tables_are_refused(tmp_path: Path) -> None:
    SqliteState(tmp_path / "a.db", "a").close()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE callboard_state SET schema_version = 99")
    with pytest.raises(StateVersion, match="version 99"):
        SqliteState(tmp_path / "a.db", "a")


def test_older_tables_get_the_steps_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteState(tmp_path / "a.db", "a").close()
    steps = (*schema.STEPS, ("CREATE TABLE callboard_more (one INTEGER)",))
    monkeypatch.setattr(schema, "STEPS", steps)
    monkeypatch.setattr(state_sqlite, "STEPS", steps)
    for _ in range(2):
        state = SqliteState(tmp_path / "a.db", "a")
        assert state.rows("SELECT * FROM callboard_more") == []
        assert state.rows("SELECT schema_version FROM callboard_state") == [(len(steps),)]
        state.close()


def test_a_file_of_the_first_version_gets_reminders_and_jobs(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as old:
        old.execute(schema.STATE_TABLE)
        for sql in schema.STEPS[0]:
            old.execute(sql.format_map(schema.SQLITE_TYPES))
        old.execute("INSERT INTO callboard_state VALUES (1, 'one', 1, '', '')")
        old.execute("INSERT INTO callboard_types VALUES ('Cart', 2)")
        for number in (1, 2):
            values = ("Cart", number, "k-1", number, 7, 1, "Added", 1, '"tea"')
            old.execute("INSERT INTO callboard_events VALUES (?,?,?,?,?,?,?,?,?)", values)
    old.close()
    state = SqliteState(tmp_path / "a.db", "b")
    assert [e.number for e in state.recover("Cart", "k-1", 1).events] == [1, 2]
    assert list(reminders_of(state, "Cart", "k-1")) == []
    assert state.rows("SELECT schema_version FROM callboard_state") == [(len(schema.STEPS),)]
    state.claim("Cart", {1: 2})
    row = StoredReminder("k-1", "pay", 7, 0, "{}")
    state.commit([SlotBatch(("Cart", 1), 2, rows=RowChanges({("k-1", "pay"): row}))])
    assert list(reminders_of(state, "Cart", "k-1")) == [row]
    state.close()


def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "file_system_of", lambda path: "nfs4")
    with pytest.raises(UnsafeDatabase, match=r"network file system \(nfs4\).*PostgreSQL"):
        SqliteState(tmp_path / "a.db", "a")


def test_events_are_read_by_sql_alone(tmp_path: Path) -> None:
    state = open_state(f"sqlite:{tmp_path}/a.db", "a")
    state.claim("Cart", {1: 1})
    state.commit([batch(1, [1, 2])])
    state.close()
    connection = sqlite3.connect(tmp_path / "a.db")
    sql = "SELECT number, json_extract(body, '$.item') FROM callboard_events ORDER BY number"
    assert connection.execute(sql).fetchall() == [(1, "tea 1"), (2, "tea 2")]
    connection.close()


@pytest.mark.parametrize("url", ["sqlite:", "mysql://x/y", "shop.db", ""])
def test_other_urls_are_refused(url: str) -> None:
    for opened in (open_state, open_leases):
        with pytest.raises(WrongValue, match="use sqlite:FILE"):
            opened(url, "a")


def test_a_view_reads_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StateUnavailable, match=r"no file .*a\.db"):
        open_view(f"sqlite:{tmp_path}/a.db")
    assert list(tmp_path.iterdir()) == []
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {1: 1})
    state.commit([batch(1, [1, 2])])
    view = open_view(f"sqlite:{tmp_path}/a.db")
    assert [e.number for e in view.journal("Cart")] == [1, 2]
    assert view.identity().id == state.identity().id
    view.close()
    state.close()


@pytest.mark.parametrize("content", [b"no database at all " * 100, b""])
def test_a_view_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.db").write_bytes(content)
    with pytest.raises(StateCorrupt, match=r"a\.db"):
        open_view(f"sqlite:{tmp_path}/a.db")


def test_a_view_refuses_tables_of_a_newer_callboard(tmp_path: Path) -> None:
    SqliteState(tmp_path / "a.db", "a").close()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE callboard_state SET schema_version = 99")
    with pytest.raises(StateVersion, match="version 99"):
        open_view(f"sqlite:{tmp_path}/a.db")


def test_a_writer_sees_at_once_which_slots_another_has_claimed(tmp_path: Path) -> None:
    first, second = (SqliteState(tmp_path / "a.db", name) for name in "ab")
    assert first.own_fences("Cart") == {}
    first.claim("Cart", dict.fromkeys(range(20), 1))
    assert first.own_fences("Cart") == dict.fromkeys(range(20), 1)
    assert second.own_fences("Cart") == {}
    second.claim("Cart", {7: 2})
    assert first.own_fences("Cart") == {slot: 1 for slot in range(20) if slot != 7}
    assert second.own_fences("Cart") == {7: 2}
    for state in (first, second):
        state.close()
    assert first.own_fences("Cart") is None


_CLAIM_ELSEWHERE = """
import sys
from pathlib import Path
from callboard.entity.state.sqlite import SqliteState
state = SqliteState(Path(sys.argv[1]), "b")
state.claim("Cart", {7: 2})
print("claimed", flush=True)
sys.stdin.read()
state.close()
"""


def _statements_of_looks(state: SqliteState) -> list[str]:
    """Return where the statements of a state's looks at its fences appear."""
    statements: list[str] = []
    state._fence_reads.connection.set_trace_callback(statements.append)
    return statements


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells where the index is")
def test_a_look_asks_the_database_only_where_any_process_has_committed(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {7: 1, 8: 1})
    for _ in range(2):  # the first look finds the index
        assert state.own_fences("Cart") == {7: 1, 8: 1}
    statements = _statements_of_looks(state)
    assert state.own_fences("Cart") == {7: 1, 8: 1}
    assert not statements
    assert state.own_fences("Basket") == {}  # of this type nothing was read
    assert statements
    elsewhere = subprocess.Popen(
        [sys.executable, "-c", _CLAIM_ELSEWHERE, str(tmp_path / "a.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with elsewhere:
        assert elsewhere.stdout is not None
        assert elsewhere.stdout.readline() == "claimed\n"
        statements.clear()
        assert state.own_fences("Cart") == {8: 1}  # the first look behind the claim
        assert statements
        statements.clear()
        assert state.own_fences("Cart") == {8: 1}
        assert not statements
        elsewhere.communicate()
    state.close()
    assert state.own_fences("Cart") is None


@pytest.mark.parametrize("span", [None, (0x1000, 0x1040)], ids=["unknown", "too short"])
def test_a_look_needs_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, span: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(wal_index, "mapped_at", lambda device, inode: span)
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {7: 1})
    statements = _statements_of_looks(state)
    for epoch in (2, 3):
        assert state.own_fences("Cart") == {7: epoch - 1}
        assert statements
        statements.clear()
        assert state.own_fences("Cart") == {7: epoch - 1}
        assert statements
        statements.clear()
        state.claim("Cart", {7: epoch})
    state.close()


def test_the_mark_of_an_index_differs_behind_each_commit(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {7: 1})
    state.own_fences("Cart")
    index = state._index
    assert index is not None
    is_known = sys.platform == "linux"
    marks = [index.mark()]
    for epoch in range(2, 6):
        state.claim("Cart", {7: epoch})
        marks.append(index.mark())
        if epoch == 4:  # the log begins anew
            with sqlite3.connect(tmp_path / "a.db") as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            marks.append(index.mark())
    assert all(marks) is is_known
    assert len(set(marks)) == (len(marks) if is_known else 1)
    assert index.mark() == marks[-1]
    state.close()
    assert index.mark() == b""


def test_a_slot_that_another_has_is_fenced_among_many(tmp_path: Path) -> None:
    first, second = (SqliteState(tmp_path / "a.db", name) for name in "ab")
    first.claim("Cart", dict.fromkeys(range(20), 1))
    for number in (1, 2):
        done = first.commit([batch(slot, [number]) for slot in range(20)])
        assert (done.fenced, done.positions) == ({}, {"Cart": 20 * number})
    second.claim("Cart", {7: 2, 30: 2})
    done = first.commit([batch(slot, [3]) for slot in (*range(20), 30, 40)])
    assert done.fenced == {
        ("Cart", 7): Fence(2, "b"), ("Cart", 30): Fence(2, "b"), ("Cart", 40): NO_FENCE,
    }  # fmt: skip
    assert done.positions == {"Cart": 59}
    for state in (first, second):
        state.close()


def test_of_many_events_all_are_written_or_none(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {1: 1, 2: 1})
    many = list(range(1, 180))
    assert state.commit([batch(1, many)]).positions == {"Cart": 179}
    assert [each.position for each in state.events("Cart", "k-1")] == many
    state.settle(is_idle=True)  # where the index is behind, this is found out later
    done = state.commit([batch(1, [*range(180, 190), 7]), batch(2, many[:20])])
    assert isinstance(done.failed["Cart", 1], StateCorrupt)
    assert done.positions == {"Cart": 199}
    assert [each.number for each in state.journal("Cart", 179)] == many[:20]
    state.close()


def test_what_is_handed_over_while_the_lock_is_waited_for_goes_along(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {1: 1, 2: 1})
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    committed: SimpleQueue[object] = SimpleQueue()
    client = ThreadedStateClient(state, lambda tell, *args: tell(*args))
    client.commit(batch(1, [1]), committed.put)
    free = threading.Timer(0.1, other.close)
    free.start()
    client.commit(batch(2, [1, 2]), committed.put)
    assert committed.get(timeout=10) is committed.get(timeout=10), "one transaction"
    assert state.last_position("Cart") == 3
    client.close()


def test_each_commit_is_synced_and_told_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    view = SqliteState(tmp_path / "a.db", "v")

    def sync(_: int) -> None:
        seen.append(view.last_position("Cart"))

    state = SqliteState(tmp_path / "a.db", "a")
    monkeypatch.setattr(lease_sqlite, "_sync", sync)
    state.claim("Cart", {1: 1})
    state.commit([batch(1, [1, 2])])
    state.commit([batch(1, [3])])
    assert seen == [0, 2, 3], "the claim, then each commit, with the lock free"
    assert [each.number for each in view.journal("Cart")] == [1, 2, 3]
    assert len(seen) == 4, "what a journal hands on is durable"
    for each in (state, view):
        each.close()


def test_after_a_failed_sync_the_log_is_copied_before_anything_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {1: 1})

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(lease_sqlite, "_sync", fail)
    with pytest.raises(OutcomeUnknown, match="could not be synced.*broken"):
        state.commit([batch(1, [1])])
    monkeypatch.undo()
    reader = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM callboard_events").fetchone()
    with pytest.raises(OutcomeUnknown, match="an earlier sync failed"):
        state.commit([batch(1, [2])])  # who reads the log keeps it from being begun anew
    reader.close()
    assert state.commit([batch(1, [3])]).positions == {"Cart": 3}
    without_log = tmp_path / "b.db"
    shutil.copyfile(tmp_path / "a.db", without_log)  # what an earlier sync was to write
    copied = sqlite3.connect(without_log)
    assert copied.execute("SELECT number FROM callboard_events").fetchall() == [
        (1,),
        (2,),
        (3,),
    ]
    copied.close()
    state.close()


def test_an_unknown_outcome_is_not_tried_again_slot_by_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SqliteState(tmp_path / "a.db", "a")
    state.claim("Cart", {1: 1, 2: 1})

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(lease_sqlite, "_sync", fail)
    with pytest.raises(OutcomeUnknown):
        state.commit([batch(1, [1]), batch(2, [1])])
    monkeypatch.undo()
    assert state.last_position("Cart") == 2, "once"
    state.close()
