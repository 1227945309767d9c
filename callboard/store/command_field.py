"""The kinds of fields that commands have, in one table for all their encodings."""

from enum import Enum, auto
from typing import Final

from callboard.store.command import (
    AckClone,
    Add,
    AttachWriter,
    Clear,
    Command,
    CumulativeAckCommand,
    Erase,
    Expire,
    Keepalive,
    NackCommand,
    Put,
    PutUnique,
    PutUniqueResult,
    RetransmitFailedCommand,
    Subtract,
)

__all__ = ["FIELDS", "INTERVAL_MAX", "NUMBER_MAX", "SEQS_LIMIT", "Field"]

NUMBER_MAX: Final = 2**64 - 1
#: A heartbeat interval has 16 bits.
INTERVAL_MAX: Final = 2**16 - 1
#: Numbers in one nack; more than a consumer of ours asks for, less than would cost memory.
SEQS_LIMIT: Final = 65_536


class Field(Enum):
    """What a field holds."""

    DATA = auto()
    EXPIRY = auto()
    """A timespan, or None."""
    ENTITY = auto()
    NUMBER = auto()
    """An unsigned integer of 64 bits."""
    INTERVAL = auto()
    """An unsigned integer of 16 bits."""
    FLAG = auto()
    TYPE = auto()
    """The number of a type of data."""
    SEQS = auto()
    STATE = auto()
    """A table."""


_WRITER: Final = (Field.NUMBER, Field.INTERVAL)

#: The fields of each kind of command, in the order of the class.
FIELDS: Final[dict[type[Command], tuple[Field, ...]]] = {
    Put: (Field.DATA, Field.DATA, Field.EXPIRY),
    PutUnique: (Field.DATA, Field.DATA, Field.EXPIRY, Field.ENTITY, Field.NUMBER),
    PutUniqueResult: (Field.FLAG, Field.ENTITY, Field.NUMBER),
    Erase: (Field.DATA,),
    Expire: (Field.DATA,),
    Add: (Field.DATA, Field.DATA, Field.TYPE, Field.EXPIRY),
    Subtract: (Field.DATA, Field.DATA, Field.EXPIRY),
    Clear: (),
    AttachWriter: _WRITER,
    Keepalive: (Field.NUMBER,),
    CumulativeAckCommand: (Field.NUMBER,),
    NackCommand: (Field.SEQS,),
    AckClone: (*_WRITER, Field.STATE),
    RetransmitFailedCommand: (Field.NUMBER,),
}
