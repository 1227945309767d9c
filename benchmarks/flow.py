"""Flow through a broker: DATs of 64 bytes from a client to a handler in another process.

The broker and the handler live on one node of the other process, the client is an actor of
this one. TCP over loopback; every DAT passes through the broker's table. The time ends with the
echo of EOT: then the handler has taken every DAT.

    python -m benchmarks.flow

runs the broker until stdin closes and prints its address.
"""

import sys
import time

from benchmarks.measure import Measure, Subject
from benchmarks.processes import RunFailedError, serving
from callboard import Actor, Node, handler
from callboard.flow import Bot, Flow, FlowBroker, FlowHandler
from callboard.flow.factories import Spawn

LIMIT = 50.0
"""Seconds for one measure."""

CONTENT = bytes(64)


class Sink(FlowHandler):
    """Takes everything and says how much it was."""

    flow_timeout = LIMIT

    async def serve(self, flow: Flow, bot: Bot) -> None:
        """Count."""
        count = 0
        async for _ in flow:
            count += 1
        await flow.aeot(count=count)


class Giver(Actor):
    """Sends a number of DATs in one flow."""

    @handler
    async def on_plan(self, plan: tuple) -> float:
        """Send, and return the seconds that it took."""
        broker, credit, count = plan
        flow = await Flow.aconnect(broker, credit=credit, timeout=LIMIT)
        async with flow:
            started = time.perf_counter()
            for _ in range(count):
                await flow.aput(CONTENT)
            took = (await flow.aeot())["count"]
            if took != count:
                message = f"the handler took {took} of {count}"
                raise RunFailedError(message)
            return time.perf_counter() - started


def ours(credit: int, count: int) -> float:
    """Return DATs that the handler took for each second."""
    with serving([sys.executable, "-m", "benchmarks.flow"]) as (_, address), Node() as node:
        broker = node.remote_actor(address)
        giver = node.spawn(Giver)
        giver.ask((broker, credit, max(1, count // 10))).result(LIMIT)
        return count / float(giver.ask((broker, credit, count)).result(LIMIT))


MEASURE = Measure(
    title="flow through a broker",
    unit="DAT/s",
    subjects=(
        Subject("callboard, credit 1", lambda share: ours(1, int(30_000 * share))),
        Subject("callboard, credit 10", lambda share: ours(10, int(100_000 * share))),
        Subject("callboard, credit 100", lambda share: ours(100, int(200_000 * share))),
    ),
)


def main() -> None:
    """Run a broker until stdin closes."""
    with (
        Node() as node,
        FlowBroker.bind("basp://127.0.0.1:0", factory=Spawn(node, Sink), node=node) as broker,
    ):
        print(broker.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
