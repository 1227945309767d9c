"""The real events of a life, recorded outside of the cluster to compare its reports with."""

from dataclasses import dataclass, field
from typing import Any

from callboard import Actor, Down, Future, Node, handler, message


@message("simulation.Numbered")
@dataclass(frozen=True)
class Numbered:
    """A message with its place in the order of its pair."""

    source: int
    number: int


@message("simulation.Passed")
@dataclass(frozen=True)
class Passed:
    """Make an actor forward a message to all refs in it, as its own message."""

    to: Any


@message("simulation.Fail")
@dataclass(frozen=True)
class Fail:
    """Make an actor fail."""


class PlannedError(Exception):
    """The exception of a probe that is ordered to fail."""


class Probe(Actor):
    """Notes what arrives, in order."""

    def __init__(self) -> None:
        self.arrived: list[tuple[int, int]] = []

    @handler
    def note(self, said: Numbered) -> int:
        """Note a message; as an ask it is answered by its number."""
        self.arrived.append((said.source, said.number))
        return said.number

    @handler
    def fail(self, _: Fail) -> None:
        """End with an error."""
        raise PlannedError


@dataclass
class Member:
    """One node, from its start to its end; a node that is started again is another one."""

    index: int
    slot: int
    node: Node
    is_alive: bool = True
    is_paused: bool = False
    #: Seconds for which it was frozen.
    paused: float = 0.0
    paused_since: float = 0.0
    #: When it told that no path leads to a node any more: (time, node id).
    lost: list[tuple[float, bytes]] = field(default_factory=list)
    #: Messages that it reported as dead letters: (source, target, number).
    dead_letters: list[tuple[int, int, int]] = field(default_factory=list)

    def paused_until(self, now: float) -> float:
        """Return for how many seconds it was frozen up to a time."""
        return self.paused + (now - self.paused_since if self.is_paused else 0.0)


@dataclass
class Target:
    """One probe, and the operations on it."""

    number: int
    host: Member
    ref: Any
    actor: Probe
    text: str
    #: Reasons of the orders to end.
    told: set[str] = field(default_factory=set)
    #: When and why it ended, as its own node said.
    ended: tuple[float, str] | None = None


@dataclass
class Ask:
    """An ask and how it ended."""

    source: Member
    target: Target
    number: int
    timeout: float
    asked_at: float
    paused_before: float
    future: Future[Any]
    #: When it ended: once.
    ends: list[float] = field(default_factory=list)


@dataclass
class Watch:
    """A monitor and what it told."""

    watcher: Member
    target: Target
    since: float
    #: The watcher's node had no path to the target's when the monitor was set.
    had_no_path: bool
    downs: list[tuple[float, Down]] = field(default_factory=list)

    def __str__(self) -> str:
        told = ", ".join(f"{down.reason} at {when:.4f}" for when, down in self.downs)
        return (
            f"monitor of probe {self.target.number} on node {self.target.host.index} by node "
            f"{self.watcher.index}, set at {self.since:.4f}, told: {told or 'nothing'}"
        )


@dataclass
class NodeWatch:
    """A monitor of a whole node."""

    watcher: Member
    watched: Member
    since: float
    future: Future[Any]


@dataclass
class Book:
    """Everything that was begun in a life."""

    members: list[Member] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    node_watches: list[NodeWatch] = field(default_factory=list)
    #: Latest number by source and target.
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    #: Permanent dials: number of the dialing member, slot of the listening one.
    kept: set[tuple[int, int]] = field(default_factory=set)
    #: Times at which a fault began or ended.
    disturbed: list[float] = field(default_factory=list)
    #: When a link came up or went down for the last time, anywhere.
    last_change: float = 0.0
    #: Unexpected errors in the log.
    errors: list[str] = field(default_factory=list)

    def next_number(self, source: Member, target: Target) -> int:
        """Return the next number of a pair."""
        pair = (source.index, target.number)
        number = self.numbers[pair] = self.numbers.get(pair, 0) + 1
        return number

    def alive(self) -> list[Member]:
        """Return the members that live, frozen or not."""
        return [member for member in self.members if member.is_alive]

    def active(self) -> list[Member]:
        """Return the members that live and are not frozen."""
        return [member for member in self.members if member.is_alive and not member.is_paused]

    def was_disturbed(self, since: float, until: float) -> bool:
        """Return whether a fault was active in a period."""
        return any(time <= until for time in self.disturbed if time >= since)
