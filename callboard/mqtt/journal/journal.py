"""The journal of a router in a directory: one log, in which each publish is written once.

`write` returns when its records are durable, so a crash takes no message whose acknowledgement
or delivery goes out afterwards. When the log has grown to several times the size that is still
needed, a snapshot is written behind it, and the records before the snapshot are removed.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from callboard.commitlog import CommitLog, LogCorrupt, LogFailed, Record
from callboard.commitlog.disk import Disk
from callboard.mqtt.journal.recovery import Recovery
from callboard.mqtt.journal.snapshot import take_snapshot
from callboard.mqtt.router import record as facts
from callboard.mqtt.router.datalog import Segment
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.session import FilterLog

_log = logging.getLogger("callboard.mqtt")

#: Bytes of a file of the journal; whole files are removed.
SEGMENT_BYTES: Final = 16 << 20

#: Bytes by which the journal grows at least before it is cut down.
LEAST_GROWTH: Final = 32 << 20

#: How many times what is needed the journal may be.
GROWTH: Final = 4

#: Records that are rather read than sought past.
FAR: Final = 1_000

#: What a record takes beside its payloads, for the account of growth.
RECORD_BYTES: Final = 64

#: The largest packet of a router with a journal: a record of the log is 16 MiB at most.
MOST_PACKET: Final = 8 << 20


class RouterJournal:
    """Writes what has to outlive the router, and gives it back."""

    def __init__(
        self,
        folder: str | Path,
        *,
        now: Callable[[], float],
        wall_clock: Callable[[], int],
        disk: Disk | None = None,
        least_growth: int = LEAST_GROWTH,
        segment_bytes: int = SEGMENT_BYTES,
        mode: int | None = None,
    ) -> None:
        """Open the journal in a folder, or make one there.

        Args:
            folder: its directory.
            now: the router's clock, in seconds.
            wall_clock: nanoseconds since 1970.
            disk: the file system it is on, for tests.
            least_growth: bytes.
            segment_bytes: of a file.
            mode: of folders that are made, as of `CommitLog`.

        Raises:
            LogLocked: another router has it.
            LogFailed: the disk refuses.
        """
        self._log = CommitLog(
            folder,
            sync="none",
            segment_bytes=segment_bytes,
            disk=disk,
            clock=wall_clock,
            mode=mode,
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
        for record in self._log.read(self._last_snapshot()):
            recovery.apply(self._read(record))
            self._grown += RECORD_BYTES + len(record.data)
        if recovery.is_torn:
            self._append([facts.SnapshotEnded(is_whole=False)])
        for run in self._read_shelved(recovery.state.places_on_the_way()):
            recovery.state.copy(run)
        recovery.install(machine)

    def _last_snapshot(self) -> int:
        """Return where the newest whole snapshot begins; what is shelved stands before it.

        Raises:
            LogCorrupt: the begin of the journal is gone, and no snapshot behind it is whole.
        """
        start = first = self._log.start
        begun: int | None = None
        for record in self._log.read(start):
            if record.topic == "begin":
                begun = record.offset
            elif record.topic == "end" and begun is not None:
                start, begun = (begun if record.payload[0] else start), None
        if first and start == first and not self._is_begin(first):
            message = f"the records before {first} of the MQTT journal are gone"
            raise LogCorrupt(message)
        return start

    def _is_begin(self, place: int) -> bool:
        """Whether a record begins a snapshot."""
        record = next(self._log.read(place), None)
        return record is not None and record.topic == "begin"

    def fetch(self, fetches: list[tuple[FilterLog, Segment]], machine: RouterMachine) -> None:
        """Read shelved messages back, and give them to a machine."""
        for log, segment in fetches:
            runs: list[Run] = []
            try:
                if segment in log.segments:  # or it was dropped meanwhile
                    runs = self._read_shelved(segment.places())
            except LogCorrupt:
                _log.exception("shelved messages of %s cannot be read", log.topic_filter)
            machine.delivery.arrived(segment, runs)

    def _read_shelved(self, places: Sequence[int]) -> list[Run]:
        """Return the runs at places in the journal."""
        runs: list[Run] = []
        for part in _stretches(places):
            batch = self._log.readv(part[0], part[-1] - part[0] + 1)
            records = {record.offset: record for record in batch.records}
            for place in part:
                if place not in records:
                    message = f"record {place} of the MQTT journal is not there"
                    raise LogCorrupt(message)
                read = self._read(records[place])
                if not isinstance(read, facts.Published):
                    message = f"record {place} of the MQTT journal is no message"
                    raise LogCorrupt(message)
                runs.append(read.run)
        return runs

    def _read(self, record: Record) -> facts.JournalRecord:
        """Return what a record of the log says; messages know their place there."""
        read = facts.read_record(record.topic, record.payload, self._epoch)
        if isinstance(read, facts.Published):
            read.run.place = record.offset + 1
        return read

    @property
    def has_failed(self) -> bool:
        """Whether the disk failed so that nothing is written any more."""
        return self._log.has_failed

    def write(self, records: list[facts.JournalRecord], machine: RouterMachine) -> None:
        """Make records durable; all of them are when it returns.

        Raises:
            LogFailed: the disk refuses, and nothing was written; unless `has_failed`, it may be
                tried again.
        """
        self._append(records)
        if self._grown > max(self._least_growth, GROWTH * self._needed):
            try:
                self._cut(machine)
            except LogFailed as error:  # what was to be written is
                if self._log.has_failed:
                    raise
                _log.warning("the journal is not cut down: %s", error)

    def _append(self, records: list[facts.JournalRecord]) -> int:
        """Append records and flush; return the offset of the first."""
        encoded = [record.write(self._epoch) for record in records]
        first = self._log.append_batch(
            [fields for _, fields in encoded], topic=[kind for kind, _ in encoded]
        ).start
        self._log.flush()
        for place, record in enumerate(records, first + 1):
            if type(record) is facts.Published:
                record.run.place = place
        self._grown += sum(map(_weight, records))
        return first

    def _cut(self, machine: RouterMachine) -> None:
        """Write what is needed behind all the rest, and remove the rest but what is shelved."""
        self._grown = 0
        self._drop_oldest(machine)
        records = take_snapshot(machine)
        first = self._append(records)
        self._needed = self._grown
        self._log.trim(before=machine.logs.oldest_place(first))
        machine.logs.move_places(first, records)
        self._grown = 0

    def _drop_oldest(self, machine: RouterMachine) -> None:
        """Drop the oldest shelved messages if the journal is too large."""
        left = machine.effects.limits.journal_bytes
        for segment in reversed(self._log.segments):
            left -= segment.bytes
            if left < 0:
                machine.logs.drop_older(segment.end)
                return

    def close(self) -> None:
        """Let others write it."""
        self._log.close()


def _stretches(places: Sequence[int]) -> Iterator[Sequence[int]]:
    """Return parts of places that are near to each other."""
    far = [at for at in range(1, len(places)) if places[at] - places[at - 1] > FAR]
    for start, end in pairwise((0, *far, len(places))):
        if start < end:
            yield places[start:end]


def _weight(record: facts.JournalRecord) -> int:
    """Return the estimated size of a record in bytes."""
    if isinstance(record, facts.Published | facts.Retained) and record.run is not None:
        return RECORD_BYTES + record.run.weight
    if isinstance(record, facts.Shelved):
        return RECORD_BYTES + 32 * len(record.shelf.places)
    return RECORD_BYTES
