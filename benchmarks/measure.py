"""The interface of a benchmark file: one `Measure` with subjects of ours and of peers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RUN_LIMIT: Final = 60.0
"""Seconds for one run; most take less than twenty on a quiet machine."""


class PeerMissingError(Exception):
    """A peer is not installed and could not be; the text says what to install."""


def ready() -> None:
    """Do nothing: the subject is installed."""


@dataclass(frozen=True)
class Subject:
    """One program that does the work of a measure.

    Attributes:
        name: Name in tables and charts.
        run: Does the work once and returns the figure; called in a new process. The argument is
            the share of the full work, 1.0 or less.
        prepare: Installs or compiles the subject before the first run. Raises
            `PeerMissingError`.
        against: For a peer, the name of our subject with the same work; None for ours.
    """

    name: str
    run: Callable[[float], float]
    prepare: Callable[[], None] = ready
    against: str | None = None


@dataclass(frozen=True)
class Measure:
    """One published figure.

    Attributes:
        title: The measured work, in a few words.
        unit: Unit of the figure.
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
        return next(subject for subject in self.subjects if subject.name == name)
