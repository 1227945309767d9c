"""Commands between our own nodes: a CBOR array.

`[number, sender, receiver, kind, field …]`: sender and receiver are null or `[16 bytes,
integer]`, the kind is the place in `COMMANDS`. Data are byte strings that hold their own CBOR
(see `endpoint.data_cbor`), so that a command can be read without reading the data in it.
"""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from basp.errors import RemoteProtocolError
from basp.plain_cbor import is_natural, read_plain, write_plain
from callboard.endpoint.container import Table
from callboard.endpoint.data import Data, DataType
from callboard.endpoint.data_cbor import data_from_cbor, data_to_cbor
from callboard.endpoint.errors import EndpointError, InvalidData
from callboard.endpoint.timespan import Timespan
from callboard.store.command import COMMANDS, InternalCommand
from callboard.store.command_field import FIELDS, INTERVAL_MAX, NUMBER_MAX, SEQS_LIMIT, Field
from callboard.store.entity_id import NIL, EntityId

__all__ = ["command_from_cbor", "command_to_cbor"]

_NUMBERS: Final = {kind: number for number, kind in enumerate(COMMANDS)}
_HEAD: Final = 4
_UUID_BYTES: Final = 16
_PAIR: Final = 2


def command_to_cbor(command: InternalCommand) -> bytes:
    """Return the CBOR of a command."""
    content = command.content
    kind = type(content)
    fields = [
        _written(field, getattr(content, name))
        for field, name in zip(FIELDS[kind], kind.__dataclass_fields__, strict=True)
    ]
    head = [command.seq, _entity(command.sender), _entity(command.receiver), _NUMBERS[kind]]
    return write_plain([*head, *fields])


def command_from_cbor(payload: bytes) -> InternalCommand:
    """Return the command that fills the bytes.

    Raises:
        InvalidData: they are none.
    """
    try:
        parts = read_plain(payload)
    except RemoteProtocolError as cause:
        raise InvalidData(str(cause)) from cause
    if type(parts) is not list or len(parts) < _HEAD:
        msg = "a command is an array of its number, sender, receiver, kind and fields"
        raise InvalidData(msg)
    seq, sender, receiver, number = parts[:_HEAD]
    if not is_natural(number, len(COMMANDS)):
        msg = f"there is no command of kind {number!r:.40}"
        raise InvalidData(msg)
    kind = COMMANDS[number]
    fields = FIELDS[kind]
    if len(parts) != _HEAD + len(fields):
        msg = f"{kind.__name__} has {len(fields)} fields, not {len(parts) - _HEAD}"
        raise InvalidData(msg)
    values = [_read(field, part) for field, part in zip(fields, parts[_HEAD:], strict=True)]
    return InternalCommand(
        _read(Field.NUMBER, seq),
        _read(Field.ENTITY, sender),
        kind(*values),
        _read(Field.ENTITY, receiver),
    )


def _entity(entity: EntityId) -> list[Any] | None:
    return [entity.endpoint.bytes, entity.object] if entity else None


def _written(field: Field, value: Any) -> Any:
    match field:
        case Field.DATA:
            return data_to_cbor(value)
        case Field.STATE:
            return data_to_cbor(Data.of(DataType.Table, value))
        case Field.EXPIRY:
            return None if value is None else value.count()
        case Field.ENTITY:
            return _entity(value)
        case Field.SEQS:
            return list(value)
        case Field.TYPE:
            return int(value)
    return value


def _read(field: Field, part: Any) -> Any:
    """Return the value of a field.

    Raises:
        InvalidData: it does not fit the field.
    """
    try:
        return _READ[field](part)
    except (EndpointError, _Unfit) as cause:
        msg = f"{part!r:.60} is no {field.name.lower()} of a command: {cause}"
        raise InvalidData(msg) from cause


class _Unfit(Exception):  # noqa: N818
    """The part has another type or range than the field."""


def _require(fits: bool, wanted: str) -> None:  # noqa: FBT001
    if not fits:
        raise _Unfit(wanted)


def _data(part: Any) -> Data:
    _require(type(part) is bytes, "bytes are wanted")
    return data_from_cbor(part)


def _state(part: Any) -> Table:
    data = _data(part)
    _require(data.get_type() is DataType.Table, "a table is wanted")
    return data.as_table()


def _expiry(part: Any) -> Timespan | None:
    _require(part is None or type(part) is int, "nanoseconds or null are wanted")
    return None if part is None else Timespan(part)


def _entity_id(part: Any) -> EntityId:
    if part is None:
        return NIL
    _require(type(part) is list and len(part) == _PAIR, "[16 bytes, integer] is wanted")
    uuid, number = part
    _require(type(uuid) is bytes and len(uuid) == _UUID_BYTES, "16 bytes are wanted")
    return EntityId(UUID(bytes=uuid), _number(number))


def _number(part: Any, limit: int = NUMBER_MAX) -> int:
    _require(is_natural(part, limit + 1), f"an integer from 0 to {limit:,} is wanted")
    return int(part)


def _flag(part: Any) -> bool:
    _require(type(part) is bool, "true or false is wanted")
    return bool(part)


def _seqs(part: Any) -> tuple[int, ...]:
    _require(type(part) is list and len(part) <= SEQS_LIMIT, f"at most {SEQS_LIMIT:,} fit")
    return tuple(map(_number, part))


_READ: Final[dict[Field, Callable[[Any], Any]]] = {
    Field.DATA: _data,
    Field.STATE: _state,
    Field.EXPIRY: _expiry,
    Field.ENTITY: _entity_id,
    Field.NUMBER: _number,
    Field.INTERVAL: lambda part: _number(part, INTERVAL_MAX),
    Field.FLAG: _flag,
    Field.TYPE: lambda part: DataType(_number(part, len(DataType) - 1)),
    Field.SEQS: _seqs,
}
