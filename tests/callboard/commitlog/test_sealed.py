"""Sealed segments as Parquet: the same rows, whole or not there, gone with their segment."""

import io
import logging
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.commitlog import CommitLog, ExtraMissing, LogFailed, LogReader, Retention
from callboard.commitlog.fields.column_files import sealed_segments, write_columns
from callboard.commitlog.folder import COLUMNS, Folder
from callboard.commitlog.sealed import as_written, columns_to_arrow
from callboard.commitlog.verify import verify
from callboard.simulation import SimulatedDisk
from tests.callboard.commitlog.strategies import HEADERS, KEYS, PAYLOADS, TEXTS, TIMES
from tests.polling import eventually

pytest.importorskip("pyarrow")

ROWS = st.tuples(TEXTS, PAYLOADS, KEYS, HEADERS, TEXTS, TIMES | st.just(-(2**63)))


def fill(log, count=400):
    for number in range(count):
        log.append(f"/t/{number % 3}", {"n": number}, sender="somebody")


def seen(disk, segment):
    """Return the rows of a file of columns on a simulated disk."""
    folder = Folder(disk, "/log")
    return columns_to_arrow(io.BytesIO(folder.read(segment.columns)))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(ROWS, min_size=1, max_size=12), st.integers(1, 400))
def test_columns_have_the_rows_of_their_segment(rows, segment_bytes):
    disk = SimulatedDisk()
    with CommitLog("/log", disk=disk, segment_bytes=segment_bytes) as log:
        for topic, payload, key, headers, sender, time in rows:
            log.append(topic, payload, key=key, headers=headers, sender=sender, time=time)

    made = write_columns("/log", disk=disk)

    reader = LogReader("/log", disk=disk)
    assert made == sealed_segments("/log", disk=disk)
    assert [each.base for each in made] == [each.base for each in reader.segments[:-1]]
    for each in made:
        assert seen(disk, each).equals(reader.to_arrow(each.base, each.end))


@pytest.mark.parametrize(
    ("nanoseconds", "microseconds"), [(1999, 1), (-1, -1), (-2000, -2), (-2001, -3)]
)
def test_coarse_times_are_rounded_down(nanoseconds, microseconds):
    log = CommitLog()
    log.append("/t", 1, time=nanoseconds)

    column = as_written(list(log.arrow_batches())).column("time")

    assert column.cast("int64").to_pylist() == [microseconds]


def test_a_file_of_columns_is_plain_parquet(tmp_path):
    from pyarrow import parquet

    with CommitLog(tmp_path, segment_bytes=2000) as log:
        fill(log)
    segment = write_columns(tmp_path)[1]

    file = parquet.ParquetFile(segment.columns)

    assert [(field.name, str(field.type)) for field in file.schema_arrow] == [
        ("offset", "int64"),
        ("time", "timestamp[us, tz=UTC]"),
        ("topic", "string"),
        ("key", "binary"),
        ("headers", "map<string, string ('headers')>"),
        ("sender", "string"),
        ("payload", "binary"),
        ("is_bytes", "bool"),
        ("time_ns", "int64"),
        ("n", "int64"),
        ("payload_template", "int32"),
    ]
    kept = file.schema_arrow.metadata
    assert kept[b"callboard.offsets"] == f"{segment.base} {segment.end}".encode()
    assert file.read(["payload"]).column("payload").null_count == file.metadata.num_rows
    assert file.metadata.num_rows == segment.end - segment.base


def test_a_log_writes_the_columns_of_its_segments_by_itself(tmp_path):
    with CommitLog(tmp_path, segment_bytes=2000) as log:
        fill(log)
    assert {each.columns for each in sealed_segments(tmp_path)} == {None}

    with CommitLog(tmp_path, segment_bytes=2000, columns=True) as log:
        eventually(lambda: all(each.columns for each in sealed_segments(tmp_path)))
        fill(log)
        eventually(lambda: all(each.columns for each in sealed_segments(tmp_path)))
        segments = sealed_segments(tmp_path)

    assert segments[-1].end > 400
    assert [each.base for each in segments[1:]] == [each.end for each in segments[:-1]]
    whole = LogReader(tmp_path).to_arrow(segments[3].base, segments[3].end)
    assert columns_to_arrow(segments[3].columns).equals(whole)


