"""What happens to the files of a SQLite backend behind its back: each is told, with a step."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import cbor2
import pytest

from callboard.store.backend import sqlite
from callboard.store.backend.interface import Contents
from callboard.store.errors import BackendFailure
from callboard.store.machine.step import Persist
from callboard.support.database.sqlite_file import open_file
from tests.callboard.store.test_sqlite_backend import opened, write

#: Writes forty entries, each its own commit, and is killed with its files open.
KILLED = """
import os, signal, sys, threading
from callboard.store.backend.registry import make_backend
from callboard.store.backend.interface import Backend
from callboard.store.machine.step import Persist
options = {"path": sys.argv[1], "synchronous": sys.argv[2]}
backend = make_backend(Backend.SQLite, options)
backend.open(0.0)
done = threading.Semaphore(0)
for number in range(40):
    backend.write(Persist(rows={f"k{number}": (number, None)}), lambda _: done.release())
    done.acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""


def filled(path: Path, count: int = 5) -> None:
    """Add a commit and close."""
    backend, contents = opened(path)
    rows = {f"k{len(contents.rows) + number}": (number, None) for number in range(count)}
    assert write(backend, Persist(rows=rows)) == [None]
    backend.close()


@pytest.fixture(params=["FULL", "NORMAL", "OFF"])
def killed(request, tmp_path):
    """The files of a master that was killed: all forty commits are in the write-ahead log."""
    path = tmp_path / "a.db"
    code = subprocess.run([sys.executable, "-c", KILLED, str(path), request.param], check=False)
    assert code.returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size > 10_000
    return path


def empty(path: Path) -> None:
    path.write_bytes(b"")


def without_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def with_empty_log(path: Path) -> None:
    empty(Path(f"{path}-wal"))


def with_cut_log(path: Path) -> None:
    log = Path(f"{path}-wal")
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def with_foreign_log(path: Path) -> None:
    log = Path(f"{path}-wal")
    log.write_bytes(os.urandom(log.stat().st_size))


DAMAGE = [empty, Path.unlink, without_log, with_empty_log, with_cut_log, with_foreign_log]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_missing_of_a_killed_master_is_told(killed, damage):
    damage(killed)

    for _ in range(2):  # the first attempt must not make the second one succeed
        with pytest.raises(BackendFailure, match=r"(4|2|1)\d? .*commits.*; put .*, or remove "):
            opened(killed)


@pytest.mark.slow
def test_a_killed_master_comes_back_whole_also_without_the_mark(killed):
    copy = shutil.copytree(killed.parent, killed.parent / "copy") / "a.db"
    copy.with_name("a.commits.db").unlink()

    for path in (killed, copy):
        backend, contents = opened(path)
        assert contents.rows == {f"k{number}": (number, None) for number in range(40)}
        backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [empty, Path.unlink])
def test_a_log_without_its_file_is_told_without_a_mark_too(killed, damage):
    killed.with_name("a.commits.db").unlink()
    damage(killed)

    with pytest.raises(BackendFailure, match=r"the contents of its -wal; .*begin without it"):
        opened(killed)
    assert Path(f"{killed}-wal").stat().st_size > 10_000


@pytest.mark.parametrize("damage", [empty, Path.unlink])
def test_a_file_that_was_closed_and_is_gone_is_told(tmp_path, damage):
    path = tmp_path / "a.db"
    filled(path)
    damage(path)

    with pytest.raises(BackendFailure, match=r"had 1 commits; put a copy in its place"):
        opened(path)
    (tmp_path / "a.commits.db").unlink()
    backend, contents = opened(path)
    assert contents == Contents()
    backend.close()


