"""Decoder of CBOR for untrusted bytes.

cbor2 parses, and a table with one function per tag creates the tagged values. No other objects
are created: a tag that is not in the table is refused, even if cbor2 could decode it. A package
with other types passes its own table, or extends `PYTHON_TAGS`::

    reader = CborReader("points", {48990: read_as(list, Point.of)}, max_depth=16)
    point = reader.read(payload)

The depth of nested containers and the number of keys with equal hashes are limited.
"""

import io
from collections.abc import Callable, Collection, Generator, Mapping
from datetime import datetime, time, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn

import cbor2

from callboard.cbor import tags
from callboard.cbor.collisions import SAME_HASH_LIMIT, check_hashes
from callboard.cbor.pieces import PieceReader, reserve
from callboard.protocol_errors import MalformedPayload, RemoteProtocolError
from callboard.support.text import describe

#: Creates a value from a tag's content; the flag is true while a map key is read. Its
#: exceptions become a `RemoteProtocolError`.
TagReader = Callable[[Any, bool], Any]

#: Limit of the chain of causes of one exception: cbor2 adds one for each nested tag.
_CAUSE_LIMIT: Final = 1000

#: Payloads from this size on are read only after a check of the free memory.
_RESERVED_FROM: Final = 16_384

# cbor2 ignores bytes after the first item. Therefore we append a number and let cbor2 read two
# items: if bytes follow the first item, the second one is not this number. The number comes
# from the hash seed of the process, so a peer cannot append the same one.
_SENTINEL: Final = hash("end of payload") & 0x3FFF_FFFF_FFFF_FFFF | 1 << 62
_SENTINEL_BYTES: Final = b"\x1b" + _SENTINEL.to_bytes(8, "big")


class RunsUserCode(Exception):  # an instruction to the caller, not an error
    """The class of a value has user functions: decode it where these may take long."""


def remote_error(cause: BaseException) -> RemoteProtocolError | RunsUserCode:
    """Return the typed error in an exception of cbor2, or create one.

    cbor2 wraps the exception of a tag's function once for each tag around it.
    """
    last: BaseException = cause
    for _ in range(_CAUSE_LIMIT):
        if isinstance(last, RemoteProtocolError | RunsUserCode):
            # The caller raises the result from `cause`. If `cause` still referred to it, the
            # two would form a cycle, and the payload that they hold would stay in memory until
            # the garbage collector runs.
            cause.__cause__ = cause.__context__ = None
            return last
        if last.__cause__ is None:
            break
        last = last.__cause__
    return MalformedPayload(f"payload cannot be read: {describe(last)}")


def bad_content(content: object, label: str) -> MalformedPayload:
    """Return the error for a tag whose content cannot become a ``label``."""
    return MalformedPayload(f"{label} cannot be made of this {type(content).__name__}")


def read_as(kind: type, make: Callable[[Any], Any], label: str = "value") -> TagReader:
    """Return a tag's function that calls ``make`` with content of exactly one type."""

    def read(content: Any, _is_key: object) -> Any:
        if type(content) is kind:
            return make(content)
        raise bad_content(content, label)

    return read


