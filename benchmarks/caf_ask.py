"""Asks of a client to an actor of a CAF server, one after the other: our node beside CAF.

Both clients ask the same program, over CAF's wire on loopback, in its default configuration.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf


def ours(share: float = 1.0) -> float:
    """Return asks of our node answered by the server for each second."""
    from benchmarks import caf_client

    return caf_client.client(caf_client.CafAsker, int(8_000 * share))


MEASURE = Measure(
    title="ask of a CAF server, sequential",
    unit="asks/s",
    subjects=(
        Subject("callboard as client", ours, caf.prepare),
        Subject(
            "CAF as client",
            lambda share: caf.remote("rr", int(8_000 * share)),
            caf.prepare,
            against="callboard as client",
        ),
    ),
)
