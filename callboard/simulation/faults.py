"""What a test does to the nodes of a simulated cluster and to the ways between them."""

import zlib
from typing import Any

from callboard.node import Node
from callboard.simulation.disk import SimulatedDisk
from callboard.simulation.network import SimulatedNetwork
from callboard.simulation.runner import runner_of
from callboard.simulation.trace import EventTrace


class Faults:
    """The faults of a cluster; `heal` ends those of the network."""

    network: SimulatedNetwork
    trace: EventTrace
    seed: int
    _hosts: dict[Node, str]
    _disks: dict[str, SimulatedDisk]

    # --- the network ---

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

    def _ways(self, one: Node, other: Node) -> list[Any]:
        """Return the ways between two hosts that a fault concerns."""
        here, there = self._hosts[one], self._hosts[other]
        return [self.network.way(here, there), self.network.way(there, here)]

    # --- nodes ---

    def disk(self, node: Node) -> SimulatedDisk:
        """Return the disk of a node's machine; a node that is started again finds it there."""
        host = self._hosts[node]
        if host not in self._disks:
            self._disks[host] = SimulatedDisk(zlib.crc32(host.encode(), self.seed & 0xFFFFFFFF))
        return self._disks[host]

    def pause(self, node: Node) -> None:
        """Freeze a node as SIGSTOP does: its connections stay, it neither reads nor writes."""
        self._note("pause", node)
        runner_of(node).pause()

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
        self.trace.note(self.network.now, "test", what, *told)
