"""What a benchmark file offers: one `Measure` with its subjects, ours and the peers'."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RUN_LIMIT: Final = 60.0
"""Seconds for one run; most take less than twenty on a quiet machine."""


class PeerMissingError(Exception):
    """A peer is not installed and could not be; the text says what to install."""


def ready() -> None:
    """Prepare nothing: the subject is there."""


@dataclass(frozen=True)
class Subject:
    """One program that does the work of a measure.

    Attributes:
        name: What tables and charts call it. run: Do the work once and return the figure;
        called in a fresh process. Its argument is the
            share of the full work to do, 1.0 or less.
        prepare: Install or compile what it takes, before anything is timed.
            Raises `PeerMissingError`.
        against: For a peer, the name of our subject that does the same; None for ours.
    """

    name: str
    run: Callable[[float], float]
    prepare: Callable[[], None] = ready
    against: str | None = None


@dataclass(frozen=True)
class Measure:
    """One published figure.

    Attributes:
        title: What is measured, in a few words.
        unit: What the figure counts.
        subjects: Ours first, then the peers.
        more_is_better: False for times.
        limit: Seconds after which a run is stopped.
    """

    title: str
    unit: str
    subjects: tuple[Subject, ...]
    more_is_better: bool = True
    limit: float = RUN_LIMIT

    def subject(self, name: str) -> Subject:
        """Find a subject by its name."""
        return next(each for each in self.subjects if each.name == name)
