"""Addition to values and subtraction from them, as the master does both.

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

Every other pair is a `TypeClash`. Unlike in Broker, numbers do not wrap around: a result that
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
_SUBTRACTED: Final = "subtracted from"


def empty_value(kind: DataType) -> Stored:
    """Return the value that an addition to a missing key starts from.

    Raises:
        TypeClash: values of this type do not support addition.
    """
    if kind not in _EMPTY:
        msg = f"a value of type {kind.name} does not support addition"
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
    return _operate(_SUBTRACT, _SUBTRACTED, value, operand)


def index_of(value: Stored, index: Any) -> Any:
    """Return an element of a table or vector, or whether a set has a member.

    Raises:
        KeyError: the table or vector does not have the index.
        TypeClash: the value is not a collection, or the index of a vector is not a number.
    """
    data, key = data_of(value), Data(index)
    match data.value:
        case Set() as members:
            return key in members
        case Table() as table:
            return Data.to_py(table[key])
        case Vector() as vector:
            if key.get_type() not in (DataType.Integer, DataType.Count):
                msg = f"the index of a vector must be a number, not {key}"
                raise TypeClash(msg)
            position = int(index if type(index) is int else key.value.value)
            if not 0 <= position < len(vector):
                raise KeyError(index)
            return Data.to_py(vector[position])
    msg = f"a value of type {data.get_type().name} is not a set, table or vector"
    raise TypeClash(msg)


def _operate(operations: "_Operations", verb: str, value: Stored, operand: Stored) -> Stored:
    """Apply the operation that the type of a value has."""
    left, right = data_of(value), data_of(operand)
    operation = operations.get(left.get_type())
    if operation is None:
        raise _clash(verb, left, right)
    return stored_of(operation(left, right))


def _clash(verb: str, left: Data, right: Data) -> TypeClash:
    """Return the error for two types that do not fit together."""
    msg = f"a {right.get_type().name} cannot be {verb} a {left.get_type().name}"
    return TypeClash(msg)


def _of(right: Data, kind: DataType, verb: str, left: Data) -> Any:
    """Return the value of an operand after checking its type."""
    if right.get_type() is not kind:
        raise _clash(verb, left, right)
    return right.value


def _changing(operate: Callable[[Any, Any], Any], verb: str) -> Callable[[Data, Data], Any]:
    """Return an operation on two numbers of one type, or on a time and a timespan."""

    def change(left: Data, right: Data) -> Any:
        kind = left.get_type()
        is_point = kind is DataType.Timestamp
        operand = _of(right, DataType.Timespan if is_point else kind, verb, left)
        if kind is DataType.Count:
            return Count(operate(left.value.value, operand.value))
        return operate(left.value, operand)

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
    **dict.fromkeys(_MEASURES, _changing(operator.sub, _SUBTRACTED)),
    DataType.Set: _without,
    DataType.Table: _without,
    DataType.Vector: lambda left, _right: Vector(list(left.as_vector())[:-1]),
}
