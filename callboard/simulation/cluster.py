"""A cluster of nodes in one process: simulated network, virtual time, one seed.

The nodes are `Node` objects like any other and run the code that runs on sockets; only what
they stand on is simulated. Nothing happens between two calls of the test: time moves, and
nodes run, while the test waits for a result or calls `advance`.

Nodes that have something to do take turns, and time moves when none has. A node sleeps until
something wakes it: bytes, a message, its own next timer. So the cost of a quiet node is its
timers, however many nodes there are.
"""

import random
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from callboard.actors.actor import Actor
from callboard.actors.errors import ResultTimeout
from callboard.actors.future import Future, waiting
from callboard.basp.node_id import make_node_id
from callboard.node import Node
from callboard.proxies.surroundings import Surroundings
from callboard.simulation.clock import Clock
from callboard.simulation.disk import SimulatedDisk
from callboard.simulation.network import SimulatedNetwork, Way
from callboard.simulation.runner import SimulatedRunner, runner_of
from callboard.simulation.trace import EventTrace, describe

#: The port on which every simulated node listens.
PORT: Final = 4222

_TOPOLOGIES: Final[dict[str, Callable[[int], list[tuple[int, int]]]]] = {
    "none": lambda count: [],
    "line": lambda count: [(i + 1, i) for i in range(count - 1)],
    "ring": lambda count: (
        [((i + 1) % count, i) for i in range(count)] if count > 2 else [(1, 0)]
    ),
    "star": lambda count: [(i, 0) for i in range(1, count)],
    "mesh": lambda count: [(j, i) for i in range(count) for j in range(i + 1, count)],
}


