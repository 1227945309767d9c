"""Remote flood: small one-way messages to an actor in another process, until all are counted.

Ours: one handler fires N small integers with `self.send`, then asks the sink for its count over
the same link; the rate is N by the time until that answer. Two processes on this machine, TCP
over loopback.

The peers do the same, each sender firing from inside an actor:

- CAF: one handler of an event-based actor calls `send` N times, then requests the count.
- xoscar, awaited: `await ref.count.tell(i)` for each, as its documentation does.
- xoscar, gathered: the same in `asyncio.gather` of 256 at a time.
- Thespian: its multiprocess bases, where every actor is a separate process, connected by TCP or
queues. multiprocTCPBase refuses sends when more than about 1,000 wait, so it gets 900.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import caf, thespian_bases, xoscar


def ours(share: float = 1.0) -> float:
    """Return messages delivered for each second."""
    from benchmarks import ours as program

    return program.remote(program.Flooder, "sink", int(200_000 * share))


MEASURE = Measure(
    title="remote flood, small one-way messages",
    unit="messages/s",
    subjects=(
        Subject("callboard", ours),
        Subject(
            "CAF",
            lambda share: caf.remote("flood", int(200_000 * share)),
            caf.prepare,
            against="callboard",
        ),
        Subject(
            "xoscar, awaited",
            lambda share: xoscar.remote("flood", int(20_000 * share)),
            xoscar.prepare,
            against="callboard",
        ),
        Subject(
            "xoscar, gathered",
            lambda share: xoscar.remote("flood_gathered", int(20_000 * share)),
            xoscar.prepare,
            against="callboard",
        ),
        Subject(
            "Thespian, multiprocQueueBase",
            lambda share: thespian_bases.flood("multiprocQueueBase", int(20_000 * share)),
            against="callboard",
        ),
        Subject(
            "Thespian, multiprocTCPBase",
            lambda share: thespian_bases.flood("multiprocTCPBase", int(900 * share)),
            against="callboard",
        ),
    ),
)
