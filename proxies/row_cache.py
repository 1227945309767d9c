"""A cache of answers that are expensive because they are made of many rows."""

from collections.abc import Hashable
from typing import Any, Final

from callboard.support.calls import Callback

#: Answers that are kept at the same time.
KEPT: Final = 16


class RowCache:
    """Cached answers, by question. An answer that was made of few rows is not cached.

    So the number of rows processed per second is bounded, for any number of rows and of askers.
    If there are few rows, each answer is current.
    """

    def __init__(self, call_later: Callback, rows_a_second: int) -> None:
        self._call_later = call_later
        self._rows_a_second = rows_a_second
        self._kept: dict[Hashable, tuple[Any]] = {}

    def take(self, question: Hashable) -> Any:
        """Return the answer to a question, or None."""
        entry = self._kept.get(question)
        return None if entry is None else entry[0]

    def put(self, question: Hashable, answer: Any, rows: int) -> None:
        """Keep an answer made of many rows, for a time that grows with their number."""
        if rows < self._rows_a_second / 10 or len(self._kept) >= KEPT:
            return
        entry = self._kept[question] = (answer,)
        self._call_later(rows / self._rows_a_second, self._drop, question, entry)

    def _drop(self, question: Hashable, entry: tuple[Any]) -> None:
        if self._kept.get(question) is entry:
            del self._kept[question]
