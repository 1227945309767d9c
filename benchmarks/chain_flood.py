"""The remote flood over one node in between, against the same flood without it.

Three processes in a line A-B-C: B only forwards, it decodes nothing. The flood is the one of
`remote_flood`, from A to C. With two cores for three processes, B's work takes from both ends.
"""

from benchmarks.measure import Measure, Subject


def two_nodes(share: float = 1.0) -> float:
    """Return messages delivered for each second from A to B."""
    from benchmarks import ours as program

    return program.remote(program.Flooder, "sink", int(200_000 * share))


def three_nodes(share: float = 1.0) -> float:
    """Return messages delivered for each second from A to C."""
    from benchmarks import ours as program

    return program.forwarded(program.Flooder, "sink", int(200_000 * share))


MEASURE = Measure(
    title="remote flood over a node in between",
    unit="messages/s",
    subjects=(
        Subject("callboard, three nodes", three_nodes),
        Subject("callboard, two nodes", two_nodes, against="callboard, three nodes"),
    ),
)
