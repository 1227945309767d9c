"""Finds changes of an entity's state that no event and no `save()` stores.

Such a change is lost when the entity is passivated, moves, or its process ends. To compare the
state around each handler takes time, so it is done where mistakes are looked for: on simulated
nodes, and in Python's development mode (`python -X dev`).
"""

import sys
from collections.abc import Callable
from typing import Any

from callboard.entity.entity import Entity
from callboard.entity.errors import StateNotPersisted
from callboard.entity.event_json import EventSerializer
from callboard.entity.replay import public_state
from callboard.kernel.errors import NotSerializable
from callboard.kernel.wire import Runner


def is_wanted(runner: Runner) -> bool:
    """Return whether handlers of a node's entities are checked."""
    return sys.flags.dev_mode or runner.databases is not None


def checking(
    function: Callable[..., Any], form: EventSerializer, *, awaits: bool
) -> Callable[..., Any]:
    """Return a handler that raises `StateNotPersisted` where the given one loses a change."""
    if awaits:

        async def check_coroutine(actor: Entity, message: Any) -> Any:
            before, written = _state_of(actor, form), actor.context.written
            answer = await function(actor, message)
            _compare(actor, form, function, before, written)
            return answer

        return check_coroutine

    def check(actor: Entity, message: Any) -> Any:
        before, written = _state_of(actor, form), actor.context.written
        answer = function(actor, message)
        _compare(actor, form, function, before, written)
        return answer

    return check


def _state_of(actor: Entity, form: EventSerializer) -> dict[str, str]:
    """Return what would be stored of an entity, by attribute; without what cannot be stored."""
    cell = actor.context
    if not cell.type_is_kept:
        return {}
    public = public_state(actor)
    if not cell.type.appliers and "state" in public:
        public = {"state": public["state"]}
    found = {}
    for name, value in public.items():
        try:
            found[name] = form.write(value)
        except NotSerializable:
            continue
    return found


def _compare(
    actor: Entity,
    form: EventSerializer,
    function: Callable[..., Any],
    before: dict[str, str],
    written: int,
) -> None:
    """Raise where a handler changed the state and persisted nothing.

    Raises:
        StateNotPersisted: it did.
    """
    cell = actor.context
    if cell.written != written or cell.actor is not actor:
        return
    after = _state_of(actor, form)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if changed:
        how = "persist() an event" if cell.type.appliers else "call save()"
        msg = (
            f"{function.__qualname__} of {cell.ref} changed {', '.join(changed)} and persisted "
            f"nothing, so the change is lost when the entity is passivated or moves; {how}, or "
            "begin the names of attributes that are no state with an underscore"
        )
        raise StateNotPersisted(msg)
