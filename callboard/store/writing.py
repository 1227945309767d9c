"""The commands of a frontend: what each method of `Store` writes, checked and in its form.

Values are taken as they are when this is called: later changes of a list are not stored.
"""

import datetime
from typing import Any

from callboard.endpoint.data import DataType
from callboard.endpoint.errors import InvalidData
from callboard.endpoint.timespan import Timespan
from callboard.store.action import ADD, CLEAR, ERASE, PUT, PUT_UNIQUE, SUBTRACT, Action, Who
from callboard.store.stored import data_of, stored_of, token_of

__all__ = [
    "Expiry",
    "adding",
    "clearing",
    "erasing",
    "inserting",
    "putting",
    "putting_unique",
    "subtracting",
]

Expiry = float | datetime.timedelta | Timespan | None
"""How long a key lives, in seconds or as a span of time; None: for ever."""


def putting(key: Any, value: Any, expiry: Expiry) -> Action:
    """Return a put."""
    return PUT, token_of(key), stored_of(value), None if expiry is None else _ns(expiry)


def putting_unique(key: Any, value: Any, expiry: Expiry, who: Who, request: int) -> Action:
    """Return a put that happens only if the key has no value."""
    return PUT_UNIQUE, token_of(key), stored_of(value), _ns(expiry), who, request


def erasing(key: Any) -> Action:
    """Return an erase."""
    return ERASE, token_of(key)


def clearing() -> Action:
    """Return a clear."""
    return (CLEAR,)


def adding(key: Any, value: Any, initial: DataType | None, expiry: Expiry) -> Action:
    """Return an addition; without a type to start from, it is that of the value."""
    stored = stored_of(value)
    kind = initial or data_of(stored).get_type()
    return ADD, token_of(key), stored, int(kind), _ns(expiry)


def inserting(key: Any, index: Any, value: tuple[Any, ...], expiry: Expiry) -> Action:
    """Return an insertion into a set, or, with a value, into a table."""
    if value:
        return adding(key, (index, value[0]), DataType.Table, expiry)
    return adding(key, index, DataType.Set, expiry)


def subtracting(key: Any, value: Any, expiry: Expiry) -> Action:
    """Return a subtraction."""
    return SUBTRACT, token_of(key), stored_of(value), _ns(expiry)


def _ns(expiry: Any) -> int | None:
    if expiry is None:
        return None
    if isinstance(expiry, bool):
        msg = "an expiry is a number of seconds or a span of time, not a bool"
        raise InvalidData(msg)
    if isinstance(expiry, int):
        expiry = float(expiry)
    if isinstance(expiry, float):
        return Timespan(expiry).count()
    if isinstance(expiry, datetime.timedelta):
        return Timespan.from_timedelta(expiry).count()
    if not isinstance(expiry, Timespan):
        msg = f"an expiry is a number of seconds or a span of time, not {expiry!r:.60}"
        raise InvalidData(msg)
    return expiry.count()
