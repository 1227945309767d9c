"""Files of a real Zeek Broker's masters, made by its statements."""

import sqlite3
import time
from contextlib import closing

import pytest

from callboard import Node, broker
from callboard.broker.store_file import read_store_file
from callboard.cli import main
from callboard.model.data import Data
from callboard.store import Backend, BackendFailure, attach_master
from callboard.topics.hub import Hub
from callboard.zeek.value import value_to_bytes

ENTRIES = {"a": 1, broker.Count(7): [1.5, {"x"}, {3: None}], (1, 2): b"\xff"}


@pytest.fixture
def real_file(tmp_path):
    """A file as Broker 1.4.0 makes it: its two statements, its encoding, one entry expired."""
    path = tmp_path / "real.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE meta(key text primary key, value text)")
        file.execute("CREATE TABLE store(key blob primary key, value blob, expiry integer)")
        file.execute("INSERT INTO meta VALUES ('broker_version', '1.4.0')")
        later, before = time.time_ns() + 3600 * 10**9, time.time_ns() - 1
        for key, value, expiry in [
            *((key, value, None) for key, value in ENTRIES.items()),
            ("later", True, later),
            ("gone", 0, before),
        ]:
            row = value_to_bytes(Data(key)), value_to_bytes(Data(value)), expiry
            file.execute("INSERT INTO store VALUES (?, ?, ?)", row)
    return path


def has_all(store):
    assert store.keys() == {*ENTRIES, "later"}
    assert store.get(broker.Count(7)) == (1.5, {"x"}, {3: None})
    assert store.get((1, 2)) == b"\xff"


def test_entries_become_a_file_of_ours(real_file, tmp_path, capsys):
    before, ours = real_file.read_bytes(), tmp_path / "things.db"

    assert main(["store", "import", str(real_file), "--into", str(ours)]) == 0
    assert "4 entries" in capsys.readouterr().out
    with (
        Node() as node,
        attach_master(Hub.of(node), "things", Backend.SQLite, {"path": str(ours)}) as store,
    ):
        has_all(store)
    assert real_file.read_bytes() == before
    assert main(["store", "import", str(real_file), "--into", str(ours)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_entries_go_to_a_running_master(real_file, capsys):
    with Node() as node, attach_master(Hub.of(node), "things") as store:
        node.listen()
        to = ["things", "--peer", node.address, "--json"]
        assert main(["store", "import", str(real_file), *to]) == 0
        has_all(store)
    assert capsys.readouterr().out == '{"imported": 4, "expired": 1}\n'


def test_a_master_says_whose_file_it_is(real_file):
    with Node() as node, pytest.raises(BackendFailure, match=r"Zeek Broker 1.4.0.* import"):
        attach_master(Hub.of(node), "things", Backend.SQLite, {"path": str(real_file)})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("UPDATE store SET value = X'0F'", "damaged"),
        ("UPDATE store SET value = 5", "the form that Zeek Broker writes"),
        ("UPDATE store SET expiry = 'soon'", "the form that Zeek Broker writes"),
        ("DROP TABLE meta", "not a store of Zeek Broker"),
    ],
)
def test_a_damaged_file_is_a_typed_error(real_file, change, text):
    with closing(sqlite3.connect(real_file)) as file, file:
        file.execute(change)

    with pytest.raises(BackendFailure, match=text):
        read_store_file(real_file)


@pytest.mark.parametrize("kind", ["missing", "text", "folder"])
def test_what_is_no_database_is_one_line(tmp_path, capsys, kind):
    path = tmp_path / "file"
    if kind == "text":
        path.write_text("nothing of a database" * 100)
    elif kind == "folder":
        path.mkdir()

    assert main(["store", "import", str(path), "--into", str(tmp_path / "x.db")]) == 1
    assert len(capsys.readouterr().err.splitlines()) <= 2
    assert main(["store", "import", str(path)]) == 2


def test_our_file_of_version_1_is_gone_on_with(tmp_path):
    path = tmp_path / "old.db"
    with Node() as node:
        with attach_master(Hub.of(node), "t", Backend.SQLite, {"path": str(path)}) as store:
            store.put("k", 5)
            assert store.await_idle()
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("ALTER TABLE entries RENAME TO store")
            file.execute("PRAGMA user_version = 1")
        with attach_master(Hub.of(node), "t", Backend.SQLite, {"path": str(path)}) as store:
            assert store.get("k") == 5
