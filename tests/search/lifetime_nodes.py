"""The nodes of `lifetimes`, made of the machines that the broker drives."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from callboard.actors.exit_reason import ExitReason
from callboard.proxies.ledger.ref_counts import RefCount, RemoteRefs
from callboard.proxies.ledger.registry import HolderRegistry

ACTOR = 16
A = b"A"
HOLDERS = (b"B", b"C")
AT_ONCE = "at once"


class Host:
    """Node A."""

    registry_class: type[HolderRegistry] = HolderRegistry

    def __init__(self, registry_class: type[HolderRegistry] = HolderRegistry) -> None:
        self.alive = True
        self.registry = registry_class(self.is_alive)

    def is_alive(self, _: int) -> bool:
        return self.alive

    def key(self) -> object:
        registry = self.registry
        return (
            self.alive,
            tuple(sorted(registry._holders.get(ACTOR, {}).items())),
            registry._ended.get(ACTOR),
            tuple(sorted(registry._swept.items())),
        )

    def take(self, event: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Carry out an event; return the frames to send, each after its receiver."""
        kind, *rest = event
        registry = self.registry
        if kind == "announce":
            ending = registry.announced(rest[0], ACTOR, rest[1])
            return [] if ending is None else [(rest[0], "down", ending[0])]
        if kind == "release":
            registry.released(rest[0], ACTOR, rest[1])
        elif kind == "sweep":
            registry.swept(rest[0], rest[1])
            list(registry.sweep(rest[0], rest[1]))
        elif kind == "end":
            self.alive = False
            told = registry.ended(ACTOR, ExitReason.ERROR, "")
            return [(node, "down", ExitReason.ERROR) for node in told]
        elif kind == "lost":
            list(registry.node_lost(rest[0]))
        elif kind == "renew":
            return [(rest[0], "down", reason) for _, reason, _ in registry.owed(rest[0])]
        return []


class Holder:
    """Node B or C."""

    def __init__(self) -> None:
        self.holdings = RemoteRefs(lambda _, __, sightings: RefCount(sightings))
        self.told: dict[int, list[object]] = {}

    def key(self) -> object:
        held = self.holding
        seen = None
        if held is not None:
            seen = (held.sightings, held.down, tuple(held.watchers))
        told = tuple((watch, tuple(reasons)) for watch, reasons in self.told.items())
        return self.holdings.sightings, seen, told

    @property
    def holding(self) -> RefCount | None:
        return self.holdings.get(A, ACTOR)

    def take(self, event: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Carry out an event; returns the frames to send to A."""
        kind, *rest = event
        holding = self.holding
        if kind == "ref" and holding is None:
            return [("announce", self.holdings.add(A, ACTOR).sightings)]
        if kind == "drop":
            return [("release", self.holdings.dropped(A, ACTOR))]
        if kind == "down":
            if holding is not None:
                self._tell(holding.ended(rest[0], ""), rest[0])
        elif kind == "renew":
            held, before = self.holdings.renewed(A)
            frames = [("announce", each.sightings) for each in held]
            return [*frames, ("sweep", before)] if before else frames
        elif kind == "lost" and holding is not None:
            self._tell(holding.unreachable(), ExitReason.UNREACHABLE)
        elif kind == "watch":
            assert holding is not None
            watch = len(self.told)
            self.told[watch] = []
            if holding.watch(watch, watch) is not None:
                self.told[watch].append(AT_ONCE)
        return []

    def _tell(self, watchers: list[Any], reason: ExitReason) -> None:
        for watch in watchers:
            self.told[watch].append(reason)


class Local:
    """Runs a machine once for each state and event, and caches the result."""

    def __init__(self, fresh: Any, facts: Callable[[Any], Any]) -> None:
        self._facts_of = facts
        self._numbers: dict[object, int] = {}
        self._machines: list[Any] = []
        self._done: dict[tuple[int, tuple[Any, ...]], tuple[int, list[tuple[Any, ...]]]] = {}
        self.facts: list[Any] = []
        self.first = self._number(fresh)

    def _number(self, machine: Any) -> int:
        found = self._numbers.setdefault(machine.key(), len(self._machines))
        if found == len(self._machines):
            self._machines.append(machine)
            self.facts.append(self._facts_of(machine))
        return found

    def take(self, state: int, event: tuple[Any, ...]) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the state after an event, and the frames to send."""
        done = self._done.get((state, event))
        if done is None:
            machine = copy.deepcopy(self._machines[state])
            frames = machine.take(event)
            done = self._done[state, event] = (self._number(machine), frames)
        return done


class HostFacts(NamedTuple):
    alive: bool
    holds: tuple[bool, bool]


class HolderFacts(NamedTuple):
    held: bool
    down: bool
    watched: bool
    told: tuple[tuple[object, ...], ...]


def host_facts(host: Host) -> HostFacts:
    holds = tuple(host.registry.holds(node, ACTOR) for node in HOLDERS)
    assert host.registry.is_held(ACTOR) == any(holds), "the number could be used again"
    return HostFacts(host.alive, holds)  # type: ignore[arg-type]


def holder_facts(holder: Holder) -> HolderFacts:
    holding = holder.holding
    return HolderFacts(
        holding is not None,
        holding is not None and holding.down is not None,
        holding is not None and holding.is_watched,
        tuple(map(tuple, holder.told.values())),
    )