def test_an_older_copy_and_another_file_are_told(tmp_path):
    path, old, other = tmp_path / "a.db", tmp_path / "old.db", tmp_path / "other.db"
    filled(path)
    shutil.copy(path, old)
    filled(path)
    filled(path)
    filled(other)

    shutil.copy(old, path)
    with pytest.raises(BackendFailure, match=r"2 of its 3 commits are missing; put the newest"):
        opened(path)
    shutil.copy(other, path)
    with pytest.raises(BackendFailure, match=r"another file had its place, with 3 commits"):
        opened(path)
    (tmp_path / "a.commits.db").unlink()
    backend, contents = opened(path)
    assert len(contents.rows) == 5
    backend.close()


def test_a_newer_copy_or_a_torn_mark_is_fine(tmp_path):
    path, mark = tmp_path / "a.db", tmp_path / "a.commits.db"
    filled(path)
    first = mark.read_bytes()
    filled(path)
    for torn in (first, b"", bytes([first[0] ^ 1]) + first[1:], None):
        mark.unlink() if torn is None else mark.write_bytes(torn)
        backend, contents = opened(path)
        assert len(contents.rows) == 10
        backend.close()


def test_what_power_may_take_is_a_warning_after_a_start_of_the_machine(tmp_path, caplog):
    path, old = tmp_path / "a.db", tmp_path / "old.db"
    backend, _ = opened(path, synchronous="OFF")
    write(backend, Persist(rows={"a": (1, None)}))
    backend.close()
    shutil.copy(path, old)
    backend, _ = opened(path, synchronous="OFF")
    write(backend, Persist(rows={"b": (1, None)}))
    backend.close()
    shutil.copy(old, path)

    with pytest.raises(BackendFailure, match="1 of its 2 commits"):
        opened(path, synchronous="OFF")
    backend = sqlite.SqliteBackend(sqlite.SqliteOptions(str(path), "OFF"))
    backend._mark._start = b"another start of"
    assert len(backend.open(0.0).rows) == 1
    backend.close()
    assert "were lost with power" in caplog.text


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE people (name TEXT)")
        connection.execute("INSERT INTO people VALUES ('Ann')")


