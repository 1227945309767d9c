"""The contents of one simulated file or folder: what a reader sees, and what a crash leaves.

A change is seen at once and durable later: it waits in a list until `sync`. A crash carries
out a part of that list only, in order: a random number of changes, the next write up to a
random byte, and perhaps some sectors of zeros where written data had not reached the disk.
"""

import random
from typing import Final

SECTOR: Final = 512
"""Bytes that a disk writes whole or not at all."""

HOLES: Final = 0.25
"""Part of the crashes after which some sectors of unsynced writes are zeros."""

Change = tuple[int, bytes | None]
"""A write: its offset and bytes. Or with None: the file ends at this size from now on."""


class FileInode:
    """One file."""

    def __init__(self) -> None:
        """Make an empty file that no crash would keep."""
        self.seen = bytearray()
        self._durable = bytearray()
        self._pending: list[Change] = []

    def append(self, data: bytes) -> None:
        """Write at the end."""
        self._change((len(self.seen), data))

    def truncate(self, size: int) -> None:
        """Set the size; zeros fill what is added."""
        self._change((size, None))

    def _change(self, change: Change) -> None:
        _apply(self.seen, change)
        self._pending.append(change)

    def sync(self) -> None:
        """Make all changes durable."""
        for change in self._pending:
            _apply(self._durable, change)
        self._pending.clear()

    def sync_failed(self, rng: random.Random) -> None:
        """Make some changes durable and forget that the others still have to be.

        Linux does so after an error: a later `fsync` that succeeds says nothing of them.
        """
        for change in self._pending:
            if rng.random() < 0.5:
                _apply(self._durable, change)
        self._pending.clear()

    def flip(self, bit: int) -> None:
        """Flip a bit for good: on the disk, and for who reads."""
        for content in (self.seen, self._durable):
            if bit < len(content) * 8:
                content[bit // 8] ^= 1 << bit % 8

    def crash(self, rng: random.Random) -> None:
        """Keep what a crash leaves."""
        kept = rng.randint(0, len(self._pending))
        has_holes = rng.random() < HOLES
        for change in self._pending[:kept]:
            self._apply_torn(change, None, rng if has_holes else None)
        for change in self._pending[kept : kept + 1]:
            size = 0 if change[1] is None else len(change[1])
            if size:
                self._apply_torn(change, rng.randint(0, size), rng if has_holes else None)
        self._pending.clear()
        self.seen = bytearray(self._durable)

    def _apply_torn(
        self, change: Change, size: int | None, holes: random.Random | None
    ) -> None:
        offset, data = change
        if data is None:
            _apply(self._durable, change)
            return
        written = bytearray(data[:size])
        if holes is not None:
            for start in range(-(offset % SECTOR), len(written), SECTOR):
                if holes.random() < 0.5:
                    begin, end = max(start, 0), min(start + SECTOR, len(written))
                    written[begin:end] = bytes(end - begin)
        _apply(self._durable, (offset, bytes(written)))


def _apply(content: bytearray, change: Change) -> None:
    offset, data = change
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
    elif data:
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


class FolderInode:
    """One folder: names and what they stand for. Each change of it is whole or not at all."""

    def __init__(self) -> None:
        """Make an empty folder."""
        self.seen: dict[str, FileInode | FolderInode] = {}
        self._durable: dict[str, FileInode | FolderInode] = {}
        self._pending: list[dict[str, FileInode | FolderInode | None]] = []

    def change(self, entries: "dict[str, FileInode | FolderInode | None]") -> None:
        """Set several names in one step; None takes a name away."""
        _enter(self.seen, entries)
        self._pending.append(entries)

    def sync(self) -> None:
        """Make all changes of names durable."""
        for entries in self._pending:
            _enter(self._durable, entries)
        self._pending.clear()

    def crash(self, rng: random.Random) -> None:
        """Keep what a crash leaves, also below this folder."""
        for entries in self._pending[: rng.randint(0, len(self._pending))]:
            _enter(self._durable, entries)
        self._pending.clear()
        self.seen = dict(self._durable)
        for _, inode in sorted(self.seen.items()):
            inode.crash(rng)


def _enter(
    names: "dict[str, FileInode | FolderInode]",
    entries: "dict[str, FileInode | FolderInode | None]",
) -> None:
    for name, inode in entries.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode
