"""Sealed links beside plain ones, in turns of one run: `python -m benchmarks.sealed_links`.

Two processes on this machine, TCP over loopback. The other process has a node with two ports,
one of which demands a secret; here are two nodes, one linked with each port. The portions of
work alternate between them, so that both meet the same machine. What is printed is the median
of the ratios, sealed by plain, of all pairs of portions:

- asks: one actor asks another, one ask after the other.
- flood: small one-way messages, until the receiver has counted them.
- payloads: messages of almost 16 MiB, one after the other.
- beside a computing actor: asks to a node where another actor computes in plain Python.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

from benchmarks.ours import Asker, Echo, Flooder, Sink
from benchmarks.processes import serving
from callboard import Actor, ActorRef, Node, handler

SECRET = "a secret of this benchmark"
LARGE = bytes(16 * 1024 * 1024 - 1024)
LIMIT = 60.0


class Scales(Actor):
    """Answers with the size of each message."""

    @handler
    def weigh(self, message: bytes) -> int:
        """Return the number of bytes."""
        return len(message)


class Computer(Actor):
    """Computes in plain Python for a number of seconds."""

    @handler
    def compute(self, seconds: float) -> int:
        """Hold the interpreter."""
        end, total = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            total += sum(range(1000))
        return total


class Side:
    """A node here, and the actors of the other process as it sees them."""

    def __init__(self, node: Node, address: str) -> None:
        """Link the node with a port of the other process."""
        self.actors = {
            name: node.remote_actor(f"{address}/{name}")
            for name in ("echo", "sink", "scales", "computer")
        }
        self.asker = node.spawn(Asker, self.actors["echo"])
        self.flooder = node.spawn(Flooder, self.actors["sink"])

    def asks(self) -> float:
        """Return asks a second."""
        return 1_500 / self._seconds(self.asker, 1_500)

    def flood(self) -> float:
        """Return messages a second."""
        return 30_000 / self._seconds(self.flooder, 30_000)

    def payloads(self) -> float:
        """Return payloads of 16 MiB a second."""
        begun = time.perf_counter()
        for _ in range(3):
            if self.actors["scales"].ask(LARGE).result(LIMIT) != len(LARGE):
                message = "a payload came with another size"
                raise ValueError(message)
        return 3 / (time.perf_counter() - begun)

    def beside(self) -> float:
        """Return asks a second beside an actor that computes."""
        done = self.actors["computer"].ask(1.0)
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < 0.8:
            self._seconds(self.asker, 10)
            count += 10
        rate = count / (time.perf_counter() - begun)
        done.result(LIMIT)
        return rate

    def _seconds(self, worker: ActorRef, count: int) -> float:
        return float(worker.ask(count).result(LIMIT))


KINDS: dict[str, Callable[[Side], float]] = {
    "asks": Side.asks,
    "flood": Side.flood,
    "payloads": Side.payloads,
    "beside a computing actor": Side.beside,
}


def compare(turns: int, kinds: Sequence[str]) -> None:
    """Measure in turns, and print the ratios."""
    with (
        serving([sys.executable, "-m", "benchmarks.sealed_links", "--serve"]) as (_, line),
        Node("plain") as plain,
        Node("sealed", secret=SECRET) as sealed,
    ):
        sides = [Side(node, at) for node, at in zip((plain, sealed), line.split(), strict=True)]
        if [link.guard for link in sealed.links()] != ["seal"]:
            message = "the link is not sealed"
            raise ValueError(message)
        for kind in kinds:
            measure = KINDS[kind]
            for side in sides:
                measure(side)
            pairs = []
            for turn in range(turns):
                order = sides if turn % 2 else sides[::-1]
                rates = {side: measure(side) for side in order}
                pairs.append([rates[side] for side in sides])
            ratios = [after / before for before, after in pairs]
            low, _, high = quantiles(ratios, n=4)
            rates_text = " and ".join(
                f"{median(column):,.1f}" for column in zip(*pairs, strict=True)
            )
            print(
                f"{kind}: {median(ratios):.3f} (quartiles {low:.3f} to {high:.3f}); "
                f"plain and sealed {rates_text} a second",
                flush=True,
            )


def work(side: str, kinds: Sequence[str], portions: int) -> None:
    """Do the work of one side alone, for `perf stat`."""
    with (
        serving([sys.executable, "-m", "benchmarks.sealed_links", "--serve"]) as (_, line),
        Node(side, secret=SECRET if side == "sealed" else None) as node,
    ):
        one = Side(node, line.split()[side == "sealed"])
        for kind in kinds:
            for _ in range(portions):
                KINDS[kind](one)


def serve() -> None:
    """Run the other process until stdin closes."""
    with Node("other") as node:
        ports = [node.listen("127.0.0.1", 0), node.listen("127.0.0.1", 0, secret=SECRET)]
        for kind in (Echo, Sink, Scales, Computer):
            node.register(kind.__name__.lower(), node.spawn(kind))
        print(*(f"basp://127.0.0.1:{port}" for port in ports), flush=True)
        sys.stdin.read()


def main() -> None:
    """Measure, or be the other process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sealed_links")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=("plain", "sealed"), help="work without figures")
    options = parser.parse_args()
    if options.serve:
        serve()
    elif options.only:
        work(options.only, options.kinds or list(KINDS), options.turns)
    else:
        compare(options.turns, options.kinds or list(KINDS))


if __name__ == "__main__":
    main()
