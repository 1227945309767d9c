"""Broker 1.4's wire: small messages one by one, between callboard and the real one.

The same program as in `topic_flood` (`benchmarks/peers/topic_program.py`), in
two processes over loopback: callboard publishes to a subscriber of Broker's Python package, or
that one to one of callboard; beside both ends of Broker's.
"""

from collections.abc import Sequence
from functools import partial

from benchmarks.measure import Measure, Subject
from benchmarks.peers.zeek_broker import OURS, PEER, WIRE, measure_between, prepare

MESSAGES = 50_000


def flood(
    sink: Sequence[str], source: Sequence[str], wire: Sequence[str], share: float
) -> float:
    """Return messages a second; `wire` is what a source of ours is told."""
    return measure_between(sink, *source, "flood", str(int(MESSAGES * share)), *wire)


THEIRS = (*PEER, "sink")
MEASURE = Measure(
    title="Broker 1.4's wire, published one by one",
    unit="messages/s",
    subjects=(
        Subject("callboard, out", partial(flood, THEIRS, OURS, WIRE), prepare),
        Subject("callboard, in", partial(flood, (*OURS, "sink", *WIRE), PEER, ()), prepare),
        Subject(
            "Zeek Broker, Python, both ends",
            partial(flood, THEIRS, PEER, ()),
            prepare,
            against="callboard, out",
        ),
    ),
)
