"""Round trips of an echo in a simulation, one after the other, recorded in a history.

Ours: an actor on one simulated node asks an actor on another one, with everything that nodes
do on sockets between them: frames, links, deadlines, the balance of messages. The network draws
the time of each packet, and a trace notes it.

The peer simulates asyncio: the two ends of a stream send each other lines. In asyncio's own
order nothing is drawn; at random its strategy draws what runs next and how long packets take,
as its tests do.
"""

import time

from benchmarks.measure import Measure, Subject
from benchmarks.ours import Echo
from benchmarks.peers import detangle
from callboard import Actor, ActorRef, handler
from callboard.simulation import Cluster, History

ECHOES = 20_000


class RecordedAsker(Actor):
    """Asks so many times, one after the other, and records it where it has a history."""

    def __init__(self, partner: ActorRef, history: History | None) -> None:
        self.partner = partner
        self.history = history

    @handler
    async def on_count(self, count: int) -> float:
        """Ask; answer with how many were answered in a second."""
        partner, history = self.partner, self.history
        started = time.perf_counter()
        if history is None:
            for number in range(count):
                await partner.ask(number)
        else:
            for number in range(count):
                await history.ask(partner, number, operation="echo")
        return count / (time.perf_counter() - started)


def ours(share: float = 1.0, *, is_recorded: bool = True) -> float:
    """Return how many are answered in a second."""
    cluster = Cluster(7)
    here, there = cluster(2)
    history = cluster.history() if is_recorded else None
    asker = here.spawn(RecordedAsker, here.ref(str(there.spawn(Echo))), history)
    asker.ask(max(1, int(ECHOES * share) // 10)).result(1e6)
    rate: float = asker.ask(int(ECHOES * share)).result(1e6)
    cluster.close()
    return rate


MEASURE = Measure(
    title="echoes in a simulation, recorded",
    unit="round trips/s",
    subjects=(
        Subject("callboard, actors", ours),
        Subject(
            "callboard, actors, not recorded",
            lambda share: ours(share, is_recorded=False),
            against="callboard, actors",
        ),
        Subject(
            "detangle, at random",
            lambda share: detangle.echo(int(ECHOES * share), "random"),
            detangle.prepare,
            against="callboard, actors",
        ),
        Subject(
            "detangle, in asyncio's order",
            lambda share: detangle.echo(int(ECHOES * share), "fifo"),
            detangle.prepare,
            against="callboard, actors",
        ),
    ),
)
