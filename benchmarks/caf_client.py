"""Our node as the client of a real CAF server, over CAF's own wire."""

from benchmarks.ours import Asker, Flooder, rate_of
from benchmarks.peers import caf
from benchmarks.processes import serving
from callboard import Actor, Node, handler
from callboard.caf import Atom


class CafAsker(Asker):
    """Asks the sink of CAF's program `count` times, one ask after the other."""

    @handler
    async def on_count(self, count: int) -> float:
        """Ask; answer with the seconds that it took."""
        partner, now = self.partner, self.node.runtime.now
        started, question = now(), (Atom("ask"), 7)
        for _ in range(count):
            await partner.ask(question)
        return float(now() - started)


class CafFlooder(Flooder):
    """Sends numbers to the sink of CAF's program, then asks for its count."""

    @handler
    async def on_count(self, count: int) -> float:
        """Send; answer with the seconds until the sink had all."""
        partner, send, now = self.partner, self.send, self.node.runtime.now
        started = now()
        for number in range(count):
            send(partner, number)
        seen = await partner.ask(Atom("count"))
        took = float(now() - started)
        assert seen == count, f"the sink saw {seen} of {count}"
        return took


def client(worker: type[Actor], count: int) -> float:
    """Return the rate of a worker of ours that sends to CAF's server."""
    program = str(caf.COMPILED.program)
    with serving([program, "--mode=server"]) as (_, port), Node("client") as node:
        ref = node.remote_actor(f"caf://127.0.0.1:{port}")
        return rate_of(node, worker, ref, count)
