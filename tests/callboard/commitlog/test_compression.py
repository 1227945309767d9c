"""Compressed batches: the same records, whoever reads; and what is not what we write."""

import struct
import zlib
from importlib.util import find_spec
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.commitlog import CommitLog, ExtraMissing, LogCorrupt, LogReader, batch
from callboard.commitlog.batch import HEADER_SIZE, Batch, decode_header, encode_header, plain
from callboard.commitlog.disk import MemoryDisk
from callboard.commitlog.verify import verify

HAS_ZSTD = bool(find_spec("compression.zstd") if find_spec("compression") else None) or (
    find_spec("backports") is not None and find_spec("backports.zstd") is not None
)
KINDS = ["zlib", pytest.param("zstd", marks=pytest.mark.skipif(not HAS_ZSTD, reason="no zstd"))]
FLIGHT = {"carrier": "UA", "origin": "EWR", "dest": "IAH", "delay": 2.0, "note": None}


def fill(log):
    for start in range(0, 300, 100):
        log.append_batch(
            [FLIGHT | {"flight": start + n} for n in range(100)],
            topic=["/a", "/b"] * 50,
            key=[str(n) for n in range(100)],
            time=range(start, start + 100),
        )
    log.append("/one", b"x" * 5000, headers={"h": "1"})
    log.append("/short", b"x" * 50)


def contents(reader):
    return [(*record[:6], record.is_bytes, record.payload) for record in reader.read()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_records_are_the_same_and_the_files_smaller(kind):
    clock = iter(range(1000, 10**6)).__next__
    with (
        CommitLog(clock=clock) as before,
        CommitLog(compression=kind, segment_bytes=2000) as log,
    ):
        fill(before)
        fill(log)
        assert [(r.topic, r.key, r.headers, r.payload) for r in log] == [
            (r.topic, r.key, r.headers, r.payload) for r in before
        ]
        small = sum(each.bytes for each in log.segments)
        assert small < sum(each.bytes for each in before.segments) / 4
        assert len(log.segments) > 1
        assert log.offset_at(150) == before.offset_at(150) == 150
        assert [r.offset for r in log.readv(120, 30).records] == list(range(120, 150))


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_may_change_its_compression(tmp_path, kind):
    for compression in (None, kind, None):
        with CommitLog(tmp_path, compression=compression) as log:
            fill(log)
    reader = LogReader(tmp_path)
    found = contents(reader)
    assert len(found) == reader.end == 3 * 302
    assert [each[2:] for each in found[:100]] == [each[2:] for each in found[302:402]]
    report = verify(tmp_path)
    assert report.records == 906
    assert not report.damage


@pytest.mark.parametrize("kind", KINDS)
def test_arrow_reads_compressed_batches(tmp_path, kind):
    pytest.importorskip("pyarrow")
    with CommitLog(tmp_path, compression=kind) as log:
        fill(log)
    table = LogReader(tmp_path).to_arrow(50, 250, topic="/b")
    assert table.column("offset").to_pylist() == list(range(51, 250, 2))


@given(body=st.binary(max_size=4000), kind=st.sampled_from(["zlib", "zstd"]))
def test_a_body_comes_back(body, kind):
    if kind == "zstd" and not HAS_ZSTD:
        return
    codec, compress = batch.compressor(kind)
    short = struct.pack("<I", len(body)) + compress(body)
    header = batch.Header(crc32(short), len(short), 0, 0, 0, 1, codec | batch.BYTES)
    if body:
        again = plain(Batch(header, short, 0))
        assert again.body == body
        assert again.header.flags == batch.BYTES
        assert again.size == HEADER_SIZE + len(short)


def altered(tmp_path, change):
    """Write a batch whose body another program made, with a right checksum."""
    disk = MemoryDisk()
    with CommitLog("x", disk=disk, compression="zlib") as log:
        log.append("/t", b"a" * 5000)
        log.flush()
        path = log.segments[0].path
    file = disk.open(path, append=True)
    data = bytes(file.pread(file.size(), 0))
    header = decode_header(data)
    flags, body = change(header.flags, data[HEADER_SIZE:])
    file.truncate(0)
    header = header._replace(checksum=crc32(body), length=len(body), flags=flags)
    file.write(encode_header(header) + body)
    return LogReader("x", disk=disk)


@pytest.mark.parametrize(
    "change",
    [
        lambda flags, body: (flags, body[:40]),
        lambda flags, body: (flags, body[:3]),
        lambda flags, body: (flags, b"\xff\xff\xff\xff" + body[4:]),
        lambda flags, body: (flags, struct.pack("<I", 10) + body[4:]),
        lambda flags, body: (flags, body[:4] + b"garbage" * 20),
        lambda flags, body: (flags ^ 0x100 | 0x500, body),
        lambda flags, _: (flags, struct.pack("<I", 600) + zlib.compress(bytes(50 << 20))),
    ],
)
def test_a_body_that_is_not_what_we_write_is_damage(tmp_path, change):
    reader = altered(tmp_path, change)
    with pytest.raises(LogCorrupt, match="malformed") as caught:
        list(reader.read())
    assert caught.value.next_offset == 1
    told = []
    assert list(reader.read(on_damage=told.append)) == []
    assert len(told) == 1


def test_readers_of_before_refuse_a_compressed_batch():
    """They take the flags for unknown ones, which is what this checks on the bits."""
    with CommitLog(compression="zlib") as log:
        log.append("/t", b"a" * 5000)
        found = next(log.read().batches())
    assert found.header.flags > 0x7F
    with pytest.raises(ValueError, match="unknown flags"):
        batch.layout_of(found)


def test_without_zstandard_the_error_names_the_extra(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(batch, "import_module", missing)
    with pytest.raises(ExtraMissing, match=r"callboard\[zstd\]"):
        CommitLog(tmp_path, compression="zstd")
    with pytest.raises(ValueError, match="'zstd', 'zlib' or None"):
        CommitLog(compression="lz4")


@pytest.mark.skipif(not HAS_ZSTD, reason="no zstd")
def test_a_reader_without_zstandard_says_so_and_takes_nothing_for_damage(monkeypatch):
    log = CommitLog(compression="zstd")
    fill(log)
    monkeypatch.setattr(batch, "import_module", lambda name: __import__("no_such." + name))
    with pytest.raises(ExtraMissing, match=r"callboard\[zstd\]"):
        list(log.read(on_damage=lambda error: None))
