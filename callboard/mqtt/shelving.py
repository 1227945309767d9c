"""What of the journal is on the shelf: which of its records are needed, and which are too old.

Records of shelved messages stay where they are when the journal is cut down, so they are
written once; what is between them stays as well, until the journal is too large.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from callboard.mqtt.datalog import DataLog
from callboard.mqtt.record import JournalRecord, Published, Shelved
from callboard.mqtt.session import Session

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine


PART: Final = 50_000
"""Runs in one record, which has to fit into the journal."""


def first_unread(sessions: list[Session]) -> dict[DataLog, int]:
    """Return from where on sessions want to read logs with QoS 1 and 2."""
    places: dict[DataLog, int] = {}
    for session in sessions:
        for request in (*session.requests.values(), *session.tracker.requests):
            if request.is_retained or not request.subscription.qos:
                continue
            log = request.log
            places[log] = min(places.get(log, request.offset), request.offset)
    return places


def drop_read(machine: "RouterMachine", unread: dict[DataLog, int]) -> None:
    """Drop shelved messages that nobody wants any more."""
    for log in machine.routes:
        if log.shelved:
            log.drop_shelved(unread.get(log, log.end))


def drop_older(machine: "RouterMachine", place: int) -> None:
    """Drop shelved segments with records before one of the journal: it is too large."""
    for log in machine.routes:
        while log.shelved and any(each < place for each in log.segments[0].places()[:1]):
            log.drop_shelved(log.segments[1].base)


def records(machine: "RouterMachine") -> list[Shelved]:
    """Return what a snapshot says of shelved segments."""
    found = []
    for log in machine.routes:
        for at in range(log.shelved):
            segment = log.segments[at]
            shelf = segment.shelf
            assert shelf is not None
            borders = [segment.base, *segment.starts[PART::PART], log.segments[at + 1].base]
            for part, (base, end) in enumerate(pairwise(borders)):
                runs = slice(part * PART, (part + 1) * PART)
                starts = [start - base for start in segment.starts[runs]]
                columns = (column[runs] for column in shelf)
                found.append(Shelved(log.topic_filter, end - base, starts, *columns))
    return found


def oldest_place(machine: "RouterMachine", otherwise: int) -> int:
    """Return the oldest record of the journal that is on a shelf."""
    oldest = otherwise
    for log in machine.routes:
        for segment in log.segments[: log.shelved]:
            oldest = min((oldest, *segment.places()[:1]))
    return oldest


def move_places(machine: "RouterMachine", before: int, written: list[JournalRecord]) -> None:
    """Take note of where a snapshot has messages, and that records before it are gone.

    A message may be here twice, read back for one filter and in memory for another; it was
    written once.
    """
    places = {
        (record.run.number, record.run.count): record.run.place
        for record in written
        if isinstance(record, Published)
    }
    for log in machine.routes:
        for segment in log.segments[log.shelved :]:
            for run in segment.runs:
                if 0 < run.place <= before:
                    run.place = places.get((run.number, run.count), 0)
