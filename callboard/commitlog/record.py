"""Records as readers get them: tuples, whose payload is decoded when it is looked at."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, NoReturn

from cbor2 import CBORDecodeError, loads

from callboard.commitlog.errors import LogCorrupt


def _refer(*_: object) -> NoReturn:
    """Refuse what no log writes: a few bytes of it stand for gigabytes, or for themselves."""
    what = "parts of a payload do not refer to others"
    raise ValueError(what)


#: Tags of values (28, 29) and strings (25, 256) that are shared.
NO_REFERENCES: Final = dict.fromkeys((25, 28, 29, 256), _refer)

#: Decodes a payload; raises `CBORDecodeError` or `ValueError`.
decode_value: Final[Callable[[bytes], Any]] = partial(loads, semantic_decoders=NO_REFERENCES)


class Record(NamedTuple):
    """One record of a log.

    Attributes:
        offset: Its number, for ever; the first one of a log is 0.
        time: Nanoseconds since 1970, by the clock of who wrote it, or as given.
        topic: What it is about.
        key: Text, bytes or None.
        headers: BatchNames and texts. Shared by records of one batch, so it is read-only.
        sender: Who sent it, in a recording the id of the node; empty if nobody said so.
        data: The payload as it is stored: bytes as they are, other values as CBOR.
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
            what = f"the payload of record {self.offset} is no CBOR ({error}); see its `data`"
            raise LogCorrupt(what, offset=self.offset, next_offset=self.offset + 1) from None

    @property
    def is_bytes(self) -> bool:
        """Whether the payload is plain bytes, not CBOR."""
        return False


class BytesRecord(Record):
    """A record whose payload is bytes."""

    __slots__ = ()
    payload: Any = property(itemgetter(6))  # as quick as a field

    @property
    def is_bytes(self) -> bool:
        """Whether the payload is plain bytes, not CBOR."""
        return True


class Cursor(NamedTuple):
    """A place in a log: the next record to read, and where on the disk its batch begins.

    Only the offset counts; the rest saves a search, and may be 0.
    """

    offset: int
    segment: int = 0
    position: int = 0


class Run(NamedTuple):
    """What `readv` found.

    Attributes:
        records: The next records, perhaps none.
        cursor: Where to go on.
        lost: How many records the cursor missed, because retention removed them first.
    """

    records: list[Record]
    cursor: Cursor
    lost: int
