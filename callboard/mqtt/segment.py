"""A part of a filter's log: messages in memory, or on the shelf: where the journal has them.

When a log has too many segments, the oldest is dropped; with a journal, and lasting sessions
that may want it, it is shelved instead. Of a shelved segment only numbers stay in memory, 32
bytes for each run. Its messages are read back when somebody wants them (see `Turn.fetches`);
those with QoS 0, which the journal never had, are gaps.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from callboard.mqtt.message import Run

UNWRITTEN: Final = -1
"""The place of a run on its way into the journal."""


class Shelf(NamedTuple):
    """What is known of the runs of a shelved segment.

    Attributes:
        counts: messages of each.
        numbers: of their first messages.
        places: of their records in the journal.
    """

    counts: Sequence[int]
    numbers: Sequence[int]
    places: Sequence[int]


class Segment:
    """Runs, and the offsets of their first messages.

    Attributes:
        base: the offset of its first message.
        runs: empty while it is shelved and was not fetched.
        starts: offsets of the runs' first messages.
        weight: bytes in memory, estimated.
        shelf: None while it was never shelved.
    """

    __slots__ = ("base", "runs", "shelf", "starts", "weight")

    def __init__(self, base: int) -> None:
        self.base = base
        self.runs: list[Run] = []
        self.starts: Sequence[int] = []
        self.weight = 0
        self.shelf: Shelf | None = None

    def shelve(self) -> bool:
        """Forget what the journal has; returns False if it does not have all of it yet."""
        if any(run.place == UNWRITTEN for run in self.runs):
            return False
        kept = [(at, run) for at, run in zip(self.starts, self.runs, strict=True) if run.place]
        self.put_on_shelf(
            [at for at, _ in kept],
            Shelf(
                array("q", [run.count for _, run in kept]),
                array("q", [run.number for _, run in kept]),
                array("q", [run.place - 1 for _, run in kept]),
            ),
        )
        return True

    def put_on_shelf(self, starts: Sequence[int], shelf: Shelf) -> None:
        """Be shelved, with runs at these offsets."""
        self.starts = array("q", starts)
        self.shelf = shelf
        self.runs = []
        self.weight = 32 * len(self.starts)

    def places(self) -> Sequence[int]:
        """Return where the journal has its messages; nothing while it is in memory."""
        return () if self.shelf is None else self.shelf.places

    def drop_before(self, offset: int) -> None:
        """Forget shelved runs that end at an offset or before it."""
        shelf = self.shelf
        assert shelf is not None
        gone = 0
        while gone < len(self.starts) and self.starts[gone] + shelf.counts[gone] <= offset:
            gone += 1
        if gone:
            runs = self.runs[gone:]
            self.put_on_shelf(self.starts[gone:], Shelf(*(column[gone:] for column in shelf)))
            self.runs = runs

    def offset_of(self, number: int) -> int | None:
        """Return the offset of the first message from a number on; None if all are older."""
        if self.shelf is None:
            if not self.runs or self.runs[-1].number + self.runs[-1].count <= number:
                return None
            counts: Sequence[int] = [run.count for run in self.runs]
            numbers: Sequence[int] = [run.number for run in self.runs]
        else:
            counts, numbers = self.shelf.counts, self.shelf.numbers
        at = max(bisect_right(numbers, number) - 1, 0)
        while at < len(numbers) and numbers[at] + counts[at] <= number:
            at += 1
        return self.starts[at] + max(0, number - numbers[at]) if at < len(numbers) else None

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return the first offset from this one on that is here, and the index of its run."""
        starts = self.starts
        index = bisect_right(starts, offset) - 1
        if self.shelf is None or (
            index >= 0 and offset < starts[index] + self.shelf.counts[index]
        ):
            return offset, index
        index += 1
        return (starts[index], index) if index < len(starts) else None

    def number_at(self, index: int) -> int:
        """Return the number of a run's first message."""
        return self.runs[index].number if self.shelf is None else self.shelf.numbers[index]
