"""Files of programs on simulated hosts."""

import asyncio
import contextlib
import fcntl
import io
import json
import linecache
import mmap
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from asyncio import sleep as rest  # in virtual time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from callboard.simulation import (
    Cluster,
    NotSimulated,
    cluster_test,
    crash,
    full_disk,
    kill,
    swarm,
)
from callboard.simulation.cluster_test import ClusterTest


@pytest.fixture
def host(cluster):
    made = cluster.host("db", idle)
    cluster.advance(0.001)
    return made


async def idle():
    await asyncio.Event().wait()


def run(host, function, *args):
    """Call a plain function in a host's turn."""

    async def call():
        return function(*args)

    return host.run(call).result(10)


# --- what a crash keeps ---


def append(path, data, *, syncs):
    file = open(path, "ab")
    file.write(data)
    file.flush()
    if syncs:
        os.fsync(file.fileno())
    return file


def sync_folder(path):
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)


def after_a_crash(seed, prepare, *, ends=Cluster.crash):
    """Return what a host finds in /log after its end."""
    cluster = Cluster(seed)
    try:
        host = cluster.host("db", idle)
        cluster.advance(0.001)
        kept = run(host, prepare)
        ends(cluster, host)
        cluster.restart(host)
        cluster.advance(0.001)
        del kept
        return run(host, lambda: Path("/log").read_bytes() if os.path.exists("/log") else None)
    finally:
        cluster.close()


def test_a_crash_keeps_what_was_synced_and_any_part_of_the_rest():
    def prepare():
        first = append("/log", b"kept", syncs=True)
        sync_folder("/")
        return first, append("/log", b" or not", syncs=False)

    found = {after_a_crash(seed, prepare) for seed in range(30)}

    assert {each[:4] for each in found} == {b"kept"}
    assert {b"kept", b"kept or not"} < found
    assert max(map(len, found)) <= 11


def test_a_name_is_durable_after_the_sync_of_its_folder_only():
    found = {
        after_a_crash(seed, lambda: append("/log", b"x", syncs=True)) for seed in range(20)
    }
    assert found == {None, b"x"}


def test_a_file_that_replaces_another_is_the_old_or_the_new_one():
    def prepare():
        append("/log", b"old", syncs=True).close()
        sync_folder("/")
        append("/log.new", b"new", syncs=True).close()
        os.replace("/log.new", "/log")

    assert {after_a_crash(seed, prepare) for seed in range(20)} == {b"old", b"new"}


def test_a_kill_keeps_what_was_written_and_loses_the_buffers_of_the_program():
    def prepare():
        flushed = append("/log", b"flushed", syncs=False)
        flushed.write(b" buffered")
        return flushed

    found = {after_a_crash(seed, prepare, ends=Cluster.kill) for seed in range(5)}
    assert found == {b"flushed"}


@pytest.mark.parametrize("leaves", [False, True])
def test_a_program_that_ends_by_itself_writes_its_buffers(cluster, leaves):
    kept = []

    async def main():
        kept.append(open("/log", "w"))
        kept[0].write("buffered")
        if leaves:
            raise SystemExit(0)

    host = cluster.host("db", main)
    host.result(5)

    assert cluster.disk(host).open("log").pread(99, 0) == b"buffered"


def test_a_signal_loses_the_buffers_of_the_program(cluster):
    kept = []

    async def main():
        kept.append(open("/log", "w"))
        kept[0].write("buffered")
        await idle()

    host = cluster.host("db", main)
    cluster.advance(1)
    host.signal()
    cluster.advance(1)

    assert host.done
    assert cluster.disk(host).size("log") == 0


# --- what functions do ---


def test_files_of_a_host_are_on_its_disk_alone(cluster, tmp_path):
    async def main(name):
        Path("/var/lib/name").write_text(name)
        await rest(1)
        return Path("/var/lib/name").read_text(), os.listdir("/var/lib")

    one, other = cluster.host("one", main, "ä"), cluster.host("other", main, "b")

    assert one.result(5) == ("ä", ["name"])
    assert other.result(5) == ("b", ["name"])
    assert cluster.disk(one).open("var/lib/name").pread(9, 0) == "ä".encode()
    assert not Path("/var/lib/name").exists()


