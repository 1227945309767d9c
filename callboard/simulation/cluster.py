"""A cluster of nodes in one process: simulated network, virtual time, one seed.

The nodes are `Node` objects like any other and run the code that runs on sockets; only what
they stand on is simulated. Nothing happens between two calls of the test: time moves, and
nodes run, while the test waits for a result or calls `advance`.

Nodes that have something to do take turns, and time moves when none has. A node sleeps until
something wakes it: bytes, a message, its own next timer. So the cost of a quiet node is its
timers, however many nodes there are.
"""

import gc
import math
import random
import zlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from callboard.kernel.actors import Actor
from callboard.kernel.environment import Surroundings
from callboard.kernel.errors import NodeClosed, ResultTimeout
from callboard.kernel.reply import Future, waiting
from callboard.kernel.topology import LAST_RETRY, make_node_id
from callboard.node import Node
from callboard.simulation.clock import Clock
from callboard.simulation.databases.model_database import ModelDatabase
from callboard.simulation.disk import SimulatedDisk
from callboard.simulation.history import History
from callboard.simulation.network import SimulatedNetwork, Way
from callboard.simulation.programs.host import SimulatedHost, World
from callboard.simulation.programs.loop import HostLoop
from callboard.simulation.programs.substitutes import dates, substitutes
from callboard.simulation.runner import STANDSTILL, SimulatedRunner, TimeStandsStill, runner_of
from callboard.simulation.trace import EventTrace, describe

#: What faults happen to: a node, or a host with a program of plain asyncio.
Machine = Node | SimulatedHost

MachineT = TypeVar("MachineT", Node, SimulatedHost, Machine)

#: The port on which every simulated node listens.
PORT: Final = 4222

#: Turns of nodes between two collections of garbage. A node tells others of refs that are gone,
#: so garbage is collected at moments that a seed decides, not when an interpreter sees fit.
COLLECT_EVERY: Final = 5_000

#: Turns after which all garbage of earlier clusters is collected.
_COLLECT_ALL_EVERY: Final = 50_000

#: Hosts take their turns after nodes.
HOST_NUMBERS: Final = 1_000_000

