"""What others may plant in the folder of a log: it is ignored or told, never followed."""

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.cli.app import main
from callboard.commitlog import CommitLog, LogCorrupt, LogError, LogReader, LogReplaced
from callboard.commitlog.errors import NotPlain
from callboard.commitlog.folder import is_base
from callboard.commitlog.verify import verify

ODD_NAMES = [
    "99999999999999999999.log",
    "9" * 200 + ".log",
    "-0000000000000000001.log",
    "5.log",
    "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٥.log",
    "+0000000000000000005.log",
    "0000000000000000_005.log",
    ".log",
    " .log",
    "x\x1b[2J.log",
    "09223372036854775808.log",
]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "log"
    with CommitLog(folder) as log:
        for text in ("a", "b", "c"):
            log.append("t", text)
    return folder


def payloads(folder):
    with LogReader(folder) as reader:
        return [record.payload for record in reader.read(0)]


@pytest.mark.parametrize("suffix", ["", ".index", ".cut", ".parquet"])
@pytest.mark.parametrize("name", ODD_NAMES)
def test_files_with_names_that_no_log_writes_are_left_alone(folder, name, suffix):
    planted = folder / (name if not suffix else name.removesuffix(".log") + suffix)
    planted.write_bytes(b"")

    assert payloads(folder) == ["a", "b", "c"]
    with CommitLog(folder) as log:
        assert log.append("t", "d") == 3
    assert verify(folder).damage == []
    assert main(["log", "cat", str(folder)]) == 0
    assert planted.exists()


@given(st.text())
def test_a_base_is_twenty_digits_up_to_the_last_offset(text):
    assert not is_base(text) or (len(text) == 20 and 0 <= int(text) < 2**63)


def plant(path, kind, target):
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(target)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "dangling":
        path.symlink_to(target.parent / "made-by-following")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))


KINDS = ["link", "loop", "dangling", "fifo", "folder", "socket"]
PLACES = [
    "00000000000000000000.log",
    "00000000000000000003.log",
    "00000000000000000000.index",
    "synced",
    "lock",
]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_never_followed_and_never_waited_for(folder, place, kind, capsys):
    target = folder.parent / "target"
    target.write_bytes(b"precious")
    plant(folder / place, kind, target)

    for use in (payloads, CommitLog, verify):
        try:
            used = use(folder)
            if isinstance(used, CommitLog):
                used.append("t", "d")
                used.close()
        except (LogError, IsADirectoryError):
            pass
    assert main(["log", "cat", str(folder)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err
    assert target.read_bytes() == b"precious"
    assert not (folder.parent / "made-by-following").exists()


def test_the_error_says_what_to_do(folder):
    target = folder.parent / "target"
    target.write_bytes(b"precious")
    plant(folder / "lock", "link", target)

    with pytest.raises(NotPlain, match=r"lock is a link.*remove it"):
        CommitLog(folder)
    assert stat.S_ISLNK(os.lstat(folder / "lock").st_mode)


def test_a_folder_may_be_a_link_itself(folder):
    other = Path(folder.parent / "other")
    other.symlink_to(folder)

    assert payloads(other) == ["a", "b", "c"]


@pytest.mark.parametrize("suffix", [".index", ".log"])
def test_a_file_of_absurd_size_is_never_read_in_one_piece(tmp_path, monkeypatch, suffix):
    folder, sizes, pread = tmp_path / "log", [0], os.pread
    with CommitLog(folder, segment_bytes=4096) as log:
        for _ in range(200):
            log.append("t", "x" * 60)
    for path in sorted(folder.glob("*" + suffix))[-2:]:
        os.truncate(path, (1 << 26) + 1)

    def measured(descriptor, size, offset):
        sizes.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", measured)

    assert len(payloads(folder)) == 200
    verify(folder)
    with CommitLog(folder) as log:
        assert log.append("t", "d") == 200
    assert max(sizes) <= 1 << 25


@pytest.mark.parametrize("place", [1, -1])
def test_a_log_tells_that_its_own_file_was_taken_away(tmp_path, place):
    # That the file which is written to is gone is noticed by the end, if not by a sync before.
    with suppress(LogReplaced), CommitLog(tmp_path / "log", segment_bytes=500) as log:
        log.append_batch(list(range(100)), topic="t")
        for n in range(20):
            log.append("t", n)
        segment = log.segments[place]
        Path(segment.path).unlink()
        with pytest.raises(LogCorrupt, match="is missing") as caught:
            list(log.read())
        assert (caught.value.offset, caught.value.next_offset) == (segment.base, segment.end)
        told = []
        rest = [each.offset for each in log.read(on_damage=told.append)]
        assert rest == [n for n in range(120) if not segment.base <= n < segment.end]
        assert [error.offset for error in told] == [segment.base]
        assert list(log.readv(segment.end).records) == list(log.read(segment.end))
