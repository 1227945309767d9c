"""Memory of 100,000 idle actors of a class with two attributes.

The figure is the growth of resident memory for each, with its ref, after a garbage collection.

- CAF: an event-based stateful actor and its handle, in C++.
- xoscar: an actor and the result of `create_actor`.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf, xoscar


def ours(share: float = 1.0) -> float:
    """Return bytes for each actor."""
    from benchmarks.idle import make

    return make(int(100_000 * share))[1]


MEASURE = Measure(
    title="memory of an idle actor",
    unit="bytes",
    more_is_better=False,
    subjects=(
        Subject("callboard", ours),
        Subject(
            "CAF",
            lambda share: caf.local("memory", int(100_000 * share)),
            caf.prepare,
            against="callboard",
        ),
        Subject(
            "xoscar",
            lambda share: xoscar.local("memory", int(100_000 * share)),
            xoscar.prepare,
            against="callboard",
        ),
    ),
)