@pytest.mark.slow
def test_retention_removes_columns_with_their_segment(tmp_path):
    with CommitLog(tmp_path, retain=Retention(records=100), columns=True) as log:
        fill(log)
        eventually(lambda: all(each.columns for each in sealed_segments(tmp_path)))
        fill(log)
        eventually(lambda: all(each.columns for each in sealed_segments(tmp_path)))
        start = log.start
    (tmp_path / f"{start - 1:020}{COLUMNS}").write_bytes(b"left by a crash")

    with CommitLog(tmp_path, columns=True):
        eventually(
            lambda: min(int(path.stem) for path in tmp_path.glob(f"*{COLUMNS}")) >= start
        )


class Power:
    """Lets calls of a disk and its files through; at the n-th one the power is lost."""

    def __init__(self, disk, calls):
        self._disk, self.left = disk, calls

    def over(self, target):
        return Powered(self, target)

    def use(self):
        self.left -= 1
        if self.left == 0:
            self._disk.crash()
        if self.left <= 0:
            raise OSError(5, "no power")


class Powered:
    """A disk or a file."""

    def __init__(self, power, target):
        self._power, self._target = power, target

    def __getattr__(self, name):
        def call(*arguments, **options):
            if name != "close":
                self._power.use()
            found = getattr(self._target, name)(*arguments, **options)
            return self._power.over(found) if name == "open" else found

        return call


def lives(seed):
    """Yield disks whose power was lost at each call of a run that writes columns."""
    for calls in range(1, 1000):
        disk = SimulatedDisk(seed)
        with CommitLog("/log", disk=disk, segment_bytes=700) as log:
            fill(log, 25)
        power = Power(disk, calls)
        with suppress(OSError):
            write_columns("/log", disk=power.over(disk))
        yield disk
        if power.left > 0:
            return


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_leaves_whole_columns_or_none(seed):
    outcomes = set()
    for disk in lives(seed):
        CommitLog("/log", disk=disk).close()  # sweeps what is half done
        reader = LogReader("/log", disk=disk)
        assert not [name for name in disk.listdir("/log") if name.endswith(".tmp")]
        segments = sealed_segments("/log", disk=disk)
        outcomes.add(sum(each.columns is not None for each in segments))
        for each in segments:
            if each.columns is not None:
                assert seen(disk, each).equals(reader.to_arrow(each.base, each.end))

    assert outcomes == set(range(len(segments) + 1)) != {0}


def test_a_damaged_segment_gets_no_columns(tmp_path, caplog):
    with CommitLog(tmp_path, segment_bytes=2000) as log:
        fill(log)
    bad = sealed_segments(tmp_path)[1]
    data = bytearray(Path(bad.path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(bad.path).write_bytes(data)

    made = write_columns(tmp_path)
    with caplog.at_level(logging.WARNING), CommitLog(tmp_path, columns=True):
        eventually(lambda: "damaged" in caplog.text)

    assert bad.base not in [each.base for each in made]
    assert [each.base for each in sealed_segments(tmp_path) if not each.columns] == [bad.base]


def test_a_full_disk_is_told_and_tried_again(tmp_path, caplog):
    disk = SimulatedDisk()
    with CommitLog("/log", disk=disk, segment_bytes=2000) as log:
        fill(log)
    disk.faults.capacity = 1
    with pytest.raises(LogFailed, match="free space"):
        write_columns("/log", disk=disk)
    disk.faults.capacity = None

    assert write_columns("/log", disk=disk)
    with pytest.raises(LogFailed, match="there is no log"):
        sealed_segments(tmp_path)


def test_columns_need_a_folder_and_pyarrow(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="in memory"):
        CommitLog(columns=True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExtraMissing, match="pip install"):
        CommitLog(tmp_path, columns=True)
    CommitLog(tmp_path).close()  # and it is not locked


def test_verify_compares_columns_with_their_segment(tmp_path):
    with CommitLog(tmp_path, segment_bytes=2000) as log:
        fill(log)
    made = write_columns(tmp_path)
    assert verify(tmp_path).damage == []
    flipped, swapped = Path(made[1].columns), Path(made[2].columns)
    data = bytearray(flipped.read_bytes())
    data[len(data) // 4] ^= 1
    flipped.write_bytes(data)
    swapped.write_bytes(Path(made[3].columns).read_bytes())

    report = verify(tmp_path)

    assert [text.split(" is damaged")[0] for text in report.damage] == [
        str(flipped),
        str(swapped),
    ]
    assert (report.lost, report.records) == (0, 400)
