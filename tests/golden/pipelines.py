"""Pipelines: logs of results with their notes, logs of dead letters, states of queries."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from callboard.commitlog import CommitLog, LogReader
from callboard.pipeline.progress import (
    QUERIES,
    STATUS,
    Delay,
    DeliveryStats,
    Progress,
    QueryStatus,
    StatusFile,
    read_status,
)
from callboard.pipeline.spark.dead_letters import DeadLetter, Origin, bury
from callboard.pipeline.spark.encode import RowEncoder
from callboard.pipeline.spark.journal import FolderJournal, StagedSegment
from tests.golden.sample import Folder, Sample

NOW = 1_700_000_000_000_000_000
NAMED = {
    "topic": ["a", "b", "a"],
    "key": [b"k", None, b"k"],
    "headers": [[("h", "1")], [], None],
    "sender": ["s", None, ""],
    "time": pa.array([NOW - 5, None, NOW + 5], pa.timestamp("ns", tz="UTC")),
    "payload": [b"raw", b"\x01", b"\x81\x02"],
    "is_bytes": [True, False, None],
}
HEADERS = pa.array(NAMED["headers"], pa.map_(pa.string(), pa.string()))
ROWS: dict[str, pa.RecordBatch] = {
    "fields": pa.RecordBatch.from_pydict({"value": [1, 2], "name": ["x", None]}),
    "columns": pa.RecordBatch.from_pydict({**NAMED, "headers": HEADERS}),
    "bytes": pa.RecordBatch.from_pydict({"payload": [b"one", b"two"]}),
}


def encode(rows: pa.RecordBatch) -> list[tuple[bytes, int]]:
    encoder = RowEncoder(rows.schema, "default")
    return [(data, rows.num_rows) for data in encoder.encode(rows, 0, NOW)]


def staged(journal: FolderJournal, name: str) -> StagedSegment:
    return journal.stage(encode(ROWS[name]))


def make_results(path: Path) -> None:
    journal = FolderJournal(str(path))
    assert journal.publish("first", 0, [staged(journal, "fields"), staged(journal, "bytes")])
    assert journal.publish("second", 5, [staged(journal, "columns")])
    assert journal.publish("first", 1, [staged(journal, "bytes")])
    (path / "lock").unlink()


def records(path: Path) -> list[tuple[Any, ...]]:
    with LogReader(path) as log:
        return [
            (r.topic, r.payload, r.key, dict(r.headers), r.sender, r.time - NOW)
            for r in log.read(0)
        ]


def look_at_results(path: Path) -> tuple[Any, ...]:
    journal = FolderJournal(str(path))
    return records(path), journal.published()


FIELDS = [
    ("default", {"value": 1, "name": "x"}, None, {}, "", 0),
    ("default", {"value": 2, "name": None}, None, {}, "", 0),
]
BYTES = [("default", each, None, {}, "", 0) for each in (b"one", b"two")]
COLUMNS = [
    ("a", b"raw", b"k", {"h": "1"}, "s", -5),
    ("b", 1, None, {}, "", 0),
    ("a", [2], b"k", {}, "", 5),
]
RESULTS = [*FIELDS, *BYTES, *COLUMNS, *BYTES]


def publish_more(path: Path) -> tuple[Any, ...]:
    """Publish a batch that is there already, and one that is not."""
    journal = FolderJournal(str(path))
    assert not journal.publish("second", 5, [staged(journal, "fields")])
    assert journal.publish("second", 6, [staged(journal, "fields")])
    return [*RESULTS, *FIELDS], {"first": 1, "second": 6}


def headers(offset: int, reason: str, encoding: str, span: str) -> dict[str, str]:
    told = {"offset": str(offset), "reason": reason, "encoding": encoding}
    return {**told, "range": f"/source:{span}"}


DEAD = [
    ("/dead-letters/t", b"\xff", "key", headers(7, "no CBOR", "cbor", "5-10"), "", 0),
    ("/dead-letters/t", b"raw", b"\xff", headers(9, "no number", "bytes", "5-10"), "", 1),
]


def make_old_letters(path: Path) -> None:
    """Write letters as they were before a query had its own."""
    topics, payloads, keys, told, _, times = zip(*DEAD, strict=True)
    with CommitLog(path, sync="none") as log:
        at = [NOW + each for each in times]
        log.append_batch(payloads, topic=topics, key=keys, headers=told, time=at)
        log.flush()
    (path / "lock").unlink()


ORIGIN = Origin("/source", "1f0e", "rates")
LETTERS = [
    DeadLetter(ORIGIN, 7, "no CBOR", NOW, "/t", "key", {"a": "b"}, "s", b"\xff", False),
    DeadLetter(ORIGIN, 9, "no number", NOW + 1, "t", b"\xff", {"log": "c"}, "", b"raw", True),
]
TOLD = {"log": "/source", "query": "1f0e", "name": "rates"}
MORE = {"offset": "9", "reason": "no number", "encoding": "bytes", "topic": "t", **TOLD}
FIRST = {"offset": "7", "reason": "no CBOR", "encoding": "cbor", "topic": "/t", **TOLD}
BURIED = [
    ("/dead-letters/t", b"\xff", "key", {"a": "b", **FIRST}, "s", 0),
    ("/dead-letters/t", b"raw", b"\xff", {"record.log": "c", **MORE}, "", 1),
]


def make_letters(path: Path) -> None:
    bury(str(path), LETTERS)
    (path / "lock").unlink()


def bury_more(path: Path) -> list[tuple[Any, ...]]:
    """Bury existing letters, which changes nothing, and letters of another query."""
    known = [each for each in records(path) if each in BURIED]
    before = records(path) + ([] if known else BURIED[:1])
    bury(str(path), LETTERS[:1])
    bury(str(path), [LETTERS[0]._replace(origin=Origin("/source", "x"))])
    bury(str(path), LETTERS[:1])
    topic, *same, told, sender, at = BURIED[0]
    told = {key: text for key, text in told.items() if key != "name"}
    added = (topic, *same, {**told, "query": "x"}, sender, at)
    return [*before, added]


PROGRESS = Progress("q", 3, 100, 50.5, 1.5, 700, 800, "2024-02-29", "2024-03-01", 2)
STATUSES = {
    name: QueryStatus("q", "/log", 77, "host", "2024-02-29T12:00:00+00:00", ended, 100, 2, last)
    for name, ended, last in (("begun", "", None), ("ended", "done", PROGRESS))
}
STATUSES["looked at"] = replace(
    STATUSES["ended"],
    undecodable=4,
    delay=Delay(800, 1.5, 10.0),
    handed=DeliveryStats(5, 6, 7, 8),
    updated="2024-02-29T12:00:09+00:00",
)


def write_one(status: QueryStatus) -> bytes:
    with TemporaryDirectory() as place:
        file = StatusFile(Path(place), status.query, status.log)
        file.status = status  # with the process, machine and time of the sample
        file._write()
        return (Path(place) / STATUS).read_bytes()


def read_one(data: bytes) -> QueryStatus:
    with TemporaryDirectory() as place:
        folder = Path(place) / QUERIES / "q"
        folder.mkdir(parents=True)
        (folder / STATUS).write_bytes(data)
        (found,) = read_status(Path(place))
    return found


SAMPLES = {
    f"rows: {name}": Sample(
        rows, lambda r: b"".join(data for data, _ in encode(r)), len, len(encode(rows)[0][0])
    )
    for name, rows in ROWS.items()
}
SAMPLES |= {
    f"status: {name}": Sample(status, write_one, read_one) for name, status in STATUSES.items()
}
FOLDERS = {
    "results": Folder(
        make_results, look_at_results, (RESULTS, {"second": 5, "first": 1}), publish_more
    ),
    "dead letters": Folder(make_old_letters, records, DEAD, bury_more),
    "dead letters of queries": Folder(make_letters, records, BURIED, bury_more),
}


def missing() -> set[str]:
    """Return nothing: rows are read as part of the results."""
    return set()
