"""Actions: commands that change a store, as plain tuples.

Thousands of them pass a store in one turn, so they have the form in which they travel and no
other: `(kind, field, …)`, where the kind is the place of the command in `COMMANDS` and keys and
values have the forms of `stored`.

| action | fields |
|---|---|
| put | key, value, expiry in ns or None |
| put_unique | key, value, expiry, who, request |
| put_unique_result | whether it was inserted, who, request |
| erase, expire | key |
| add | key, value, number of the type to start from, expiry |
| subtract | key, value, expiry |
| clear | |

`who` is `(16 bytes, number)`: an entity, plain.
"""

from typing import Any, Final

from basp.plain_cbor import is_natural
from callboard.endpoint.data import DataType
from callboard.endpoint.errors import InvalidData
from callboard.store.command import (
    COMMANDS,
    Add,
    Clear,
    Erase,
    Expire,
    Put,
    PutUnique,
    PutUniqueResult,
    Subtract,
)
from callboard.store.stored import checked_stored, checked_token

__all__ = [
    "ADD",
    "CLEAR",
    "ERASE",
    "EXPIRE",
    "PUT",
    "PUT_UNIQUE",
    "RESULT",
    "SUBTRACT",
    "Action",
    "Who",
    "checked_actions",
]

Action = tuple[Any, ...]
"""A change of a store; see the table above."""

Who = tuple[bytes, int]
"""An entity, plain."""

PUT: Final = COMMANDS.index(Put)
PUT_UNIQUE: Final = COMMANDS.index(PutUnique)
RESULT: Final = COMMANDS.index(PutUniqueResult)
ERASE: Final = COMMANDS.index(Erase)
EXPIRE: Final = COMMANDS.index(Expire)
ADD: Final = COMMANDS.index(Add)
SUBTRACT: Final = COMMANDS.index(Subtract)
CLEAR: Final = COMMANDS.index(Clear)

_PUT_LENGTH: Final = 4
_PLAIN: Final = frozenset((str, float, bool, type(None)))
_UUID_BYTES: Final = 16
_NS_MAX: Final = 2**63 - 1


def checked_actions(parts: tuple[Any, ...]) -> list[Action]:
    """Return what a peer sent as actions.

    Raises:
        InvalidData: one of them is none.
    """
    actions: list[Action] = []
    keep = actions.append
    plain = _PLAIN
    for part in parts:
        # Nearly all are puts of plain values under text, and are right as they came.
        if (
            type(part) is tuple
            and len(part) == _PUT_LENGTH
            and part[0] == PUT
            and type(part[1]) is str
            and type(part[2]) in plain
            and part[3] is None
        ):
            keep(part)
        else:
            keep(_checked_action(part))
    return actions


def _checked_action(part: Any) -> Action:
    if type(part) is not tuple or not part or type(part[0]) is not int:
        msg = "an action is an array of its kind and fields"
        raise InvalidData(msg)
    checks = _FIELDS.get(part[0])
    if checks is None or len(part) != len(checks) + 1:
        msg = f"there is no action of kind {part[0]!r:.20} with {len(part) - 1} fields"
        raise InvalidData(msg)
    return (
        part[0],
        *[check(field) for check, field in zip(checks, part[1:], strict=True)],
    )


def _expiry(part: Any) -> int | None:
    if part is None or (type(part) is int and -_NS_MAX <= part <= _NS_MAX):
        return part
    msg = f"{part!r:.60} is no expiry in nanoseconds"
    raise InvalidData(msg)


def checked_who(part: Any) -> Who:
    """Return the entity that a peer sent.

    Raises:
        InvalidData: it is none.
    """
    match part:
        case (bytes() as endpoint, int() as number) if len(
            endpoint
        ) == _UUID_BYTES and is_natural(number):
            return endpoint, number
    msg = f"{part!r:.60} is no entity: 16 bytes and a number"
    raise InvalidData(msg)


def _number(part: Any) -> int:
    if is_natural(part):
        return int(part)
    msg = f"{part!r:.60} is no request"
    raise InvalidData(msg)


def _type(part: Any) -> int:
    if is_natural(part, len(DataType)):
        return int(part)
    msg = f"there is no type of data with the number {part!r:.60}"
    raise InvalidData(msg)


def _flag(part: Any) -> bool:
    if type(part) is bool:
        return part
    msg = f"{part!r:.60} is neither true nor false"
    raise InvalidData(msg)


_FIELDS: Final = {
    PUT: (checked_token, checked_stored, _expiry),
    PUT_UNIQUE: (checked_token, checked_stored, _expiry, checked_who, _number),
    RESULT: (_flag, checked_who, _number),
    ERASE: (checked_token,),
    EXPIRE: (checked_token,),
    ADD: (checked_token, checked_stored, _type, _expiry),
    SUBTRACT: (checked_token, checked_stored, _expiry),
    CLEAR: (),
}
