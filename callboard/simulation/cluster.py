"""A cluster of nodes in one process: simulated network, virtual time, one seed.

The nodes are `Node` objects like any other and run the code that runs on sockets; only what
they stand on is simulated. Nothing happens between two calls of the test: time moves, and
nodes run, while the test waits for a result or calls `advance`.
"""

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from callboard.actors.actor import Actor
from callboard.actors.errors import ResultTimeout
from callboard.actors.future import Future, waiting
from callboard.basp.node_id import NodeId, make_node_id
from callboard.node import Node
from callboard.proxies.surroundings import Surroundings
from callboard.simulation.clock import Clock
from callboard.simulation.disk import SimulatedDisk
from callboard.simulation.faults import Faults
from callboard.simulation.network import SimulatedNetwork
from callboard.simulation.runner import SimulatedRunner, runner_of
from callboard.simulation.schedule import Schedule
from callboard.simulation.trace import EventTrace

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


class Cluster(Faults):
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
        self._schedule = Schedule(self.clock)
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
            return SimulatedRunner(of, index, self.clock, rng, self._schedule.wake)

        def make_node_id_of_index() -> NodeId:
            return make_node_id(b"simulation", self.seed, index, index + 1)

        surroundings = Surroundings(
            make_runner, _HostNetwork(self.network, host), make_node_id_of_index
        )
        node = Node(name, surroundings=surroundings, **options)
        self._watching.enter_context(node.subscribed(partial(self._happened, node.name)))
        node.listen(host, PORT, insecure=True)
        self.nodes.append(node)
        self._hosts[node] = host
        self._options[node] = options
        return node

    def _happened(self, where: str, event: object) -> None:
        """Note an event of a node in the trace."""
        self.trace.note_event(self.clock.now, where, event)

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
        return self._schedule.run_until(condition, limit)

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """Run until a future is done; what `.result(timeout)` does in a simulation."""
        limit = 3600.0 if timeout is None else timeout
        if not self.run_until(lambda: future.done_, limit):
            msg = f"no answer from {future.asked} within {limit:g} virtual s; the ask goes on"
            raise ResultTimeout(msg)

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


class _HostNetwork:
    """The network as one host sees it."""

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self._network = network
        self._host = host

    def bind(self, host: str, port: int) -> Any:
        """Return a bound socket."""
        return self._network.bind(host, port)

    def resolve(self, host: str, port: int, *, numeric: bool) -> list[Any] | None:
        """Return the address of a host: it is its name."""
        return [(host, port)]

    def connect(self, found: Any) -> tuple[Any, int]:
        """Begin to connect; returns the socket and an error number, 0 when it is under way."""
        return self._network.connect(self._host, found), 0
