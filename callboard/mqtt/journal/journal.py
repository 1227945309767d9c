"""The journal of a router in a directory: one log, in which each publish is written once.

`write` returns after its records are durable. Acknowledgements and deliveries are sent after
that, so a crash loses none of these messages. When the log has grown to several times the size
of the live records, a snapshot is appended, and the records before the snapshot are removed.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from callboard.commitlog import CommitLog, LogCorrupt, LogError, LogFailed, Record
from callboard.commitlog.disk import Disk
from callboard.mqtt.journal.recovery import Recovery
from callboard.mqtt.journal.snapshot import take_snapshot
from callboard.mqtt.router import record as facts
from callboard.mqtt.router.datalog import Segment
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.session import FilterLog

_log = logging.getLogger("callboard.mqtt")

#: Bytes of one file of the journal; only whole files are removed.
SEGMENT_BYTES: Final = 16 << 20

#: Bytes that the journal grows by, at least, before the next snapshot.
LEAST_GROWTH: Final = 32 << 20

#: The journal may have this many times the size of its live records.
GROWTH: Final = 4

#: Above this gap between two records, seeking is cheaper than reading.
FAR: Final = 1_000

#: Estimated bytes of a record without its payloads.
RECORD_BYTES: Final = 64

#: The largest packet of a router with a journal: a record of the log is 16 MiB at most.
MOST_PACKET: Final = 8 << 20


class RouterJournal:
    """Writes the state that must survive a restart, and restores it."""

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
        """Open the journal in a folder, or create it.

        Args:
            folder: the folder of the journal.
            now: the router's clock, in seconds.
            wall_clock: nanoseconds since 1970.
            disk: the file system, for tests.
            least_growth: bytes between two snapshots, at least.
            segment_bytes: the size of a segment file in bytes.
            mode: the mode of folders that are made, as for `CommitLog`.

        Raises:
            LogLocked: another router uses it.
            LogFailed: the disk reports an error.
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
        """Restore the state of the journal into an empty machine.

        Raises:
            LogCorrupt: durable data is damaged.
        """
        recovery = Recovery()
        for record in self._log.read(self._last_snapshot()):
            recovery.apply(self._read(record))
            self._grown += RECORD_BYTES + len(record.data)
        if recovery.is_torn:
            self._append([facts.SnapshotEnded(is_whole=False)])
        in_flight = recovery.state.places_on_the_way()
        for run in self._read_shelved(in_flight, "messages in flight"):
            recovery.state.copy(run)
        recovery.install(machine)

    def _last_snapshot(self) -> int:
        """Return the offset of the newest complete snapshot; shelved messages precede it.

        Raises:
            LogCorrupt: the start of the journal is missing, and no complete snapshot follows.
        """
        start = first = self._log.start
        snapshot: int | None = None
        for record in self._log.read(start):
            if record.topic == "begin":
                snapshot = record.offset
            elif record.topic == "end" and snapshot is not None:
                start, snapshot = (snapshot if record.payload[0] else start), None
        if first and start == first and not self._is_begin(first):
            message = f"the records before {first} of the MQTT journal are missing"
            raise LogCorrupt(message)
        return start

    def _is_begin(self, place: int) -> bool:
        """Return whether a record starts a snapshot."""
        record = next(self._log.read(place), None)
        return record is not None and record.topic == "begin"

    def fetch(self, fetches: list[tuple[FilterLog, Segment]], machine: RouterMachine) -> None:
        """Read shelved messages, and pass them to the machine."""
        for log, segment in fetches:
            is_known = segment in log.segments  # it may have been dropped since the request
            places = segment.places() if is_known else ()
            machine.delivery.arrived(segment, self._read_shelved(places, log.topic_filter))

    def _read_shelved(self, places: Sequence[int], topic_filter: str) -> list[MessageRun]:
        """Return the runs at some positions of the journal.

        Records that cannot be read are left out and logged: one damaged record must not lose
        the thousands of readable messages of its segment.
        """
        runs: list[MessageRun] = []
        errors: list[LogError] = []
        for part in _stretches(places):
            wanted = set(part)
            try:
                for record in self._log.read(part[0], on_damage=errors.append):
                    if record.offset > part[-1]:
                        break
                    if record.offset in wanted and (run := self._read_message(record, errors)):
                        runs.append(run)
            except LogError as error:  # the disk, for example: the part is left out
                errors.append(error)
        if len(runs) < len(places):
            cause = errors[0] if errors else "they are not in the journal"
            text = "%d of %d shelved records for %r cannot be read and are left out: %s"
            missing = len(places) - len(runs)
            _log.error(text, missing, len(places), topic_filter, cause)
        return runs

    def _read_message(self, record: Record, errors: list[LogError]) -> MessageRun | None:
        """Return the run of a record; None if it cannot be read, or is not a message."""
        try:
            read = self._read(record)
        except LogError as error:
            errors.append(error)
            return None
        return read.run if isinstance(read, facts.Published) else None

    def _read(self, record: Record) -> facts.JournalRecord:
        """Parse a record of the log; set the position of a message."""
        read = facts.read_record(record.topic, record.payload, self._epoch)
        if isinstance(read, facts.Published):
            read.run.place = record.offset + 1
        return read

    @property
    def has_failed(self) -> bool:
        """Whether the disk has failed, so that nothing can be written."""
        return self._log.has_failed

    def write(self, records: list[facts.JournalRecord], machine: RouterMachine) -> None:
        """Append records; they are durable when it returns.

        Raises:
            LogFailed: the disk reports an error, and nothing was written. The call may be
                repeated, unless `has_failed`.
        """
        self._append(records)
        if self._grown > max(self._least_growth, GROWTH * self._needed):
            try:
                self._cut(machine)
            except LogFailed as error:  # the records themselves were written
                if self._log.has_failed:
                    raise
                _log.warning("the journal cannot be compacted: %s", error)

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
        """Append a snapshot, and remove all earlier records except the shelved ones."""
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
        """Close the files, so that another router can use the journal."""
        self._log.close()


def _stretches(places: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split positions where the gaps are large."""
    far = [i for i in range(1, len(places)) if places[i] - places[i - 1] > FAR]
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
