"""Finds changes of an entity's state that no event and no `save()` stores.

Such a change is lost when the entity is passivated, moves, or its process ends. Comparing the
state around each handler takes time, so it is done only on simulated nodes and in Python's
development mode (`python -X dev`).
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
    """Return whether to check the handlers of a node's entities."""
    return sys.flags.dev_mode or runner.databases is not None


def checking(
    function: Callable[..., Any], form: EventSerializer, *, awaits: bool
) -> Callable[..., Any]:
    """Wrap a handler so that it raises `StateNotPersisted` if a change would be lost."""
    if awaits:

        async def check_coroutine(actor: Entity, message: Any) -> Any:
            state, written = _state_of(actor, form), actor.context.written
            answer = await function(actor, message)
            _compare(actor, form, function, state, written)
            return answer

        return check_coroutine

    def check(actor: Entity, message: Any) -> Any:
        state, written = _state_of(actor, form), actor.context.written
        answer = function(actor, message)
        _compare(actor, form, function, state, written)
        return answer

    return check


def _state_of(actor: Entity, form: EventSerializer) -> dict[str, str]:
    """Return the storable attributes of an entity, each as its stored text."""
    cell = actor.context
    if not cell.type_is_kept:
        return {}
    public = public_state(actor)
    if not cell.type.appliers and "state" in public:
        public = {"state": public["state"]}
    state = {}
    for name, value in public.items():
        try:
            state[name] = form.write(value)
        except NotSerializable:
            continue
    return state


def _compare(
    actor: Entity,
    form: EventSerializer,
    function: Callable[..., Any],
    previous: dict[str, str],
    written: int,
) -> None:
    """Check that a handler has persisted something if it has changed the state.

    Raises:
        StateNotPersisted: the handler has persisted nothing.
    """
    cell = actor.context
    if cell.written != written or cell.actor is not actor:
        return
    current = _state_of(actor, form)
    names = {**previous, **current}
    changed = [name for name in names if previous.get(name) != current.get(name)]
    if changed:
        advice = "persist() an event" if cell.type.appliers else "call save()"
        msg = (
            f"{function.__qualname__} of {cell.ref} changed {', '.join(changed)} and persisted "
            f"nothing, so the change is lost when the entity is passivated or moves; {advice}, "
            "or start the names of attributes that are not state with an underscore"
        )
        raise StateNotPersisted(msg)
