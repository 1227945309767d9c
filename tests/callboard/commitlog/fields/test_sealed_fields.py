"""Column files with the fields of payloads: read by every tool, equal to the payloads."""

import datetime
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from callboard.commitlog import (  # noqa: E402
    CommitLog,
    DeclaredField,
    LogReader,
    sealed_segments,
    write_columns,
)
from callboard.commitlog.sealed import all_fields, intact_columns  # noqa: E402
from callboard.commitlog.verify import verify  # noqa: E402

MOMENT = datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, datetime.UTC)


@pytest.fixture
def folder(tmp_path):
    """Return a log of nine sealed segments; a field is in the third to the seventh of them."""
    folder = tmp_path / "log"
    log = CommitLog(folder, segment_bytes=1)
    for segment in range(10):
        rows = []
        for n in range(100):
            row = {"origin": "JFK", "n": segment * 100 + n}
            if 3 <= segment <= 7:
                row["delay"] = float(n)
            rows.append(row)
        log.append_batch(rows, topic=f"/flights/{segment % 2}")
    log.close()
    write_columns(folder)
    return folder


def query(folder, text):
    """Return the rows of a query of DuckDB in a process that does not know callboard."""
    duckdb = pytest.importorskip("duckdb")
    assert duckdb
    program = (
        "import duckdb, sys; assert 'callboard' not in sys.modules;"
        f"print(duckdb.sql({text!r}.replace('LOG', sys.argv[1])).fetchall())"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path[:] = {sys.path!r}; {program}",
            str(folder),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_duckdb_reads_a_field_that_begins_and_ends_within_the_log(folder):
    files = "read_parquet('LOG/*.parquet', union_by_name = true)"

    text = f"select avg(delay), count(delay), count(*), max(n) from {files}"

    assert query(folder, text) == "[(49.5, 500, 900, 899)]"


def test_the_payloads_are_left_out_and_come_back(folder):
    from pyarrow import parquet

    files = [each.columns for each in sealed_segments(folder) if each.columns]
    assert len(files) == 9
    for file in files:
        payloads = parquet.read_table(file, columns=["payload"]).column("payload")
        assert payloads.null_count == len(payloads)

    report = verify(folder)

    assert (report.damage, report.records) == ([], 1000)


def test_verify_reports_a_column_that_differs_from_the_payloads(folder):
    from pyarrow import parquet

    file = Path(sealed_segments(folder)[4].columns)
    table = parquet.read_table(file)
    index = table.schema.get_field_index("delay")
    changed = pa.array([1.0] * 100)
    parquet.write_table(table.set_column(index, "delay", changed), file)

    assert f"{file} is damaged" in verify(folder).damage[0]


@pytest.mark.parametrize("nan", ["null", "keep"])
@pytest.mark.parametrize("fields", [{"delay": "float"}, {"n": "float", "origin": "text"}])
def test_a_table_of_arrow_is_the_same_with_and_without_column_files(folder, fields, nan):
    with CommitLog(folder) as log:
        log.declare(fields)
    log = LogReader(folder)
    sealed = log.to_arrow(5, 950, fields=True, nan=nan)
    about = log.to_arrow(topic="/flights/1", fields=True, nan=nan)
    for file in folder.glob("*.parquet"):
        file.unlink()

    assert log.to_arrow(5, 950, fields=True, nan=nan).equals(sealed)
    assert log.to_arrow(topic="/flights/1", fields=True, nan=nan).equals(about)
    assert sealed.num_rows == 945


def odd_rows():
    """Return rows with misfits, lists, NaN, and a number that becomes wider."""
    rows = [{"n": n, "x": n / 4, "at": MOMENT, "tags": ["a"] * (n % 3)} for n in range(20)]
    rows += [{"n": "none", "x": math.nan, "at": None}, {"n": 2**70, "x": 1, "at": "soon"}]
    return [*rows, [1, 2], 7, b"plain", {"main": {"temp": 1.5, "unit": "C"}}]


@pytest.mark.parametrize("nan", ["null", "keep"])
def test_odd_payloads_are_the_same_with_and_without_column_files(tmp_path, nan):
    with CommitLog(tmp_path / "log") as log:
        log.declare(
            {"n": "int", "x": "float", "at": "time", "tags": "text[]", "main.temp": "float"}
        )
        log.append_batch(odd_rows(), topic="/t")
    with CommitLog(tmp_path / "log", segment_bytes=1) as log:
        log.append("/end", None)
    log = LogReader(tmp_path / "log")
    expected = log.to_arrow(fields=True, nan=nan)
    assert len(write_columns(tmp_path / "log")) == 1

    found = log.to_arrow(fields=True, nan=nan)

    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    assert verify(tmp_path / "log").damage == []
    x, n, at = (found.column(name).to_pylist() for name in ("x", "n", "at"))
    assert (n[20], at[20], at[21], x[21]) == (None, None, None, 1.0)
    assert x[20] is None if nan == "null" else math.isnan(x[20])


def test_sql_has_inferred_fields_as_columns_and_averages_without_nan(tmp_path):
    pytest.importorskip("duckdb")
    from callboard.commitlog.sql import open_sql

    with CommitLog(tmp_path / "log") as log:
        log.append_batch([{"delay": 1.0}, {"delay": math.nan}, {"delay": 3.0}], topic="/f")
    with CommitLog(tmp_path / "log", segment_bytes=1) as log:
        log.append("/f", {"delay": 5})
    write_columns(tmp_path / "log")
    text = "select avg(delay), max(delay), count(delay), count(*) from log"

    with open_sql({"log": tmp_path / "log"}) as connection:
        assert connection.sql(text).fetchall() == [(3.0, 5.0, 3, 4)]
        values = connection.sql('select value from log order by "offset"').fetchall()
        assert [value for (value,) in values][0::3] == ['{"delay": 1.0}', '{"delay": 5}']
    with open_sql({"log": tmp_path / "log"}, nan="keep") as connection:
        ((average, *_),) = connection.sql(text).fetchall()
    assert math.isnan(average)
    with pytest.raises(ValueError, match="'null' or 'keep'"), open_sql({}, nan="none"):
        pass


def test_a_log_has_the_inferred_fields_of_its_newest_file(folder):
    with CommitLog(folder) as log:
        log.declare({"n": "int"})

    assert all_fields(LogReader(folder).place) == [
        DeclaredField("n", "int"),
        DeclaredField("origin", "text"),
        DeclaredField("delay", "float"),
    ]


def test_files_of_another_callboard_are_read_and_their_payloads_decoded(folder, tmp_path):
    """A file of 0.1 has all payloads, and no columns for their fields."""
    from pyarrow import parquet

    old = tmp_path / "old"
    shutil.copytree(folder, old)
    log = LogReader(folder)
    for segment in sealed_segments(old):
        if segment.columns is None:
            continue
        from callboard.commitlog.sealed import as_written

        table = as_written(
            [log.to_arrow(segment.base, segment.end).combine_chunks().to_batches()[0]]
        )
        bounds = {"callboard.base": str(segment.base), "callboard.end": str(segment.end)}
        parquet.write_table(
            table.replace_schema_metadata(bounds), segment.columns, write_page_checksum=True
        )
        assert intact_columns(segment)[0] == segment.end

    assert verify(old).damage == []
    with CommitLog(folder) as ours, CommitLog(old) as theirs:
        ours.declare({"delay": "float"})
        theirs.declare({"delay": "float"})
    assert LogReader(old).to_arrow(fields=True).equals(LogReader(folder).to_arrow(fields=True))
