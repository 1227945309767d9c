"""Implementation of `callboard entity move`, and searches for owners of slots."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from callboard.backoff import Backoff, retrying
from callboard.cli.cli_error import CliError, UsageError
from callboard.cli.work.cluster_options import ClusterOptions
from callboard.entity.entity import checked_key
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import MoveSlots
from callboard.entity.reference import PREFIX, entity_parts
from callboard.kernel.tables import InspectCluster, NodeAnswer, ReadPart
from callboard.kernel.topology import ENTITIES, INSPECTOR

if TYPE_CHECKING:
    from callboard.node import Node

#: Timeout of a move in seconds.
MOVE_LIMIT: Final = 30.0

#: Seconds to wait for the owner of a slot that is moving.
_OWNER_LIMIT: Final = 5.0
_POLL_SECONDS: Final = 0.1


class TypeHost(NamedTuple):
    """A host of the type."""

    name: str
    node: str


class MoveRequest(NamedTuple):
    """The requested move: keys or slots of a type, to a host by name or id; "" moves back."""

    type: str
    keys: list[str]
    slots: list[int] | None
    to: str


def hosted_type(
    address: str, key: str, options: ClusterOptions, name: str, *, is_key: bool = True
) -> tuple[str, str]:
    """Return type and key of an entity that a cluster hosts; without `is_key`, only a type.

    Raises:
        CliError: the entity's type is not hosted, or is ambiguous.
    """
    parts = entity_parts(key) if key.startswith(PREFIX) else None
    if parts is not None:
        name, key = parts
    if is_key:
        checked_key(key)
    inspection = options.ask(address, ReadPart("entities", limit=10_000))
    answers = [answer.answer.rows for answer in inspection.nodes if answer.answer is not None]
    types = sorted({str(row["type"]) for rows in answers for row in rows})
    if not types:
        step = "call node.host(Cart, state=…) in a program"
        raise CliError(why="no node in reach hosts entities", step=step)
    if name not in types and (name or len(types) > 1):
        reason = f"no node in reach hosts {name!r}" if name else "the nodes host several types"
        raise UsageError(why=reason, step=f"use --type, one of {', '.join(types[:20])}")
    return name or types[0], key


def owner_of(
    address: str, name: str, slot: int, options: ClusterOptions
) -> tuple[NodeAnswer, Mapping[str, Any]]:
    """Return the owner of a slot, and its data about the slot; wait while the slot moves.

    Raises:
        CliError: the slot has no owner for some seconds.
    """
    for _ in retrying(Backoff.fixed(_POLL_SECONDS), _OWNER_LIMIT):
        inspection = options.ask(address, ReadPart("entity_slots", name, limit=256))
        owners = [
            (answer, row)
            for answer in inspection.nodes
            if answer.answer is not None
            for row in answer.answer.rows
            if row["slot"] == slot and not row.get("leaves")
        ]
        if owners:
            return max(owners, key=lambda pair: int(pair[1]["epoch"]))
    reason = f"no node in reach owns slot {slot} of {name}"
    step = "try again in a second, and see: callboard entity ls ADDRESS"
    raise CliError(why=reason, step=step)


def move_slots(address: str, request: MoveRequest, options: ClusterOptions) -> dict[str, Any]:
    """Request a move of slots, and wait for the new owner; return the moved slots.

    Raises:
        CliError: the host is missing, or the move takes too long.
    """
    keys, slots = request.keys, request.slots
    first = keys[0] if keys else ""
    name, first = hosted_type(address, first, options, request.type, is_key=bool(keys))
    if slots is None:
        rest = [hosted_type(address, key, options, request.type)[1] for key in keys[1:]]
        slots = sorted({slot_of(key) for key in (first, *rest)})
    with options.open_node("callboard entity") as node:
        peer = node.connect(address, options.timeout)
        hosts = _hosts(node, peer, name, options.timeout)
        target = _target(hosts, name, request.to)
        order = MoveSlots(name, slots, "" if target is None else target.node)
        owner = next(iter(hosts))
        entities = node.context.ref_of(bytes.fromhex(owner.node), ENTITIES)
        entities.ask(order, timeout=options.timeout).result()
        if target is not None:
            _await_owner(node, peer, name, set(slots), target, options.timeout)
    return {
        "type": name,
        "slots": slots,
        "node": "" if target is None else target.name,
        "node_id": "" if target is None else target.node,
    }


def _hosts(node: "Node", peer: bytes, name: str, timeout: float) -> dict[TypeHost, set[int]]:
    """Return the hosts of a type, with their slots."""
    inspector: Any = node.context.ref_of(peer, INSPECTOR)
    order = InspectCluster(ReadPart("entities", limit=10_000), timeout)
    inspection = inspector.ask(order, timeout=timeout + 2.0).result()
    slots = inspector.ask(
        InspectCluster(ReadPart("entity_slots", name, limit=256), timeout),
        timeout=timeout + 2.0,
    ).result()
    owned = {
        answer.node: {row["slot"] for row in answer.answer.rows if not row.get("leaves")}
        for answer in slots.nodes
        if answer.answer is not None
    }
    return {
        TypeHost(answer.name, answer.node): owned.get(answer.node, set())
        for answer in inspection.nodes
        if answer.answer is not None and any(row["type"] == name for row in answer.answer.rows)
    }


def _target(hosts: dict[TypeHost, set[int]], name: str, to: str) -> TypeHost | None:
    """Return the new host of the slots; None for a move back.

    Raises:
        UsageError: there is no host of that name, or several.
    """
    if not to:
        return None
    matches = [candidate for candidate in hosts if to in (candidate.name, candidate.node)]
    if len(matches) != 1:
        choices = ", ".join(
            sorted(f"{candidate.name} ({candidate.node[:12]})" for candidate in hosts)
        )
        problem = "no host" if not matches else "several hosts"
        raise UsageError(
            why=f"{problem} of {name} is called {to!r}", step=f"there are {choices}"
        )
    return matches[0]


def _await_owner(
    node: "Node", peer: bytes, name: str, slots: set[int], target: TypeHost, timeout: float
) -> None:
    """Wait until a host has the slots.

    Raises:
        CliError: no host had the slots in time.
    """
    missing = slots
    for _ in retrying(Backoff.fixed(_POLL_SECONDS), MOVE_LIMIT):
        hosts = _hosts(node, peer, name, timeout)
        owned = next(
            (
                slots_of_host
                for type_host, slots_of_host in hosts.items()
                if type_host.node == target.node
            ),
            set(),
        )
        missing = slots - owned
        if not missing:
            return
    reason = f"{len(missing)} slots are not on {target.name} within {MOVE_LIMIT:g} s"
    step = "their handlers may run for long; see: callboard cluster hangs ADDRESS"
    raise CliError(why=reason, step=step)
