"""Served logs are read ahead, in streams that are bounded and go on behind every cut."""

import errno
import os
import random
import socket
import threading
from contextlib import closing, suppress

import pytest

from callboard.commitlog import CommitLog, LogFailed, LogReader

pytest.importorskip("pyarrow.flight")

from callboard.commitlog.disk import RealDisk, RealFile
from callboard.commitlog.remote import disk
from callboard.commitlog.remote.server import LogServer


class Counted(LogServer):
    """Counts what it is asked for."""

    def __init__(self, folder):
        self.asked = []
        super().__init__({"cpu": folder}, "grpc://127.0.0.1:0", lambda _: ["*"])

    def do_action(self, context, action):
        self.asked.append(action.type)
        return super().do_action(context, action)

    def do_get(self, context, ticket):
        self.asked.append("get")
        return super().do_get(context, ticket)

    @property
    def address(self):
        return f"grpc://127.0.0.1:{self.port}/cpu"


@pytest.fixture
def log(tmp_path):
    """Write 9 MiB in three segments."""
    chance = random.Random(1)
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=3 << 20) as log:
        for _ in range(90):
            log.append_batch([chance.randbytes(1000) for _ in range(100)], topic="/a")
        yield log


@pytest.fixture
def server(log):
    with closing(Counted(log.folder)) as server:
        server.close = server.shutdown
        yield server


def test_a_segment_takes_two_questions_however_long_it_is(server, log):
    there = LogReader(server.address)
    del server.asked[:]
    assert list(there.read()) == list(LogReader(log.folder).read())
    assert server.asked.count("get") <= 2 * len(log.segments) + 1
    assert len(server.asked) <= 3 * len(log.segments) + 3


def test_who_reads_part_by_part_asks_no_more(server, log):
    follower = LogReader(server.address).follow(0)
    del server.asked[:]
    offsets = []
    while records := follower.poll(50):
        offsets += [each.offset for each in records]
    assert offsets == list(range(9000))
    assert len(server.asked) <= 8 * len(log.segments)  # there were 180 polls


def test_a_look_at_the_end_takes_three_questions(server, log):
    follower = LogReader(server.address).follow()
    assert follower.poll() == []
    del server.asked[:]
    assert follower.poll() == []
    assert sorted(server.asked) == ["get", "names", "size"]


def test_a_slow_reader_slows_the_server(tmp_path, monkeypatch):
    (tmp_path / "cpu").mkdir()
    with open(tmp_path / "cpu" / f"{0:020}.log", "wb") as file:  # noqa: PTH123
        file.truncate(4 << 30)
    read, pread = [0], RealFile.pread

    def counted(self, size, offset):
        read[0] += size
        return pread(self, size, offset)

    monkeypatch.setattr(RealFile, "pread", counted)
    server = Counted(str(tmp_path / "cpu"))
    place = disk.RemoteDisk(disk.parse_address(server.address))
    with closing(place.open(f"x/{0:020}.log")) as file:
        for at in range(0, 64 << 20, 1 << 20):
            assert len(file.pread(1 << 20, at)) == 1 << 20
            assert sum(map(len, file._rows)) <= 3 << 20
        assert read[0] < 256 << 20
    server.shutdown()


class Cutting:
    """A way to a server on which each connection is cut when so many bytes came over it."""

    def __init__(self, port, limits):
        self._limits = iter(limits)
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            limit = next(self._limits, 1 << 60)
            for pair in ((near, far, 1 << 60), (far, near, limit)):
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source, target, limit):
        try:
            while limit > 0 and (data := source.recv(min(limit, 65536))):
                limit -= len(data)
                target.sendall(data)
        except OSError:
            pass
        self.cuts += limit <= 0
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()


@pytest.mark.slow
def test_a_cut_connection_goes_on_where_it_was(server, log):
    chance = random.Random(7)
    limits = [chance.randrange(20, 3 << 20) for _ in range(12)]
    with closing(Cutting(server.port, limits)) as way:
        there = LogReader(f"grpc://127.0.0.1:{way.port}/cpu")
        assert [each.offset for each in there.read()] == list(range(9000))
        assert [each.data for each in there.read()] == [each.data for each in log.read()]
        assert way.cuts >= 6


@pytest.mark.slow
def test_batches_of_any_size_are_read(server, log):
    log.append("/big", b"x" * (16 << 20))
    (record,) = LogReader(server.address).read(9000)
    assert len(record.payload) == 16 << 20


def test_a_segment_that_retention_removed_is_told_as_lost(server, log):
    reading = LogReader(server.address).read()
    records = iter(reading)
    assert next(records).offset == 0
    kept = log.segments[2].base
    log.trim(before=kept)
    *_, last = records
    assert last.offset == 8999
    assert reading.lost <= kept
    late = LogReader(server.address).read(5)
    assert next(iter(late)).offset == kept
    assert late.lost == kept - 5


@pytest.mark.slow
def test_what_the_disk_cannot_read_is_damage_as_at_home(server, log, monkeypatch):
    bad, pread = 1 << 20, RealFile.pread

    def refused(self, size, offset):
        if offset <= bad < offset + size:
            if offset < bad & ~4095:
                return pread(self, (bad & ~4095) - offset, offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(self, size, offset)

    monkeypatch.setattr(RealFile, "pread", refused)
    told = {}
    for place in (log.folder, server.address):
        damage = []
        records = list(LogReader(place).read(on_damage=damage.append))
        lines = [str(each).partition("is damaged")[2] for each in damage]
        told[place] = (lines, [each.offset for each in records])
    here, there = told.values()
    assert "the disk cannot read it" in here[0][0]
    assert here == there


def test_a_server_without_descriptors_is_asked_again(server, log, monkeypatch):
    reader, rest, opened = LogReader(server.address), [2], RealDisk.open

    def scarce(self, path, *, append=False):
        if rest[0]:
            rest[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(self, path, append=append)

    monkeypatch.setattr(RealDisk, "open", scarce)
    assert len(list(reader.read())) == 9000
    assert rest == [0]
    monkeypatch.setattr(disk, "_RETRY_SECONDS", 0.3)
    rest[0] = 10**9
    with pytest.raises(LogFailed, match="the server of logs is busy: Too many open files"):
        list(reader.read())
