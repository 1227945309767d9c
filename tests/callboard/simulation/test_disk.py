"""The simulated disk: without faults it is a file system; a crash takes what was not synced."""

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from callboard.simulation import RealDisk, SimulatedDisk
from callboard.simulation.disk import SECTOR

PATHS = st.sampled_from(["a", "b", "d", "e", "d/a", "d/b", "a/x", "e/a", "gone/a", "/", ""])
SIZES = st.integers(0, 40)


class SameAsTheRealOne(RuleBasedStateMachine):
    """The same calls on a simulated disk and on the machine's own give the same results."""

    files = Bundle("files")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.disks: list[Any] = [SimulatedDisk(), RealDisk(self.folder.name)]
        for folder in ("d", "e"):
            self.both(lambda disk, path=folder: disk.mkdir(path))

    def teardown(self) -> None:
        self.folder.cleanup()

    def both(self, call: Callable[[Any], Any]) -> Any:
        one, other = self.each(self.disks, call)
        assert one == other
        return one

    @staticmethod
    def each(targets: list[Any], call: Callable[[Any], Any]) -> list[Any]:
        results: list[Any] = []
        for target in targets:
            try:
                results.append(call(target))
            except (OSError, ValueError) as error:
                results.append((type(error), getattr(error, "errno", None)))
        return results

    @rule(target=files, path=PATHS, append=st.booleans())
    def open(self, path: str, append: bool) -> list[Any]:
        opened = self.each(self.disks, lambda disk: disk.open(path, append=append))
        if isinstance(opened[0], tuple):
            assert opened[0] == opened[1]
            return []
        assert not isinstance(opened[1], tuple)
        return opened

    def on_file(self, file: list[Any], call: Callable[[Any], Any]) -> None:
        if file:
            one, other = self.each(file, call)
            assert one == other

    @rule(file=files, data=st.binary(max_size=30))
    def write(self, file: list[Any], data: bytes) -> None:
        self.on_file(file, lambda opened: opened.write(data))

    @rule(file=files, size=SIZES, offset=st.integers(-1, 40))
    def pread(self, file: list[Any], size: int, offset: int) -> None:
        self.on_file(file, lambda opened: opened.pread(size, offset))

    @rule(file=files, size=st.integers(-1, 40))
    def truncate(self, file: list[Any], size: int) -> None:
        self.on_file(file, lambda opened: opened.truncate(size))

    @rule(file=files)
    def look(self, file: list[Any]) -> None:
        self.on_file(file, lambda opened: opened.size())

    @rule(file=files)
    def fsync(self, file: list[Any]) -> None:
        self.on_file(file, lambda opened: opened.fsync())

    @rule(file=files)
    def close(self, file: list[Any]) -> None:
        self.on_file(file, lambda opened: opened.close())

    @rule(path=PATHS)
    def mkdir(self, path: str) -> None:
        self.both(lambda disk: disk.mkdir(path))

    @rule(old=PATHS, new=PATHS)
    def rename(self, old: str, new: str) -> None:
        if old.strip("/") and new.strip("/"):
            self.both(lambda disk: disk.rename(old, new))

    @rule(path=PATHS)
    def unlink(self, path: str) -> None:
        self.both(lambda disk: disk.unlink(path))

    @rule(path=PATHS)
    def listdir(self, path: str) -> None:
        self.both(lambda disk: disk.listdir(path))

    @rule(path=PATHS)
    def size(self, path: str) -> None:
        self.both(lambda disk: disk.size(path))

    @rule(path=PATHS)
    def sync_folder(self, path: str) -> None:
        self.both(lambda disk: disk.sync_folder(path))


SameAsTheRealOne.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSameAsTheRealOne = SameAsTheRealOne.TestCase


@pytest.mark.parametrize(
    "make", [lambda _: SimulatedDisk(), RealDisk], ids=["simulated", "real"]
)
def test_a_folder_replaces_an_empty_folder_only(make, tmp_path):
    disk = make(tmp_path)
    for name in ("a", "b", "c"):
        disk.mkdir(name)
    for name in ("a/x", "b/y", "file"):
        disk.open(name, append=True).close()

    disk.rename("a", "c")

    assert disk.listdir("") == ["b", "c", "file"]
    assert disk.listdir("c") == ["x"]
    for new, error in (("b", errno.ENOTEMPTY), ("file", errno.ENOTDIR)):
        with pytest.raises(OSError, match=os.strerror(error)):
            disk.rename("c", new)


# --- a crash ---


def contents(disk: SimulatedDisk, path: str) -> bytes | None:
    """Return what is in a file; None when there is none."""
    with suppress(FileNotFoundError):
        file = disk.open(path)
        return file.pread(file.size(), 0)
    return None


def crashed(seed: int, *, sync_name: bool = True, sync: bool = True) -> bytes | None:
    """Return what a crash leaves of a file with `synced` in it and more written behind."""
    disk = SimulatedDisk(seed)
    file = disk.open("a", append=True)
    file.write(b"synced")
    if sync:
        file.fsync()
    if sync_name:
        disk.sync_folder("")
    file.write(b" and ")
    file.write(b"not")
    disk.crash()
    return contents(disk, "a")


def test_what_was_synced_stays_and_the_rest_is_torn_at_any_byte():
    left = {crashed(seed) for seed in range(400)}

    whole = b"synced and not"
    assert left >= {whole[:size] for size in range(6, len(whole) + 1)}
    assert all(part is not None and part.startswith(b"synced") for part in left)


def test_contents_without_sync_may_be_lost_whole():
    assert b"" in {crashed(seed, sync=False) for seed in range(100)}


def test_a_name_without_sync_of_its_folder_may_be_lost():
    left = {crashed(seed, sync_name=False) is None for seed in range(50)}

    assert left == {True, False}
    assert None not in {crashed(seed) for seed in range(50)}


