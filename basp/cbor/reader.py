"""From CBOR to Python values, for untrusted bytes.

cbor2 parses; a table of functions, one for each tag, makes values of what is tagged. Nothing
else is constructed: a tag that is not in the table is refused, those that cbor2 would decode
by itself included. A room that needs more types passes its own table, or extends
`PYTHON_TAGS`::

    reader = CborReader("points", {48990: read_as(list, Point.of)}, max_depth=16)
    point = reader.read(payload)

The depth of nested containers, and the time that colliding keys can cost, are bounded.
"""

import io
from collections.abc import Callable, Collection, Generator, Mapping
from datetime import datetime, time, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn

import cbor2

from callboard.basp.cbor import tags
from callboard.basp.cbor.collisions import SAME_HASH_LIMIT, check_hashes
from callboard.basp.cbor.pieces import PieceReader, reserve
from callboard.basp.errors import MalformedPayload, RemoteProtocolError
from callboard.support.text import describe

#: Makes a value of a tag's content; also told whether a map key is being read. What it raises
#: becomes a `RemoteProtocolError`.
TagReader = Callable[[Any, bool], Any]

_CAUSES_FOLLOWED: Final = 1000

#: Bytes of a payload that is not read before there is memory for it.
_RESERVED_FROM: Final = 16_384

# cbor2 ignores what follows the first item. We let it read one item more, a number that we
# append; when bytes trail the item, it meets those instead. The number comes from the hash
# seed of the process, so that a peer cannot append it too (it would gain nothing).
_SENTINEL: Final = hash("end of payload") & 0x3FFF_FFFF_FFFF_FFFF | 1 << 62
_SENTINEL_BYTES: Final = b"\x1b" + _SENTINEL.to_bytes(8, "big")


class RunsUserCode(Exception):  # it tells the caller what to do, nothing is wrong
    """A value has a class with functions of its user: it is read where these may take long."""


def remote_error(cause: BaseException) -> RemoteProtocolError | RunsUserCode:
    """Find the typed error in what cbor2 raised, or make one.

    cbor2 wraps what a tag's function raises once for each tag around it.
    """
    last: BaseException = cause
    for _ in range(_CAUSES_FOLLOWED):
        if isinstance(last, RemoteProtocolError | RunsUserCode):
            # What is raised from this one must not lead back to it: nobody would free the
            # payload that they hold before the garbage collection.
            cause.__cause__ = cause.__context__ = None
            return last
        if last.__cause__ is None:
            break
        last = last.__cause__
    return MalformedPayload(f"payload cannot be read: {describe(last)}")


def bad_content(content: object, what: str) -> MalformedPayload:
    """Return the error for a tag with content that no ``what`` can be made of."""
    return MalformedPayload(f"{what} cannot be made of this {type(content).__name__}")


def read_as(kind: type, make: Callable[[Any], Any], what: str = "value") -> TagReader:
    """Return a tag's function that calls ``make`` with content of exactly one type."""

    def read(content: Any, _is_key: object) -> Any:
        if type(content) is kind:
            return make(content)
        raise bad_content(content, what)

    return read


