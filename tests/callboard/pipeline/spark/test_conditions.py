"""Conditions have SQL's meaning and save reading; the tests count what is read."""

import re
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

from callboard.commitlog import CommitLog, LogReader  # noqa: E402
from callboard.pipeline import InvalidSetting  # noqa: E402
from callboard.pipeline.spark import range_reader  # noqa: E402
from callboard.pipeline.spark.conditions import Conditions  # noqa: E402
from callboard.pipeline.spark.options import SourceOptions  # noqa: E402

SECOND = 10**9
SCHEMA = pa.schema([("offset", pa.int64()), ("n", pa.int64())])


@pytest.fixture
def folder(tmp_path):
    """Make a log of 20 batches of 10 records, some batches to a segment, a second each."""
    path = str(tmp_path / "log")
    with CommitLog(path, sync="none", segment_bytes=1000) as log:
        for batch in range(20):
            log.append_batch(
                [{"n": number} for number in range(batch * 10, batch * 10 + 10)],
                topic=f"/t/{batch % 4}",
                key=[["a", None, b"\xff", "b"][number % 4] for number in range(10)],
                time=[(batch * 10 + number) * SECOND for number in range(10)],
            )
    return path


@pytest.fixture
def read(folder, monkeypatch):
    """Read with conditions; return the offsets, and counts of decoded records and batches."""
    counts = {"decoded": 0, "batches": 0}
    decode, layout = range_reader.decode_arrays, Conditions.choose

    def decode_counted(payloads, *rest):
        counts["decoded"] += len(payloads)
        return decode(payloads, *rest)

    def choose_counted(self, batch):
        chosen = layout(self, batch)
        counts["batches"] += chosen is not None
        return chosen

    monkeypatch.setattr(range_reader, "decode_arrays", decode_counted)
    monkeypatch.setattr(Conditions, "choose", choose_counted)

    def run(where):
        counts.update(decoded=0, batches=0)
        options = SourceOptions.parse({"path": folder, "where": where})
        found = []
        for start, end in options.where.ranges(LogReader(folder), 0, 200):
            for batch in range_reader.read_range(options, SCHEMA, start, end):
                found += batch["offset"].to_pylist()
        return found, counts["decoded"], counts["batches"]

    return run


@pytest.mark.parametrize(
    ("where", "expected", "batches"),
    [
        ("topic = '/t/1'", [n for n in range(200) if n // 10 % 4 == 1], 5),
        ("topic IN ('/t/1', '/x') AND offset < 20", range(10, 20), 5),
        ("topic LIKE '/t/3%'", [n for n in range(200) if n // 10 % 4 == 3], 5),
        ("key = 'b' and topic = '/t/0'", [n for n in range(200) if n % 40 in {3, 7}], 5),
        ("key = '\\xff' AND offset >= 10 AND offset <= 14", [12, *[]], 20),
        ("time >= TIMESTAMP '1970-01-01T00:03:15Z'", range(195, 200), 1),
        ("time >= '1970-01-01T00:03:15Z' AND time < '9999-12-31'", range(195, 200), 1),
        (f"offset < {10**22} AND offset >= 195 AND offset > -{10**22}", range(195, 200), 20),
        ("time > '1970-01-01 00:03:08' AND time<='1970-01-01T00:03:11'", range(189, 192), 2),
        ("offset = 7", [7], 20),
        ("topic = '/t/1' AND topic = '/t/2'", [], 0),
        ("key = 'no''body'", [], 0),
    ],
)
def test_only_requested_columns_are_decoded(read, where, expected, batches):
    assert read(where) == (list(expected), len(expected), batches)


def test_segments_that_are_too_old_are_not_opened(folder):
    segments = LogReader(folder).segments
    late = Conditions.parse("time >= '1970-01-01T00:03:15Z'")

    assert len(segments) > 3
    assert late.ranges(LogReader(folder), 0, 200) == [(segments[-1].base, 200)]


def test_a_segment_whose_index_ends_at_damage_is_read(folder):
    first = LogReader(folder).segments[0]
    with Path(first.path).open("r+b") as file:
        file.seek(first.bytes - 3)
        file.write(b"xxx")
    Path(first.path).with_suffix(".index").unlink(missing_ok=True)
    late = Conditions.parse("time >= '1970-01-01T00:03:15Z'")

    assert late.ranges(LogReader(folder), 0, 200)[0][0] == 0


@pytest.mark.parametrize(
    "where",
    [
        *("topic", "topic = /t", "load > 5", "topic > '/t'", "topic = 5", "time = 'noon'"),
        *(
            "topic = '/t' OR topic = '/u'",
            "offset = '5'",
            "topic = '/t' AND",
            "offset IN (1, 2)",
        ),
    ],
)
def test_invalid_conditions_are_reported(where):
    with pytest.raises(InvalidSetting, match=f"where={re.escape(repr(where))}"):
        Conditions.parse(where)
