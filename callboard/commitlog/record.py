"""Records as returned to readers: tuples whose payload is decoded on access."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, NoReturn

from cbor2 import CBORDecodeError, loads

from callboard.commitlog.errors import LogCorrupt


def _refer(*_: object) -> NoReturn:
    """Refuse shared CBOR values, which logs never write.

    With them a few bytes can expand to gigabytes, or a value can contain itself.
    """
    msg = "a payload must not contain references to other parts of it"
    raise ValueError(msg)


#: CBOR tags of shared values (28, 29) and shared strings (25, 256).
NO_REFERENCES: Final = dict.fromkeys((25, 28, 29, 256), _refer)

#: Decodes a payload; raises `CBORDecodeError` or `ValueError`.
decode_value: Final[Callable[[bytes], Any]] = partial(loads, semantic_decoders=NO_REFERENCES)


class Record(NamedTuple):
    """One record of a log.

    Attributes:
        offset: Permanent number of the record; the first one of a log has 0.
        time: Nanoseconds since 1970, set by the caller or by the clock of the writer.
        topic: Topic of the record.
        key: Text, bytes or None.
        headers: Names and texts. Read-only, because the records of a batch share it.
        sender: Name of the sender, in a recording the id of the node; empty if unknown.
        data: The payload as stored: bytes unchanged, other values as CBOR.
    """

    offset: int
    time: int
    topic: str
    key: str | bytes | None
    headers: Mapping[str, str]
    sender: str
    data: bytes

    @property
    def payload(self) -> Any:
        """The payload; decoded at each access, so keep it if you need it twice."""
        try:
            return decode_value(self.data)
        except (CBORDecodeError, ValueError) as error:
            msg = f"the payload of record {self.offset} is not CBOR ({error}); see its `data`"
            raise LogCorrupt(msg, offset=self.offset, next_offset=self.offset + 1) from None

    @property
    def is_bytes(self) -> bool:
        """Whether the payload is plain bytes, not CBOR."""
        return False


class BytesRecord(Record):
    """A record whose payload is bytes."""

    __slots__ = ()
    payload: Any = property(itemgetter(6))  # as fast as a field

    @property
    def is_bytes(self) -> bool:
        """Whether the payload is plain bytes, not CBOR."""
        return True


class Cursor(NamedTuple):
    """A position in a log: the offset of the next record, and a hint where its batch is.

    Segment and position are the hint, which saves a search. They may be 0.
    """

    offset: int
    segment: int = 0
    position: int = 0


class Run(NamedTuple):
    """The result of `readv`.

    Attributes:
        records: The next records; may be empty.
        cursor: Cursor of the next read.
        lost: Number of records after the old cursor that retention has removed.
    """

    records: list[Record]
    cursor: Cursor
    lost: int