def test_sectors_that_had_not_reached_the_disk_are_zeros():
    holes = 0
    for seed in range(200):
        disk = SimulatedDisk(seed)
        file = disk.open("a", append=True)
        disk.sync_folder("")
        file.write(b"x" * 3 * SECTOR)
        disk.crash()
        left = contents(disk, "a") or b""
        holes += b"\0" in left
        assert set(left) <= {0, ord("x")}

    assert 0 < holes < 200


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_rename_is_whole_or_not_at_all(is_synced):
    outcomes = set()
    for seed in range(60):
        disk = SimulatedDisk(seed)
        for name, text in (("old", b"before"), ("new", b"after")):
            file = disk.open(name, append=True)
            file.write(text)
            file.fsync()
        disk.sync_folder("")
        disk.rename("new", "old")
        if is_synced:
            disk.sync_folder("")
        disk.crash()
        outcomes.add((contents(disk, "old"), contents(disk, "new")))

    renamed, as_before = (b"after", None), (b"before", b"after")
    assert outcomes == ({renamed} if is_synced else {renamed, as_before})


def test_a_removed_file_may_come_back():
    outcomes = set()
    for seed in range(60):
        disk = SimulatedDisk(seed)
        disk.open("a", append=True).fsync()
        disk.sync_folder("")
        disk.unlink("a")
        disk.crash()
        outcomes.add(tuple(disk.listdir("")))

    assert outcomes == {(), ("a",)}


def test_files_that_were_open_are_closed_by_a_crash():
    disk = SimulatedDisk()
    file = disk.open("a", append=True)
    disk.crash()

    for call in (file.size, file.fsync, lambda: file.write(b"x")):
        with pytest.raises(OSError, match="descriptor") as caught:
            call()
        assert caught.value.errno == errno.EBADF
    file.close()  # as what is left of that life does when it is collected


@given(st.integers(0, 2**32), st.lists(st.binary(max_size=600), max_size=8), st.integers(0, 8))
def test_what_was_synced_survives_whatever_came_after(seed, writes, synced):
    disk = SimulatedDisk(seed)
    file = disk.open("a", append=True)
    disk.sync_folder("")
    for number, data in enumerate(writes):
        file.write(data)
        if number < synced:
            file.fsync()
    disk.crash()

    whole, left = b"".join(writes), contents(disk, "a")
    assert left is not None
    assert left.startswith(b"".join(writes[:synced]))
    assert len(left) <= len(whole)
    assert all(byte in (0, expected) for byte, expected in zip(left, whole, strict=False))


# --- faults ---


def test_a_full_disk_takes_what_fits_and_then_nothing():
    disk = SimulatedDisk()
    disk.faults.capacity = 10
    file = disk.open("a", append=True)

    assert file.write(b"x" * 7) == 7
    assert file.write(b"x" * 7) == 3
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.write(b"x")
    disk.unlink("a")
    assert disk.room() == 10


def test_short_writes_take_a_part():
    disk = SimulatedDisk(1)
    disk.faults.short_writes = 1.0
    file = disk.open("a", append=True)

    taken = [file.write(b"0123456789") for _ in range(50)]

    assert set(taken) == set(range(1, 10))
    assert file.size() == sum(taken)
    assert file.write(b"x") == 1


def test_after_an_fsync_error_a_later_one_proves_nothing():
    lost = 0
    for seed in range(40):
        disk = SimulatedDisk(seed)
        file = disk.open("a", append=True)
        disk.sync_folder("")
        file.write(b"first")
        disk.faults.fsync_errors = 1.0
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.fsync()
        disk.faults.fsync_errors = 0.0
        file.fsync()
        assert file.pread(5, 0) == b"first"
        disk.crash()
        lost += contents(disk, "a") != b"first"

    assert 0 < lost < 40


def test_a_read_may_flip_one_bit_and_the_next_one_not():
    disk = SimulatedDisk(2)
    file = disk.open("a", append=True)
    file.write(bytes(100))
    disk.faults.bit_flips = 1.0

    read = file.pread(100, 0)

    assert sum(byte.bit_count() for byte in read) == 1
    disk.faults.bit_flips = 0.0
    assert file.pread(100, 0) == bytes(100)


def test_a_bit_that_rots_stays_wrong():
    disk = SimulatedDisk()
    file = disk.open("a", append=True)
    file.write(b"\0\0")
    file.fsync()
    disk.sync_folder("")

    disk.flip_bit("a", 9)

    assert contents(disk, "a") == b"\0\x02"
    disk.crash()
    assert contents(disk, "a") == b"\0\x02"


def test_the_same_seed_gives_the_same_crash():
    assert [crashed(seed) for seed in range(50)] == [crashed(seed) for seed in range(50)]


def test_a_node_finds_its_disk_after_a_crash(cluster):
    a, b = cluster(2)
    for node in (a, b):
        file = cluster.disk(node).open("log", append=True)
        file.write(b"x" * 100)
        cluster.disk(node).sync_folder("")
    cluster.disk(a).open("log", append=True).fsync()

    cluster.crash(a)
    cluster.kill(b)

    again = cluster.restart(a)
    assert contents(cluster.disk(again), "log") == b"x" * 100
    assert contents(cluster.disk(cluster.restart(b)), "log") == b"x" * 100
    file = cluster.disk(again).open("log", append=True)
    cluster.crash(again)
    with pytest.raises(OSError, match="descriptor"):
        file.write(b"x")


def test_the_real_disk_lives_below_its_folder(tmp_path: Path):
    disk = RealDisk(tmp_path)
    file = disk.open("/a", append=True)
    file.write(b"x")
    file.close()

    assert (tmp_path / "a").read_bytes() == b"x"
