"""What programs do with a log, in memory and on disk."""

import asyncio
import datetime
import decimal
import os
import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.commitlog import (
    CommitLog,
    Cursor,
    InvalidRecord,
    LogClosed,
    LogError,
    LogFailed,
    LogLocked,
    LogReader,
    Record,
    Retention,
)
from tests.callboard.commitlog.strategies import HEADERS, KEYS, PAYLOADS, TEXTS, TIMES
from tests.polling import eventually


@pytest.fixture(params=["disk", "memory"])
def make(request, tmp_path):
    """Makes a log of either kind; closes it in the end."""
    made = []

    def new(**options):
        made.append(
            CommitLog(tmp_path / "a" / "b" if request.param == "disk" else None, **options)
        )
        return made[-1]

    yield new
    for log in made:
        log.close()


def offsets(records):
    return [record.offset for record in records]


@given(st.lists(st.tuples(TEXTS, PAYLOADS, KEYS, HEADERS, TEXTS, TIMES), max_size=12))
def test_what_was_appended_is_read(rows):
    log = CommitLog()
    for topic, payload, key, headers, sender, time in rows:
        log.append(topic, payload, key=key, headers=headers, sender=sender, time=time)
    columns = list(zip(*rows, strict=True)) or [[]] * 6
    topics, payloads, keys, headers, senders, times = map(list, columns)
    again = log.append_batch(
        payloads, topic=topics, key=keys, headers=headers, sender=senders, time=times
    )

    assert again == range(len(rows), 2 * len(rows))
    assert [
        (
            each.offset,
            (each.topic, each.payload, each.key, dict(each.headers), each.sender, each.time),
        )
        for each in log.read()
    ] == [
        (number, (*row[:3], row[3] or {}, *row[4:])) for number, row in enumerate(rows + rows)
    ]
    assert [type(each.payload) for each in log] == [type(row[1]) for row in rows + rows]


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        decimal.Decimal("1.50"),
        uuid.UUID(int=7),
        {1, 2},
        2**100,
        {1: {"a": [None, b"x"]}},
    ],
)
def test_values_of_these_types_come_back_equal(make, value):
    log = make()
    log.append("/t", value)

    assert next(log.read()).payload == value