def with_our_version(path: Path) -> None:
    foreign(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 1")


def with_our_names(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE store (key, value)")
        connection.execute("CREATE TABLE writers (id)")
        connection.execute("PRAGMA user_version = 1")


def of_zeek_broker(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE meta(key text primary key, value text)")
        connection.execute(
            "CREATE TABLE store(key blob primary key, value blob, expiry integer)"
        )


def of_the_future(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 3")


@pytest.mark.parametrize("failure_mode", ["FAIL", "DELETE"])
@pytest.mark.parametrize(
    "make", [foreign, with_our_version, with_our_names, of_zeek_broker, of_the_future]
)
def test_a_file_of_others_is_refused_and_left_as_it_is(tmp_path, make, failure_mode):
    path = tmp_path / "a.db"
    make(path)
    before = path.read_bytes()

    with pytest.raises(BackendFailure, match=r"; (give|use) "):
        opened(path, failure_mode=failure_mode)

    assert path.read_bytes() == before


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
@pytest.mark.parametrize(
    "place", ["a.db", "a.db-wal", "a.db-shm", "a.db-journal", "a.commits.db"]
)
def test_what_is_no_file_is_never_followed(tmp_path, place, kind):
    filled(tmp_path / "a.db")
    target, planted = tmp_path / "target", tmp_path / place
    target.write_bytes(b"precious")
    planted.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(planted)
    elif kind == "folder":
        planted.mkdir()
    else:
        planted.symlink_to(target if kind == "link" else tmp_path / "made")

    for failure_mode in ("FAIL", "DELETE"):
        with pytest.raises(BackendFailure, match=r"; remove it"):
            opened(tmp_path / "a.db", failure_mode=failure_mode)
    assert target.read_bytes() == b"precious"
    assert not (tmp_path / "made").exists()


def test_a_file_in_the_place_of_the_mark_is_not_overwritten(tmp_path):
    filled(tmp_path / "a.commits.db")
    before = (tmp_path / "a.commits.db").read_bytes()

    with pytest.raises(BackendFailure, match="is not a mark of a store; move it away"):
        opened(tmp_path / "a.db")
    assert (tmp_path / "a.commits.db").read_bytes() == before


@pytest.mark.slow
def test_garbage_in_the_shared_memory_harms_nothing(killed):
    Path(f"{killed}-shm").write_bytes(os.urandom(32_768))

    backend, contents = opened(killed)
    assert len(contents.rows) == 40
    backend.close()


# Statements that damage a row, and the rows of 40 that are left out.
UNREADABLE_ROWS = [
    ("UPDATE entries SET value = X'9F' WHERE key = 'k1'", 1),
    ("UPDATE entries SET value = 'text'", 40),
    ("UPDATE entries SET value = 5 WHERE key IN ('k1', 'k2')", 2),
    (f"UPDATE entries SET value = X'{'81' * 3000}00' WHERE key = 'k1'", 1),
    ("UPDATE entries SET expiry = 'soon' WHERE key = 'k1'", 1),
    ("UPDATE entries SET key = 7.5 WHERE key = 'k0'", 1),
    ("UPDATE entries SET key = X'FF' WHERE key = 'k0'", 1),
]


@pytest.mark.parametrize(("change", "count"), UNREADABLE_ROWS)
def test_rows_that_cannot_be_read_are_left_out_and_logged(tmp_path, caplog, change, count):
    filled(tmp_path / "a.db", 40)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute(change)

    for _ in range(2):  # they stay in the file
        backend, contents = opened(tmp_path / "a.db", failure_mode="DELETE")
        backend.close()

        assert (len(contents.rows), contents.unreadable) == (40 - count, count)
    assert caplog.text.count(f"{count} rows of {tmp_path}/a.db cannot be read") == 2


ROWS = [
    "INSERT INTO writers VALUES (X'00', 'x', '1', X'A0')",
    "INSERT INTO writers VALUES (X'00', '1', '1', X'FF')",
    "UPDATE commits SET number = 'many'",
    "UPDATE commits SET file = NULL",
]


@pytest.mark.parametrize("change", ROWS)
def test_rows_of_writers_and_commits_that_cannot_be_read_are_a_typed_error(tmp_path, change):
    filled(tmp_path / "a.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        try:
            connection.execute(change)
        except sqlite3.IntegrityError:
            return

    with pytest.raises(BackendFailure, match="cannot be opened"):
        opened(tmp_path / "a.db")


@pytest.mark.parametrize("seed", range(30))
def test_flipped_bytes_are_a_typed_error_or_harmless(tmp_path, seed):
    import random

    path, rng = tmp_path / "a.db", random.Random(seed)
    filled(path, 200)
    data = bytearray(path.read_bytes())
    for _ in range(20):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)

    try:
        backend, _ = opened(path, integrity_check=True)
    except BackendFailure:
        return
    backend.close()


def test_a_full_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as first:  # of release 0.1: opening it needs room
        first.executescript(
            """
            CREATE TABLE store (
              key PRIMARY KEY NOT NULL, value BLOB NOT NULL, expiry INTEGER
            ) WITHOUT ROWID;
            CREATE TABLE writers (
              endpoint BLOB NOT NULL, object TEXT NOT NULL, seq TEXT NOT NULL,
              answers BLOB NOT NULL, PRIMARY KEY (endpoint, object)
            ) WITHOUT ROWID;
            PRAGMA user_version = 1;
            """
        )
        first.execute("INSERT INTO store VALUES (?, ?, NULL)", (b"\x61k", cbor2.dumps(1)))
        first.commit()

    def open_without_room(*args: Any) -> sqlite3.Connection:
        connection = open_file(*args)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    with monkeypatch.context() as patched:
        patched.setattr("callboard.store.backend.sqlite.open_file", open_without_room)
        with pytest.raises(BackendFailure, match="full"):
            opened(path, failure_mode="DELETE")

    with closing(sqlite3.connect(path)) as kept:
        assert kept.execute("SELECT count(*) FROM store").fetchone() == (1,)
