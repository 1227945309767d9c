"""Exports have each record once, whenever their process is killed."""

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from callboard.cli import main  # noqa: E402
from callboard.commitlog import CommitLog, LogFailed, LogReader, Retention  # noqa: E402
from callboard.commitlog.errors import PositionRefused  # noqa: E402
from callboard.commitlog.export.exporting import export, open_target  # noqa: E402
from callboard.commitlog.export.rows import RowOptions  # noqa: E402
from tests.callboard.entity.state.postgresql_server import running_server  # noqa: E402

DAY = 86_400 * 10**9
NO_OPTIONS = RowOptions()


def rows_of_parquet(target):
    """Return offset, n and delay of all rows, as a tool without callboard reads them."""
    from pyarrow import dataset

    files = [str(path) for path in Path(target).rglob("*.parquet")]
    rows = []
    for file in files:
        table = dataset.dataset(file).to_table(columns=["offset", "n", "delay"])
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(rows)


def rows_of_delta(target):
    from deltalake import DeltaTable

    table = DeltaTable(target).to_pyarrow_table(columns=["offset", "n", "delay"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def rows_of_postgresql(target):
    import psycopg

    with psycopg.connect(target.partition("#")[0]) as connection:
        return connection.execute(
            'SELECT "offset", n, delay FROM flights ORDER BY "offset"'
        ).fetchall()


READERS = {
    "parquet": rows_of_parquet,
    "delta": rows_of_delta,
    "postgresql": rows_of_postgresql,
}


@pytest.fixture
def target_of(tmp_path):
    """Return the function that makes a target of a format."""

    def make(kind):
        if kind == "delta":
            pytest.importorskip("deltalake")
        if kind == "postgresql":
            pytest.importorskip("psycopg")
            return running_server().new_database() + "#flights"
        return str(tmp_path / kind)

    return make


def run(folder, kind, target, options=NO_OPTIONS, **more):
    log = LogReader(folder)
    with closing(open_target(kind, target, log, options)) as place:
        return [tuple(part) for part in export(log, place, options, **more)]


def expected(folder):
    rows = [(record.offset, record.payload) for record in LogReader(folder)]
    return [(offset, row["n"], row.get("delay")) for offset, row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_killed_exports_leave_each_record_once(kind, tmp_path, target_of):
    pytest.importorskip("deltalake")
    pytest.importorskip("psycopg")
    target = target_of(kind)
    program = Path(__file__).with_name("killed_exports.py")
    arguments = [kind, tmp_path / "flights", target, "5", "1"]
    command = [sys.executable, program, *map(str, arguments)]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[4]
    )

    assert (done.returncode, done.stdout.strip()) == (0, "5"), done.stderr
    assert READERS[kind](target) == expected(tmp_path / "flights")


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_fields_that_come_later_become_columns(kind, tmp_path, target_of):
    target = target_of(kind)
    with CommitLog(tmp_path / "flights") as log:
        log.append_batch([{"n": 1}, {"n": 2}], topic="/f")
    assert run(tmp_path / "flights", kind, target) == [(0, 2)]
    with CommitLog(tmp_path / "flights") as log:
        log.append_batch([{"n": 3, "delay": 0.5, "tags": ["a"]}, b"plain"], topic="/f")
    assert run(tmp_path / "flights", kind, target) == [(2, 4)]
    assert run(tmp_path / "flights", kind, target) == []

    rows = [] if kind == "parquet" else READERS[kind](target)

    assert rows in ([], [(0, 1, None), (1, 2, None), (2, 3, 0.5), (3, None, None)])


def test_records_of_a_file_are_those_of_its_day(tmp_path):
    from pyarrow import parquet

    with CommitLog(tmp_path / "log") as log:
        log.append_batch(
            [{"n": n} for n in range(6)], topic="/f", time=[n * DAY // 2 for n in range(6)]
        )
    options = RowOptions("day", value=True)

    assert run(tmp_path / "log", "parquet", str(tmp_path / "out"), options, rows=4) == [
        (0, 4),
        (4, 6),
    ]

    files = sorted(
        path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.parquet")
    )
    assert [str(file.parent) for file in files] == [
        "day=1970-01-01",
        "day=1970-01-02",
        "day=1970-01-03",
    ]
    table = parquet.ParquetFile(tmp_path / "out" / files[1]).read()
    assert table.select(["offset", "n", "value"]).to_pylist() == [
        {"offset": 2, "n": 2, "value": '{"n": 2}'},
        {"offset": 3, "n": 3, "value": '{"n": 3}'},
    ]


def test_another_log_and_other_partitions_are_refused(tmp_path):
    for name in ("a", "b"):
        with CommitLog(tmp_path / name) as log:
            log.append("/f", {"n": 1})
    run(tmp_path / "a", "parquet", str(tmp_path / "out"))

    with pytest.raises(LogFailed, match="export each log to a directory of its own"):
        run(tmp_path / "b", "parquet", str(tmp_path / "out"))
    with pytest.raises(LogFailed, match="export with the same"):
        run(tmp_path / "a", "parquet", str(tmp_path / "out"), RowOptions("day"))
    with pytest.raises(ValueError, match="use one of parquet, delta, postgresql"):
        run(tmp_path / "a", "csv", str(tmp_path / "out"))


def test_records_that_retention_removed_are_named(tmp_path):
    with CommitLog(tmp_path / "log", retain=Retention(records=10), segment_bytes=100) as log:
        for n in range(100):
            log.append("/f", {"n": n})
    start = LogReader(tmp_path / "log").start

    with pytest.raises(LogFailed, match=f"records 0 to {start - 1} .* --from {start}"):
        run(tmp_path / "log", "parquet", str(tmp_path / "out"))
    parts = run(tmp_path / "log", "parquet", str(tmp_path / "out"), start=start)
    assert parts == [(start, 100)]


def test_the_command_prints_the_parts(tmp_path, capsys):
    with CommitLog(tmp_path / "log") as log:
        log.append("/f", {"n": 1})
    arguments = ["log", "export", str(tmp_path / "log"), str(tmp_path / "out"), "--json"]

    assert main(arguments) == 0

    assert json.loads(capsys.readouterr().out) == {"start": 0, "end": 1}
    assert main([*arguments, "--partition", "hour"]) == 2


def test_a_log_that_was_set_back_is_refused(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        log.append_batch([{"n": n} for n in range(4)], topic="/f")
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    with CommitLog(tmp_path / "log") as log:
        log.append("/f", {"n": 4})
    run(tmp_path / "log", "parquet", str(tmp_path / "out"))
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "backup", tmp_path / "log")
    with CommitLog(tmp_path / "log") as log:
        log.append("/f", {"n": -4})

    with pytest.raises(PositionRefused):
        run(tmp_path / "log", "parquet", str(tmp_path / "out"))
