"""A cluster of nodes in one process: simulated network, virtual time, one seed.

The nodes are ordinary `Node` objects that run their production code; network, disks and clocks
are simulated. Nodes run and time advances only while the test waits for a result or calls
`advance`, never between two calls of the test.

Nodes with work take turns; when no node has work, time jumps to the next event. A node sleeps
until bytes, a message or its next timer wakes it, so an idle node costs only its timers.
"""

import gc
import math
import random
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn

from callboard.kernel.actors import Actor
from callboard.kernel.environment import NodeEnvironment
from callboard.kernel.errors import NodeClosed, ResultTimeout
from callboard.kernel.reply import Future, waiting
from callboard.kernel.topology import LAST_RETRY, make_node_id
from callboard.node import Node
from callboard.simulation.clock import Clock
from callboard.simulation.databases.model_database import ModelDatabase
from callboard.simulation.disk import SimulatedDisk
from callboard.simulation.history import History
from callboard.simulation.network import Direction, SimulatedNetwork
from callboard.simulation.not_simulated import NotSimulated
from callboard.simulation.patches import patches
from callboard.simulation.runner import STANDSTILL, SimulatedRunner, TimeStandsStill, runner_of
from callboard.simulation.trace import EventTrace, describe

#: The port on which every simulated node listens.
PORT: Final = 4222

#: Turns of nodes between two garbage collections. A node notifies others when its last ref to
#: an actor is collected, so the times of collections must depend on the seed alone.
COLLECT_EVERY: Final = 5_000

