"""The recordings for the docs, and the pictures made of them."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scripts.films import stages
from scripts.films.cast import Cast
from scripts.films.film import film, still

__all__ = ["FILMS", "Film", "films", "place"]

_DOCS: Final = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Film:
    """A program to record.

    Attributes:
        typed: the command as a reader types it.
        command: the command that is run.
        stage: creates its working folder and the files in it.
        moves: whether the picture moves, or shows the end.
        columns: width of the terminal.
        rows: its height.
        interval: seconds between two pictures.
        longest: seconds that nothing may happen.
        rest: seconds for which the last picture is shown.
        after: text that must appear before the film continues after the command.
    """

    typed: str
    command: tuple[str, ...]
    stage: Callable[[], AbstractContextManager[Path]] = stages.empty
    moves: bool = True
    columns: int = 100
    rows: int = 31
    interval: float = 0.5
    longest: float = 2.0
    rest: float = 6.0
    after: str = ""


def _callboard(arguments: str) -> Film:
    return Film(f"callboard {arguments}", (*stages.CALLBOARD, *arguments.split()))


_QUANTILES: Final = (
    "pipeline run quantiles --log metrics --to results --field load --window 10s --once"
)

FILMS: Final = {
    "demo": replace(_callboard("demo --seconds 16"), after="first reading handled"),
    "tests": Film(
        "pytest test_factors.py",
        (sys.executable, "-m", "pytest", "-p", "no:randomly", "test_factors.py"),
        stages.factors,
        moves=False,
        columns=80,
    ),
    "killed": Film(
        "python many.py 300",
        (sys.executable, "many.py", "300"),
        stages.three_nodes,
        columns=60,
        rows=40,
    ),
    "cluster": replace(
        _callboard("cluster ps 127.0.0.1:4222"), stage=stages.cluster, moves=False
    ),
    "restarts": replace(
        _callboard("cluster restarts 127.0.0.1:4222"),
        stage=stages.cluster_after_a_kill,
        moves=False,
    ),
    "quantiles": replace(_callboard(_QUANTILES), stage=stages.metrics, moves=False),
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
