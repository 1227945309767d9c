"""Round trips of an echo in a simulation, one after the other, recorded in a history.

By streams: one program of plain asyncio, whose two ends send each other lines, runs in ours and
in the peer's simulation. In asyncio's own order the peer draws nothing; at random its strategy
draws what runs next and how long packets take, as its tests do. Ours draws how long packets
take and how much of them a read returns, and a trace notes each.

By actors: an actor on one simulated node asks an actor on another one, with everything that
nodes do on sockets between them: frames, links, deadlines, the balance of messages.
"""

import asyncio
import time
from collections.abc import Awaitable

from benchmarks.measure import Measure, Subject
from benchmarks.ours import Echo
from benchmarks.peers import detangle, stream_echo
from callboard import Actor, ActorRef, handler
from callboard.simulation import Cluster, History

ECHOES = 20_000

REAL = {"now": time.perf_counter}
"""The real time. A name of its own in a module would be replaced in clusters."""


class RecordedAsker(Actor):
    """Asks so many times, one after the other, and records it where it has a history."""

    def __init__(self, partner: ActorRef, history: History | None) -> None:
        self.partner = partner
        self.history = history

    @handler
    async def on_count(self, count: int) -> float:
        """Ask; answer with how many were answered in a second."""
        partner, history = self.partner, self.history
        started = REAL["now"]()
        if history is None:
            for number in range(count):
                await partner.ask(number)
        else:
            for number in range(count):
                await history.ask(partner, number, operation="echo")
        return count / (REAL["now"]() - started)


def actors(share: float = 1.0, *, is_recorded: bool = True) -> float:
    """Return how many asks are answered in a second."""
    cluster = Cluster(7)
    here, there = cluster(2)
    history = cluster.history() if is_recorded else None
    asker = here.spawn(RecordedAsker, here.ref(str(there.spawn(Echo))), history)
    asker.ask(max(1, int(ECHOES * share) // 10)).result(1e6)
    rate: float = asker.ask(int(ECHOES * share)).result(1e6)
    cluster.close()
    return rate


async def serve() -> None:
    """Serve for ever."""
    async with await stream_echo.listen() as server:
        await server.serve_forever()


def streams(share: float = 1.0, *, is_recorded: bool = True) -> float:
    """Return how many lines come back in a second."""
    cluster = Cluster(7)
    history = cluster.history()
    cluster.host("server", serve)
    client = cluster.host("client", asyncio.sleep, 1e9)

    async def record(number: int, answer: Awaitable[int]) -> int:
        with history.operation("echo", number, client="client") as operation:
            operation.answer = await answer
        return int(operation.answer)

    async def leave_out(number: int, answer: Awaitable[int]) -> int:
        return await answer

    def measured(count: int) -> float:
        of = record if is_recorded else leave_out
        return client.run(stream_echo.echo, count, of, REAL["now"]).result(1e6)

    measured(max(1, int(ECHOES * share) // 10))
    rate = measured(int(ECHOES * share))
    cluster.advance(1.0)  # the server reads to the end
    cluster.close()
    return rate


MEASURE = Measure(
    title="echoes in a simulation, recorded",
    unit="round trips/s",
    subjects=(
        Subject("callboard, streams", streams),
        Subject("callboard, actors", actors),
        Subject(
            "callboard, streams, not recorded",
            lambda share: streams(share, is_recorded=False),
            against="callboard, streams",
        ),
        Subject(
            "callboard, actors, not recorded",
            lambda share: actors(share, is_recorded=False),
            against="callboard, actors",
        ),
        Subject(
            "detangle, at random",
            lambda share: detangle.echo(int(ECHOES * share), "random"),
            detangle.prepare,
            against="callboard, streams",
        ),
        Subject(
            "detangle, in asyncio's order",
            lambda share: detangle.echo(int(ECHOES * share), "fifo"),
            detangle.prepare,
            against="callboard, streams",
        ),
    ),
)
