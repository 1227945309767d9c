"""Adding to values and taking away from them, as the master does it.

| value | add | subtract |
|---|---|---|
| none | becomes the operand | |
| count, integer, real | the same type | the same type |
| string | appends a string | |
| timestamp | a timespan | a timespan |
| timespan | a timespan | a timespan |
| set | inserts a member | removes a member |
| table | inserts (key, value) | removes a key |
| vector | appends an element | removes the last element |

Every other pair is a `TypeClash`. Unlike Broker's, numbers do not wrap around: a result that
does not fit its type is a `DataOverflow` and changes nothing.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

from callboard.model.data import Data, DataType, Set, Table, Vector
from callboard.model.scalar import Count
from callboard.model.timespan import Timespan, Timestamp
from callboard.store.errors import TypeClash
from callboard.store.machine.stored import Stored, data_of, stored_of

_EMPTY: Final[dict[DataType, Any]] = {
    DataType.Nil: None,
    DataType.Boolean: False,
    DataType.Count: Count(0),
    DataType.Integer: 0,
    DataType.Real: 0.0,
    DataType.String: "",
    DataType.Timestamp: Timestamp(0),
    DataType.Timespan: Timespan(0),
    DataType.Set: Set(),
    DataType.Table: Table(),
    DataType.Vector: Vector(),
}
_ENTRY: Final = 2
_ADDED: Final = "added to"
_TAKEN: Final = "taken from"


def empty_value(kind: DataType) -> Stored:
    """Return what an addition starts from when the key has no value.

    Raises:
        TypeClash: nothing can be added to values of this type.
    """
    if kind not in _EMPTY:
        msg = f"nothing can be added to a value of type {kind.name}"
        raise TypeClash(msg)
    return stored_of(_EMPTY[kind])


def add(value: Stored, operand: Stored) -> Stored:
    """Return the sum.

    Raises:
        TypeClash: see the table.
        DataOverflow: the result does not fit its type.
    """
    kind = type(value)
    if kind is type(operand) and kind in (int, float, str):
        return stored_of(value + operand)
    return operand if value is None else _operate(_ADD, _ADDED, value, operand)


def subtract(value: Stored, operand: Stored) -> Stored:
    """Return the difference.

    Raises:
        TypeClash: see the table.
        DataOverflow: the result does not fit its type.
    """
    kind = type(value)
    if kind is type(operand) and kind in (int, float):
        return stored_of(value - operand)
    return _operate(_SUBTRACT, _TAKEN, value, operand)


def index_of(value: Stored, index: Any) -> Any:
    """Return what a set (whether it holds it), table or vector has at an index.

    Raises:
        KeyError: nothing is there.
        TypeClash: the value has no elements, or the index of a vector is no number.
    """
    data, place = data_of(value), Data(index)
    match data.value:
        case Set() as members:
            return place in members
        case Table() as table:
            return Data.to_py(table[place])
        case Vector() as vector:
            if place.get_type() not in (DataType.Integer, DataType.Count):
                msg = f"the index of a vector is a number, not {place}"
                raise TypeClash(msg)
            at = int(index if type(index) is int else place.value.value)
            if not 0 <= at < len(vector):
                raise KeyError(index)
            return Data.to_py(vector[at])
    msg = f"a value of type {data.get_type().name} has no elements"
    raise TypeClash(msg)


def _operate(operations: "_Operations", verb: str, value: Stored, operand: Stored) -> Stored:
    """Return what the operation for the type of a value makes of it."""
    left, right = data_of(value), data_of(operand)
    operation = operations.get(left.get_type())
    if operation is None:
        raise _clash(verb, left, right)
    return stored_of(operation(left, right))


def _clash(verb: str, left: Data, right: Data) -> TypeClash:
    """Return the error of two types that do not fit."""
    msg = f"a {right.get_type().name} cannot be {verb} a {left.get_type().name}"
    return TypeClash(msg)


def _of(right: Data, kind: DataType, verb: str, left: Data) -> Any:
    """Return an operand of the type that is needed."""
    if right.get_type() is not kind:
        raise _clash(verb, left, right)
    return right.value


def _changing(operate: Callable[[Any, Any], Any], verb: str) -> Callable[[Data, Data], Any]:
    """Return how a number is changed by one of its type, and a time by a span."""

    def change(left: Data, right: Data) -> Any:
        kind = left.get_type()
        is_point = kind is DataType.Timestamp
        other = _of(right, DataType.Timespan if is_point else kind, verb, left)
        if kind is DataType.Count:
            return Count(operate(left.value.value, other.value))
        return operate(left.value, other)

    return change


def _append_text(left: Data, right: Data) -> bytes:
    """Append to a string."""
    appended: bytes = left.as_string() + _of(right, DataType.String, _ADDED, left)
    return appended


def _insert_entry(left: Data, right: Data) -> Table:
    """Insert a pair of key and value into a table."""
    entry: Vector = _of(right, DataType.Vector, _ADDED, left)
    if len(entry) != _ENTRY:
        msg = f"a table takes a key and a value, not {len(entry)} elements"
        raise TypeClash(msg)
    return Table([*left.as_table().pairs, (entry[0], entry[1])])


def _without(left: Data, right: Data) -> Any:
    """Remove a member of a set, or a key of a table."""
    if left.get_type() is DataType.Set:
        return Set(item for item in left.as_set() if item != right)
    return Table(entry for entry in left.as_table().pairs if entry[0] != right)


_MEASURES: Final = (
    *(DataType.Count, DataType.Integer, DataType.Real),
    *(DataType.Timestamp, DataType.Timespan),
)
_Operations = dict[DataType, Callable[[Data, Data], Any]]
_ADD: Final[_Operations] = {
    **dict.fromkeys(_MEASURES, _changing(operator.add, _ADDED)),
    DataType.String: _append_text,
    DataType.Set: lambda left, right: Set([*left.as_set(), right]),
    DataType.Table: _insert_entry,
    DataType.Vector: lambda left, right: Vector([*left.as_vector(), right]),
}
_SUBTRACT: Final[_Operations] = {
    **dict.fromkeys(_MEASURES, _changing(operator.sub, _TAKEN)),
    DataType.Set: _without,
    DataType.Table: _without,
    DataType.Vector: lambda left, _right: Vector(list(left.as_vector())[:-1]),
}