#: Turns of all clusters after which a full garbage collection runs when a cluster closes.
_COLLECT_ALL_EVERY: Final = 50_000

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
    """Creates simulated nodes, advances their time, and injects faults for the test."""

    #: The class of its nodes' runners.
    runner_class: type[SimulatedRunner] = SimulatedRunner

    def __init__(self, seed: int = 0) -> None:
        """Create an empty cluster; the same seed gives the same run."""
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        #: The events so far; two runs of one seed have equal traces.
        self.trace = EventTrace()
        self.network = SimulatedNetwork(self.clock, self.random, self.trace)
        self.nodes: list[Node] = []
        #: Called with each restarted node to recreate its links, actors and names.
        #: A `cluster_test` restarts killed and crashed nodes only if this is set.
        self.restarted: Callable[[Node], object] | None = None
        #: Called with each fault of a swarm or a list, its nodes, and whether it begins (True)
        #: or ends. For a killed node, the end is called with the restarted node.
        self.on_fault: Callable[[Any, list[Node], bool], object] | None = None
        #: Whether `__call__` is linking nodes; no fault begins until it has finished.
        self.is_linking = False
        #: The node for which `restarted` is running.
        self._starting: Node | None = None
        #: Whether the test has advanced time.
        self._has_begun = False
        #: Called by `calm` to end the faults of a `cluster_test`.
        self.calmed: Callable[[], object] | None = None
        #: Numbers of the steps that a shrunk test still takes; None for all.
        self.kept_steps: Collection[int] | None = None
        #: Number of steps that `steps` has planned so far.
        self.steps_had = 0
        self._watch: Callable[[str, Node | None], object] | None = None
        self._turning: SimulatedRunner | None = None
        #: Nodes to run, each at most once, until their turn.
        self._awake: list[SimulatedRunner] = []
        self._hosts: dict[Node, str] = {}
        self._options: dict[Node, dict[str, Any]] = {}
        self._disks: dict[str, SimulatedDisk] = {}
        self._databases: dict[str, ModelDatabase] = {}
        #: Disks whose node was ended by a fault during its turn; further writes stop that turn.
        self._stopped: list[SimulatedDisk] = []
        self._turns = 0
        self._garbage = _Garbage()
        self._watching = ExitStack()
        self._watching.enter_context(patches.installed())
        self._token = waiting.set(self.wait)

    def __call__(
        self,
        count: int = 2,
        topology: str | Iterable[tuple[int, int]] = "line",
        *,
        spawnable: Mapping[str, type[Actor]] | None = None,
        names: str = "abcdefghijklmnopqrstuvwxyz",
    ) -> list[Node]:
        """Create `count` linked nodes and wait until they know each other.

        Args:
            count: number of nodes.
            topology: `line`, `ring`, `star`, `mesh`, or `none` (no links); or a list of links,
                each as the indices of the dialing and the listening node.
            spawnable: the classes that each node offers.
            names: one letter for the name of each node.

        Raises:
            ValueError: the topology is unknown, or a link does not have two valid indices.
        """
        links = _links(count, topology)
        nodes = [
            self.node(names[index] if index < len(names) else f"n{index}", spawnable=spawnable)
            for index in range(count)
        ]
        self.is_linking = True
        for dialer, listener in links:
            nodes[dialer].connect(nodes[listener].address)
        if links:
            peer_counts = [len(part) - 1 for part in _parts(count, links)]
            waiting = list(zip(nodes, peer_counts, strict=True))
            self.run_until(partial(_all_know, waiting), 60.0)
        self.is_linking = False
        return nodes

    def link(self, dialer: Node, listener: Node) -> None:
        """Make a node dial another one and keep the link up, without waiting for it.

        The node redials until the link is up, and after each loss; a restarted node does not
        continue. To wait for a link, or for its failure, call `connect` of the node.
        """
        address = self._hosts[listener], PORT
        dial = partial(
            dialer.overlay.dial, address, retry=LAST_RETRY, on_failure=lambda _: None
        )
        dialer.runtime.post(dial)

    def node(self, name: str = "", **options: Any) -> Node:
        """Create one listening node without links; options are those of `Node`."""
        index = len(self.nodes)
        return self._make(name, f"10.0.{index >> 8}.{index & 255}", options)

    def host(self, name: str, *_: object, **__: object) -> NoReturn:
        """Refuse: a cluster no longer runs plain asyncio programs.

        Raises:
            NotSimulated: always.
        """
        msg = (
            f"cluster.host({name!r}, …): release 0.2 simulates nodes only; run the program in "
            "an actor, or replace it by an object in the test"
        )
        raise NotSimulated(msg)

    def restart(self, node: Node) -> Node:
        """Restart a killed or crashed node with the same host, port and options.

        The new `Node` has a new id, and no links, actors or names; the test must recreate them.
        """
        host = self._hosts[node]
        self._record_fault("restart", node)
        self.network.start_host(host)
        clock = runner_of(self._node_of(host)).node_clock
        new = self._make(node.name, host, self._options[node])
        runner_of(new).adopt_clock(clock)
        if self.restarted is not None:
            starting, self._starting = self._starting, new
            try:
                self.restarted(new)
            finally:
                self._starting = starting
        self.moment("start", new)
        return new

    def machines(self) -> list[Node]:
        """Return the latest node of each machine, in the order of creation."""
        return list({self._hosts[node]: node for node in self.nodes}.values())

    def _node_of(self, host: str) -> Node:
        """Return the latest node of a host."""
        return next(node for node in reversed(self.nodes) if self._hosts[node] == host)

    def is_running(self, node: Node) -> bool:
        """Return whether a machine is neither killed nor closed; a frozen one is running."""
        return not runner_of(node).closed

    def is_paused(self, node: Node) -> bool:
        """Return whether a node is frozen."""
        return runner_of(node).is_paused

    def _make(self, name: str, host: str, options: dict[str, Any]) -> Node:
        """Create a node with its runner, host and disk."""
        index = len(self.nodes)

        def make_runner(of: str) -> SimulatedRunner:
            rng = random.Random(self.random.random())
            runner = self.runner_class(of, index, self.clock, rng, self._awake.append)
            runner.machine = machine
            runner.databases = self.database
            return runner

        machine = SimulatedMachine(self, host)
        make_id = partial(make_node_id, b"simulation", self.seed, index, index + 1)
        surroundings = NodeEnvironment(make_runner, machine, make_id)
        node = Node(name, surroundings=surroundings, **options)
        self._watching.enter_context(node.subscribed(partial(self._happened, node.name)))
        node.listen(host, PORT, insecure=True)
        self.nodes.append(node)
        self._hosts[node] = host
        if name:
            self.network.names.setdefault(name, host)
        self._options[node] = options
        return node

    def _happened(self, node_name: str, event: object) -> None:
        """Record an event of a node in the trace."""
        self.trace.note(self.now, node_name, describe(event))

    # --- time ---

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.clock.now

    def advance(self, seconds: float) -> None:
        """Advance time by `seconds` and run everything that becomes due."""
        self._has_begun = True
        self.run_until(lambda: False, seconds)

    def run_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Advance time until `condition()` holds, for at most `limit` seconds; return it."""
        clock = self.clock
        end = clock.now + limit
        self.moment("test")
        latest, rounds = -1.0, 0
        while not condition():
            if clock.now != latest:
                latest, rounds = clock.now, 0
            else:
                rounds += 1
                if rounds > STANDSTILL:
                    msg = (
                        f"the virtual time does not pass: {STANDSTILL:,} rounds in a row were "
                        f"at {latest:.6f} s"
                    )
                    raise TimeStandsStill(msg)
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
        """Run one turn of every node that is awake, in the order of creation."""
        if len(self._awake) == 1:  # the common case
            awake = [self._awake.pop()]
            self._turns += 1
        else:
            awake = sorted(self._awake, key=attrgetter("number"), reverse=True)
            self._awake.clear()
            self._turns += len(awake)
        try:
            while awake:
                self._turning = turning = awake.pop()
                turning.turn()
        finally:
            self._turning = None
            # An error of a program is raised in the test, which may catch it and continue.
            if awake:
                self._awake += awake
            if self._stopped:
                for disk in self._stopped:
                    disk.is_stopped = False
                self._stopped.clear()
        if self._turns >= COLLECT_EVERY:
            self._turns = 0
            self._garbage.collect()

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """Run until a future is done; the simulated form of `.result(timeout)`.

        Until the test first advances time, it is setting up. Waits for a node's own work, such
        as hosting entities, then run without faults.
        """
        limit = 3600.0 if timeout is None else timeout
        is_nodes = timeout is None and future.asked is None
        was_linking, starting = self.is_linking, self._starting
        self._has_begun = self._has_begun or not is_nodes
        self.is_linking = was_linking or not self._has_begun
        try:
            self.run_until(lambda: future.is_done or self._has_ended(starting), limit)
        finally:
            self.is_linking = was_linking
        if future.is_done:
            return
        if starting is not None and self._has_ended(starting):
            msg = f"{starting.name} ended while it was being restarted"
            raise NodeClosed(msg)
        problem = "no result" if is_nodes else f"no answer from {future.asked}"
        msg = (
            f"{problem} within {limit:g} virtual s; {'it' if is_nodes else 'the ask'} continues"
        )
        raise ResultTimeout(msg)

    def _has_ended(self, node: Node | None) -> bool:
        """Return whether a node has ended; False for None."""
        return node is not None and not self.is_running(node)

    def history(self) -> History:
        """Return an empty history that uses the clock of the cluster."""
        return History(lambda: self.clock.now, partial(self.moment, "answer"))

    def steps(self, count: int, within: float = 20.0) -> Iterator[tuple[int, random.Random]]:
        """Yield the steps of a test: each one's number, and its own random source.

        Steps do not share a random source, so shrinking can leave some out without changing the
        others, and a failure is shown with the few steps that it needs.

        Args:
            count: number of steps.
            within: virtual seconds over which the steps are spread; the cluster advances to
                each one. 0 does not advance.
        """
        chance = random.Random(f"steps {self.seed} {self.steps_had}")
        first, self.steps_had = self.steps_had, self.steps_had + count
        start = self.now
        for number, fraction in enumerate(sorted(chance.random() for _ in range(count)), first):
            if self.kept_steps is None or number in self.kept_steps:
                if within:
                    self.advance(max(0.0, start + fraction * within - self.now))
                yield number, random.Random(f"step {self.seed} {number}")

    # --- moments that faults wait for ---

    def watch(self, told: Callable[[str, Node | None], object] | None) -> None:
        """Call a function at each moment that a fault may wait for; None for no function."""
        self._watch = told
        self.network.sending = None if told is None else self._sending

    def moment(self, what: str, doer: Node | None = None) -> None:
        """Report a moment of `doer`, or of the node whose turn it is, to the watcher."""
        if self._watch is not None:
            if doer is None and self._turning is not None:
                doer = self._of_runner(self._turning)
            self._watch(what, doer)

    def _of_runner(self, runner: SimulatedRunner) -> Node | None:
        """Return the machine that a runner or loop belongs to."""
        return next((node for node in self.nodes if runner_of(node) is runner), None)

    def _sending(self, host: str) -> None:
        """Report that the node whose turn it is sends bytes."""
        if self._turning is not None:
            self.moment("send")

    def _disk_changed(self, disk: SimulatedDisk) -> None:
        """Report a change of a disk; stop the rest of the turn if a fault ended its node."""
        runner = self._turning
        if runner is not None and self._watch is not None:
            self.moment("disk")
            if runner.closed:
                disk.is_stopped = True
                self._stopped.append(disk)

    # --- faults of the network ---

    def calm(self) -> None:
        """End all faults, so that the rest of the test has a healthy cluster.

        Active and future faults of a `cluster_test` end; killed and crashed nodes restart if
        `restarted` is set. Partitions made by the test are healed.
        """
        if self.calmed is not None:
            self.calmed()
        self.heal()

    def partition(self, one: Node, other: Node, *, both: bool = True) -> None:
        """Block all traffic between two nodes, or with `both=False` from `one` to `other`."""
        self._record_fault("partition" if both else "one-way partition", one, other)
        self.network.cut(self._hosts[one], self._hosts[other], both=both)

    def heal(self) -> None:
        """Remove all partitions; delays, losses and other faults remain."""
        self._record_fault("heal")
        self.network.heal()

    def mend(self, one: Node, other: Node) -> None:
        """Remove the partition between two nodes; other partitions remain."""
        self._record_fault("mend", one, other)
        self.network.mend(self._hosts[one], self._hosts[other])

    def cut(self, one: Node, other: Node) -> None:
        """Break the connections between two nodes, as a restarting router does."""
        self._record_fault("cut", one, other)
        self.network.reset(self._hosts[one], self._hosts[other])

    def delay(self, one: Node, other: Node, seconds: float) -> None:
        """Set the latency between two nodes."""
        self._record_fault("delay", one, other, seconds)
        for way in self._ways(one, other):
            way.delay = seconds

    def jitter(self, seconds: float) -> None:
        """Delay each packet between machines by a random time of up to `seconds`.

        A connection keeps its order; packets of different connections may overtake each other.

        Raises:
            ValueError: the seconds are negative.
        """
        if not 0.0 <= seconds < math.inf:
            msg = f"jitter takes a number of seconds of at least 0, not {seconds!r}"
            raise ValueError(msg)
        self._record_fault("jitter", seconds)
        self.network.jitter = seconds

    def bandwidth(self, one: Node, other: Node, bytes_per_second: float) -> None:
        """Limit the bytes per second between two nodes, in each direction; 0 is no limit."""
        self._record_fault("bandwidth", one, other, bytes_per_second)
        for way in self._ways(one, other):
            way.bytes_per_second = bytes_per_second

    def loss(self, one: Node, other: Node, part: float) -> None:
        """Lose a fraction (0 to 1) of the packets between two nodes.

        As with TCP, streams lose nothing: a lost packet is retransmitted after 0.2 s or more,
        later bytes wait for it, and a packet lost six times in a row breaks its connection.

        Raises:
            ValueError: the part is not between 0 and 1.
        """
        self._record_fault("loss", one, other, _checked_part(part))
        for way in self._ways(one, other):
            way.loss = part

    def doubling(self, one: Node, other: Node, part: float) -> None:
        """Break the connection after a fraction (0 to 1) of the deliveries between two nodes.

        The bytes arrive, but the sender cannot know. If it sends them again, as at-least-once
        delivery does, the receiver gets them twice.

        Raises:
            ValueError: the part is not between 0 and 1.
        """
        self._record_fault("doubling", one, other, _checked_part(part))
        for way in self._ways(one, other):
            way.doubling = part

    def _ways(self, one: Node, other: Node) -> list[Direction]:
        """Return both directions between two machines."""
        first, second = self._hosts[one], self._hosts[other]
        return [self.network.way(first, second), self.network.way(second, first)]

    # --- faults of nodes ---

    def disk(self, node: Node) -> SimulatedDisk:
        """Return the disk of a machine; it survives restarts of the node."""
        return self.disk_of(self._hosts[node])

    def disk_of(self, host: str) -> SimulatedDisk:
        """Return the disk of a host."""
        if host not in self._disks:
            disk = SimulatedDisk(zlib.crc32(host.encode(), self.seed & 0xFFFFFFFF))
            disk.works = partial(self._wait_for_disk, host)
            disk.changed = partial(self._disk_changed, disk)
            self._disks[host] = disk
        return self._disks[host]

    def _wait_for_disk(self, host: str, seconds: float) -> None:
        """Block the node of a host until its disk has finished."""
        latest = next(node for node in reversed(self.nodes) if self._hosts[node] == host)
        self.network.busy[host] = runner_of(latest).wait_for_disk(seconds)

    def database(self, url: str) -> ModelDatabase:
        """Return the model database of a URL; it is shared by all nodes with this state."""
        if url not in self._databases:
            rng = random.Random(zlib.crc32(url.encode(), self.seed & 0xFFFFFFFF))
            self._databases[url] = ModelDatabase(url, self.clock, rng)
        return self._databases[url]

    def databases(self) -> list[ModelDatabase]:
        """Return the model databases used so far."""
        return list(self._databases.values())

    def pause(self, node: Node) -> None:
        """Freeze a node like SIGSTOP: connections stay open, but nothing is read or sent."""
        self._record_fault("pause", node)
        runner_of(node).is_paused = True
        self.network.freeze(self._hosts[node])

    def resume(self, node: Node) -> None:
        """Resume a frozen node."""
        self._record_fault("resume", node)
        self.network.thaw(self._hosts[node])
        runner_of(node).resume()

    def clock_rate(self, node: Node, rate: float) -> None:
        """Set how many seconds pass on a node per simulated second; 1.05 is 5 % fast.

        Raises:
            ValueError: the rate is not a positive number.
        """
        self._record_fault("clock rate", node, rate)
        runner_of(node).set_rate(rate)

    def clock_step(self, node: Node, seconds: float) -> None:
        """Set a node's wall clock ahead of the correct time, or back if `seconds` is negative.

        On the node, `time.time` jumps; `time.monotonic` and timers do not. A restarted node
        keeps the wall clock of its machine.

        Raises:
            ValueError: the seconds are not finite.
        """
        if not math.isfinite(seconds):
            msg = f"clock_step takes a finite number of seconds, not {seconds!r}"
            raise ValueError(msg)
        self._record_fault("clock step", node, seconds)
        runner_of(node).node_clock.step = seconds

    def kill(self, node: Node) -> None:
        """Kill a node like SIGKILL: its connections close, and nothing else is sent."""
        self._record_fault("kill", node)
        runner_of(node).die()
        self.network.kill_host(self._hosts[node])

    def crash(self, node: Node) -> None:
        """End a node like a power failure: its peers receive nothing, not even a close.

        Its disk keeps everything that was synced and a random part of the rest.
        """
        self._record_fault("crash", node)
        self.network.silence_host(self._hosts[node])
        self.disk(node).crash()
        runner_of(node).has_crashed = True
        runner_of(node).die()

    def _record_fault(self, fault: str, *parts: object) -> None:
        """Record a fault in the trace."""
        texts = [part.name if isinstance(part, Node) else part for part in parts]
        self.trace.note(self.now, "test", fault, *texts)

    # --- the end ---

    def close(self) -> None:
        """Close all running nodes; this is not recorded in the trace."""
        self._watching.close()
        for node in self.nodes:
            if not runner_of(node).closed:  # killed nodes count as closed
                node.close()
        waiting.reset(self._token)
        self._garbage.close(self._turns)


def _checked_part(part: float) -> float:
    """Return a fraction; raise `ValueError` if it is not between 0 and 1."""
    if not 0.0 <= part <= 1.0:
        msg = f"the part of packets must be between 0 and 1, not {part!r}"
        raise ValueError(msg)
    return part


def _links(count: int, topology: str | Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the links of a topology, each as the indices of two nodes.

    Raises:
        ValueError: the topology is unknown, or a link does not have two valid indices.
    """
    if isinstance(topology, str):
        if topology not in _TOPOLOGIES:
            msg = f"unknown topology {topology!r}; choose one of {', '.join(_TOPOLOGIES)}"
            raise ValueError(msg)
        return _TOPOLOGIES[topology](count) if count > 1 else []
    links = [tuple(link) for link in topology]
    for link in links:
        if len(link) != 2 or not set(link) <= set(range(count)) or link[0] == link[1]:
            msg = f"{link} is not a link; give two indices from 0 to {count - 1}, as (1, 0)"
            raise ValueError(msg)
    return [(dialer, listener) for dialer, listener in links]


