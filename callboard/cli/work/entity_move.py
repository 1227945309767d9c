"""Moving slots of entities to another host, as `callboard entity move` does."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from callboard.cli.cluster import ClusterOptions
from callboard.cli.problem import Misuse, Problem
from callboard.entity.entity import checked_key
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import MoveSlots
from callboard.entity.reference import PREFIX, entity_parts
from callboard.kernel.tables import InspectCluster, NodeAnswer, ReadPart
from callboard.kernel.topology import ENTITIES, INSPECTOR

if TYPE_CHECKING:
    from callboard.node import Node

#: Seconds that a move may take, and between looks at it.
MOVE_LIMIT: Final = 30.0

#: Seconds for which a slot may be on its way when its owner is looked for.
_OWNER_LIMIT: Final = 5.0
_LOOK: Final = 0.1


class TypeHost(NamedTuple):
    """A node that hosts the type."""

    name: str
    node: str


class Wanted(NamedTuple):
    """What is to move: keys or slots of a type, to a host by name or id; back if that is ""."""

    type: str
    keys: list[str]
    slots: list[int] | None
    to: str


def hosted_type(
    address: str, key: str, options: ClusterOptions, name: str, *, is_key: bool = True
) -> tuple[str, str]:
    """Return type and key of an entity that a cluster hosts; of a type without `is_key`.

    Raises:
        Problem: its type is not hosted, or not clear.
    """
    parts = entity_parts(key) if key.startswith(PREFIX) else None
    if parts is not None:
        name, key = parts
    if is_key:
        checked_key(key)
    told = options.ask(address, ReadPart("entities", limit=10_000))
    answers = [each.answer.rows for each in told.nodes if each.answer is not None]
    types = sorted({str(row["type"]) for rows in answers for row in rows})
    if not types:
        step = "let a program call node.host(Cart, state=…)"
        raise Problem(why="no node in reach hosts entities", step=step)
    if name not in types and (name or len(types) > 1):
        why = f"no node in reach hosts {name!r}" if name else "the nodes host several types"
        raise Misuse(why=why, step=f"say --type, one of {', '.join(types[:20])}")
    return name or types[0], key


def owner_of(
    address: str, name: str, slot: int, options: ClusterOptions
) -> tuple[NodeAnswer, Mapping[str, Any]]:
    """Return the node that owns a slot, and what it tells of it; waits while it moves.

    Raises:
        Problem: nobody has it for long.
    """
    limit = time.monotonic() + _OWNER_LIMIT
    while True:
        told = options.ask(address, ReadPart("entity_slots", name, limit=256))
        owners = [
            (each, row)
            for each in told.nodes
            if each.answer is not None
            for row in each.answer.rows
            if row["slot"] == slot and not row.get("leaves")
        ]
        if owners:
            return max(owners, key=lambda pair: int(pair[1]["epoch"]))
        if time.monotonic() > limit:
            why = f"no node in reach owns slot {slot} of {name}"
            raise Problem(why=why, step="look again in a second: callboard entity ls ADDRESS")
        time.sleep(_LOOK)


def move_slots(address: str, wanted: Wanted, options: ClusterOptions) -> dict[str, Any]:
    """Let slots move, and wait until their new owner has them; returns what moved.

    Raises:
        Problem: a host is not there, or it takes too long.
    """
    keys, slots = wanted.keys, wanted.slots
    first = keys[0] if keys else ""
    name, first = hosted_type(address, first, options, wanted.type, is_key=bool(keys))
    if slots is None:
        rest = [hosted_type(address, key, options, wanted.type)[1] for key in keys[1:]]
        slots = sorted({slot_of(key) for key in (first, *rest)})
    with options.open_node("callboard entity") as node:
        peer = node.connect(address, options.timeout)
        hosts = _hosts(node, peer, name, options.timeout)
        target = _target(hosts, name, wanted.to)
        order = MoveSlots(name, slots, "" if target is None else target.node)
        owner = next(iter(hosts))
        told = node.context.ref_of(bytes.fromhex(owner.node), ENTITIES)
        told.ask(order, timeout=options.timeout).result()
        if target is not None:
            _await_owner(node, peer, name, set(slots), target, options.timeout)
    return {
        "type": name,
        "slots": slots,
        "node": "" if target is None else target.name,
        "node_id": "" if target is None else target.node,
    }


def _hosts(node: "Node", peer: bytes, name: str, timeout: float) -> dict[TypeHost, set[int]]:
    """Return the nodes that host a type, with their slots."""
    inspector: Any = node.context.ref_of(peer, INSPECTOR)
    order = InspectCluster(ReadPart("entities", limit=10_000), timeout)
    told = inspector.ask(order, timeout=timeout + 2.0).result()
    slots = inspector.ask(
        InspectCluster(ReadPart("entity_slots", name, limit=256), timeout),
        timeout=timeout + 2.0,
    ).result()
    owned = {
        each.node: {row["slot"] for row in each.answer.rows if not row.get("leaves")}
        for each in slots.nodes
        if each.answer is not None
    }
    return {
        TypeHost(each.name, each.node): owned.get(each.node, set())
        for each in told.nodes
        if each.answer is not None and any(row["type"] == name for row in each.answer.rows)
    }


def _target(hosts: dict[TypeHost, set[int]], name: str, to: str) -> TypeHost | None:
    """Return the host that slots go to; None for moves back.

    Raises:
        Misuse: there is none of that name, or several.
    """
    if not to:
        return None
    found = [each for each in hosts if to in (each.name, each.node)]
    if len(found) != 1:
        shown = ", ".join(sorted(f"{each.name} ({each.node[:12]})" for each in hosts))
        what = "no host" if not found else "several hosts"
        raise Misuse(why=f"{what} of {name} is called {to!r}", step=f"there are {shown}")
    return found[0]


def _await_owner(
    node: "Node", peer: bytes, name: str, slots: set[int], target: TypeHost, timeout: float
) -> None:
    """Wait until a host has slots.

    Raises:
        Problem: it takes too long.
    """
    limit = time.monotonic() + MOVE_LIMIT
    while True:
        hosts = _hosts(node, peer, name, timeout)
        owned = next((own for each, own in hosts.items() if each.node == target.node), set())
        missing = slots - owned
        if not missing:
            return
        if time.monotonic() > limit:
            why = f"{len(missing)} slots are not on {target.name} within {MOVE_LIMIT:g} s"
            step = "their handlers may run for long; see: callboard cluster hangs ADDRESS"
            raise Problem(why=why, step=step)
        time.sleep(_LOOK)
