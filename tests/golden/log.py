"""The folder of a commit log: segments, indexes, marks, columns."""

import datetime as dt
from decimal import Decimal
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from callboard.commitlog import CommitLog, LogReader, sealed_segments, write_columns
from callboard.commitlog.batch import (
    BYTES,
    HEADER_SIZE,
    HEADERS,
    KEYS,
    KINDS,
    SENDERS,
    TIMES,
    TOPICS,
    decode_header,
)
from callboard.commitlog.segment import decode_index
from tests.golden.sample import Folder, Sample, read_folder

START = 1_700_000_000_000_000_000
HAS_COLUMNS = find_spec("pyarrow") is not None
FLAGS = {
    "bytes": BYTES,
    "kinds": KINDS,
    "times": TIMES,
    "topics": TOPICS,
    "keys": KEYS,
    "headers": HEADERS,
    "senders": SENDERS,
}
VALUE = {
    "none": None,
    "numbers": [1, -5, 2.5, 10**30],
    "when": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC),
    "exact": Decimal("1.10"),
    "bytes": b"\0\xff",
}


Row = tuple[str, Any, str | bytes | None, dict[str, str], str, int]


def rows() -> list[list[Row]]:
    """Return batches of records: topic, payload, key, headers, sender, time."""
    now = count(START, 1_000_000).__next__
    first = [("one", b"bytes", None, {}, "", now())]
    second = [("one", VALUE, "k", {"h": "ä"}, "node", START - 5)]
    now()
    at = now()
    third: list[Row] = [("same", each, None, {}, "", at) for each in (b"a", b"b", b"c")]
    now()
    fourth: list[Row] = [
        ("x", b"a", "text", {}, "s", START + 1),
        ("y", {"b": 1}, b"bytes", {"n": "1"}, "", START),
        ("x", "c", None, {"n": "2"}, "t", START + 2),
    ]
    at = now()
    many: list[Row] = [("many", n, b"id", {}, "", at) for n in range(100)]
    rest: list[list[Row]] = [[(f"t/{n % 3}", b"x" * n, None, {}, "", now())] for n in range(20)]
    return [first, second, third, fourth, many, *rest]


def append(log: CommitLog, batches: list[list[Row]]) -> None:
    for batch in batches:
        topics, payloads, keys, headers, senders, times = map(list, zip(*batch, strict=True))
        given = any(times[0] != each for each in times) or times[0] < START
        if len(batch) == 1:
            log.append(
                topics[0],
                payloads[0],
                key=keys[0],
                headers=headers[0],
                sender=senders[0],
                time=times[0] if given else None,
            )
        else:
            log.append_batch(
                payloads,
                topic=topics,
                key=keys,
                headers=headers,
                sender=senders,
                time=times if given else None,
            )
        log.flush()


def make(path: Path) -> None:
    clock = count(START, 1_000_000).__next__
    with CommitLog(path, sync="none", segment_bytes=1200, clock=clock) as log:
        append(log, BATCHES)
    if HAS_COLUMNS:
        write_columns(path)
    (path / "lock").unlink()


def look(path: Path) -> list[Row]:
    """Read the log from its start, from a place in it, and as columns."""
    with LogReader(path) as log:
        records = list(log.read(0))
        assert list(log.read(5)) == records[5:]
        assert [each.offset for each in records] == [*range(log.end)]
    columns = columns_of(path)
    assert columns == [
        (each.offset, each.time, each.topic, each.sender, each.data, each.is_bytes)
        for each in records[: len(columns)]
    ]
    return [(r.topic, r.payload, r.key, dict(r.headers), r.sender, r.time) for r in records]


def columns_of(path: Path) -> list[Any]:
    if not HAS_COLUMNS:
        return []
    import pyarrow.parquet as parquet

    segments = sealed_segments(path)
    assert all(segment.columns for segment in segments[:2])
    return [
        (r["offset"], r["time_ns"], r["topic"], r["sender"], r["payload"], r["is_bytes"])
        for segment in segments[:2]
        for r in parquet.read_table(segment.columns).to_pylist()
    ]


def go_on(path: Path, before: list[list[Row]] | None = None) -> list[Row]:
    more: list[list[Row]] = [[("more", [n], None, {}, "", START + 8 + n)] for n in range(3)]
    # A log that has records reads its clock once when it is opened.
    with CommitLog(path, clock=count(START + 7).__next__) as log:
        assert not log.recovery.cut_bytes
        append(log, more)
    return sum((before or BATCHES) + more, [])


TORN = b"half of a batch"


def make_torn(path: Path) -> None:
    """Make a log whose last batch did not come to the disk whole."""
    with CommitLog(path, sync="none", clock=count(START, 1_000_000).__next__) as log:
        append(log, BATCHES[:4])
    (path / "lock").unlink()
    with max(path.glob("*.log")).open("ab") as segment:
        segment.write(TORN)


def go_on_torn(path: Path) -> list[Row]:
    with CommitLog(path) as log:
        assert log.recovery.cut_bytes == len(TORN)
        assert not log.recovery.damaged
    return go_on(path, BATCHES[:4])


def index_of_many(_: object) -> bytes:
    """Return the index of a segment with several entries."""
    with TemporaryDirectory() as name:
        clock = count(START, 1_000_000).__next__
        with CommitLog(name, sync="none", segment_bytes=250_000, clock=clock) as log:
            for _n in range(12):
                log.append("t", bytes(30_000))
        return (Path(name) / f"{0:020}.index").read_bytes()


def read_index(data: bytes) -> Any:
    index = decode_index(data, 0, 270_576)
    assert index is not None
    return [index.find(at) for at in range(9)], index.latest - START, index.end


BATCHES = rows()
FOLDERS = {
    "log": Folder(make, look, sum(BATCHES, []), go_on, foreign=(".parquet",)),
    "torn": Folder(make_torn, look, sum(BATCHES[:4], []), go_on_torn),
}
PLACES = [(0, 0)] * 3 + [(90_192, 3)] * 3 + [(180_384, 6)] * 3
SAMPLES = {"index": Sample(None, index_of_many, read_index, (PLACES, 8_000_000, 9))}


def missing() -> set[str]:
    """Return columns of batches that no batch has or all have."""
    with TemporaryDirectory() as name:
        make(Path(name))
        data = b"".join(d for path, d in read_folder(Path(name)) if path.endswith(".log"))
    flags, at = [], 0
    while header := decode_header(data, at):
        flags.append(header.flags)
        at += HEADER_SIZE + header.length
    assert at == len(data)
    return {name for name, bit in FLAGS.items() if len({bool(f & bit) for f in flags}) < 2}
