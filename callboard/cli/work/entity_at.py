"""Implementation of `callboard entity at`: the state of an entity after one of its events."""

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callboard.cli.cli_error import CliError, UsageError
from callboard.cli.loading import load_app
from callboard.entity.entity import Entity, EntityType, type_name
from callboard.entity.event_json import EventSerializer
from callboard.entity.journal.entry import raw_event
from callboard.entity.replay import replay
from callboard.entity.state.interface import PAGE, EntitySnapshot, PastEvent, StoredEvent
from callboard.kernel.codec import DEFAULT_REGISTRY, PayloadCodec
from callboard.support.text import class_name, error_text

if TYPE_CHECKING:
    from types import ModuleType

    from callboard.entity.state.sql import SqlView


def past_of(
    view: "SqlView", name: str, key: str, number: int, code: Path | None
) -> dict[str, Any]:
    """Return the state of an entity after an event.

    Raises:
        CliError: there is no such event, or the class cannot apply the events.
    """
    cls = None if code is None else _class_of(load_app(code), name, code)
    last = view.last_number(name, key)
    if number > last:
        step = f"use a number up to {last}"
        raise UsageError(why=f"{name} {key!r} has {last} events", step=step)
    version = None if cls is None else EntityType(cls).snapshot_version
    snapshot = view.snapshot_at(name, key, number, version)
    events = _events(view, name, key, snapshot.number if snapshot else 0, number)
    if cls is not None:
        state, events = _replayed(cls, key, snapshot, events), []
    else:
        state = {} if snapshot is None else json.loads(snapshot.body)
        if not isinstance(state, dict):
            state = {"state": state}
    raw = [(event.number, raw_event(event)) for event in events]
    return {
        "type": name,
        "key": key,
        "number": number,
        "state": state,
        "events": [{"number": n, "kind": e.kind, "fields": e.fields} for n, e in raw],
    }


def _events(view: "SqlView", name: str, key: str, after: int, number: int) -> list[StoredEvent]:
    """Return the events of a key after one number, up to another.

    Raises:
        CliError: some of the events were deleted.
    """
    events: list[StoredEvent] = []
    while after < number:
        page = view.events(name, key, after, min(PAGE, number - after))
        if not page or page[0].number != after + 1 or page[-1].number > number:
            reason = f"events of {name} {key!r} after {after} were deleted (keep)"
            step = "use a later NUMBER, or see: callboard entity history"
            raise CliError(why=reason, step=step)
        events += page
        after = page[-1].number
    return events


def _class_of(module: "ModuleType", name: str, path: Path) -> type[Entity]:
    """Return the class of a type in a file.

    Raises:
        UsageError: the file has no such class.
    """
    classes = [
        entity_class
        for entity_class in vars(module).values()
        if inspect.isclass(entity_class)
        and issubclass(entity_class, Entity)
        and entity_class is not Entity
    ]
    for entity_class in classes:
        if type_name(entity_class) == name:
            return entity_class
    names = ", ".join(sorted({type_name(entity_class) for entity_class in classes})) or "none"
    raise UsageError(why=f"{path} has no entity class of type {name}", step=f"it has: {names}")


def _replayed(
    cls: type[Entity], key: str, snapshot: EntitySnapshot | None, events: list[StoredEvent]
) -> dict[str, Any]:
    """Return the public attributes of an entity after applying events.

    Raises:
        CliError: the entity's class cannot be created, or cannot apply the events.
    """
    form = EventSerializer(PayloadCodec(DEFAULT_REGISTRY))
    try:
        past = [PastEvent(event.number, *event[5:]) for event in events]
        state = replay(form, EntityType(cls), key, snapshot, past)
        return {field: json.loads(form.write(value)) for field, value in state.items()}
    except Exception as error:  # user code can raise anything
        reason = (
            f"{cls.__qualname__} cannot be replayed: {class_name(error)}: {error_text(error)}"
        )
        step = "correct the class, or omit --code to print the stored data"
        raise CliError(why=reason, step=step) from error