def read_and_write(folder):
    """Use files in all ways; returns what was found, which is the same on a real disk."""
    path = Path(folder, "sub", "file")
    path.parent.mkdir()
    found = [path.exists(), path.write_text("one\ntwo\n"), path.read_text().splitlines()]
    with open(path, "r+b", buffering=0) as raw:
        found += [raw.read(3), raw.seek(-1, os.SEEK_END), raw.write(b"!"), raw.tell()]
        found += [raw.truncate(5), raw.readall(), raw.seek(0), raw.read()]
    with path.open("a+", encoding="utf-8", newline="") as text:
        found += [text.tell(), text.write("é\r\n"), text.seek(0), text.readlines()]
    with pytest.raises(FileExistsError):
        open(path, "x")
    with open(path, "rb") as file:
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"")
        found += [
            file.name == str(path),
            file.mode,
            file.closed,
            os.fstat(file.fileno()).st_size,
        ]
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    found += [os.write(number, b"abcdef"), os.lseek(number, 2, os.SEEK_SET), os.read(number, 2)]
    found += [os.pwrite(number, b"X", 8), os.pread(number, 20, 0), os.fsync(number)]
    twin = os.dup(number)
    found += [
        os.lseek(twin, 0, os.SEEK_CUR),
        os.close(number),
        os.read(twin, 1),
        os.close(twin),
    ]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(twin, 1)
    os.truncate(path, 3)
    os.utime(path, (1, 2))
    os.chmod(path, 0o640)
    status = path.stat()
    found += [
        status.st_size,
        status.st_mtime,
        status.st_mtime_ns,
        stat.filemode(status.st_mode),
    ]
    path.with_name("old").touch()
    path.replace(path.with_name("new"))
    found += [sorted(os.listdir(path.parent)), os.access(path, os.R_OK), os.path.isdir(folder)]
    with os.scandir(path.parent) as entries:
        found.append(sorted((each.name, each.is_file(), each.is_dir()) for each in entries))
    found += sorted(each.name for each in Path(folder).glob("**/*"))
    for wrong in (path, path / "x", path.with_name("new") / "x"):
        with pytest.raises(OSError) as raised:
            open(wrong)
        found.append((raised.value.errno, raised.value.filename == str(wrong) or wrong))
    with pytest.raises(IsADirectoryError):
        open(folder)
    with pytest.raises(OSError, match="not empty"):
        path.parent.rmdir()
    with pytest.raises(ValueError, match="mode"):
        open(path, "rw")
    shutil.copy2(path.with_name("new"), path.with_name("copy"))
    found.append(path.with_name("copy").stat().st_mtime)
    with tempfile.NamedTemporaryFile(dir=folder) as temporary:
        temporary.write(b"t")
        temporary.flush()
        found.append(os.path.getsize(temporary.name))
    with tempfile.TemporaryDirectory(dir=folder) as inner, open(Path(inner, "x"), "w") as file:
        print(json.dumps([1]), file=file)
    shutil.rmtree(path.parent)
    found.append(os.listdir(folder))
    return found


def test_files_behave_as_those_of_the_machine(host, tmp_path):
    assert run(host, read_and_write, "/tmp") == read_and_write(tmp_path)


def test_names_are_relative_to_the_working_folder(host):
    def work():
        os.mkdir("data")
        os.chdir("data")
        Path("x").write_text("1")
        return os.getcwd(), Path("x").resolve(), os.path.abspath("../y"), os.listdir()

    before = os.getcwd()
    assert run(host, work) == ("/data", Path("/data/x"), "/y", ["x"])
    assert os.getcwd() == before


def test_times_of_files_are_those_of_the_host(cluster, host):
    cluster.clock_step(host, -86_400)

    def work():
        Path("x").touch()
        return datetime.fromtimestamp(os.path.getmtime("x"), UTC).date(), time.time()

    date, _ = run(host, work)
    assert str(date) == "2025-12-31"


def test_temporary_names_are_of_the_seed():
    def names(seed):
        cluster = Cluster(seed)
        try:
            host = cluster.host("db", idle)
            return run(host, tempfile.mkdtemp), run(host, tempfile.gettempdir)
        finally:
            cluster.close()

    assert names(1) == names(1)
    assert names(1)[0] != names(2)[0]
    assert names(1)[1] == "/tmp"


def test_files_in_threads_of_asyncio_are_those_of_the_host(cluster):
    async def main():
        await asyncio.to_thread(Path("/x").write_text, "1")
        return await asyncio.to_thread(os.listdir, "/")

    assert "x" in cluster.host("db", main).result(5)


def test_folders_of_code_are_read_and_not_written(host):
    def work():
        source = Path(__file__).read_text()
        with pytest.raises(OSError, match="folders of code are read-only") as raised:
            Path(__file__).with_name("x").write_text("")
        with pytest.raises(OSError, match="folders of code are read-only"):
            os.rename("/x", __file__)
        return source, linecache.getline(contextlib.__file__, 1), raised.value.errno

    source, line, number = run(host, work)
    assert "test_folders_of_code_are_read" in source
    assert "context" in line
    assert number == 30


def test_what_is_on_the_machine_else_is_not_there(host, tmp_path):
    (tmp_path / "x").write_text("real")

    assert run(host, os.path.exists, "/etc/passwd") is False
    assert run(host, os.path.exists, tmp_path / "x") is False
    with pytest.raises(FileNotFoundError):
        run(host, (tmp_path / "x").read_text)


