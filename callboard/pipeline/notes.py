"""Which batches of which queries a log of results has: notes beside its segments.

A note is written before the segment that it tells of, and counts only together with that:

    {"header": its first 48 bytes, "bytes": its size, "end": the offset behind it,
     "published": {query: last batch, …}}

So it may be left over from an attempt that failed. When the segment is there the note gets
another name, and then counts without it too: whoever else appends to the log may remove old
segments, and a batch that came back would otherwise be published twice. Each note tells of all
queries, so the newest one is enough.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from callboard.commitlog.batch import HEADER_SIZE
from callboard.pipeline.segments import bases_of, segment_file, sync_folder

PUBLISHING: Final = ".publishing"
PUBLISHED: Final = ".published"


class Note(NamedTuple):
    """What is told of a segment.

    Attributes:
        header: Its first bytes, as hexadecimal digits.
        bytes: Its size.
        end: The offset behind its last record.
        published: The last batch of each query, up to and with this segment.
    """

    header: str
    bytes: int
    end: int
    published: dict[str, int]


class Notes:
    """The notes of a log."""

    def __init__(self, folder: Path, *, is_durable: bool) -> None:
        self._folder = folder
        self._is_durable = is_durable

    def newest(self) -> Note | None:
        """Return the newest note that counts."""
        for base in sorted(self.bases(), reverse=True):
            note = self.of(base)
            if note is not None:
                return note
        return None

    def of(self, base: int) -> Note | None:
        """Return the note of a segment, if it counts."""
        for kind in (PUBLISHED, PUBLISHING):
            try:
                told = json.loads(segment_file(self._folder, base, kind).read_bytes())
                note = Note(**told)
            except (FileNotFoundError, TypeError, ValueError):
                continue
            header = self._header(base)
            if header == note.header or (header is None and kind == PUBLISHED):
                return note
        return None

    def write(self, base: int, note: Note) -> None:
        """Write the note of a segment that is about to be published."""
        with segment_file(self._folder, base, PUBLISHING).open("wb") as file:
            file.write(json.dumps(note._asdict()).encode())
            if self._is_durable:
                file.flush()
                os.fsync(file.fileno())
        if self._is_durable:
            sync_folder(self._folder)

    def confirm(self, base: int) -> None:
        """Say that the segment is there, as durably as was promised."""
        segment_file(self._folder, base, PUBLISHING).rename(
            segment_file(self._folder, base, PUBLISHED)
        )

    def forget(self, bases: Iterable[int]) -> None:
        """Remove notes; a newer one tells the same."""
        for base in bases:
            for kind in (PUBLISHED, PUBLISHING):
                segment_file(self._folder, base, kind).unlink(missing_ok=True)

    def bases(self) -> set[int]:
        """Return the segments that have a note, whether it counts or not."""
        return set(bases_of(self._folder, PUBLISHED, PUBLISHING))

    def _header(self, base: int) -> str | None:
        """Return the first bytes of a segment; None if it is not there."""
        try:
            with segment_file(self._folder, base).open("rb") as segment:
                return segment.read(HEADER_SIZE).hex()
        except FileNotFoundError:
            return None
