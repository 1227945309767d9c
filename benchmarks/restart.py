"""Restart of a crashed actor: from the message that ends it until its next incarnation runs.

A supervised actor raises in a handler; the time is taken from just before that message is sent
to the `__init__` of the next incarnation, in the same process. The figure is the median of all
restarts of a run. Logging of the failures is off: it costs more than the restart. None of the
peers measured here restarts a crashed actor.
"""

import logging
import time
from statistics import median
from typing import ClassVar

from benchmarks.measure import Measure, Subject
from callboard import Actor, Child, Node, handler

RESTARTS = 2_000
LIMIT = 5.0
"""Seconds that one restart may take before the run fails."""


class Crasher(Actor):
    """Ends with an error when it is told a number; tells when it begins."""

    began_at: ClassVar[float] = 0.0

    def __init__(self) -> None:
        type(self).began_at = time.perf_counter()

    @handler
    def on_question(self, question: str) -> str:
        """Answer: it is there."""
        return question

    @handler
    def on_number(self, number: int) -> None:
        """Crash."""
        raise ValueError(number)


def ours(share: float = 1.0) -> float:
    """Return the median in milliseconds."""
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    restarts = max(100, int(RESTARTS * share))
    with Node() as node:
        node.supervise([Child(Crasher, name="crasher")], intensity=(10**9, 1.0))
        taken = [one_restart(node, number) for number in range(restarts)]
    return median(taken[restarts // 10 :]) * 1e3


def one_restart(node: Node, number: int) -> float:
    """Crash the actor that runs; return the seconds until the next one began."""
    crasher = node.find("crasher").result(LIMIT)
    down = node.monitor(crasher)
    sent_at = time.perf_counter()
    crasher.tell(number)
    down.result(LIMIT)
    give_up_at = sent_at + LIMIT
    while Crasher.began_at < sent_at:
        if time.perf_counter() > give_up_at:
            message = f"no restart within {LIMIT} s"
            raise TimeoutError(message)
        time.sleep(0)
    began_at = Crasher.began_at
    node.find("crasher").result(LIMIT).ask("there?").result(LIMIT)
    return began_at - sent_at


MEASURE = Measure(
    title="restart of a crashed actor",
    unit="ms",
    more_is_better=False,
    subjects=(Subject("callboard", ours),),
)
