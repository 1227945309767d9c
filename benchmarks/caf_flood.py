"""Small one-way messages of a client to a CAF server, until all are counted: ours beside CAF.

Both clients send to the same program in its default configuration, over CAF's wire.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf


def ours(share: float = 1.0) -> float:
    """Return messages of our node that the server has counted for each second."""
    from benchmarks import caf_client

    return caf_client.client(caf_client.CafFlooder, int(200_000 * share))


MEASURE = Measure(
    title="flood of a CAF server",
    unit="messages/s",
    subjects=(
        Subject("callboard as client", ours, caf.prepare),
        Subject(
            "CAF as client",
            lambda share: caf.remote("flood", int(200_000 * share)),
            caf.prepare,
            against="callboard as client",
        ),
    ),
)