#: Seconds from a host to itself.
LOOPBACK_DELAY: Final = 0.00002

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

    #: What makes the runners of its nodes.
    runner_class: type[SimulatedRunner] = SimulatedRunner

    def __init__(self, seed: int = 0) -> None:
        """Make an empty cluster; the same seed gives the same run."""
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        #: What happened so far: two runs of a seed have the same.
        self.trace = EventTrace()
        self.network = SimulatedNetwork(self.clock, self.random, self.trace)
        self.nodes: list[Node] = []
        #: Called with each node that was started again: links, actors and names are up to it.
        #: A `cluster_test` starts killed and crashed nodes again only where it is set.
        self.restarted: Callable[[Node], object] | None = None
        #: Called with each fault of a swarm or a list, its nodes, and whether it begins or
        #: ends; that of a killed node ends with the new one.
        self.on_fault: Callable[[Any, list[Machine], bool], object] | None = None
        #: Whether the call of the cluster links nodes just now: no fault begins meanwhile.
        self.is_linking = False
        #: The node that `restarted` starts just now.
        self._starting: Node | None = None
        #: Whether the test has let time pass.
        self._has_begun = False
        #: What `calm` calls: it ends the faults of a `cluster_test`.
        self.calmed: Callable[[], object] | None = None
        #: Which of the test's steps are taken, for a test that was made smaller; None for all.
        self.kept_steps: Collection[int] | None = None
        #: How many steps the test has had so far.
        self.steps_had = 0
        self._watch: Callable[[str, Machine | None], object] | None = None
        self._turning: SimulatedRunner | HostLoop | None = None
        #: Nodes that something woke; each is here once until it had its turn.
        self._awake: list[SimulatedRunner | HostLoop] = []
        self._made: list[Machine] = []
        self._hosts: dict[Machine, str] = {}
        self._options: dict[Node, dict[str, Any]] = {}
        self._disks: dict[str, SimulatedDisk] = {}
        self._databases: dict[str, ModelDatabase] = {}
        #: Disks whose node ended in the middle of its turn: they stop it.
        self._stopped: list[SimulatedDisk] = []
        self._turns = 0
        self._garbage = _Garbage()
        self._watching = ExitStack()
        self._watching.enter_context(dates.installed())
        self._token = waiting.set(self.wait)

    def __call__(
        self,
        count: int = 2,
        topology: str | Iterable[tuple[int, int]] = "line",
        *,
        spawnable: Mapping[str, type[Actor]] | None = None,
        names: str = "abcdefghijklmnopqrstuvwxyz",
    ) -> list[Node]:
        """Make `count` nodes that are linked and know each other.

        Args:
            count: how many.
            topology: `line`, `ring`, `star`, `mesh`, or `none` (no links); or the links
                themselves, each as the places of the node that dials and of the one dialed.
            spawnable: the classes that each of them offers.
            names: their names, one letter each.

        Raises:
            ValueError: the topology is not known, or a link is not one of two of the nodes.
        """
        links = _links(count, topology)
        made = [
            self.node(names[index] if index < len(names) else f"n{index}", spawnable=spawnable)
            for index in range(count)
        ]
        self.is_linking = True
        for dialer, listener in links:
            made[dialer].connect(made[listener].address)
        if links:
            others = [len(part) - 1 for part in _parts(count, links)]
            ignorant = list(zip(made, others, strict=True))
            self.run_until(partial(_all_know, ignorant), 60.0)
        self.is_linking = False
        return made

    def link(self, dialer: Node, listener: Node) -> None:
        """Let a node dial another one and stay linked, whatever goes wrong; not waited for.

        It dials again until the link is there, and whenever it is lost; a node that is started
        again does not know of it. `connect` of the node is the call that waits, and gives up.
        """
        there = self._hosts[listener], PORT
        dial = partial(dialer.overlay.dial, there, retry=LAST_RETRY, on_failure=lambda _: None)
        dialer.runtime.post(dial)

    def node(self, name: str = "", **options: Any) -> Node:
        """Make one node that listens and is not linked yet; options are those of `Node`."""
        index = len(self.nodes)
        return self._make(name, f"10.0.{index >> 8}.{index & 255}", options)

    def host(
        self,
        name: str,
        main: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        respawn: float | None = None,
        mortal: bool = True,
    ) -> SimulatedHost:
        """Make a host that runs a program of plain asyncio: `main(*args)`, a coroutine.

        Others reach it by its name, as host of a connection of asyncio. Its program finds
        virtual time and the simulated network, and ends when `main` returns. An error of `main`
        is raised in the test.

        Args:
            name: of the host, by which others find it.
            main: a coroutine function, called again when the host is started again.
            args: what it is called with.
            respawn: seconds after which a program that failed starts again, as a supervisor
                would do it; its errors are not raised then.
            mortal: whether the faults of a plan or a swarm may kill and crash it.

        Raises:
            ValueError: the name is taken.
        """
        if name in self.network.names:
            msg = f"there is a host {name!r} already; choose another name"
            raise ValueError(msg)
        number = sum(isinstance(each, SimulatedHost) for each in self._made)
        if not number:
            self._watching.enter_context(substitutes.installed())
        address = self.network.names[name] = f"10.1.{number >> 8}.{number & 255}"
        self.network.way(address, address).delay = LOOPBACK_DELAY
        wake, restart = self._awake.append, self.restart
        made = SimulatedHost(
            World(
                self.clock, self.network, self.trace, self.random, wake, self.disk_of, restart
            ),
            *(name, main, args),
            address=address,
            number=HOST_NUMBERS + number,
            respawn=respawn,
            mortal=mortal,
        )
        self._made.append(made)
        self._hosts[made] = address
        return made

    def restart(self, node: MachineT) -> MachineT:
        """Start a killed or crashed machine again: same host, port and options.

        A node is another one then, with another id; nothing of its earlier life is left, and
        links, actors and names are up to the test. A host is itself, and runs its program from
        the beginning; one that still runs is killed before.
        """
        host = self._hosts[node]
        if isinstance(node, SimulatedHost):
            if self.is_running(node):
                self.kill(node)
            self._note("restart", node)
            self.network.start_host(host)
            node.start()
            self.moment("start", node)
            return node
        self._note("restart", node)
        self.network.start_host(host)
        before = runner_of(self._node_of(host)).node_clock
        made = self._make(node.name, host, self._options[node])
        runner_of(made).go_on_with(before)
        if self.restarted is not None:
            before_it, self._starting = self._starting, made
            try:
                self.restarted(made)
            finally:
                self._starting = before_it
        self.moment("start", made)
        return made

    def machines(self) -> list[Machine]:
        """Return the latest node of each machine and all hosts, in the order of making."""
        return list({self._hosts[node]: node for node in self._made}.values())

    def _node_of(self, host: str) -> Node:
        """Return the latest node of a host."""
        return next(node for node in reversed(self.nodes) if self._hosts[node] == host)

    def is_running(self, node: Machine) -> bool:
        """Return whether a machine was neither killed nor closed; a frozen one runs."""
        return not _runner(node).closed

    def is_paused(self, node: Machine) -> bool:
        """Return whether a node is frozen."""
        return _runner(node).is_paused

    def _make(self, name: str, host: str, options: dict[str, Any]) -> Node:
        """Make a node with its runner, host and disk."""
        index = len(self.nodes)

        def make_runner(of: str) -> SimulatedRunner:
            rng = random.Random(self.random.random())
            runner = self.runner_class(of, index, self.clock, rng, self._awake.append)
            runner.machine = machine
            runner.databases = self.database
            return runner

        machine = SimulatedMachine(self, host)
        make_id = partial(make_node_id, b"simulation", self.seed, index, index + 1)
        surroundings = Surroundings(make_runner, machine, make_id)
        node = Node(name, surroundings=surroundings, **options)
        self._watching.enter_context(node.subscribed(partial(self._happened, node.name)))
        node.listen(host, PORT, insecure=True)
        self.nodes.append(node)
        self._made.append(node)
        self._hosts[node] = host
        if name:
            self.network.names.setdefault(name, host)
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
        self._has_begun = True
        self.run_until(lambda: False, seconds)

    def run_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Let time pass until `condition()` or for `limit` seconds; returns the condition."""
        clock = self.clock
        end = clock.now + limit
        self.moment("test")
        seen, rounds = -1.0, 0
        while not condition():
            if clock.now != seen:
                seen, rounds = clock.now, 0
            else:
                rounds += 1
                if rounds > STANDSTILL:
                    msg = f"time stands still at {seen:.6f} s: {STANDSTILL:,} rounds in a row"
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
        """Let every node that is awake take a turn, the oldest first."""
        if len(self._awake) == 1:  # nearly always
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
            if awake:  # a program's error goes to the test, which may go on
                self._awake += awake
            if self._stopped:
                for disk in self._stopped:
                    disk.is_stopped = False
                self._stopped.clear()
        if self._turns >= COLLECT_EVERY:
            self._turns = 0
            self._garbage.collect()

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """Run until a future is done; what `.result(timeout)` does in a simulation.

        Before the test lets any time pass, it sets things up: what a node does then for itself,
        such as to host entities, is waited for without faults.
        """
        limit = 3600.0 if timeout is None else timeout
        is_nodes = timeout is None and future.asked is None
        before, starting = self.is_linking, self._starting
        self._has_begun = self._has_begun or not is_nodes
        self.is_linking = before or not self._has_begun
        try:
            self.run_until(lambda: future.is_done or self._has_ended(starting), limit)
        finally:
            self.is_linking = before
        if future.is_done:
            return
        if starting is not None and self._has_ended(starting):
            msg = f"{starting.name} ended while it was started again"
            raise NodeClosed(msg)
        what = "nothing came" if is_nodes else f"no answer from {future.asked}"
        msg = f"{what} within {limit:g} virtual s; {'it' if is_nodes else 'the ask'} goes on"
        raise ResultTimeout(msg)

    def _has_ended(self, node: Node | None) -> bool:
        """Return whether there is such a node and it has ended."""
        return node is not None and not self.is_running(node)

    def history(self) -> History:
        """Return an empty history whose times are those of the cluster."""
        return History(lambda: self.clock.now, partial(self.moment, "answer"))

    def steps(self, count: int, within: float = 20.0) -> Iterator[tuple[int, random.Random]]:
        """Yield the steps of a test: the number of each, and chance of its own.

        What a loop over them does in each can be left out without changing the others, so a
        failure that needs few of them is shown with these few.

        Args:
            count: how many there are.
            within: virtual seconds in which they are; time passes up to each. 0 lets none pass.
        """
        chance = random.Random(f"steps {self.seed} {self.steps_had}")
        first, self.steps_had = self.steps_had, self.steps_had + count
        begin = self.now
        for number, at in enumerate(sorted(chance.random() for _ in range(count)), first):
            if self.kept_steps is None or number in self.kept_steps:
                if within:
                    self.advance(max(0.0, begin + at * within - self.now))
                yield number, random.Random(f"step {self.seed} {number}")

    # --- moments that faults wait for ---

    def watch(self, told: Callable[[str, Machine | None], object] | None) -> None:
        """Let a function be told of each moment that a fault may wait for, or none."""
        self._watch = told
        self.network.sending = None if told is None else self._sending

    def moment(self, what: str, doer: Machine | None = None) -> None:
        """Tell who watches that the test, or the node that has its turn, does something."""
        if self._watch is not None:
            if doer is None and self._turning is not None:
                doer = self._of_runner(self._turning)
            self._watch(what, doer)

    def _of_runner(self, runner: SimulatedRunner | HostLoop) -> Machine | None:
        """Return the node of a runner, or the host of a loop."""
        return next((made for made in self._made if _runner(made) is runner), None)

    def _sending(self, host: str) -> None:
        """Tell who watches that a node sends something."""
        if self._turning is not None:
            self.moment("send")

    def _disk_changed(self, disk: SimulatedDisk) -> None:
        """Tell who watches that a node changed its disk; stop it if that was its end."""
        runner = self._turning
        if runner is not None and self._watch is not None:
            self.moment("disk")
            if runner.closed:
                disk.is_stopped = True
                self._stopped.append(disk)

    # --- faults of the network ---

    def calm(self) -> None:
        """Let nothing go wrong from now on: what is left of the test has a quiet cluster.

        Faults of a `cluster_test` end, also those to come; nodes that were killed or crashed
        start again if `restarted` is set. Partitions of the test's own are healed.
        """
        if self.calmed is not None:
            self.calmed()
        self.heal()

    def partition(self, one: Machine, other: Machine, *, both: bool = True) -> None:
        """Let nothing through between two nodes, or only nothing from `one` to `other`."""
        self._note("partition" if both else "one-way partition", one, other)
        self.network.cut(self._hosts[one], self._hosts[other], both=both)

    def heal(self) -> None:
        """Let everything through again; slow and lossy ways stay what they are."""
        self._note("heal")
        self.network.heal()

    def mend(self, one: Machine, other: Machine) -> None:
        """Let everything through again between two nodes; other partitions stay."""
        self._note("mend", one, other)
        self.network.mend(self._hosts[one], self._hosts[other])

    def cut(self, one: Machine, other: Machine) -> None:
        """Break the connections between two nodes at once, as a router that restarts does."""
        self._note("cut", one, other)
        self.network.reset(self._hosts[one], self._hosts[other])

    def delay(self, one: Machine, other: Machine, seconds: float) -> None:
        """Set how long bytes are under way between two nodes."""
        self._note("delay", one, other, seconds)
        for way in self._ways(one, other):
            way.delay = seconds

    def jitter(self, seconds: float) -> None:
        """Let each packet between any two machines be up to `seconds` late, drawn for each.

        A stream keeps its order; packets of several connections overtake each other.

        Raises:
            ValueError: the seconds are negative.
        """
        if not 0.0 <= seconds < math.inf:
            msg = f"packets are late by a number of seconds from 0 on, not {seconds!r}"
            raise ValueError(msg)
        self._note("jitter", seconds)
        self.network.jitter = seconds

    def bandwidth(self, one: Machine, other: Machine, bytes_per_second: float) -> None:
        """Set how many bytes pass between two nodes in a second, each way; 0 is no limit."""
        self._note("bandwidth", one, other, bytes_per_second)
        for way in self._ways(one, other):
            way.bytes_per_second = bytes_per_second

    def loss(self, one: Machine, other: Machine, part: float) -> None:
        """Lose a part (0 to 1) of the packets between two nodes.

        Their streams lose nothing: bytes come late by 0.2 s or more, those behind them wait,
        and a connection breaks whose packet is lost six times in a row.

        Raises:
            ValueError: the part is not between 0 and 1.
        """
        self._note("loss", one, other, _checked_part(part))
        for way in self._ways(one, other):
            way.loss = part

    def doubling(self, one: Machine, other: Machine, part: float) -> None:
        """Let a part (0 to 1) of what passes between two nodes arrive and get no answer.

        The connection breaks behind it. The sender cannot know that it arrived; if it says it
        again, as at-least-once delivery does, the receiver has it twice.

        Raises:
            ValueError: the part is not between 0 and 1.
        """
        self._note("doubling", one, other, _checked_part(part))
        for way in self._ways(one, other):
            way.doubling = part

    def _ways(self, one: Machine, other: Machine) -> list[Way]:
        """Return the ways between two hosts that a fault concerns."""
        here, there = self._hosts[one], self._hosts[other]
        return [self.network.way(here, there), self.network.way(there, here)]

    # --- faults of nodes ---

    def disk(self, node: Machine) -> SimulatedDisk:
        """Return the disk of a node's machine; a node that is started again finds it there."""
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
        """Let the node of a host wait until its disk is done."""
        latest = next(each for each in reversed(self._made) if self._hosts[each] == host)
        self.network.busy[host] = _runner(latest).wait_for_disk(seconds)

    def database(self, url: str) -> ModelDatabase:
        """Return the model database of a URL: what all nodes use that have it as a state."""
        if url not in self._databases:
            rng = random.Random(zlib.crc32(url.encode(), self.seed & 0xFFFFFFFF))
            self._databases[url] = ModelDatabase(url, self.clock, rng)
        return self._databases[url]

    def databases(self) -> list[ModelDatabase]:
        """Return the model databases that were used so far."""
        return list(self._databases.values())

    def pause(self, node: Machine) -> None:
        """Freeze a node as SIGSTOP does: its connections stay, it neither reads nor writes."""
        self._note("pause", node)
        _runner(node).is_paused = True
        self.network.freeze(self._hosts[node])

    def resume(self, node: Machine) -> None:
        """Let a frozen node go on."""
        self._note("resume", node)
        self.network.thaw(self._hosts[node])
        _runner(node).resume()

    def clock_rate(self, node: Machine, rate: float) -> None:
        """Let `rate` seconds pass on a node while one passes elsewhere; 1.05 is 5 % fast.

        Raises:
            ValueError: the rate is not a positive number.
        """
        self._note("clock rate", node, rate)
        _runner(node).set_rate(rate)

    def clock_step(self, node: Machine, seconds: float) -> None:
        """Set the date of a node ahead of the right one, or back if `seconds` is below 0.

        `time.time` jumps, for what runs on the node; `time.monotonic` and timers do not. A
        node that is started again has the date of its machine.

        Raises:
            ValueError: the seconds are not a number.
        """
        if not math.isfinite(seconds):
            msg = f"a clock is set by a number of seconds, not {seconds!r}"
            raise ValueError(msg)
        self._note("clock step", node, seconds)
        _runner(node).node_clock.step = seconds

    def kill(self, node: Machine) -> None:
        """End a node as SIGKILL does: its connections close, it says no more."""
        self._note("kill", node)
        self._end(node, "it was killed")
        self.network.kill_host(self._hosts[node])

    def crash(self, node: Machine) -> None:
        """End a node as a power failure does: the others only hear nothing any more.

        Its disk keeps what was synced and any part of the rest.
        """
        self._note("crash", node)
        self.network.silence_host(self._hosts[node])
        self.disk(node).crash()
        if isinstance(node, Node):
            runner_of(node).has_crashed = True
        self._end(node, "it crashed")

    @staticmethod
    def _end(machine: Machine, why: str) -> None:
        """Let a machine take no more turns."""
        if isinstance(machine, SimulatedHost):
            machine.ended(why)
        else:
            runner_of(machine).die()

    def _note(self, what: str, *about: object) -> None:
        """Note a fault in the trace."""
        told = [part.name if isinstance(part, Node | SimulatedHost) else part for part in about]
        self.trace.note(self.now, "test", what, *told)

    # --- the end ---

    def close(self) -> None:
        """Close all nodes that still run; the trace ends before."""
        for machine in self._made:
            if isinstance(machine, SimulatedHost):
                machine.close()
        self._watching.close()
        for node in self.nodes:
            if not _runner(node).closed:  # nor killed
                node.close()
        waiting.reset(self._token)
        self._garbage.close(self._turns)


