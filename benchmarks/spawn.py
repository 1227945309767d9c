"""Spawn: idle actors of a class with two attributes, made one by one, their refs kept.

- CAF: `spawn` of an event-based stateful actor, in C++.
- xoscar: `await create_actor(…)` in the same process.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf, xoscar


def ours(share: float = 1.0) -> float:
    """Return actors for each second."""
    from benchmarks.idle import make

    return 1 / make(int(100_000 * share))[0]


MEASURE = Measure(
    title="spawn",
    unit="actors/s",
    subjects=(
        Subject("callboard", ours),
        Subject(
            "CAF",
            lambda share: caf.local("spawn", int(1_000_000 * share)),
            caf.prepare,
            against="callboard",
        ),
        Subject(
            "xoscar",
            lambda share: xoscar.local("spawn", int(10_000 * share)),
            xoscar.prepare,
            against="callboard",
        ),
    ),
)
