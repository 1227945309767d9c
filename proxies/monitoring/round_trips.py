"""Round trips of links: the time from a question to a neighbor until its answer.

A round trip includes the wait for both nodes' threads, so a busy neighbor has long ones, too.
Links are measured only when figures of links are requested; no question is sent otherwise.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from callboard.actors.errors import CallboardError
from callboard.actors.future import Future
from callboard.actors.values import Answer

#: Seconds until a question counts as unanswered.
ANSWER_SECONDS: Final = 5.0

#: Seconds between two measurements of a link.
INTERVAL: Final = 1.0


class RoundTrips:
    """The latest round trip of each link. Call it on the node's thread."""

    def __init__(
        self,
        now: Callable[[], float],
        ask: Callable[[bytes, float], Future[Answer]],
        seconds: dict[bytes, float],
    ) -> None:
        """Start without measurements.

        Args:
            now: the node's clock.
            ask: sends a short question to the neighbor with an id, with a timeout.
            seconds: where the latest round trip of each neighbor is stored.
        """
        self._now, self._ask, self._seconds = now, ask, seconds
        #: Neighbor → when the latest question was sent, and the future of its answer.
        self._questions: dict[bytes, tuple[float, Future[Answer]]] = {}

    def measure(self, neighbors: Iterable[bytes]) -> list[Future[Answer]]:
        """Measure each link that was not measured lately; return the pending answers."""
        now, current = self._now(), set(neighbors)
        for table in (self._seconds, self._questions):
            for former in table.keys() - current:
                del table[former]
        for neighbor in current:
            sent_at, question = self._questions.get(neighbor, (-1e9, None))
            if question is None or (question.is_done and now - sent_at >= INTERVAL):
                question = self._ask(neighbor, ANSWER_SECONDS)
                self._questions[neighbor] = now, question
                question.on_done(partial(self._answered, neighbor, now))
        return [question for _, question in self._questions.values() if not question.is_done]

    def _answered(self, neighbor: bytes, sent_at: float, answer: Future[Answer]) -> None:
        """Store a round trip. A refusal is an answer, too; a timeout counts in full."""
        question = self._questions.get(neighbor)
        if question is not None and question[0] == sent_at:
            error = answer.exception()
            is_answered = error is None or type(error).__name__ == "NotPermitted"
            seconds = self._now() - sent_at if is_answered else ANSWER_SECONDS
            if error is None or isinstance(error, CallboardError):
                self._seconds[neighbor] = seconds