def test_a_full_disk_and_a_failed_sync_are_errors_of_files(cluster, host):
    cluster.disk(host).faults.capacity = 10

    def fill():
        with pytest.raises(OSError, match="No space"):
            Path("/x").write_bytes(bytes(11))
        with open("/x", "r+b") as file:
            file.write(b"in place")
        return os.path.getsize("/x")

    assert run(host, fill) == 10
    cluster.disk(host).faults.fsync_errors = 1.0
    with pytest.raises(OSError, match="Input/output"):
        run(host, lambda: os.fsync(open("/x", "rb")))


@pytest.mark.parametrize(
    "call",
    [
        lambda: os.link("/a", "/b"),
        lambda: os.rename("/tmp/a", "/a"),
        lambda: os.symlink("/a", "/b"),
        lambda: os.statvfs("/"),
        lambda: sqlite3.connect("/db"),
        lambda: fcntl.flock(open("/a", "w"), fcntl.LOCK_EX),
        lambda: mmap.mmap((file := open("/a", "w+b")).fileno(), 1),
    ],
)
def test_what_no_disk_has_is_refused(host, call):
    with pytest.raises(NotSimulated, match="host 'db'"):
        run(host, call)


def test_sqlite_and_maps_in_memory_are_what_they_are(host):
    def work():
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            return connection.execute("SELECT 7").fetchone(), len(mmap.mmap(-1, 10))

    assert run(host, work) == ((7,), 10)


def test_files_of_the_test_stay_those_of_the_machine(cluster, host, tmp_path):
    (tmp_path / "x").write_text("real")
    assert run(host, os.listdir, "/") == ["tmp", "var"]
    assert os.listdir(tmp_path) == ["x"]


# --- a program with a log of its own ---


class Ledger:
    """A write-ahead log of lines, and a snapshot that replaces it; `syncs` forgets nothing."""

    def __init__(self, *, syncs):
        self.syncs = syncs
        with contextlib.suppress(FileNotFoundError):
            os.remove("/var/lib/snapshot.new")
        self.lines = []
        for path in ("/var/lib/snapshot", "/var/lib/log"):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                whole, _, _ = file.read().rpartition(b"\n")
                self.lines += [line for line in whole.split(b"\n") if line not in self.lines]
        self.rewrite()

    def rewrite(self):
        with open("/var/lib/snapshot.new", "wb") as file:
            file.write(b"".join(line + b"\n" for line in self.lines))
            file.flush()
            os.fsync(file.fileno())
        os.replace("/var/lib/snapshot.new", "/var/lib/snapshot")
        sync_folder("/var/lib")
        self.log = open("/var/lib/log", "wb")
        os.fsync(self.log.fileno())
        sync_folder("/var/lib")

    def add(self, line):
        self.log.write(line + b"\n")
        self.log.flush()
        if self.syncs:
            os.fsync(self.log.fileno())
        if line not in self.lines:
            self.lines.append(line)
        if not len(self.lines) % 5:
            self.rewrite()


async def serve_ledger(syncs):
    ledger = Ledger(syncs=syncs)

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line == b"all\n":
                    writer.write(b" ".join(ledger.lines) + b"\n")
                else:
                    ledger.add(line.strip())
                    writer.write(b"kept\n")
                await writer.drain()
            writer.close()

    async with await asyncio.start_server(serve, "0.0.0.0", 4000) as server:
        await server.serve_forever()


async def write_lines(history):
    for number in range(12):
        with history.operation("send", number, key="lines", client="client") as sent:
            while True:
                with contextlib.suppress(OSError, AssertionError):
                    async with asyncio.timeout(3):
                        reader, writer = await asyncio.open_connection("db", 4000)
                        writer.write(b"%d\n" % number)
                        assert await reader.readline(), "the connection ended"
                        writer.close()
                        break
                await rest(0.5)
            sent.answer = "kept"
        await rest(0.5)


async def all_lines():
    reader, writer = await asyncio.open_connection("db", 4000)
    writer.write(b"all\n")
    line = await reader.readline()
    writer.close()
    # Unsynced bytes may have become zeros.
    return [int(each) if each.isdigit() else each for each in line.split()]


def ledger_scenario(syncs):
    def scenario(cluster):
        cluster.host("db", serve_ledger, syncs, respawn=1.0)
        client = cluster.host("client", write_lines, cluster.history(), mortal=False)
        cluster.advance(20)
        cluster.calm()
        client.result(60)
        found = client_of(cluster).run(all_lines).result(30)
        assert found == list(range(12)), f"lines were lost: {found}"

    return scenario


def client_of(cluster):
    made = cluster.host("reader", idle, mortal=False)
    cluster.advance(2)
    return made


@pytest.mark.slow
@cluster_test(seeds=40, faults=swarm(crash, kill, full_disk))
def test_a_log_that_syncs_loses_nothing(cluster):
    ledger_scenario(True)(cluster)


@pytest.mark.slow
def test_a_forgotten_sync_is_found_by_the_swarm_and_made_small():
    found = ClusterTest(ledger_scenario(False), 200, swarm(), twice=False).run("some", {})

    assert "lines were lost" in str(found)
