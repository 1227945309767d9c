"""The effects of one hostile member on a node and on the nodes linked with it.

    python -m benchmarks.hostile delay [INPUT…] [--seconds 20]
    python -m benchmarks.hostile memory [INPUT…] [--seconds 60]

Three processes: the node that is measured, a bystander that asks it time after time, and a
member that sends the worst there is, one after the other, as fast as it is read. `delay` prints
for each input the 99th percentile of the bystander's asks beside it, less that of the same run
without it, and the links that were lost: at most 50 ms, none. `memory` prints the peak of the
node's memory above its idle one, and how many times the sum of the limits of a link it is: at
most three times.
"""

import argparse
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from statistics import quantiles
from typing import Any, Final

from benchmarks.idle import resident
from benchmarks.processes import ROOT
from callboard import Actor, Limits, Node, handler
from callboard.actors.errors import NodeUnreachable
from callboard.basp.control import pack_announce
from callboard.basp.frame import pack_frame
from callboard.basp.header import FIRST_ACTOR, POSITION_SHIFT, Operation
from callboard.basp.node_id import NodeId
from callboard.basp.routing.path_order import HELD_BYTES, pack_path_end
from callboard.basp.routing.update import join_update, write_name, write_rest, write_vector
from callboard.proxies.events import LinkDown
from callboard.proxies.link.stream import WAITING_LIMIT
from callboard.proxies.traffic.unverified import DOUBTED_LIMIT

INTERVAL: Final = 0.005
AHEAD: Final = 4 << 20
"""Bytes that the hostile member lets wait in its own process."""

LIMITS: Final = Limits()
SUM: Final = LIMITS.payload + 100 * LIMITS.items + HELD_BYTES + DOUBTED_LIMIT + WAITING_LIMIT
"""Bytes that a link may take: a message raw and read, what is held, doubted and not read."""

DELAY_MS: Final = 50.0
TIMES: Final = 3.0


class Open(Actor):
    """Accepts every message, and answers a text with the number of bytes that it requests."""

    @handler
    def text(self, message: str) -> bytes:
        """Answer with bytes."""
        return bytes(int(message) if message.isdigit() else 1)

    @handler
    def anything(self, message: object) -> None:
        """Forget it."""


# ------------------------------------------------------------------------------ the inputs

TOO_MANY: Final = "lists that are too many"

