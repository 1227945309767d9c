"""The SQLite backend: what is written is there again, groups share a commit."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from callboard.model.errors import InvalidData
from callboard.model.scalar import Count, Enum
from callboard.store.backend.interface import Backend, BackendOptions, Contents
from callboard.store.backend.registry import make_backend
from callboard.store.backend.sqlite import SqliteBackend, SqliteOptions
from callboard.store.errors import BackendFailure
from callboard.store.machine.step import ERASED, Persist, WriterRow
from callboard.store.machine.stored import stored_of, token_of

WHO = (b"\x01" * 16, 2**64 - 1)


def opened(path: Path, **options: Any) -> tuple[SqliteBackend, Contents]:
    backend = make_backend(Backend.SQLite, {"path": str(path), **options})
    assert isinstance(backend, SqliteBackend)
    return backend, backend.open(1000.0)


def write(backend: SqliteBackend, *changes: Persist) -> list[BackendFailure | None]:
    answers: list[BackendFailure | None] = []
    done = threading.Semaphore(0)
    for change in changes:
        backend.write(change, lambda failure: (answers.append(failure), done.release()))
    for _ in changes:
        assert done.acquire(timeout=30)
    return answers


@pytest.mark.parametrize("journal_mode", ["WAL", "DELETE"])
def test_rows_and_writers_come_back(tmp_path: Path, journal_mode: str) -> None:
    backend, contents = opened(tmp_path / "a.db", journal_mode=journal_mode)
    assert contents == Contents()
    rows: dict[Any, Any] = {
        "plain": ((1, "x", None), None),
        token_of(5): (stored_of({Count(1): {2}}), 12.5),
        "gone": (1, None),
    }
    write(backend, Persist(rows=rows, writers={WHO: (2**64 - 1, [(7, True)])}))
    write(backend, Persist(rows={"gone": ERASED, "never": ERASED}))
    backend.close()

    backend, contents = opened(tmp_path / "a.db", journal_mode=journal_mode)
    backend.close()

    del rows["gone"]
    assert contents.rows == rows
    assert contents.writers == {WHO: WriterRow(2**64 - 1, {7: True})}


def test_what_waits_shares_a_commit_and_keeps_its_order(tmp_path: Path) -> None:
    backend, _ = opened(tmp_path / "a.db")
    changes = [Persist(rows={"k": (i, None), f"k{i}": (i, None)}) for i in range(500)]
    changes.insert(250, Persist(is_cleared=True, rows={"x": (1, None)}))
    answers = write(backend, *changes)
    commits = backend.commits
    backend.close()

    _, contents = opened(tmp_path / "a.db", integrity_check=True)
    assert answers == [None] * 501
    assert commits < 250
    expected = {f"k{i}": (i, None) for i in range(250, 500)}
    assert contents.rows == expected | {"k": (499, None), "x": (1, None)}


def test_a_file_has_one_master(tmp_path: Path) -> None:
    backend, _ = opened(tmp_path / "a.db")

    with pytest.raises(BackendFailure, match="locked"):
        opened(tmp_path / "a.db", failure_mode="DELETE")
    backend.close()


def test_a_damaged_file_is_an_error_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"no database at all" * 100)

    with pytest.raises(BackendFailure, match="cannot be opened"):
        opened(path)
    backend, contents = opened(path, failure_mode="DELETE")
    assert contents.rows == {}
    backend.close()


def test_a_file_of_a_later_release_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("PRAGMA user_version = 9")

    with pytest.raises(BackendFailure, match="version 9"):
        opened(tmp_path / "a.db")


def test_a_write_that_fails_is_told_and_ends_writing(tmp_path: Path) -> None:
    backend, _ = opened(tmp_path / "a.db")
    assert backend._file is not None
    backend._file.connection.execute("DROP TABLE entries")

    answers = write(backend, Persist(rows={"k": (1, None)}), Persist(rows={"k": (2, None)}))
    backend.close()

    assert [type(answer) for answer in answers] == [BackendFailure] * 2


def test_options_have_brokers_names(tmp_path: Path) -> None:
    found = SqliteOptions.read(
        {
            "path": tmp_path,
            "synchronous": Enum("Broker::SQLITE_SYNCHRONOUS_NORMAL"),
            "journal_mode": "SQLITE_JOURNAL_MODE_DELETE",
            "failure_mode": "DELETE",
        }
    )

    assert found == SqliteOptions(str(tmp_path), "NORMAL", "DELETE", "DELETE")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"path": 5},
        {"path": "x", "synchronous": "ALWAYS"},
        {"path": "x", "cache": 5},
        {"path": "x", "integrity_check": "yes"},
    ],
)
def test_other_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidData):
        make_backend(Backend.SQLite, options)


def test_the_memory_backend_has_no_options() -> None:
    with pytest.raises(InvalidData):
        make_backend(Backend.Memory, {"path": "x"})


def test_options_are_an_object_or_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    options = BackendOptions(path=path, synchronous="NORMAL", integrity_check=False)

    assert dict(options) == {"path": path, "synchronous": "NORMAL", "integrity_check": False}
    assert SqliteOptions.read(options) == SqliteOptions(str(path), "NORMAL")
    assert "journal_mode" not in options
    with pytest.raises(InvalidData, match="needs a file"):
        make_backend(Backend.SQLite, BackendOptions())
    with pytest.raises(InvalidData, match="memory backend does not have the option 'path'"):
        make_backend(Backend.Memory, options)
    make_backend(Backend.Memory, BackendOptions())
