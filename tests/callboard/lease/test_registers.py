"""What every register does: memory, SQLite, PostgreSQL and etcd alike."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from callboard.entity.machine.table import Table, TableMember
from callboard.entity.state.backends import open_leases
from callboard.lease.errors import OutcomeUnknown, StateUnavailable
from callboard.lease.etcd import EtcdLeases
from callboard.lease.leases import Leases, LeaseValue, MemoryLeases
from callboard.lease.postgresql import PostgresqlLeases
from callboard.lease.sqlite import SqliteLeases
from tests.callboard.entity.state.postgresql_server import running_server
from tests.callboard.lease.etcd_server import running_etcd
from tests.polling import eventually

OpenLeases = Callable[[str], Leases]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "etcd"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLeases]:
    """Open registers of one database, of each kind."""
    if request.param == "memory":
        shared = MemoryLeases()
        yield lambda writer: shared
        return
    makes = {
        "sqlite": lambda: f"sqlite:{tmp_path}/a.db",
        "postgresql": lambda: running_server().new_database(),
        "etcd": lambda: running_etcd().new_prefix(),
    }
    url = makes[request.param]()
    with ExitStack() as opened:

        def open_of(writer: str) -> Leases:
            leases = open_leases(url, writer)
            opened.callback(leases.close)
            return leases

        yield open_of


def test_a_value_is_replaced_only_by_who_saw_it(open_one: OpenLeases) -> None:
    one, other = open_one("a"), open_one("b")
    assert one.read("table") == (None, 0)
    assert one.write("table", LeaseValue("a", 1, '{"é": "%s"}'), 0)
    assert not other.write("table", LeaseValue("b", 1), 0)
    assert other.read("table") == (LeaseValue("a", 1, '{"é": "%s"}'), 1)
    assert other.write("table", LeaseValue("b", 1), 1)
    assert not one.write("table", LeaseValue("a", 2), 1)
    assert one.read("table") == (LeaseValue("b", 1), 2)
    assert one.read("other") == (None, 0)


def remove(leases: Any, name: str) -> None:
    """Remove a value, as an operator does."""
    sql = "DELETE FROM callboard_leases WHERE name = "
    if isinstance(leases, MemoryLeases):
        del leases._values[name]
    elif isinstance(leases, SqliteLeases):
        leases._file.run(lambda file: file.execute(f"{sql}?", (name,)), is_write=True)
    elif isinstance(leases, PostgresqlLeases):
        leases._connected.query(f"{sql}%s RETURNING 1", (name,))
    else:
        assert isinstance(leases, EtcdLeases)
        leases._ask({"success": [{"request_delete_range": {"key": leases._key(name)}}]})


def test_a_value_that_was_removed_is_read_as_none_and_replaced_by_nobody_who_saw_it(
    open_one: OpenLeases,
) -> None:
    one, other = open_one("a"), open_one("b")
    assert one.write("lease/a", LeaseValue("a", 1), 0)
    assert one.write("lease/a", LeaseValue("a", 2), 1)
    remove(other, "lease/a")
    assert one.read("lease/a") == (None, 0)
    assert not one.write("lease/a", LeaseValue("a", 3), 2)
    assert one.write("lease/a", LeaseValue("a", 3), 0)
    assert other.read("lease/a") == (LeaseValue("a", 3), 1)
    assert not one.write("lease/a", LeaseValue("a", 4), 2)


def test_of_writers_at_once_one_wins_each_version(open_one: OpenLeases) -> None:
    registers = [open_one(name) for name in "abc"]
    won: list[int] = []

    def raise_it(number: int) -> None:
        for _ in range(20):
            value, version = registers[number].read("n")
            if registers[number].write("n", LeaseValue(str(number), version + 1), version):
                won.append(version + 1)

    threads = [threading.Thread(target=raise_it, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, len(won) + 1))
    assert registers[0].read("n")[1] == len(won)


def test_a_killed_process_is_gone_for_certain(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/a.db"
    program = (
        "import sys; from callboard.entity.state.backends import open_leases;"
        f"leases = open_leases({url!r}, 'b'); print('open', flush=True); sys.stdin.read()"
    )
    leases = open_leases(url, "a")
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert not leases.is_gone("b")
        process.kill()
    assert eventually(lambda: leases.is_gone("b"))
    assert leases.is_gone("nobody")
    assert not leases.is_gone("a")
    leases.close()


def test_another_connection_of_a_life_neither_begins_nor_ends_it(open_one: OpenLeases) -> None:
    one, other = open_one("a"), open_one("b")
    again = one.again()
    assert again.write("n", LeaseValue("a", 1), 0)
    assert one.read("n") == (LeaseValue("a", 1), 1)
    again.close()
    assert not other.is_gone("a")


def test_a_write_whose_connection_was_lost_perhaps_took_place() -> None:
    leases = open_leases(running_server().new_database(), "a")
    assert leases.write("n", LeaseValue("a", 1), 0)
    leases._connected._connection.close()  # type: ignore[attr-defined]
    server = leases._connected  # type: ignore[attr-defined]
    server.url = "postgresql://127.0.0.1:1/none"
    with pytest.raises(OutcomeUnknown, match="the value may have been written"):
        leases.write("n", LeaseValue("a", 2), 1)
    with pytest.raises(StateUnavailable):
        leases.read("n")
    leases.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_documented_statement_removes_lives_that_are_over_and_nothing_else(
    kind: str, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path}/a.db" if kind == "sqlite" else running_server().new_database()
    leases: Any = open_leases(url, "a")
    table = Table(1, members={"ab-1": TableMember("ab" * 18)}).filled().text()
    rows = {"entities/shop.Cart": table, "entities/x": "", "other/ab-2": "released"}
    lives = {"ab-1": "killed", "ab-2": "held", "ab-3": "killed", "ab-4": "released"}
    for name, text in (rows | {f"lease/{life}": text for life, text in lives.items()}).items():
        assert leases.write(name, LeaseValue("a", 1, text), 0)
    page = (Path(__file__).parents[3] / "docs" / "entities-schema.md").read_text()
    (sql,) = re.findall(r"```sql\n(DELETE FROM callboard_leases\n.*?)```", page, re.DOTALL)
    if kind == "sqlite":
        leases._file.run(lambda file: file.execute(sql), is_write=True)
    else:
        leases._connected.transaction(lambda file: file.execute(sql))
    left = {
        name for name in (*rows, *(f"lease/{life}" for life in lives)) if leases.read(name)[0]
    }
    leases.close()
    assert left == {*rows, "lease/ab-1", "lease/ab-2"}