class CborReader:
    """Reads items that hold plain values and the tags of one table.

    Plain values are None, bool, int of 64 bits, float, str, bytes, arrays, and maps with keys
    of text and bytes, whose hashes a peer cannot choose. Thread-safe as far as the functions
    of the table are.
    """

    def __init__(
        self,
        what: str,
        table: Mapping[int, TagReader] = MappingProxyType({}),
        *,
        max_depth: int,
        trusted: Collection[int] = (),
        kept: Collection[int] = (),
        has_maps: bool = True,
        is_immutable: bool = False,
    ) -> None:
        """Make a reader.

        Args:
            what: what is read, in the plural, for error messages.
            table: the function of each tag.
            max_depth: levels inside each other: each container and each tag is one.
            trusted: tags that cbor2 may decode itself, of `tags.CBOR2_TAGS`.
            kept: tags that stay `cbor2.CBORTag`, for a second pass by the caller.
            has_maps: whether there may be maps.
            is_immutable: whether arrays become tuples instead of lists.
        """
        self._what = what
        self._kept = frozenset(kept)
        refused = {tag: self._refuser(tag) for tag in tags.CBOR2_TAGS if tag not in trusted}
        self._options: dict[str, Any] = {
            "semantic_decoders": {**refused, **table},
            "tag_hook": self._take_tag,
            "object_hook": None if has_maps else self._refuse_map,
            "strict_hashable_types": True,
        }
        self._loads: Callable[[bytes], Any] = partial(
            cbor2.loads, **self._options, max_depth=max_depth, immutable=is_immutable
        )
        # One level less: `read` wraps the item into an array.
        self._pieces = PieceReader(self._open_reader, table, max_depth - 1)

    def read(self, payload: bytes) -> Any:
        """Return the one item that fills ``payload`` exactly.

        Raises:
            RemoteProtocolError: the bytes are no such item, or bytes follow it.
            RunsUserCode: a function of the table raised it.
        """
        if len(payload) > _RESERVED_FROM:
            reserve(len(payload))
        try:
            item, end = self._loads(b"\x82" + payload + _SENTINEL_BYTES)
        except (KeyboardInterrupt, RemoteProtocolError, RunsUserCode):  # of who reads a file
            raise
        except BaseException as cause:  # code of users runs in there, and cbor2 may panic
            raise remote_error(cause) from cause
        if type(end) is not int or end != _SENTINEL:
            message = f"bytes follow the last item in a payload of {len(payload):,} B"
            raise MalformedPayload(message)
        return item

    def read_in_pieces(
        self, payload: bytes, at: int, count: int
    ) -> Generator[None, None, list[Any]]:
        """Return the items that fill a large payload from a place on; pause between pieces.

        Unlike `read`, it takes no large items of open length, and no tags that the caller
        looks at again.

        Args:
            payload: the bytes, which were weighed: see `callboard.basp.cbor.pieces`.
            at: where the items begin.
            count: how many they are.

        Raises:
            RemoteProtocolError: the bytes are no such items, or bytes follow them.
        """
        try:
            return (yield from self._pieces.read(payload, at, count))
        except (KeyboardInterrupt, GeneratorExit, RemoteProtocolError, RunsUserCode):
            raise  # it is read no further
        except BaseException as cause:  # constructors of users, and a decoder without memory
            raise remote_error(cause) from cause

    def _open_reader(self, stream: io.BytesIO, levels: int) -> cbor2.CBORDecoder:
        """Return the reader of a stream of small items."""
        return cbor2.CBORDecoder(stream, **self._options, max_depth=levels)

    def _take_tag(self, tag: cbor2.CBORTag, _is_key: object) -> cbor2.CBORTag:
        """Take a tag without a function: keep it, or refuse it."""
        if tag.tag in self._kept:
            return tag
        raise self._foreign(tag.tag)

    def _refuser(self, tag: int) -> TagReader:
        """Return the function of a tag that cbor2 knows and we refuse."""

        def refuse(_content: object, _is_key: object) -> NoReturn:
            raise self._foreign(tag)

        return refuse

    def _foreign(self, tag: int) -> MalformedPayload:
        """Return the error for a tag that is not in the table."""
        return MalformedPayload(f"CBOR tag {tag} is not one that {self._what} use")

    def _refuse_map(self, _content: object, _is_key: object) -> NoReturn:
        """Refuse a map."""
        message = f"{self._what} hold no maps"
        raise MalformedPayload(message)


def _read_tuple(content: Any, _is_key: object) -> tuple[object, ...]:
    """Make a tuple of an array."""
    if type(content) is list or type(content) is tuple:
        return tuple(content)
    raise bad_content(content, "tuple")


def _hashed_reader(make: Callable[[Any], Any], what: str) -> TagReader:
    """Return the function that makes a set or frozenset of an array."""

    def read(content: Any, _is_key: object) -> Any:
        if type(content) is list or type(content) is tuple:
            check_hashes(content)
            return make(content)
        raise bad_content(content, what)

    return read


def _read_pairs(content: Any, _is_key: object) -> dict[object, object]:
    """Make a dict of an array of keys and values."""
    if type(content) is list and len(content) % 2 == 0:
        if len(content) > 2 * SAME_HASH_LIMIT:
            check_hashes(content[::2])
        parts = iter(content)
        return dict(zip(parts, parts, strict=True))
    raise bad_content(content, "map of pairs")


def _read_folded(content: Any, _is_key: object) -> datetime | time:
    """Set ``fold`` of a moment, alone in an array."""
    (moment,) = content
    if type(moment) is datetime or type(moment) is time:
        return moment.replace(fold=1)
    raise bad_content(content, "fold")


def _read_timedelta(content: Any, _is_key: object) -> timedelta:
    """Make a timedelta of days, seconds and microseconds."""
    days, seconds, microseconds = content
    if type(days) is int and type(seconds) is int and type(microseconds) is int:
        return timedelta(days, seconds, microseconds)
    raise bad_content(content, "timedelta")


def _make_decimal(text: str) -> Any:
    from decimal import Decimal  # takes long to import

    return Decimal(text)


def _read_ip(content: Any, _is_key: object) -> Any:
    """Make an IP address, network or interface of its type's place and its text."""
    place, text = content
    # Given an integer, the constructors would read it as a number, not as text.
    if type(place) is int and 0 <= place < len(tags.IP_TYPES) and type(text) is str:
        return tags.IP_TYPES[place](text)
    raise bad_content(content, "IP address")


#: The tags of Python's own types, as :class:`callboard.basp.cbor.writer.EncoderTable` writes
#: them; with them go `tags.TRUSTED_TAGS`.
PYTHON_TAGS: Final[Mapping[int, TagReader]] = {
    tags.SET: _hashed_reader(set, "set"),
    tags.TUPLE: _read_tuple,
    tags.FROZENSET: _hashed_reader(frozenset, "frozenset"),
    tags.PAIRS: _read_pairs,
    tags.BYTEARRAY: read_as(bytes, bytearray, "bytearray"),
    tags.DECIMAL: read_as(str, _make_decimal, "decimal"),
    tags.DATETIME: read_as(str, datetime.fromisoformat, "datetime"),
    tags.TIME: read_as(str, time.fromisoformat, "time"),
    tags.FOLDED: _read_folded,
    tags.TIMEDELTA: _read_timedelta,
    tags.IP: _read_ip,
}
