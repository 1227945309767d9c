"""Streams: items of 100 B from an actor in another process, which a coroutine reads one by one.

The rival gets the same items by asks, each answered with a list of 100. Both readers are
handlers of an actor. Two processes on this machine, TCP over loopback.
"""

from benchmarks.measure import Measure, Subject


def streamed(share: float = 1.0) -> float:
    """Return items read from a stream for each second."""
    from benchmarks import ours as program

    return program.remote(program.StreamReader, "source", int(1_000_000 * share))


def asked(share: float = 1.0) -> float:
    """Return items read from lists of 100 for each second."""
    from benchmarks import ours as program

    return program.remote(program.BatchReader, "source", int(1_000_000 * share))


MEASURE = Measure(
    title="streams of items of 100 B",
    unit="items/s",
    subjects=(
        Subject("callboard", streamed),
        Subject("asks, lists of 100", asked, against="callboard"),
    ),
)
