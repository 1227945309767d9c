"""Every reader × every kind of damage: each reads what is readable, and tells of the rest."""

import contextlib
import errno
import json
import os
import shutil
import struct
import zlib

import pytest

from callboard.cli.app import main
from callboard.commitlog import (
    CommitLog,
    LogCorrupt,
    LogError,
    LogFailed,
    LogReader,
    disk,
    sealed_segments,
    write_columns,
)
from callboard.commitlog.disk import RealDisk
from callboard.commitlog.integrity import Scan
from callboard.commitlog.sealed import columns_to_arrow
from callboard.commitlog.verify import verify

pytestmark = pytest.mark.slow

COUNT = 384
RUN = 8
SECTOR = 512
"""Bytes of a page here: segments are short."""
OFFSETS = range(COUNT)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A closed log of several segments, each with several batches."""
    folder = tmp_path_factory.mktemp("template") / "log"
    with CommitLog(folder, sync="none", segment_bytes=4000) as log:
        for first in range(0, COUNT, RUN):
            numbers = range(first, first + RUN)
            payloads = [{"number": number, "text": "x" * 40} for number in numbers]
            log.append_batch(payloads, topic=[f"/t/{number % 3}" for number in numbers])
        assert len(log.segments) > 5
        assert log.segments[-1].bytes > 1000, log.segments
    return folder


@pytest.fixture(scope="module")
def template_with_columns(template, tmp_path_factory):
    """The same with Parquet files."""
    pytest.importorskip("pyarrow")
    copy = tmp_path_factory.mktemp("columns") / "log"
    shutil.copytree(template, copy)
    write_columns(copy)
    return copy


@pytest.fixture
def folder(template, tmp_path):
    """A copy of it."""
    return shutil.copytree(template, tmp_path / "log")


@pytest.fixture(params=["segments", "columns"])
def either(request, template, tmp_path):
    """A copy of it, with or without Parquet files."""
    if request.param == "columns":
        template = request.getfixturevalue("template_with_columns")
    return shutil.copytree(template, tmp_path / "log")


# --- kinds of damage ---

#: File (inode) and number of each page that the disk cannot read.
BAD: set[tuple[int, int]] = set()


@pytest.fixture(autouse=True)
def bad_sectors(monkeypatch):
    """Let reading of bad pages fail, as a disk does."""
    pread = os.pread

    def read(descriptor, size, offset):
        file = os.fstat(descriptor)
        pages = range(offset // SECTOR, -(-min(offset + size, file.st_size) // SECTOR))
        if any((file.st_ino, page) in BAD for page in pages):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", read)
    monkeypatch.setattr(disk, "_PAGE", SECTOR)
    yield
    BAD.clear()


def middle(path):
    return path.stat().st_ino, path.stat().st_size // 2 // SECTOR


def segments(folder):
    return sorted(folder.glob("*.log"))


def change(path, edit):
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(data)


def flip(path, part=0.5):
    def edit(data):
        data[int(len(data) * part)] ^= 0x10

    change(path, edit)


def zero(path):
    def edit(data):
        data[len(data) // 3 : 2 * len(data) // 3] = bytes(2 * len(data) // 3 - len(data) // 3)

    change(path, edit)


def cut(path, part=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])


def lie(index):
    """Let all entries of an index, whose checksum is right, point behind what they mean."""
    data = index.read_bytes()
    entries = [list(row) for row in struct.iter_unpack("<QQq", data[28:])]
    for entry in entries[1:]:
        entry[1] += 17
    size, end, count = struct.unpack_from("<QQI", data, 8)
    rest = struct.pack("<QQI", size, end - 3, count)
    rest += b"".join(struct.pack("<QQq", *entry) for entry in entries)
    index.write_bytes(struct.pack("<4sI", b"CBI1", zlib.crc32(rest)) + rest)


def copy_to(folder, number, base):
    shutil.copy(segments(folder)[number], folder / f"{base:020}.log")


def columns(folder):
    return sorted(folder.glob("*.parquet")) or [folder / "none"]


def with_columns(edit):
    def damage(folder):
        if columns(folder)[0].exists():
            edit(columns(folder))

    return damage


def swap(files):
    first, second = files[0].read_bytes(), files[1].read_bytes()
    files[0].write_bytes(second)
    files[1].write_bytes(first)


DAMAGE = {
    "none": lambda folder: None,
    "a flipped bit": lambda folder: flip(segments(folder)[2]),
    "a flipped bit in the last": lambda folder: flip(segments(folder)[-1]),
    "flipped bits in all": lambda folder: [flip(path, 0.3) for path in segments(folder)],
    "a flipped first byte": lambda folder: flip(segments(folder)[0], 0),
    "zeroed pages": lambda folder: zero(segments(folder)[1]),
    "zeroed pages in the last": lambda folder: zero(segments(folder)[-1]),
    "one cut": lambda folder: cut(segments(folder)[3]),
    "the first cut": lambda folder: cut(segments(folder)[0], 0.1),
    "the last cut": lambda folder: cut(segments(folder)[-1]),
    "one emptied": lambda folder: cut(segments(folder)[3], 0),
    "the first emptied": lambda folder: cut(segments(folder)[0], 0),
    "the last emptied": lambda folder: cut(segments(folder)[-1], 0),
    "two missing": lambda folder: [path.unlink() for path in segments(folder)[2:4]],
    "the last missing": lambda folder: segments(folder)[-1].unlink(),
    "one twice": lambda folder: copy_to(folder, 2, int(segments(folder)[2].stem) + 9),
    "one twice under another": lambda folder: copy_to(
        folder, 1, int(segments(folder)[3].stem) + RUN
    ),
    "one again behind the end": lambda folder: copy_to(folder, 1, COUNT + 100),
    "one in place of another": lambda folder: shutil.copy(*segments(folder)[1:3]),
    "indexes that lie": lambda folder: [lie(each) for each in folder.glob("*.index")],
    "emptied indexes": lambda folder: [cut(each, 0) for each in folder.glob("*.index")],
    "emptied marks": lambda folder: cut(folder / "synced", 0),
    "zeroed marks": lambda folder: zero(folder / "synced"),
    "a bad sector": lambda folder: BAD.add(middle(segments(folder)[2])),
    "bad sectors in all": lambda folder: BAD.update(map(middle, segments(folder))),
    "a bad first sector": lambda folder: BAD.add((segments(folder)[0].stat().st_ino, 0)),
    "a bad sector in the last": lambda folder: BAD.add(middle(segments(folder)[-1])),
    "an index that cannot be read": lambda folder: BAD.update(
        (each.stat().st_ino, 0) for each in folder.glob("*.index")
    ),
    "marks that cannot be read": lambda folder: BAD.add(((folder / "synced").stat().st_ino, 0)),
    "columns: a flipped bit": with_columns(lambda files: flip(files[1], 0.3)),
    "columns: a flipped bit in a footer": with_columns(lambda files: flip(files[1], 0.9)),
    "columns: one cut": with_columns(lambda files: cut(files[1])),
    "columns: one emptied": with_columns(lambda files: cut(files[0], 0)),
    "columns: one missing": with_columns(lambda files: files[2].unlink()),
    "columns: two swapped": with_columns(swap),
}


def readable(folder):
    """The offsets that stand in intact batches, by looking at each byte of each segment."""
    found = set()
    for path in segments(folder):
        data, inode = bytearray(path.read_bytes()), path.stat().st_ino
        for page in [page for file, page in BAD if file == inode]:
            data[page * SECTOR : (page + 1) * SECTOR] = b"?" * SECTOR
        file = RealDisk(folder).open(path.name)
        at = data.find(b"CBL1")
        while at >= 0:
            if batch := Scan(file, at).next():
                found |= set(range(batch.base, batch.end))
            at = data.find(b"CBL1", at + 1)
        file.close()
    return found


# --- readers: each returns the offsets it has read, and those it tells as lost ---


class Told:
    """Collects damage."""

    def __init__(self):
        self.lost = set()
        self.texts = []

    def __call__(self, error):
        self.lost |= set(range(error.offset, error.next_offset))
        self.texts.append(str(error))


def by_read(folder):
    told, found, offset = Told(), [], 0
    while True:
        try:
            for record in LogReader(folder).read(offset):
                found.append(record.offset)
                offset = record.offset + 1
            return found, told.lost
        except LogCorrupt as error:
            told(error)
            offset = error.next_offset


def by_on_damage(folder):
    told = Told()
    reading = LogReader(folder).read(on_damage=told)
    return [record.offset for record in reading], told.lost


def by_readv(folder):
    told, found, cursor, log = Told(), [], 0, LogReader(folder)
    while True:
        try:
            run = log.readv(cursor, 7)
        except LogCorrupt as error:
            told(error)
            cursor = error.next_offset
            continue
        found += [record.offset for record in run.records]
        cursor = run.cursor
        if not run.records:
            return found, told.lost


def by_follower(folder):
    told, found, follower = Told(), [], LogReader(folder).follow(0)
    while True:
        try:
            records = follower.poll(9)
        except LogCorrupt as error:
            told(error)
            follower = LogReader(folder).follow(error.next_offset)
            continue
        if not records:
            return found, told.lost
        found += [record.offset for record in records]


def by_single_reads(folder):
    """Each record by its offset: through the indexes."""
    found, lost = [], set()
    for offset in range(LogReader(folder).end):
        try:
            record = next(LogReader(folder).read(offset), None)
        except LogCorrupt as error:
            lost.add(error.offset)
        else:
            assert record is None or record.offset == offset
            found += [offset] if record else []
    return found, lost


def by_arrow(folder):
    pytest.importorskip("pyarrow")
    told = Told()
    table = LogReader(folder).to_arrow(on_damage=told)
    return table.column("offset").to_pylist(), told.lost


def by_writer(folder):
    with CommitLog(folder) as log:
        told = Told()
        found = [record.offset for record in log.read(on_damage=told)]
        appended = log.append("/t", "more")
        assert appended not in found
        assert not {*told.lost} - {*range(appended)}
        assert [record.payload for record in log.read(appended)] == ["more"]
    return found, told.lost


def by_tasks_of_spark(folder):
    pytest.importorskip("pyspark")
    from callboard.pipeline.spark.options import SourceOptions
    from callboard.pipeline.spark.range_reader import RECORD_SCHEMA, read_range

    end = LogReader(folder).end
    options = SourceOptions.parse({"path": str(folder)})
    tolerant = SourceOptions.parse({"path": str(folder), "failOnDataLoss": "false"})
    found = []
    for batch in read_range(tolerant, RECORD_SCHEMA, 0, end):
        found += batch.column("offset").to_pylist()
    lost = set(range(end)) - {*found}
    if lost & {*OFFSETS}:
        with pytest.raises(Exception, match="lost"):
            list(read_range(options, RECORD_SCHEMA, 0, end))
    return found, lost


READERS = [
    by_read,
    by_on_damage,
    by_readv,
    by_follower,
    by_single_reads,
    by_arrow,
    by_writer,
    by_tasks_of_spark,
]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if "columns" not in kind])
def test_each_reader_reads_what_is_readable_and_tells_the_rest(folder, kind, reader):
    DAMAGE[kind](folder)
    expected = readable(folder)

    found, lost = reader(folder)

    assert found == sorted(expected)
    # A segment behind the end tells of records that never were; none that was is left out.
    assert lost & {*OFFSETS} == {*OFFSETS} - expected


# --- commands ---


def run(capsys, *arguments):
    code = main(["log", *arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, [json.loads(line) for line in out.splitlines()], err


def counted_by_cat(capsys, folder):
    code, rows, err = run(capsys, "cat", str(folder), "--json")
    return code, len(rows), err


def counted_by_tail(capsys, folder):
    code, rows, err = run(capsys, "tail", str(folder), "-n", "9999", "--json")
    return code, len(rows), err


def counted_by_stats(capsys, folder):
    code, (row,), err = run(capsys, "stats", str(folder), "--json")
    assert sum(row["topics"].values()) == row["records"]
    return code, row["records"], err


def counted_by_verify(capsys, folder):
    code, (row,), err = run(capsys, "verify", str(folder), "--json")
    return code, row["records"], "; ".join(row["damage"]) + err


COMMANDS = [counted_by_cat, counted_by_tail, counted_by_stats, counted_by_verify]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if "columns" not in kind])
def test_each_command_counts_what_is_readable_and_ends_with_1(folder, kind, command, capsys):
    DAMAGE[kind](folder)
    expected = len(readable(folder))

    code, count, told = command(capsys, folder)

    assert count == expected
    if expected < COUNT:
        assert code == 1
        assert "lost" in told
    elif "columns" not in kind and "behind the end" not in kind:
        assert (code, told) == (0, "")


@pytest.mark.parametrize("kind", DAMAGE)
def test_sql_counts_what_is_readable_and_ends_with_1(either, kind, capsys):
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    DAMAGE[kind](either)
    in_columns = set()
    for each in sealed_segments(either):
        if each.columns is not None and not kind.startswith("columns"):
            in_columns |= {*columns_to_arrow(each.columns).column("offset").to_pylist()}
    expected = readable(either) | in_columns
    query = 'select count(*) n, count(distinct "offset") d, sum("offset") s from log'

    code, rows, err = run(capsys, "sql", query, str(either), "--json")

    assert rows == [{"n": len(expected), "d": len(expected), "s": sum(expected)}]
    if len(expected) < COUNT:
        assert code == 1
        assert f"{COUNT - len(expected)} records cannot be read" in err
        assert "is damaged at byte" in err
    elif "behind the end" not in kind:
        has_sender = kind.startswith("columns") and "missing" not in kind
        assert (code == 1) == bool(err) == (has_sender and columns(either)[0].exists())


@pytest.mark.parametrize("kind", DAMAGE)
def test_open_sql_raises_or_has_all(either, kind):
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    from callboard.commitlog.sql import open_sql

    DAMAGE[kind](either)
    told = Told()
    with open_sql({"log": either}, on_damage=told) as connection:
        (count,) = connection.sql("select count(*) from log").fetchall()[0]
    assert count + len(told.lost & {*OFFSETS}) == COUNT

    with contextlib.suppress(LogCorrupt), open_sql({"log": either}) as connection:
        (whole,) = connection.sql("select count(*) from log").fetchall()[0]
        assert whole == count
        assert not told.lost


def test_all_segments_missing_is_told_and_no_offset_is_given_twice(folder):
    for path in segments(folder):
        path.unlink()

    with pytest.raises(LogFailed, match=f"are missing: {COUNT} records were durable"):
        LogReader(folder)
    with CommitLog(folder) as log:
        assert log.recovery.damaged
        assert log.append("/t", 1) == COUNT
    assert verify(folder).start == COUNT


def test_a_record_that_is_no_cbor_is_told_and_others_are_printed(tmp_path, capsys):
    from callboard.commitlog.columns import Cbor

    with CommitLog(tmp_path / "log") as log:
        log.append_batch(["a", Cbor(b"\xff\xff"), Cbor(b"\x9f" * 5000), "b"], topic="/t")
        assert sorted(log.end - 1 - each.offset for each in log) == [0, 1, 2, 3]

    code, rows, err = run(capsys, "cat", str(tmp_path / "log"), "--json")

    assert (code, [row["payload"] for row in rows]) == (1, ["a", "b"])
    assert "2 records cannot be read" in err
    with pytest.raises(LogError):
        list(LogReader(tmp_path / "log"))[2].payload  # noqa: B018
