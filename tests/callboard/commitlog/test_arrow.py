"""Records as Arrow's columns: the same as record by record, whatever is asked for."""

import struct
import subprocess
import sys
from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.commitlog import CommitLog, ExtraMissing, LogCorrupt, LogReader, Retention
from callboard.commitlog.batch import BYTES, Packed, encode_packed
from callboard.commitlog.columns import encode_names
from callboard.commitlog.disk import MemoryDisk
from tests.callboard.commitlog.strategies import HEADERS, KEYS, PAYLOADS, TEXTS, TIMES

ROWS = st.tuples(TEXTS, PAYLOADS, KEYS, HEADERS, TEXTS, TIMES)


def rows_of(records):
    """Return the records as Arrow shows them."""
    return [
        {
            **record._asdict(),
            "key": record.key.encode() if isinstance(record.key, str) else record.key,
            "headers": list(record.headers.items()),
            "payload": record.data,
            "is_bytes": record.is_bytes,
        }
        for record in records
    ]


def shown(table):
    """Return the rows of a table; nanoseconds as numbers, and the payload under both names."""
    import pyarrow as pa

    at = table.schema.get_field_index("time")
    table = table.set_column(at, "time", table.column("time").cast(pa.int64()))
    return [{**row, "data": row["payload"]} for row in table.to_pylist()]


@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=5), max_size=4),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(1, 9),
    TEXTS.map(lambda text: text[:1]),
)
def test_a_table_has_the_same_rows_as_the_records(runs, start, end, rows, topic):
    pytest.importorskip("pyarrow")
    log = CommitLog(segment_bytes=200)
    for run in runs:
        topics, payloads, keys, headers, senders, times = map(list, zip(*run, strict=True))
        log.append_batch(
            payloads, topic=topics, key=keys, headers=headers, sender=senders, time=times
        )
    wanted = [
        record
        for record in log.read(start)
        if record.offset < end and record.topic.startswith(topic)
    ]

    pieces = list(log.arrow_batches(start, end, topic=topic, rows=rows))

    assert shown(log.to_arrow(start, end, topic=topic)) == rows_of(wanted)
    assert [row for piece in pieces for row in shown(piece)] == rows_of(wanted)


def test_an_empty_log_has_a_table_with_all_columns():
    pytest.importorskip("pyarrow")

    table = CommitLog().to_arrow()

    assert table.num_rows == 0
    assert table.column_names == [
        *("offset", "time", "topic", "key", "headers", "sender", "payload", "is_bytes")
    ]


def test_records_that_retention_removed_are_not_in_a_table():
    pytest.importorskip("pyarrow")
    log = CommitLog(retain=Retention(records=100))
    log.append_batch(list(range(50)), topic="/n")
    for number in range(50, 500):
        log.append("/n", number)

    offsets = log.to_arrow(0, 450).column("offset").to_pylist()

    assert offsets == list(range(log.start, 450))
    assert log.to_arrow(0, log.start).num_rows == 0


def test_what_stands_before_damage_comes_first(tmp_path):
    pytest.importorskip("pyarrow")
    with CommitLog(tmp_path) as log:
        for number in range(3):
            log.append("/n", number)
    path = tmp_path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    pieces = LogReader(tmp_path).arrow_batches(0, 3)

    assert next(pieces).column("offset").to_pylist() == [0, 1]
    with pytest.raises(LogCorrupt) as caught:
        next(pieces)
    assert (caught.value.offset, caught.value.next_offset) == (2, 3)


def test_tables_need_pyarrow_and_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ExtraMissing, match=r"pip install 'callboard\[arrow\]'"):
        CommitLog().to_arrow()


@given(st.binary(max_size=120), st.integers(1, 5), st.integers(0, 140))
def test_a_batch_of_another_program_is_corrupt_or_read(body, count, flags):
    pytest.importorskip("pyarrow")
    disk = MemoryDisk()
    checked = struct.pack("<IIQqqII", crc32(body), len(body), 0, 0, 0, count, flags)
    head = b"CBL1" + struct.pack("<I", crc32(checked)) + checked
    disk.open("/a/00000000000000000000.log", append=True).write(head + body)
    log = LogReader("/a", disk=disk)

    with suppress(LogCorrupt):  # and nothing else
        assert shown(log.to_arrow()) == rows_of(log.read())


def packed(base, topics, keys, numbers):
    """Return a batch of records with one topic and a key each, by numbers in a table."""
    names = encode_names(topics, keys, [{}], [""])
    count = len(numbers)
    named = [struct.pack(f"<{count}I", *([0] * count)), struct.pack(f"<{count}I", *numbers)]
    lengths = struct.pack(f"<{count}I", *([1] * count))
    columns = Packed(names, b"", (*named, b"", b""), b"", lengths, b"x" * count)
    return encode_packed(base, 5, 5, columns, BYTES)


def test_names_behind_a_batch_that_is_refused_stand_against_their_own_rows():
    """Its checksum is right; its keys are not, which shows when its topics were taken up."""
    pytest.importorskip("pyarrow")
    disk, told = MemoryDisk(), []
    file = disk.open("/a/00000000000000000000.log", append=True)
    file.write(packed(0, ["/a"], ["k", "l"], [0, 1, 0]))
    file.write(packed(3, ["/bad", "/x"], ["m"], [0, 9]))
    file.write(packed(5, ["/c", "/x"], ["n", "o"], [1, 0]))

    table = LogReader("/a", disk=disk).to_arrow(on_damage=told.append)

    assert len(told) == 1
    rows = [(each["offset"], each["topic"], each["key"]) for each in table.to_pylist()]
    assert rows == [
        *((0, "/a", b"k"), (1, "/a", b"l"), (2, "/a", b"k")),
        *((5, "/c", b"o"), (6, "/c", b"n")),
    ]


@pytest.mark.slow
def test_reading_imports_no_pandas(tmp_path):
    pytest.importorskip("pyarrow")
    with CommitLog(tmp_path) as log:
        log.append("/a", b"x", key="k", headers={"h": "v"})
        log.append("/b", b"y")
    program = (
        "import sys; from callboard.commitlog import LogReader;"
        f"table = LogReader({str(tmp_path)!r}).to_arrow();"
        "assert table.num_rows == 2; assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