def test_binary_payloads_of_any_kind_are_bytes(make):
    log = make()
    log.append_batch([bytearray(b"a"), memoryview(b"b"), b"c", "d"], topic="/t")

    assert [record.payload for record in log] == [b"a", b"b", b"c", "d"]
    assert [record.is_bytes for record in log] == [True, True, True, False]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"topic": 1, "payload": b""}, "int"),
        ({"topic": "/t", "payload": object()}, "object"),
        ({"topic": "\ud800", "payload": b""}, "topic"),
        ({"topic": "/t", "payload": b"", "key": 5}, "int"),
        ({"topic": "/t", "payload": b"", "headers": {"a": 1}}, "headers"),
        ({"topic": "/t", "payload": b"", "time": 2**63}, "nanoseconds"),
        ({"topic": "/t", "payload": bytes(17 << 20)}, "16,777,216"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_named(make, arguments, named):
    log = make()

    with pytest.raises(InvalidRecord, match=named):
        log.append(**arguments)
    assert log.end == 0


@pytest.mark.parametrize("column", ["topic", "key", "headers", "time"])
def test_columns_of_another_length_are_refused(make, column):
    log, wrong = make(), {"topic": ["/t"], "key": ["k"], "headers": [{}], "time": [1]}

    with pytest.raises(InvalidRecord, match="2 payloads, but 1"):
        log.append_batch([b"", b""], **{"topic": "/t", column: wrong[column]})
    assert log.end == 0


@pytest.mark.slow
def test_a_long_run_is_many_batches_and_stays_in_order(make):
    log = make()
    payloads = [bytes([number % 256]) * 2000 for number in range(20_000)]

    assert log.append_batch(payloads, topic="/t") == range(20_000)
    assert [record.payload for record in log] == payloads


def test_an_empty_run_appends_nothing(make):
    assert make().append_batch([], topic="/t") == range(0)


def test_segments_follow_one_another(make):
    log = make(segment_bytes=500)
    for number in range(100):
        log.append("/t", number)

    assert len(log.segments) > 5
    assert [each.end for each in log.segments[:-1]] == [each.base for each in log.segments[1:]]
    for start in range(100):
        assert offsets(log.read(start)) == list(range(start, 100))


@given(st.integers(1, 9), st.integers(1, 60), st.integers(0, 30))
def test_readv_goes_on_over_borders_as_read_does(records, size, first):
    log = CommitLog(segment_bytes=300)
    for run in range(6):
        log.append_batch([b"x" * 10] * (run + 1), topic="/t")
    cursor, seen = log.cursor(first), []
    while (run := log.readv(cursor, records, size)).records:
        assert len(run.records) <= records
        assert sum(len(each.data) for each in run.records) <= max(size, 10)
        assert log.readv(cursor.offset, records, size).records == run.records
        cursor, seen = run.cursor, seen + run.records

    assert seen == list(log.read(first))


def test_many_cursors_read_one_long_batch_in_turn():
    log = CommitLog()
    log.append_batch(list(range(1000)), topic="/n")
    cursors, seen = [log.cursor(start) for start in range(12)], [[] for _ in range(12)]
    for _ in range(20):
        for number, cursor in enumerate(cursors):
            run = log.readv(cursor, 70)
            seen[number] += [record.payload for record in run.records]
            cursors[number] = run.cursor

    assert seen == [list(range(start, 1000)) for start in range(12)]


def test_a_cursor_at_the_end_sees_what_comes(make):
    log = make(segment_bytes=200)
    cursor = log.cursor(log.end)
    seen = []
    for number in range(30):
        assert log.readv(cursor).records == []
        log.append("/t", number)
        run = log.readv(cursor)
        cursor, seen = run.cursor, seen + [record.payload for record in run.records]

    assert seen == list(range(30))


def test_a_negative_offset_is_refused(make):
    log = make()

    with pytest.raises(ValueError, match="-1"):
        log.read(-1)
    with pytest.raises(ValueError, match="max_records"):
        log.readv(0, 0)


# --- retention ---


def test_a_retention_that_is_none_is_told_with_what_to_give():
    with pytest.raises(TypeError, match=r"use, for example, Retention\(seconds=…\)"):
        CommitLog(retain="7d")


def test_retention_by_bytes_and_the_jump_to_head(make):
    log = make(retain=Retention(bytes=20_000))
    log.append("/t", b"")
    cursor = log.readv(0).cursor
    for _ in range(1000):
        log.append("/t", b"x" * 100)

    run = log.readv(cursor, 5)
    assert sum(each.bytes for each in log.segments) <= 22_000
    assert log.start > 500
    assert offsets(run.records) == list(range(log.start, log.start + 5))
    assert run.lost == log.start - 1
    reading = log.read(0)
    assert offsets(reading) == list(range(log.start, 1001))
    assert reading.lost == log.start


def test_retention_by_count(make):
    log = make(retain=Retention(records=100))
    for number in range(1000):
        log.append("/t", number)

    assert 90 <= log.end - log.start <= 110


def test_retention_by_age_on_the_clock_of_the_log(make):
    now = [0]
    log = make(retain=Retention(seconds=100), clock=lambda: now[0])
    for second in range(500):
        now[0] = second * 10**9
        log.append("/t", second)

    assert 85 <= next(log.read(log.start)).payload - 499 + 200 <= 110


def test_a_time_in_the_future_does_not_stop_retention(make):
    now = [0]
    log = make(retain=Retention(seconds=100), clock=lambda: now[0])
    for second in range(500):
        now[0] = second * 10**9
        log.append("/t", second, time=4_291_747_200 * 10**9 if second % 50 == 7 else None)

    assert 380 <= log.start <= 410


def test_trim_removes_segments_below_an_offset(make):
    log = make(segment_bytes=200)
    for number in range(100):
        log.append("/t", number)

    assert 40 <= log.trim(50) <= 50
    assert offsets(log.read(50)) == list(range(50, 100))
    assert log.trim(10**9) == log.segments[-1].base


def test_an_iteration_survives_retention(make):
    log = make(retain=Retention(records=50))
    for number in range(40):
        log.append("/t", number)
    reading = log.read()
    first = next(reading)
    for number in range(40, 200):
        log.append("/t", number)
    rest = offsets(reading)

    assert first.offset == 0
    assert rest == sorted(set(rest))
    assert rest[-1] == 199


def test_limits_below_one_are_refused():
    with pytest.raises(ValueError, match="records=0"):
        Retention(records=0)
    with pytest.raises(ValueError, match="sync='often'"):
        CommitLog(sync="often")


# --- time ---


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(-5, 55))
def test_offset_at_is_the_first_record_that_is_not_older(times, asked):
    log = CommitLog(segment_bytes=400)
    for start in range(0, len(times), 7):
        part = times[start : start + 7]
        log.append_batch([b"x"] * len(part), topic="/t", time=part)
    newer = (number for number, time in enumerate(times) if time >= asked)

    assert log.offset_at(asked) == next(newer, len(times))


# --- life ---


def test_a_log_goes_on_where_it_ended(tmp_path):
    for life in range(4):
        with CommitLog(tmp_path, segment_bytes=150) as log:
            assert log.end == life * 5
            assert log.recovery.cut_bytes == 0
            for number in range(5):
                log.append("/t", life * 5 + number)

    assert [record.payload for record in LogReader(tmp_path)] == list(range(20))


def test_a_second_writer_is_refused_and_the_holder_named(tmp_path):
    with CommitLog(tmp_path):
        with pytest.raises(LogLocked, match=f"this process \\({os.getpid()}\\)"):
            CommitLog(tmp_path)
        program = f"from callboard.commitlog import CommitLog; CommitLog({str(tmp_path)!r})"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert f"is written by process {os.getpid()};" in done.stderr

    CommitLog(tmp_path).close()


def test_a_closed_log_says_so(make):
    log = make()
    log.append("/t", 1)
    log.close()
    log.close()

    with pytest.raises(LogClosed, match="closed"):
        log.append("/t", 2)
    with pytest.raises(LogClosed, match="closed"):
        log.flush()


def test_no_log_is_an_error_of_the_reader(tmp_path):
    with pytest.raises(LogFailed, match="no log"):
        LogReader(tmp_path / "none")


def test_a_folder_that_is_a_file_is_an_error_of_the_log(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(LogError, match="file"):
        CommitLog(tmp_path / "file")


@pytest.mark.parametrize("sync", ["none", "group", "each"])
def test_what_is_durable_in_each_mode(tmp_path, sync):
    with CommitLog(tmp_path, sync=sync, sync_interval=0.01) as log:
        log.append("/t", 1)
        if sync == "each":
            assert log.durable == 1
        if sync == "none":
            assert log.durable == 0
            log.flush()
        eventually(lambda: log.durable == 1)
        log.append("/t", 2)
        asyncio.run(log.aflush())
        assert log.durable == 2


def test_records_and_cursors_are_tuples_of_the_documented_fields():
    assert Record._fields == ("offset", "time", "topic", "key", "headers", "sender", "data")
    assert Cursor._fields == ("offset", "segment", "position")
