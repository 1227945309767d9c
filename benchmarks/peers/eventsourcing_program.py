"""The measured work with eventsourcing; run by the Python of the peers.

    eventsourcing_program.py save N      N saves of an event of 80 bytes, by 1,000 aggregates
    eventsourcing_program.py replay N    one aggregate of N events, read again

It prints a rate. SQLite is in its mode WAL with synchronous=FULL: like with callboard, each
save is synced.
"""

import sys
import tempfile
import time
from pathlib import Path

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

AGGREGATES = 1_000
TEXT = "x" * 68


class Tally(Aggregate):
    """Counts notes."""

    def __init__(self) -> None:
        self.count = 0

    @event("Noted")
    def note(self, text: str) -> None:
        """Count one."""
        self.count += 1


def application(folder: str) -> Application:
    """Open a file of SQLite."""
    return Application(
        {
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": str(Path(folder, "state.db")),
        }
    )


def save(folder: str, count: int) -> float:
    """Return saves for each second."""
    opened = application(folder)
    tallies = [Tally() for _ in range(min(AGGREGATES, count))]
    for start in range(0, len(tallies), 100):
        opened.save(*tallies[start : start + 100])
    started = time.perf_counter()
    for number in range(count):
        tally = tallies[number % len(tallies)]
        tally.note(TEXT)
        opened.save(tally)
    rate = count / (time.perf_counter() - started)
    opened.close()
    return rate


def replay(folder: str, count: int) -> float:
    """Return events read for each second."""
    opened = application(folder)
    tally = Tally()
    for number in range(1, count + 1):
        tally.note(TEXT)
        if number % 10_000 == 0 or number == count:
            opened.save(tally)
    started = time.perf_counter()
    found = opened.repository.get(tally.id)
    rate = count / (time.perf_counter() - started)
    assert isinstance(found, Tally)
    assert found.count == count
    opened.close()
    return rate


def main(what: str, count: str) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        print("rate", {"save": save, "replay": replay}[what](folder, int(count)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
