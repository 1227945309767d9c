"""Local flood: one-way messages from one actor to another on the same node.

The sender fires all of them inside one handler; the rate is their number by the time until the
receiver has answered a final ask with their number.

- CAF: an event-based actor's `send`, in C++ with as many workers as cores.
- pykka: `tell`; each actor is a thread.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf, pykka


def ours(share: float = 1.0) -> float:
    """Return messages for each second."""
    from benchmarks import ours as program

    return program.local(program.Flooder, program.Sink, int(1_000_000 * share))


MEASURE = Measure(
    title="local flood, actor to actor",
    unit="messages/s",
    subjects=(
        Subject("callboard", ours),
        Subject(
            "CAF",
            lambda share: caf.local("floodlocal", int(1_000_000 * share)),
            caf.prepare,
            against="callboard",
        ),
        Subject(
            "pykka",
            lambda share: pykka.flood(int(1_000_000 * share)),
            pykka.prepare,
            against="callboard",
        ),
    ),
)
