"""Recovers entities: restores a snapshot, and replays the events after it."""

from collections.abc import Iterable
from typing import Any, NoReturn, Protocol

from callboard.entity.entity import Entity, EntityType
from callboard.entity.errors import NotPersistable
from callboard.entity.event_json import EventSerializer
from callboard.entity.state.interface import EntitySnapshot, PastEvent
from callboard.lease.errors import StateVersion


def restore(
    form: EventSerializer, kind: EntityType, actor: Entity, snapshot: EntitySnapshot
) -> None:
    """Set the state of an entity from a snapshot."""
    if not kind.appliers:
        actor.state = _saved_state(form, kind, actor, snapshot)  # type: ignore[attr-defined]
        return
    attributes = form.read(snapshot.body)
    for name, value in attributes.items():
        setattr(actor, name, value)


def _saved_state(
    form: EventSerializer, kind: EntityType, actor: Entity, snapshot: EntitySnapshot
) -> object:
    """Return a state that `save()` stored, converted to the current version.

    Raises:
        StateVersion: the state was stored by a newer version of the program.
    """
    record, fields = form.read_record(snapshot.body)
    latest, version = kind.version_of(*record.names), snapshot.version or 1
    if version > latest:
        msg = (
            f"a state {record.name} of version {version} was stored, and this program has "
            f"version {latest}; upgrade it"
        )
        raise StateVersion(msg)
    if version < latest:
        fields = kind.upcast(actor, record.names, version, fields)
    return form.build(record, fields)


class ReplayTarget(Protocol):
    """Receives replayed events, and records the number of the last one."""

    written: int


def apply_all(
    form: EventSerializer,
    kind: EntityType,
    applied: ReplayTarget,
    actor: Entity,
    events: Iterable[PastEvent],
) -> None:
    """Apply stored events to an entity.

    Raises:
        StateVersion: an event was written by a newer version of the class.
    """
    builders, appliers, read = kind.builders, kind.appliers, form.read
    dropped = form.note_dropped
    for number, name, version, body in events:
        known = builders.get(name)
        if known is not None and known[0] == version:
            event = known[1](read(body), dropped)
        else:
            event = _first_of_kind(form, kind, actor, PastEvent(number, name, version, body))
        (appliers.get(event.__class__) or kind.applier(event))(actor, event)
        applied.written = number


def _first_of_kind(
    form: EventSerializer, kind: EntityType, actor: Entity, stored: PastEvent
) -> object:
    """Decode an event of a kind that was not read before, or of an old version.

    Raises:
        StateVersion: the event was written by a newer version of the class.
    """
    registered = form.kind_named(stored.kind)
    names = (stored.kind,) if registered is None else registered.names
    latest = kind.version_of(*names)
    if registered is None or stored.version > latest:
        msg = (
            f"{stored.kind} of version {stored.version} was stored, and this program has "
            f"{f'version {latest}' if registered else 'no such message'}; upgrade it"
        )
        raise StateVersion(msg)
    fields = form.read(stored.body)
    if stored.version < latest:
        fields = kind.upcast(actor, names, stored.version, fields)
    event = form.build(registered, fields)
    kind.builders[stored.kind] = latest, registered.build
    return event


def public_state(actor: Entity) -> dict[str, Any]:
    """Return the state of an entity: its attributes without a leading underscore."""
    public = {name: value for name, value in vars(actor).items() if name[0] != "_"}
    public.pop("context", None)
    return public


class _Past:
    """The context of an entity that is replayed for inspection."""

    def __init__(self, kind: EntityType, key: str) -> None:
        self.type, self.key, self.written = kind, key, 0

    def persist(self, _: object = None) -> NoReturn:
        """Refuse to persist: the entity is only inspected."""
        msg = f"{self.type.name}/{self.key} is replayed for inspection and persists nothing"
        raise NotPersistable(msg)

    save = persist


def replay(
    form: EventSerializer,
    kind: EntityType,
    key: str,
    snapshot: EntitySnapshot | None,
    events: Iterable[PastEvent],
) -> dict[str, Any]:
    """Return the public attributes of an entity at a past event, without hosting it.

    `__init__` runs without arguments, then the `@event` methods; no handler runs.

    Raises:
        StateVersion: the class cannot read an event.
        Exception: an error from the class.
    """
    cell: Any = _Past(kind, key)
    actor = kind.cls.attach(cell, (), {})
    if snapshot is not None:
        restore(form, kind, actor, snapshot)
    apply_all(form, kind, cell, actor, events)
    return public_state(actor)
