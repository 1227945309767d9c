"""The spool of a gateway's module: its log, and how far the frames were received."""

from functools import partial
from itertools import count
from pathlib import Path
from unittest.mock import patch

from callboard.commitlog import CommitLog
from callboard.gateway.spool import Spool
from tests.golden.sample import Folder

START = 1_700_000_000_000_000_000
SOURCE, NO_SOURCE = b"\0\0\0\0\0\0\0\7", bytes(8)
FRAMES = [SOURCE + bytes([number]) * number for number in range(5)]


def make(path: Path) -> None:
    clock = count(START, 1_000_000).__next__
    with patch("callboard.gateway.spool.CommitLog", partial(CommitLog, clock=clock)):
        spool = Spool(path)
        for frame in FRAMES:
            spool.append(frame)
        assert [spool.popleft(), spool.popleft()] == FRAMES[:2]
        spool.close()
    (path / "lock").unlink()


def look(path: Path) -> list[bytes]:
    """Return the frames that wait; a second spool finds them again."""
    spool = Spool(path)
    frames = [record.payload for record in spool._log.read(spool._position)]
    head = spool.head()
    spool.close()
    assert head is not None
    assert head[1][8:] == frames[0][8:]
    assert head[1][:8] == NO_SOURCE  # the file of an earlier run
    return frames


def go_on(path: Path) -> list[bytes]:
    spool = Spool(path)
    spool.popleft()
    spool.append(b"more than eight")
    spool.close()
    return [*FRAMES[3:], b"more than eight"]


FOLDERS = {"spool": Folder(make, look, FRAMES[2:], go_on)}


def missing() -> set[str]:
    """Return nothing: a spool holds one kind of record."""
    return set()