class CborReader:
    """Reads items that hold plain values and the tags of one table.

    Plain values are None, bool, int of 64 bits, float, str, bytes, arrays, and maps with keys
    of text and bytes, whose hashes a peer cannot choose. Thread-safe if the functions of the
    table are thread-safe.
    """

    def __init__(
        self,
        label: str,
        table: Mapping[int, TagReader] = MappingProxyType({}),
        *,
        max_depth: int,
        trusted: Collection[int] = (),
        raw_tags: Collection[int] = (),
        has_maps: bool = True,
        is_immutable: bool = False,
    ) -> None:
        """Create a reader.

        Args:
            label: name of the items in error texts, in the plural.
            table: the function of each tag.
            max_depth: limit of nested levels: each container and each tag is one.
            trusted: tags of `tags.CBOR2_TAGS` that cbor2 may decode.
            raw_tags: tags that are returned as `cbor2.CBORTag`, for the caller to decode.
            has_maps: whether maps are allowed.
            is_immutable: whether arrays become tuples instead of lists.
        """
        self._label = label
        self._raw_tags = frozenset(raw_tags)
        refused = {tag: self._refuser(tag) for tag in tags.CBOR2_TAGS if tag not in trusted}
        self._options: dict[str, Any] = {
            "semantic_decoders": {**refused, **table},
            "tag_hook": self._handle_tag,
            "object_hook": None if has_maps else self._refuse_map,
            "strict_hashable_types": True,
        }
        self._loads: Callable[[bytes], Any] = partial(
            cbor2.loads, **self._options, max_depth=max_depth, immutable=is_immutable
        )
        # One level less, because `read` wraps the item in an array.
        self._pieces = PieceReader(self._open_reader, table, max_depth - 1)

    def read(self, payload: bytes) -> Any:
        """Return the one item that fills ``payload`` exactly.

        Raises:
            RemoteProtocolError: the bytes are not exactly one such item.
            RunsUserCode: a function of the table raised it.
        """
        if len(payload) > _RESERVED_FROM:
            reserve(len(payload))
        try:
            item, end = self._loads(b"\x82" + payload + _SENTINEL_BYTES)
        except (KeyboardInterrupt, RemoteProtocolError, RunsUserCode):
            raise  # KeyboardInterrupt: commands read files with this, too
        except BaseException as cause:  # functions of users ran, or cbor2 panicked
            raise remote_error(cause) from cause
        if type(end) is not int or end != _SENTINEL:
            message = f"bytes follow the last item in a payload of {len(payload):,} B"
            raise MalformedPayload(message)
        return item

    def read_in_pieces(
        self, payload: bytes, offset: int, count: int
    ) -> Generator[None, None, list[Any]]:
        """Return the items that fill the rest of a large payload; yield between pieces.

        Unlike `read`, it refuses large items of indefinite length, and supports no raw tags.

        Args:
            payload: the bytes, which were weighed: see `callboard.cbor.pieces`.
            offset: offset of the first item.
            count: number of items.

        Raises:
            RemoteProtocolError: the bytes are not ``count`` such items.
        """
        try:
            return (yield from self._pieces.read(payload, offset, count))
        except (KeyboardInterrupt, GeneratorExit, RemoteProtocolError, RunsUserCode):
            raise  # GeneratorExit: the caller stopped reading
        except BaseException as cause:  # constructors of users, or a decoder without memory
            raise remote_error(cause) from cause

    def _open_reader(self, stream: io.BytesIO, levels: int) -> cbor2.CBORDecoder:
        """Return a decoder for a stream of small items."""
        return cbor2.CBORDecoder(stream, **self._options, max_depth=levels)

    def _handle_tag(self, tag: cbor2.CBORTag, _is_key: object) -> cbor2.CBORTag:
        """Return a raw tag; refuse any other tag without a function."""
        if tag.tag in self._raw_tags:
            return tag
        raise self._foreign(tag.tag)

    def _refuser(self, tag: int) -> TagReader:
        """Return a function that refuses a tag which cbor2 would decode."""

        def refuse(_content: object, _is_key: object) -> NoReturn:
            raise self._foreign(tag)

        return refuse

    def _foreign(self, tag: int) -> MalformedPayload:
        """Return the error for a tag that is not in the table."""
        return MalformedPayload(f"CBOR tag {tag} is not one that {self._label} use")

    def _refuse_map(self, _content: object, _is_key: object) -> NoReturn:
        """Refuse a map."""
        message = f"{self._label} must not contain maps"
        raise MalformedPayload(message)


def _read_tuple(content: Any, _is_key: object) -> tuple[object, ...]:
    """Create a tuple from an array."""
    if type(content) is list or type(content) is tuple:
        return tuple(content)
    raise bad_content(content, "tuple")


def _hashed_reader(make: Callable[[Any], Any], label: str) -> TagReader:
    """Return the function that creates a set or frozenset from an array."""

    def read(content: Any, _is_key: object) -> Any:
        if type(content) is list or type(content) is tuple:
            check_hashes(content)
            return make(content)
        raise bad_content(content, label)

    return read


def _read_pairs(content: Any, _is_key: object) -> dict[object, object]:
    """Create a dict from an array of keys and values."""
    if type(content) is list and len(content) % 2 == 0:
        if len(content) > 2 * SAME_HASH_LIMIT:
            check_hashes(content[::2])
        parts = iter(content)
        return dict(zip(parts, parts, strict=True))
    raise bad_content(content, "map of pairs")


def _read_folded(content: Any, _is_key: object) -> datetime | time:
    """Set ``fold`` of the datetime or time that is the only item of an array."""
    (moment,) = content
    if type(moment) is datetime or type(moment) is time:
        return moment.replace(fold=1)
    raise bad_content(content, "fold")


def _read_timedelta(content: Any, _is_key: object) -> timedelta:
    """Create a timedelta from days, seconds and microseconds."""
    days, seconds, microseconds = content
    if type(days) is int and type(seconds) is int and type(microseconds) is int:
        return timedelta(days, seconds, microseconds)
    raise bad_content(content, "timedelta")


def _make_decimal(text: str) -> Any:
    from decimal import Decimal  # takes long to import

    return Decimal(text)


def _read_ip(content: Any, _is_key: object) -> Any:
    """Create an IP address, network or interface from the index of its type and its text."""
    index, text = content
    # The constructors also accept integers, which would become other addresses.
    if type(index) is int and 0 <= index < len(tags.IP_TYPES) and type(text) is str:
        return tags.IP_TYPES[index](text)
    raise bad_content(content, "IP address")


#: The tags of Python's own types, as :class:`callboard.cbor.writer.EncoderTable` writes
#: them. Readers that use them also need `tags.TRUSTED_TAGS`.
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