class Cluster:
    """Makes simulated nodes, moves their time, and does to them what the test wants."""

    def __init__(self, seed: int = 0) -> None:
        """Make an empty cluster; the same seed gives the same run."""
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        #: What happened so far: two runs of a seed have the same.
        self.trace = EventTrace()
        self.network = SimulatedNetwork(self.clock, self.random, self.trace)
        self.nodes: list[Node] = []
        #: Nodes that something woke; each is here once until it had its turn.
        self._awake: list[SimulatedRunner] = []
        self._hosts: dict[Node, str] = {}
        self._options: dict[Node, dict[str, Any]] = {}
        self._disks: dict[str, SimulatedDisk] = {}
        self._watching = ExitStack()
        self._token = waiting.set(self.wait)

    def __call__(
        self,
        count: int = 2,
        topology: str = "line",
        *,
        spawnable: Mapping[str, type[Actor]] | None = None,
        names: str = "abcdefghijklmnopqrstuvwxyz",
    ) -> list[Node]:
        """Make `count` nodes that are linked and know each other.

        Args:
            count: how many.
            topology: `line`, `ring`, `star`, `mesh`, or `none` (no links).
            spawnable: the classes that each of them offers.
            names: their names, one letter each.

        Raises:
            ValueError: the topology is not known.
        """
        if topology not in _TOPOLOGIES:
            msg = f"topology {topology!r} is not known; choose one of {', '.join(_TOPOLOGIES)}"
            raise ValueError(msg)
        made = [
            self.node(names[index] if index < len(names) else f"n{index}", spawnable=spawnable)
            for index in range(count)
        ]
        for dialer, listener in _TOPOLOGIES[topology](count):
            made[dialer].connect(made[listener].address)
        if topology != "none" and count > 1:
            self.run_until(partial(_all_know, made.copy(), count - 1), 60.0)
        return made

    def node(self, name: str = "", **options: Any) -> Node:
        """Make one node that listens and is not linked yet; options are those of `Node`."""
        index = len(self.nodes)
        return self._make(name, f"10.0.{index >> 8}.{index & 255}", options)

    def restart(self, node: Node) -> Node:
        """Start a killed or crashed node again: same host, port and options, another id.

        Nothing of its earlier life is left; links, actors and names are up to the test.
        """
        host = self._hosts[node]
        self._note("restart", node)
        self.network.start_host(host)
        return self._make(node.name, host, self._options[node])

    def _make(self, name: str, host: str, options: dict[str, Any]) -> Node:
        """Make a node with its runner, host and disk."""
        index = len(self.nodes)

        def make_runner(of: str) -> SimulatedRunner:
            rng = random.Random(self.random.random())
            return SimulatedRunner(of, index, self.clock, rng, self._awake.append)

        make_id = partial(make_node_id, b"simulation", self.seed, index, index + 1)
        surroundings = Surroundings(make_runner, _HostNetwork(self.network, host), make_id)
        node = Node(name, surroundings=surroundings, **options)
        self._watching.enter_context(node.subscribed(partial(self._happened, node.name)))
        node.listen(host, PORT, insecure=True)
        self.nodes.append(node)
        self._hosts[node] = host
        self._options[node] = options
        return node

    def _happened(self, where: str, event: object) -> None:
        """Note an event of a node in the trace."""
        self.trace.note(self.now, where, describe(event))

    # --- time ---

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.clock.now

    def advance(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due in it."""
        self.run_until(lambda: False, seconds)

    def run_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Let time pass until `condition()` or for `limit` seconds; returns the condition."""
        clock = self.clock
        end = clock.now + limit
        while not condition():
            if clock.run_due() or self._awake:
                self._take_turns()
                continue
            due = clock.next_event_at
            if due is None or due > end:
                clock.now = max(clock.now, end)
                return condition()
            clock.now = max(clock.now, due)
        return True

    def _take_turns(self) -> None:
        """Let every node that is awake take a turn, the oldest first."""
        awake = sorted(self._awake, key=attrgetter("number"))
        self._awake.clear()
        for runner in awake:
            runner.turn()

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """Run until a future is done; what `.result(timeout)` does in a simulation."""
        limit = 3600.0 if timeout is None else timeout
        if not self.run_until(lambda: future.done_, limit):
            msg = f"no answer from {future.asked} within {limit:g} virtual s; the ask goes on"
            raise ResultTimeout(msg)

    # --- faults of the network ---

    def partition(self, one: Node, other: Node, *, both: bool = True) -> None:
        """Let nothing through between two nodes, or only nothing from `one` to `other`."""
        self._note("partition" if both else "one-way partition", one, other)
        self.network.cut(self._hosts[one], self._hosts[other], both=both)

    def heal(self) -> None:
        """Let everything through again; slow and lossy ways stay what they are."""
        self._note("heal")
        self.network.heal()

    def cut(self, one: Node, other: Node) -> None:
        """Break the connections between two nodes at once, as a router that restarts does."""
        self._note("cut", one, other)
        self.network.reset(self._hosts[one], self._hosts[other])

    def delay(self, one: Node, other: Node, seconds: float) -> None:
        """Set how long bytes are under way between two nodes."""
        self._note("delay", one, other, seconds)
        for way in self._ways(one, other):
            way.delay = seconds

    def bandwidth(self, one: Node, other: Node, bytes_per_second: float) -> None:
        """Set how many bytes pass between two nodes in a second, each way; 0 is no limit."""
        self._note("bandwidth", one, other, bytes_per_second)
        for way in self._ways(one, other):
            way.bytes_per_second = bytes_per_second

    def loss(self, one: Node, other: Node, part: float) -> None:
        """Lose a part (0 to 1) of the packets between two nodes.

        Their streams lose nothing: bytes come late by 0.2 s or more, those behind them wait,
        and a connection breaks whose packet is lost six times in a row.

        Raises:
            ValueError: the part is not between 0 and 1.
        """
        if not 0.0 <= part <= 1.0:
            msg = f"the part of packets that are lost is between 0 and 1, not {part!r}"
            raise ValueError(msg)
        self._note("loss", one, other, part)
        for way in self._ways(one, other):
            way.loss = part

    def _ways(self, one: Node, other: Node) -> list[Way]:
        """Return the ways between two hosts that a fault concerns."""
        here, there = self._hosts[one], self._hosts[other]
        return [self.network.way(here, there), self.network.way(there, here)]

    # --- faults of nodes ---

    def disk(self, node: Node) -> SimulatedDisk:
        """Return the disk of a node's machine; a node that is started again finds it there."""
        host = self._hosts[node]
        if host not in self._disks:
            self._disks[host] = SimulatedDisk(zlib.crc32(host.encode(), self.seed & 0xFFFFFFFF))
        return self._disks[host]

    def pause(self, node: Node) -> None:
        """Freeze a node as SIGSTOP does: its connections stay, it neither reads nor writes."""
        self._note("pause", node)
        runner_of(node).is_paused = True

    def resume(self, node: Node) -> None:
        """Let a frozen node go on."""
        self._note("resume", node)
        runner_of(node).resume()

    def clock_rate(self, node: Node, rate: float) -> None:
        """Let `rate` seconds pass on a node while one passes elsewhere; 1.05 is 5 % fast.

        Raises:
            ValueError: the rate is not a positive number.
        """
        self._note("clock rate", node, rate)
        runner_of(node).set_rate(rate)

    def kill(self, node: Node) -> None:
        """End a node as SIGKILL does: its connections close, it says no more."""
        self._note("kill", node)
        runner_of(node).closed = True
        self.network.kill_host(self._hosts[node])

    def crash(self, node: Node) -> None:
        """End a node as a power failure does: the others only hear nothing any more.

        Its disk keeps what was synced and any part of the rest.
        """
        self._note("crash", node)
        self.network.silence_host(self._hosts[node])
        self.disk(node).crash()
        runner_of(node).closed = True

    def _note(self, what: str, *about: object) -> None:
        """Note a fault in the trace."""
        told = [part.name if isinstance(part, Node) else part for part in about]
        self.trace.note(self.now, "test", what, *told)

    # --- the end ---

    def close(self) -> None:
        """Close all nodes that still run; the trace ends before."""
        self._watching.close()
        for node in self.nodes:
            if not runner_of(node).closed:  # nor killed
                node.close()
        waiting.reset(self._token)


def _all_know(ignorant: list[Node], others: int) -> bool:
    """Say whether all nodes know so many others; takes those that do from the list."""
    while ignorant and len(ignorant[-1].nodes()) >= others:
        ignorant.pop()
    return not ignorant


class _HostNetwork(NamedTuple):
    """The network as one host sees it."""

    network: SimulatedNetwork
    host: str

    def bind(self, host: str, port: int) -> Any:
        """Return a bound socket."""
        return self.network.bind(host, port)

    def resolve(self, host: str, port: int, *, numeric: bool) -> list[Any] | None:
        """Return the address of a host: it is its name."""
        return [(host, port)]

    def connect(self, found: Any) -> tuple[Any, int]:
        """Begin to connect; returns the socket and an error number, 0 when it is under way."""
        return self.network.connect(self.host, found), 0
