"""Each bad record is one dead letter for each query, as stored; without Spark."""

import os
import shutil

import pyarrow as pa
import pytest

from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.columns import Cbor
from callboard.pipeline.spark.dead_letters import DeadLetter
from callboard.pipeline.spark.options import SourceOptions
from callboard.pipeline.spark.range_reader import read_range

DELAYS = [{"delay": 2}, {"delay": "n/a"}, {"delay": 1.5}]
WHOLE = pa.schema([("offset", pa.int64()), ("delay", pa.int64())])
REAL = pa.schema([("offset", pa.int64()), ("delay", pa.float64())])


@pytest.fixture
def dead(tmp_path):
    return str(tmp_path / "dead")


@pytest.fixture
def read(folder, dead):
    """Read a range of the log as tasks do; returns the offsets of the rows."""

    def run(schema=WHOLE, start=0, end=None, query="", **options):
        given = SourceOptions(options.pop("path", folder), dead_letters=dead, query=query)
        end = LogReader(folder).end if end is None else end
        batches = list(read_range(given, schema, start, end))
        return [offset for each in batches for offset in each["offset"].to_pylist()]

    return run


def letters(dead):
    return [DeadLetter.read(record) for record in LogReader(dead)]


def offsets(dead, query):
    return sorted(each.offset for each in letters(dead) if each.origin.query == query)


def test_two_queries_with_different_schemas_have_separate_dead_letters_in_one_log(
    fill, read, dead
):
    fill(DELAYS)

    assert read(WHOLE, query="whole") == [0]
    assert read(REAL, query="real") == [0, 2]

    assert offsets(dead, "whole") == [1, 2]
    assert offsets(dead, "real") == [1]


def test_tables_with_other_schemas_have_their_own_letters_too(fill, read, dead):
    fill(DELAYS)

    for _ in range(2):
        assert (read(WHOLE), read(REAL)) == ([0], [0, 2])

    assert sorted(each.offset for each in letters(dead)) == [1, 1, 2]


def test_other_partitions_and_retries_duplicate_no_dead_letter(fill, read, dead):
    fill(DELAYS * 10)

    for borders in ([0, 30], [0, 7, 30], [0, 30], [5, 11, 23, 30]):
        for start, end in zip(borders, borders[1:], strict=False):
            read(start=start, end=end, query="q")

    assert offsets(dead, "q") == [at for at in range(30) if at % 3]


def test_a_new_process_does_not_duplicate_stored_dead_letters(fill, read, dead):
    from callboard.pipeline.spark import dead_letters

    fill(DELAYS)
    read(query="q")
    dead_letters._KNOWN.clear()
    read(query="q")

    assert offsets(dead, "q") == [1, 2]


def test_dead_letters_that_another_process_adds_are_noticed(fill, read, dead):
    fill(DELAYS)
    read(query="q", end=2)
    (record,) = LogReader(dead)
    with CommitLog(dead) as log:
        more = {**record.headers, "offset": "2"}
        log.append(record.topic, b"", headers=more)
    read(query="q")

    assert offsets(dead, "q") == [1, 2]


def test_a_recreated_log_of_dead_letters_gets_all_of_them(fill, read, dead):
    fill(DELAYS)
    read(query="q")
    shutil.rmtree(dead)
    read(query="q")

    assert offsets(dead, "q") == [1, 2]


def test_a_letter_is_the_record_as_it_was_stored(folder, read, dead):
    headers = {"trace": "7", "offset": "mine", "record.x": "y"}
    with CommitLog(folder) as log:
        for key, payload in ((b"a", b"\x00raw"), ("a", Cbor(b"\xff")), (None, {"delay": "x"})):
            log.append("cpu", payload, key=key, headers=headers, sender="s", time=12345678901)
    records = list(LogReader(folder))

    assert read(WHOLE.append(pa.field("value", pa.int64())), query="q") == []

    for record, letter, kept in zip(records, letters(dead), LogReader(dead), strict=True):
        assert letter[3:9] == record[1:]
        assert letter.is_bytes == record.is_bytes
        assert letter.origin == (os.path.realpath(folder), "q", "")
        assert letter.offset == record.offset
        assert (kept.topic, kept.payload) == ("/dead-letters/cpu", record.data)
        assert (kept.headers["trace"], kept.headers["record.offset"]) == ("7", "mine")
        assert kept.headers["offset"] == str(record.offset)


def test_one_log_under_two_paths_is_the_same_log(
    fill, read, dead, folder, tmp_path, monkeypatch
):
    fill(DELAYS)
    read(query="q")
    monkeypatch.chdir(tmp_path)
    read(query="q", path=os.path.relpath(folder))

    assert offsets(dead, "q") == [1, 2]


def test_letters_of_before_are_read(dead):
    told = {"offset": "7", "reason": "no CBOR", "encoding": "cbor", "range": "/of:it:5-10"}
    with CommitLog(dead) as log:
        log.append("/dead-letters/t", b"\xff", key="k", headers=told, time=5)
        log.append("/other", b"")

    letter, other = letters(dead)

    assert other is None
    assert letter.place == ("/of:it", 7)
    assert (letter.topic, letter.key, letter.headers, letter.data) == ("/t", "k", {}, b"\xff")
    assert not letter.is_bytes


def test_undecodable_records_far_apart_are_all_reported(folder, read, dead):
    with CommitLog(folder, sync="none") as log:
        for number in range(5000):
            log.append("/n", {"delay": "bad" if number in {3, 4, 2500, 4999} else number})

    assert len(read(query="q")) == 4996
    assert offsets(dead, "q") == [3, 4, 2500, 4999]
