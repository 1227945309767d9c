"""What is recorded for the docs, and the pictures that are made from it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from scripts.films.cast import Cast
from scripts.films.film import film, still

__all__ = ["FILMS", "Film", "films", "place"]

_DOCS: Final = Path(__file__).parents[2] / "docs"


@contextmanager
def _empty_folder() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Film:
    """A program to record.

    Attributes:
        typed: the command as a reader types it.
        command: what is run for it.
        stage: makes the folder in which it runs, and what has to be there.
        moves: whether the picture moves, or shows the end.
        columns: width of the terminal.
        rows: its height.
        interval: seconds between two pictures.
        longest: seconds that nothing may happen.
        rest: seconds that the last picture stands.
    """

    typed: str
    command: tuple[str, ...]
    stage: Callable[[], AbstractContextManager[Path]] = _empty_folder
    moves: bool = True
    columns: int = 100
    rows: int = 31
    interval: float = 0.5
    longest: float = 2.0
    rest: float = 6.0


_CALLBOARD: Final = (sys.executable, "-m", "callboard")

FILMS: Final = {
    "demo": Film("callboard demo --seconds 16", (*_CALLBOARD, "demo", "--seconds", "16")),
}


def place(name: str) -> Path:
    """Return where the recording of a film is kept."""
    return _DOCS / "films" / f"{name}.cast"


def films() -> dict[Path, str]:
    """Return what each file of a picture has to hold."""
    made = {}
    for name, each in FILMS.items():
        cast = Cast.read(place(name))
        content = film(f"film-{name}", cast, each.rest) if each.moves else still(cast)
        made[place(name).with_suffix(".svg")] = content
    return made
