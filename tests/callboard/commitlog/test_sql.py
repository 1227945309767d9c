"""Logs as tables of DuckDB: sealed segments, the rest, and payloads as JSON."""

import datetime
import json
import math
import sys

import pytest

from callboard.commitlog import CommitLog, ExtraMissing, LogError, LogFailed, write_columns
from callboard.commitlog.json_text import payload_json

pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")

from callboard.commitlog.sql import open_sql  # noqa: E402

LOADS = """
    SELECT topic, count(*), sum((value->>'load')::BIGINT), min("offset"), max("offset")
    FROM log GROUP BY topic ORDER BY topic
"""
EXPECTED = [
    (f"/cpu/{core}", 100, sum(range(core, 300, 3)), core, 297 + core) for core in range(3)
]


@pytest.fixture
def folder(tmp_path):
    """A log of several segments."""
    with CommitLog(tmp_path / "it's", segment_bytes=3000) as log:
        for number in range(300):
            log.append(
                f"/cpu/{number % 3}", {"load": number}, sender="n", time=number * 10**9 + 7
            )
        assert len(log.segments) > 3
    return tmp_path / "it's"


def test_rows_are_the_same_with_and_without_columns_and_in_part(folder):
    with open_sql({"log": folder}) as connection:
        bare = connection.sql(LOADS).fetchall()
    made = write_columns(folder)
    with open_sql({"log": folder}) as connection:
        sealed = connection.sql(LOADS).fetchall()
        whole = connection.sql('SELECT * FROM log ORDER BY "offset"').fetchall()
    (folder / made[1].columns).unlink()
    with open_sql({"log": folder}) as connection:
        mixed = connection.sql(LOADS).fetchall()
        again = connection.sql('SELECT * FROM log ORDER BY "offset"').fetchall()

    assert bare == sealed == mixed == EXPECTED
    assert whole == again
    assert whole[5][:2] == (5, datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=datetime.UTC))
    assert whole[5][8:10] == (5 * 10**9 + 7, '{"load": 5}')


def test_logs_can_be_joined_with_each_other_and_with_themselves(folder, tmp_path):
    with CommitLog(tmp_path / "names") as log:
        log.append("/cpu/1", "one")
    with open_sql({"log": folder, 'a "name"': tmp_path / "names"}) as connection:
        query = 'SELECT count(*), any_value(n.value) FROM log JOIN "a ""name""" n USING (topic)'
        assert connection.sql(query).fetchall() == [(100, '"one"')]
        query = 'SELECT count(*) FROM log a JOIN log b ON a."offset" = b."offset" + 1'
        assert connection.sql(query).fetchall() == [(299,)]


def test_payloads_are_decoded_only_where_a_query_uses_them(folder, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "callboard.commitlog.sql.payload_json", lambda data, is_bytes: seen.append(data)
    )
    with open_sql({"log": folder}) as connection:
        connection.sql("SELECT topic, count(*), max(time) FROM log GROUP BY topic").fetchall()
        assert seen == []
        connection.sql('SELECT value FROM log WHERE "offset" < 7').fetchall()
        assert len(seen) == 7


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ({"a": [1, None, "ü"]}, {"a": [1, None, "ü"]}),
        ("text", "text"),
        (b"text", "text"),
        (b"\xff\x00", "ff00"),
        ([math.nan, math.inf], ["nan", "inf"]),
        ({1: {b"\x01"}}, {"1": ["01"]}),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02 00:00:00+00:00"),
        (2**70, 2**70),
    ],
)
def test_any_payload_has_a_json_text(payload, shown):
    log = CommitLog()
    log.append("/t", payload)
    (record,) = log

    assert json.loads(payload_json(record.data, record.is_bytes)) == shown


def test_a_payload_that_is_no_cbor_is_null():
    assert payload_json(b"\xff", False) is None


def test_more_than_fits_into_memory_has_to_become_columns_first(folder, monkeypatch):
    monkeypatch.setattr("callboard.commitlog.sql.TAIL_LIMIT", 4000)
    with (
        pytest.raises(LogError, match=r"run: callboard log columns .*it's"),
        open_sql({"log": folder}),
    ):
        pass
    write_columns(folder)
    with open_sql({"log": folder}) as connection:
        assert connection.sql(LOADS).fetchall() == EXPECTED


def test_what_is_missing_is_told(folder, tmp_path, monkeypatch):
    with pytest.raises(LogFailed, match="there is no log"), open_sql({"log": tmp_path}):
        pass
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with (
        pytest.raises(ExtraMissing, match=r"pip install 'callboard\[sql\]'"),
        open_sql({"log": folder}),
    ):
        pass
