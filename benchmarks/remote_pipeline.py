"""Remote pipeline: asks to an actor in another process, 100 of them outstanding all the time.

Ours: one coroutine handler keeps 100 futures and awaits the oldest before it asks again. Two
processes on this machine, TCP over loopback.

CAF does the same with `request(…).then(…)`: each answer triggers the next request.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf


def ours(share: float = 1.0) -> float:
    """Return asks answered for each second."""
    from benchmarks import ours as program

    return program.remote(program.PipelinedAsker, "echo", int(100_000 * share))


MEASURE = Measure(
    title="remote asks, 100 outstanding",
    unit="asks/s",
    subjects=(
        Subject("callboard", ours),
        Subject(
            "CAF",
            lambda share: caf.remote("pipe", int(100_000 * share)),
            caf.prepare,
            against="callboard",
        ),
    ),
)
