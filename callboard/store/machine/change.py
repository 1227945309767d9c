"""Changes of a store, as events on a local topic and for `watch`.

An event as data is the vector that Broker sends: kind, store, key, the values, the expiry, and
the writer (the UUID of its endpoint as text, and a number):

    insert, store, key, value, expiry, endpoint, number
    update, store, key, old value, new value, expiry, endpoint, number
    erase | expire, store, key, endpoint, number
"""

from typing import Any, Final, NamedTuple

from callboard.model.encoding import data_from_cbor
from callboard.model.timespan import Timespan
from callboard.store.machine.command import EntityId
from callboard.store.machine.stored import Stored, Token, key_of, python_of

_MISSING: Final[Any] = object()


class Change(NamedTuple):
    """A change as the machines report it: its kind, and the stored forms of key and values."""

    kind: str
    token: Token
    value: Stored = None
    old: Stored = None
    expiry: int | None = None


class StoreEvent(NamedTuple):
    """A change as users see it.

    Attributes:
        kind: `insert`, `update`, `erase` or `expire`.
        store: the name of the store.
        key: the key.
        value: the value after the change; None if the key was removed.
        old_value: the value before an update.
        expiry: seconds from the change until the key expires; None if it does not.
    """

    kind: str
    store: str
    key: Any
    value: Any = None
    old_value: Any = None
    expiry: float | None = None


def event_of(store: str, change: Change) -> StoreEvent:
    """Return a change as users see it."""
    values = python_of(change.value), python_of(change.old)
    expiry = None if change.expiry is None else change.expiry / 1e9
    return StoreEvent(change.kind, store, key_of(change.token), *values, expiry)


def event_data(store: str, change: Change, publisher: EntityId) -> list[Any]:
    """Return a change as the data that is published for it."""
    parts: list[Any] = [change.kind, store, _part(change.token)]
    if change.kind == "update":
        parts.append(_part(change.old))
    if change.kind in ("insert", "update"):
        span = None if change.expiry is None else Timespan(change.expiry)
        parts += [_part(change.value), span]
    source = [str(publisher.endpoint), publisher.object] if publisher else [None, None]
    return parts + source


def _part(stored: Stored) -> Any:
    """Return a key or value in a form that can be encoded as data."""
    return data_from_cbor(stored) if type(stored) is bytes else stored


def difference(before: dict[Token, Stored], after: dict[Token, Stored]) -> list[Change]:
    """Return the changes between two states."""
    changes = [Change("erase", token) for token in before if token not in after]
    for token, value in after.items():
        old = before.get(token, _MISSING)
        if old is _MISSING:
            changes.append(Change("insert", token, value))
        elif type(old) is not type(value) or old != value:
            changes.append(Change("update", token, value, old))
    return changes