def _parts(count: int, links: list[tuple[int, int]]) -> list[set[int]]:
    """Return for each node the set of nodes connected to it by links, including itself."""
    parts = [{index} for index in range(count)]
    for first, second in links:
        union = parts[first] | parts[second]
        for index in union:
            parts[index] = union
    return parts


def _all_know(waiting: list[tuple[Node, int]]) -> bool:
    """Return whether all nodes know their number of others; remove nodes that do."""
    while waiting and len(waiting[-1][0].nodes()) >= waiting[-1][1]:
        waiting.pop()
    return not waiting


class _Garbage:
    """Disables automatic garbage collection while a cluster is open.

    Objects that existed before are frozen (`gc.freeze`): they do not belong to the cluster, and
    scanning them in each collection would be slow.
    """

    #: Number of open clusters, and turns since the last full collection.
    _open = 0
    _turns = 0

    def __init__(self) -> None:
        self._is_first = not _Garbage._open and gc.isenabled()
        self._is_closed = False
        _Garbage._open += 1
        if self._is_first:
            gc.disable()
            gc.freeze()

    def collect(self) -> None:
        """Collect garbage among the objects created since the cluster was opened."""
        _Garbage._turns += COLLECT_EVERY
        gc.collect()

    def close(self, turns: int) -> None:
        """Enable automatic collection again, after the last open cluster."""
        if self._is_closed:
            return
        self._is_closed = True
        _Garbage._open -= 1
        _Garbage._turns += turns
        if self._is_first:
            gc.unfreeze()
            gc.enable()
            if _Garbage._turns > _COLLECT_ALL_EVERY:
                _Garbage._turns = 0
                gc.collect()


