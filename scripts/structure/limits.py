"""Limits that only go down, in a TOML file next to this one.

A figure may be better than its limit; a worse one fails. Limits are lowered in a separate step,
so two changes that both improve a figure do not conflict in the file.
"""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scripts.structure.figure import Figure

LIMITS_FILE: Final = Path(__file__).with_name("limits.toml")


class Limits:
    """The limits of one TOML file, by the names of their figures."""

    def __init__(self, path: Path = LIMITS_FILE) -> None:
        """Read the file."""
        self._path = path
        self._limits: dict[str, float] = tomllib.loads(path.read_text())

    def failures(self, figures: Iterable[Figure]) -> list[str]:
        """Return a line for each figure that is worse than its limit, or has none."""
        lines = []
        for figure in figures:
            limit = self._limits.get(figure.name, figure.default_limit)
            if limit is None:
                lines.append(
                    f"{figure.name}: {figure.value:g}, without a limit in {self._path.name}"
                )
            elif _is_better(limit, figure.value, figure):
                word = "at least" if figure.is_floor else "at most"
                lines.append(
                    f"{figure.name}: {figure.value:g}, {word} {limit:g} ({figure.meaning})"
                )
        return lines

    def improvements(self, figures: Iterable[Figure]) -> list[str]:
        """Return a line for each figure that is better than its limit."""
        return [
            f"{figure.name}: {figure.value:g}, the limit {self._limits[figure.name]:g} "
            f"can be {'raised' if figure.is_floor else 'lowered'} to it"
            for figure in figures
            if self._is_improved(figure)
        ]

    def tighten(self, figures: Iterable[Figure]) -> None:
        """Write better figures as limits into the file; keep the rest of the file."""
        text = self._path.read_text()
        for figure in figures:
            if self._is_improved(figure):
                line = re.compile(rf"^{figure.name} *=.*?(?=\s*(#.*)?$)", re.MULTILINE)
                text = line.sub(f"{figure.name} = {figure.value:g}", text)
        self._path.write_text(text)
        self._limits = tomllib.loads(text)

    def _is_improved(self, figure: Figure) -> bool:
        limit = self._limits.get(figure.name)
        return limit is not None and _is_better(figure.value, limit, figure)


def _is_better(one: float, other: float, figure: Figure) -> bool:
    return one > other if figure.is_floor else one < other