def _checked_part(part: float) -> float:
    """Return a part; raise `ValueError` unless it is one."""
    if not 0.0 <= part <= 1.0:
        msg = f"the part of packets is between 0 and 1, not {part!r}"
        raise ValueError(msg)
    return part


def _links(count: int, topology: str | Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the links of a topology, each as the places of two nodes.

    Raises:
        ValueError: it is not known, or a link is not one of two of the nodes.
    """
    if isinstance(topology, str):
        if topology not in _TOPOLOGIES:
            msg = f"topology {topology!r} is not known; choose one of {', '.join(_TOPOLOGIES)}"
            raise ValueError(msg)
        return _TOPOLOGIES[topology](count) if count > 1 else []
    links = [tuple(link) for link in topology]
    for link in links:
        if len(link) != 2 or not set(link) <= set(range(count)) or link[0] == link[1]:
            msg = f"{link} is not a link: give two places from 0 to {count - 1}, as (1, 0)"
            raise ValueError(msg)
    return [(dialer, listener) for dialer, listener in links]


def _parts(count: int, links: list[tuple[int, int]]) -> list[set[int]]:
    """Return for each node the places of those that links lead to, its own among them."""
    parts = [{place} for place in range(count)]
    for one, other in links:
        whole = parts[one] | parts[other]
        for place in whole:
            parts[place] = whole
    return parts


def _all_know(ignorant: list[tuple[Node, int]]) -> bool:
    """Say whether all nodes know so many others; takes those that do from the list."""
    while ignorant and len(ignorant[-1][0].nodes()) >= ignorant[-1][1]:
        ignorant.pop()
    return not ignorant


def _runner(machine: Machine) -> SimulatedRunner | HostLoop:
    """Return what gives a machine its turns."""
    return machine.loop if isinstance(machine, SimulatedHost) else runner_of(machine)


class _Garbage:
    """Collects garbage only when it is told to, while a cluster is open.

    What was there before is not looked at: it is no business of the cluster, and large.
    """

    #: Clusters that are open, and turns since all garbage was collected.
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
        """Collect what became garbage since the cluster was made."""
        _Garbage._turns += COLLECT_EVERY
        gc.collect()

    def close(self, turns: int) -> None:
        """Let the interpreter collect again when it wants."""
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
    """A machine, as what runs on it sees it: its network, its disk."""

    cluster: Cluster
    host: str

    def bind(self, host: str, port: int) -> Any:
        """Return a bound socket."""
        return self.cluster.network.bind(host, port)

    def resolve(self, host: str, port: int, *, numeric: bool) -> list[Any] | None:
        """Return the address of a host: it is its name."""
        return [(self.cluster.network.names.get(host, host), port)]

    def connect(self, found: Any) -> tuple[Any, int]:
        """Begin to connect; returns the socket and an error number, 0 when it is under way."""
        return self.cluster.network.connect(self.host, found), 0

    @property
    def disk(self) -> SimulatedDisk:
        """The disk."""
        return self.cluster.disk_of(self.host)

    def serve_mqtt(self, port: int, door: Any, entrance: Any, runner: Any) -> Any:
        """Open a port of an MQTT router; whatever host it names, the machine has one."""
        from callboard.simulation.mqtt.port import SimulatedServer

        return SimulatedServer(door, entrance, runner, self.bind(self.host, port))

    def let_pass(self, seconds: float, condition: Callable[[], bool]) -> None:
        """Let time pass until a condition holds, while something on the machine blocks."""
        self.cluster.run_until(condition, seconds)