class SimulatedMachine(NamedTuple):
    """The network and the disk of a simulated machine, as its node uses them."""

    cluster: Cluster
    host: str

    def bind(self, host: str, port: int) -> Any:
        """Return a bound socket."""
        return self.cluster.network.bind(host, port)

    def resolve(self, host: str, port: int, *, numeric: bool) -> list[Any] | None:
        """Return the address of a host by its name; unknown names are addresses already."""
        return [(self.cluster.network.names.get(host, host), port)]

    def connect(self, address: Any) -> tuple[Any, int]:
        """Start connecting; return the socket and an error number, 0 while in progress."""
        return self.cluster.network.connect(self.host, address), 0

    @property
    def disk(self) -> SimulatedDisk:
        """The disk of the machine."""
        return self.cluster.disk_of(self.host)

    def serve_mqtt(self, port: int, door: Any, entrance: Any, runner: Any) -> Any:
        """Open a port of an MQTT router; every local address means the machine's only one."""
        from callboard.simulation.mqtt.port import SimulatedServer

        return SimulatedServer(door, entrance, runner, self.bind(self.host, port))

    def let_pass(self, seconds: float, condition: Callable[[], bool]) -> None:
        """Advance time until a condition holds, while code on the machine blocks."""
        self.cluster.run_until(condition, seconds)
