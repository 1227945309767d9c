"""The time in which a checker of histories finds an order that explains all answers.

Two histories of reads and writes: 10,000 operations of 8 clients on 100 keys, and 300 of 8
clients on one key, of which 20 have an unknown outcome. The peer gets the same events, with the
key as a part of each operation's argument, as its model `KV` wants it.
"""

import time
from functools import partial

from benchmarks.histories import register_events
from benchmarks.measure import Measure, Subject
from benchmarks.peers import detangle
from callboard.simulation import History, Operation, Register, linearizable

MANY = (10_000, 100, 8, 0)
"""Operations, keys, clients, operations of unknown outcome."""

UNKNOWN = (300, 1, 8, 20)


def ours(of: tuple[int, int, int, int], share: float = 1.0) -> float:
    """Return the seconds that a verdict takes."""
    history = History()
    begun: dict[int, Operation] = {}
    for event in register_events(max(int(of[0] * share), 2 * of[3]), *of[1:]):
        if event.outcome == "begin":
            begun[event.number] = history.begin(
                event.name, event.value, key=event.key, client=event.client
            )
        elif event.outcome == "answered":
            history.answered(begun[event.number], event.answer)
        else:
            history.unknown(begun[event.number])
    started = time.perf_counter()
    history.check(linearizable(Register()))
    return time.perf_counter() - started


def theirs(of: tuple[int, int, int, int], share: float = 1.0) -> float:
    """Return the same of detangle."""
    events = register_events(max(int(of[0] * share), 2 * of[3]), *of[1:])
    return detangle.check(list(map(list, events)))


MEASURE = Measure(
    title="verdict on a history",
    unit="s",
    subjects=(
        Subject("10,000 on 100 keys", partial(ours, MANY)),
        Subject("300 on a key, 20 unknown", partial(ours, UNKNOWN)),
        Subject(
            "detangle, 10,000 on 100 keys",
            partial(theirs, MANY),
            detangle.prepare,
            against="10,000 on 100 keys",
        ),
        Subject(
            "detangle, 300 on a key, 20 unknown",
            partial(theirs, UNKNOWN),
            detangle.prepare,
            against="300 on a key, 20 unknown",
        ),
    ),
    more_is_better=False,
)
