"""Files of SQLite: their errors, their transactions, and their places."""

import sqlite3
from contextlib import closing

import pytest

from callboard.support.database.sqlite_file import (
    Problem,
    SqliteFile,
    open_file,
    open_read_only,
    problem_of,
)
from callboard.support.files.file_place import CHECK_SECONDS, FilePlaces


class Replaced(Exception):
    """The file is no longer at its path."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.db"


@pytest.fixture
def file(path):
    file = SqliteFile(path, open_file(path, 0.0), Replaced, "put it back")
    file.connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    yield file
    file.close()


def insert(number):
    return lambda connection: connection.execute("INSERT INTO t VALUES (?)", (number,))


def numbers(path):
    with closing(open_read_only(path, 0.0)) as connection:
        return [number for (number,) in connection.execute("SELECT n FROM t")]


def test_a_transaction_is_committed_or_has_no_effect(file, path):
    assert file.transaction(lambda connection: insert(1)(connection).rowcount) == 1

    def fail(connection):
        insert(2)(connection)
        raise KeyError(2)

    with pytest.raises(KeyError):
        file.transaction(fail)
    with pytest.raises(sqlite3.IntegrityError) as conflict:
        file.transaction(insert(1))
    assert problem_of(conflict.value) is Problem.CONFLICT
    assert numbers(path) == [1]
    assert not file.connection.in_transaction


def test_a_commit_to_a_file_that_was_replaced_is_refused(path):
    now = [0.0]
    with closing(SqliteFile(path, open_file(path, 0.0), Replaced, "put it back")) as file:
        file.connection.execute("PRAGMA journal_mode = WAL")  # else SQLite notices it itself
        file.connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        file._places = FilePlaces(lambda: now[0])
        file._places.add(path)
        path.rename(path.with_name("elsewhere.db"))
        now[0] += CHECK_SECONDS

        with pytest.raises(Replaced, match=r"a\.db was removed or replaced.*; put it back"):
            file.transaction(insert(1))
        assert file.connection.execute("SELECT n FROM t").fetchall() == []


def test_a_lock_of_another_connection_is_a_busy_file(file, path):
    with closing(open_file(path, 0.0)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as busy:
            file.transaction(insert(1))
        other.execute("ROLLBACK")

    assert problem_of(busy.value) is Problem.BUSY


def test_alone_no_other_connection_reads(file, path):
    file.begin_alone()
    with closing(open_file(path, 0.0)) as other, pytest.raises(sqlite3.OperationalError):
        other.execute("SELECT n FROM t").fetchall()
    file.roll_back()


def test_a_full_disk_and_a_damaged_file_are_told_apart(file, path):
    file.connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError) as full:
        file.transaction(lambda connection: connection.execute("CREATE TABLE u (n)"))
    assert problem_of(full.value) is Problem.FULL

    other = path.with_name("text.db")
    other.write_bytes(b"no database at all" * 100)
    with closing(open_file(other, 0.0)) as damaged, pytest.raises(sqlite3.DatabaseError) as bad:
        damaged.execute("SELECT * FROM sqlite_master")
    assert problem_of(bad.value) is Problem.DAMAGED


def test_extended_codes_are_known():
    error = sqlite3.OperationalError("locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
    assert problem_of(error) is Problem.BUSY
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert problem_of(error) is Problem.UNREACHABLE
    assert problem_of(ValueError()) is Problem.OTHER
