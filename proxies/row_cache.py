"""What was made of many rows serves all who ask the same, for as long as their number says."""

from collections.abc import Callable, Hashable
from typing import Any, Final

#: Answers that are kept at a time.
KEPT: Final = 16


class RowCache:
    """Answers by question. What is made of few rows is never kept.

    So the rows that are looked at in a second are bounded, however many there are and whoever
    asks, and with few rows each answer is a fresh one.
    """

    def __init__(self, call_later: Callable[..., object], rows_a_second: int) -> None:
        self._call_later = call_later
        self._rows_a_second = rows_a_second
        self._kept: dict[Hashable, tuple[Any]] = {}

    def take(self, question: Hashable) -> Any:
        """Return the answer to a question, or None."""
        kept = self._kept.get(question)
        return None if kept is None else kept[0]

    def put(self, question: Hashable, answer: Any, rows: int) -> None:
        """Keep an answer that was made of so many rows, unless they are few."""
        if rows < self._rows_a_second / 10 or len(self._kept) >= KEPT:
            return
        kept = self._kept[question] = (answer,)
        self._call_later(rows / self._rows_a_second, self._drop, question, kept)

    def _drop(self, question: Hashable, kept: tuple[Any]) -> None:
        if self._kept.get(question) is kept:
            del self._kept[question]
