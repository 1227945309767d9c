"""The journal of a router in a directory: one log, in which each publish is written once.

`write` returns when its records are durable, so acknowledgements and deliveries that go out
after it are of messages that a crash does not take. When the log has grown to several times
what is still needed, a snapshot is written behind it, and what is before that is removed.
"""

import time as clocks
from collections.abc import Callable
from pathlib import Path
from typing import Final

from callboard.commitlog import CommitLog
from callboard.commitlog.disk import Disk
from callboard.mqtt.journal_codec import decode_record, encode_record
from callboard.mqtt.machine import RouterMachine
from callboard.mqtt.record import JournalRecord, Published, Retained, SnapshotEnded
from callboard.mqtt.recovery import Recovery
from callboard.mqtt.snapshot import snapshot

SEGMENT_BYTES: Final = 16 << 20
"""Bytes of a file of the journal; whole files are removed."""

LEAST_GROWTH: Final = 32 << 20
"""Bytes by which the journal grows at least before it is cut down."""

GROWTH: Final = 4
"""How many times what is needed the journal may be."""

RECORD_BYTES: Final = 64
"""What a record takes beside its payloads, for the account of growth."""

MOST_PACKET: Final = 8 << 20
"""The largest packet of a router with a journal: a record of the log is 16 MiB at most."""


class RouterJournal:
    """Writes what has to outlive the router, and gives it back."""

    def __init__(
        self,
        folder: str | Path,
        *,
        now: Callable[[], float],
        disk: Disk | None = None,
        wall_clock: Callable[[], int] = clocks.time_ns,
        least_growth: int = LEAST_GROWTH,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Open the journal in a folder, or make one there.

        Args:
            folder: its directory.
            now: the router's clock, in seconds.
            disk: the file system it is on, for tests.
            wall_clock: nanoseconds since 1970.
            least_growth: bytes.
            segment_bytes: of a file.

        Raises:
            LogLocked: another router has it.
            LogFailed: the disk refuses.
        """
        self._log = CommitLog(
            folder, sync="none", segment_bytes=segment_bytes, disk=disk, clock=wall_clock
        )
        self._epoch = wall_clock() / 1e9 - now()
        self._least_growth = least_growth
        self._grown = 0
        self._needed = 0

    def restore(self, machine: RouterMachine) -> None:
        """Give an empty machine what the journal holds.

        Raises:
            LogCorrupt: something durable is damaged.
        """
        recovery = Recovery()
        for record in self._log.read(self._log.start):
            recovery.apply(decode_record(record.topic, record.payload, self._epoch))
            self._grown += RECORD_BYTES + len(record.data)
        if recovery.is_torn:
            self._append([SnapshotEnded(is_whole=False)])
        recovery.install(machine)

    def write(self, records: list[JournalRecord], machine: RouterMachine) -> None:
        """Make records durable; all of them are when it returns.

        Raises:
            LogFailed: the disk refuses.
        """
        self._append(records)
        if self._grown > max(self._least_growth, GROWTH * self._needed):
            self._cut(machine)

    def _append(self, records: list[JournalRecord]) -> int:
        encoded = [encode_record(record, self._epoch) for record in records]
        first = self._log.append_batch(
            [fields for _, fields in encoded], topic=[kind for kind, _ in encoded]
        ).start
        self._log.flush()
        self._grown += sum(map(_weight, records))
        return first

    def _cut(self, machine: RouterMachine) -> None:
        """Write what is needed behind all the rest, and remove the rest."""
        self._grown = 0
        first = self._append(snapshot(machine))
        self._needed = self._grown
        self._log.trim(before=first)
        self._grown = 0

    def close(self) -> None:
        """Let others write it."""
        self._log.close()


def _weight(record: JournalRecord) -> int:
    if isinstance(record, Published | Retained) and record.run is not None:
        return RECORD_BYTES + record.run.weight
    return RECORD_BYTES