MESSAGES: Final[dict[str, Callable[[int], Any]]] = {
    "lists": lambda items: [[]] * items,
    "nested lists": lambda items: [_deep()] * (items // 51),
    "tuples": lambda items: [()] * (items // 2),
    "maps": lambda items: [{"a": 1}] * (items * 8 // 10),
    "one map": lambda items: dict.fromkeys(range(items // 3)),
    "one set": lambda items: set(range(items // 2)),
    "numbers": lambda items: [99] * (8 * items),
    "floats": lambda items: [1.5] * (8 * items),
    "texts": lambda items: ["abc"] * (4 * items),
    "one text": lambda items: "x" * (LIMITS.payload - 100),
    "large numbers": lambda items: [1 << 3000] * (items // 12),
    "decimals": lambda items: [Decimal("1.5")] * (items // 4),
    "times": lambda items: [datetime.now(UTC)] * (items // 3),
}
"""Messages that may just be sent, by how many containers that are."""


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(50):
        deep = [deep]
    return deep


def _payload(what: str, codec: Any) -> bytes:
    """Return a message as it travels."""
    if what != TOO_MANY:
        return codec.encode(MESSAGES[what](LIMITS.items - 100))  # type: ignore[no-any-return]
    count = LIMITS.payload - 10
    return b"\x81\x9a" + count.to_bytes(4, "big") + b"\x80" * count


def _gaps(node: Node, ref: Any) -> Iterator[bytes]:
    """Write dispatches that wait for others, for ever."""
    me, there, payload = node.node_id, ref.node_id, b"\x81\x59\x01\x2c" + bytes(300)
    operation = Operation.DISPATCH_MESSAGE
    for position in itertools.count(10, 2):
        data = (position & 0x3FFFFFFF) << POSITION_SHIFT
        yield pack_frame(operation, data, me, there, 0, ref.actor_id, payload)


def _doubted(node: Node, ref: Any) -> Iterator[bytes]:
    """Write dispatches in the names of nodes that there are not."""
    operation, payload = Operation.DISPATCH_MESSAGE, b"\x81\x01"
    for number in itertools.count():
        source = number.to_bytes(18, "big")
        yield pack_frame(operation, 0, source, ref.node_id, 0, ref.actor_id, payload)


def _ends(node: Node, ref: Any) -> Iterator[bytes]:
    """Write ends of epochs."""
    for number in itertools.count():
        yield pack_path_end(node.node_id, ref.node_id, number % 64, number, is_open=True)


def _announces(node: Node, ref: Any) -> Iterator[bytes]:
    """Announce proxies of actors that do not exist, up to the limit and beyond it."""
    for number in itertools.count(FIRST_ACTOR):
        yield pack_announce(node.node_id, ref.node_id, number % (1 << 31), number)


def _crowd(node: Node, ref: Any) -> Iterator[bytes]:
    """Announce nodes that do not exist, withdraw them, and announce others."""
    me, names = node.node_id, [write_name("x" * 200)] * 1000
    for first in itertools.count(1, 1000):
        ids = [NodeId(number.to_bytes(18, "big")) for number in range(first, first + 1000)]
        old = max(1, first - 60_000)
        gone = [NodeId(number.to_bytes(18, "big")) for number in range(old, old + 1000)]
        rest = write_rest(gone if old > 1 else [], [], [])
        vectors = [write_vector((NodeId(me), one), (1, 1)) for one in ids]
        payload = join_update(vectors, rest, names)
        yield pack_frame(Operation.ROUTING_UPDATE, 0, me, ref.node_id, 0, 0, payload)
        time.sleep(0.05)


def _cut_short(node: Node, ref: Any) -> Iterator[bytes]:
    """Write the beginning of a message that does not end."""
    whole = pack_frame(Operation.DISPATCH_MESSAGE, 0, node.node_id, ref.node_id, 0, 7, b"")
    yield whole[:4] + LIMITS.payload.to_bytes(4, "big") + whole[8:]
    for _ in range(LIMITS.payload // 1000 - 1):
        yield bytes(1000)
    while True:
        time.sleep(1.0)
        yield b""


FRAMES: Final[dict[str, Callable[[Node, Any], Iterator[bytes]]]] = {
    "gaps": _gaps,
    "names of others": _doubted,
    "ends of epochs": _ends,
    "announces": _announces,
    "nodes": _crowd,
    "a message that does not end": _cut_short,
}
"""Frames without end."""

UNREAD: Final = "answers that are not read"
INPUTS: Final = (TOO_MANY, *MESSAGES, *FRAMES, UNREAD)


# --------------------------------------------------------------------------- the processes


def be_host() -> None:
    """Be measured: for each line on stdin print the peak of the memory since the last one."""
    peak = 0

    def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, resident())
            time.sleep(0.01)

    with Node("host") as node:
        node.register("open", node.spawn(Open))
        node.listen("127.0.0.1", 0)
        print(node.address, flush=True)
        threading.Thread(target=watch, daemon=True).start()
        for _ in sys.stdin:
            print(peak, flush=True)
            peak = resident()


def be_bystander(address: str) -> None:
    """Ask for the number of seconds in each line; print the delays and the links lost since."""
    lost: list[object] = []
    with Node("bystander") as node:
        ref = node.remote_actor(f"{address}/open")
        ref.ask("1").result(30.0)
        with node.subscribed(
            lambda event: lost.append(event) if isinstance(event, LinkDown) else None
        ):
            print("linked", flush=True)
            for line in sys.stdin:
                delays = []
                end = time.perf_counter() + float(line)
                while (begin := time.perf_counter()) < end:
                    with suppress(NodeUnreachable):  # the link is lost, which is counted
                        ref.ask("1").result(60.0)
                    delays.append(time.perf_counter() - begin)
                    time.sleep(INTERVAL)
                print(json.dumps([delays, len(lost)]), flush=True)


def be_hostile(address: str, what: str) -> None:
    """Send one input again and again, until this process is killed."""
    with Node("hostile") as node:
        ref = node.remote_actor(f"{address}/open")
        ref.ask("1").result(30.0)
        print("linked", flush=True)
        broker: Any = node._broker  # noqa: SLF001  # it writes what no node would
        wire = broker.routes.wires[ref.node_id]
        if what == TOO_MANY or what in MESSAGES:
            payload = _payload(what, broker.outgoing.codec)
            while True:
                broker.outgoing.dispatch(ref.target, None, None, payload)
                _wait(wire)
        elif what in FRAMES:
            for number, frame in enumerate(FRAMES[what](node, ref)):
                wire.write(frame)
                if number % 100 == 0:
                    _wait(wire)
        else:  # answers that no peer reads
            wire.pause_reading(1e6)
            while True:
                ref.ask(str(100_000))
                _wait(wire)


def _wait(wire: Any) -> None:
    """Wait until the peer has read most of the written bytes."""
    while wire.waiting > AHEAD:
        time.sleep(0.001)


class Role:
    """One of the processes, to be told a line and to answer it."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.hostile", "be", *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        #: The first line that it printed.
        self.first = self.line()

    def line(self) -> str:
        """Return the next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        """Write a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def role(*arguments: str) -> Iterator[Role]:
    """Start a process that ends with the block."""
    made = Role(*arguments)
    try:
        yield made
    finally:
        made.end()


# ---------------------------------------------------------------------------- the measures


def asked(bystander: Role, seconds: float) -> tuple[float, float, int]:
    """Return the median and the 99th percentile of a period in ms, and the lost links."""
    bystander.tell(f"{seconds}")
    delays, lost = json.loads(bystander.line())
    cuts = quantiles(delays, n=100) if len(delays) > 1 else [delays[0]] * 99
    return cuts[49] * 1e3, cuts[98] * 1e3, lost


def measure(what: str, seconds: float) -> tuple[float, float, int, int]:
    """Return the p99 alone and beside an input in ms, links lost, bytes above the idle node."""
    with role("host") as host, role("bystander", host.first) as bystander:
        asked(bystander, 1.0)
        _, alone, _ = asked(bystander, seconds / 2)
        host.tell("")
        host.line()
        host.tell("")
        idle = int(host.line())
        with role("hostile", host.first, what):
            _, beside, lost = asked(bystander, seconds)
        host.tell("")
        return alone, beside, lost, int(host.line()) - idle


def main() -> int:
    """Measure, and say what missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("what", choices=("delay", "memory", "be"))
    parser.add_argument("inputs", nargs="*", help=f"of: {', '.join(INPUTS)}")
    parser.add_argument("--seconds", type=float, help="for each input; default: 20, memory 60")
    options = parser.parse_args()
    if options.what == "be":
        name, *arguments = options.inputs
        {"host": be_host, "bystander": be_bystander, "hostile": be_hostile}[name](*arguments)
        return 0
    is_delay, missed = options.what == "delay", 0
    seconds = options.seconds or (20.0 if is_delay else 60.0)
    print(f"the limits of a link together: {SUM / 2**20:.0f} MiB; {seconds:g} s for each input")
    for what in options.inputs or INPUTS:
        alone, beside, lost, grown = measure(what, seconds)
        above, times = beside - alone, grown / SUM
        is_missed = lost > 0 or (above > DELAY_MS if is_delay else times > TIMES)
        missed += is_missed
        print(
            f"{what:28} p99 {alone:5.1f} ms alone, {above:+7.1f} ms beside it; {lost} links "
            f"lost; {grown / 2**20:7.1f} MiB above idle, {times:.2f} x the limits"
            f"{'  MISSED' if is_missed else ''}",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
