"""A cluster of nodes in one process: simulated network, virtual time, one seed.

The nodes are `Node` objects like any other and run the code that runs on sockets; only what
they stand on is simulated. Nothing happens between two calls of the test: time moves, and
nodes run, while the test waits for a result or calls `advance`.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from actors.actor import Actor
from actors.current import waiting
from actors.errors import ResultTimeout
from actors.future import Future
from basp.node_id import NodeId, make_node_id
from callboard.simulation.clock import Clock
from callboard.simulation.network import Network
from callboard.simulation.runner import SimulatedRunner
from proxies.node import Node
from proxies.surroundings import Surroundings

PORT: Final = 4222
"""The port on which every simulated node listens."""

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
    """Makes simulated nodes and moves their time."""

    def __init__(self, seed: int = 0) -> None:
        """Make an empty cluster; the same seed gives the same run."""
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, self.random)
        self.nodes: list[Node] = []
        self._runners: list[SimulatedRunner] = []
        self._hosts: dict[Node, str] = {}
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
            self.run_until(lambda: all(len(node.nodes()) >= count - 1 for node in made), 60.0)
        return made

    def node(self, name: str = "", **options: Any) -> Node:
        """Make one node that listens and is not linked yet; options are those of `Node`."""
        index = len(self._runners)
        host = f"10.0.{index >> 8}.{index & 255}"

        def make_runner(of: str) -> SimulatedRunner:
            runner = SimulatedRunner(of, self.clock, random.Random(self.random.random()))
            self._runners.append(runner)
            return runner

        def make_node_id_of_index() -> NodeId:
            return make_node_id(b"simulation", self.seed, index, index + 1)

        surroundings = Surroundings(
            make_runner, _HostNetwork(self.network, host), make_node_id_of_index
        )
        node = Node(name, surroundings=surroundings, **options)
        node.listen(host, PORT, insecure=True)
        self.nodes.append(node)
        self._hosts[node] = host
        return node

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
        end = self.clock.now + limit
        while not condition():
            if self._work():
                continue
            due = self._next_due()
            if due is None or due > end:
                self.clock.now = max(self.clock.now, end)
                return condition()
            self.clock.now = max(self.clock.now, due)
        return True

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """Run until a future is done; what `.result(timeout)` does in a simulation."""
        limit = 3600.0 if timeout is None else timeout
        if not self.run_until(future.done, limit):
            msg = f"no answer from {future.asked} within {limit:g} virtual s; the ask goes on"
            raise ResultTimeout(msg)

    def _work(self) -> bool:
        worked = self.clock.run_due()
        for runner in self._runners:
            worked = runner.turn() or worked
        return worked

    def _next_due(self) -> float | None:
        times = [self.clock.next_event_at, *(runner.next_turn_at for runner in self._runners)]
        known = [time for time in times if time is not None]
        return min(known) if known else None

    # --- faults ---

    def partition(self, one: Node, other: Node, *, both: bool = True) -> None:
        """Let nothing through between two nodes, or only from `one` to `other`."""
        self.network.cut(self._hosts[one], self._hosts[other], both=both)

    def heal(self) -> None:
        """Let everything through again."""
        self.network.heal()

    def cut(self, one: Node, other: Node) -> None:
        """Break the connections between two nodes at once, as a router that restarts does."""
        self.network.reset(self._hosts[one], self._hosts[other])

    def delay(self, one: Node, other: Node, seconds: float) -> None:
        """Set how long bytes are under way between two nodes."""
        self.network.set_delay(self._hosts[one], self._hosts[other], seconds)

    def kill(self, node: Node) -> None:
        """End a node as SIGKILL does: its connections close, it says no more."""
        self._take_away(node)
        self.network.kill_host(self._hosts[node])

    def crash(self, node: Node) -> None:
        """End a node as a power failure does: the others only hear nothing any more."""
        self.network.silence_host(self._hosts[node])
        self._take_away(node)

    def _take_away(self, node: Node) -> None:
        runner = node.runtime.runner
        if isinstance(runner, SimulatedRunner):
            runner.closed = True
            self._runners.remove(runner)

    def close(self) -> None:
        """Close all nodes that still run."""
        for node in self.nodes:
            if not node.runtime.runner.closed:
                node.close()
        waiting.reset(self._token)


class _HostNetwork:
    """The network as one host sees it."""

    def __init__(self, network: Network, host: str) -> None:
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
