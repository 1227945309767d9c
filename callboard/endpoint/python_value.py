"""Data as Python values, in two forms: easy to change, and safe to share."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from basp.errors import CollidingKeys
from basp.hash_collisions import check_hashes
from callboard.endpoint.address import Address, Subnet
from callboard.endpoint.container import FrozenTable, Set, Table, Vector
from callboard.endpoint.errors import InvalidData
from callboard.endpoint.timespan import Timespan, Timestamp

if TYPE_CHECKING:
    from callboard.endpoint.data import Data

__all__ = ["immutable_value", "python_value", "thawed"]


def python_value(data: "Data", *, hashed: bool) -> Any:
    """Return data as Python values; sets and tables in it can be changed.

    Args:
        data: what to convert.
        hashed: the value becomes a key or a member of a set, so it must not be changed.
    """
    value = data.value
    match value:
        case Vector():
            return tuple([python_value(item, hashed=hashed) for item in value])
        case Set():
            members = _checked([python_value(item, hashed=True) for item in value])
            return frozenset(members) if hashed else set(members)
        case Table():
            keys = _checked([python_value(key, hashed=True) for key in value])
            items = [python_value(item, hashed=hashed) for _, item in value.pairs]
            entries = dict(zip(keys, items, strict=True))
            return FrozenTable(entries) if hashed else entries
    return _scalar(value)


def immutable_value(data: "Data", *, hashed: bool) -> Any:
    """Return data as Python values that cannot be changed.

    A table is a `MappingProxyType`; where it must be hashable, a `FrozenTable`.
    """
    value = data.value
    match value:
        case Vector():
            return tuple([immutable_value(item, hashed=hashed) for item in value])
        case Set():
            return frozenset(_checked([immutable_value(item, hashed=True) for item in value]))
        case Table():
            keys = _checked([immutable_value(key, hashed=True) for key in value])
            items = [immutable_value(item, hashed=hashed) for _, item in value.pairs]
            entries = dict(zip(keys, items, strict=True))
            return FrozenTable(entries) if hashed else MappingProxyType(entries)
    return _scalar(value)


def _checked(keys: list[Any]) -> list[Any]:
    """Refuse keys that were chosen to have the same hash, before they cost time."""
    try:
        check_hashes(keys)
    except CollidingKeys as cause:
        raise InvalidData(str(cause)) from cause
    return keys


_SCALARS = frozenset({str, int, float, bool, type(None), bytes})


def thawed(value: Any) -> Any:
    """Return an immutable Python value with sets and tables that can be changed.

    Members of sets and keys of tables stay as they are: they have to be hashable.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is tuple:
        for item in value:
            if type(item) not in _SCALARS:
                return tuple([thawed(item) for item in value])
        return value
    if kind is frozenset:
        return set(value)
    if kind is MappingProxyType or kind is FrozenTable:
        return {key: thawed(item) for key, item in value.items()}
    return value


def _scalar(value: Any) -> Any:
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        case Address() | Subnet():
            return value.to_ip()
        case Timestamp():
            return value.to_datetime()
        case Timespan():
            return value.to_timedelta()
    return value
