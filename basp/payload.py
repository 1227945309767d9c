"""The payload of a dispatch: the CBOR of ``[message]`` or ``[message, options]``.

A decoded message is equal to the original and of the same type; the tags for this are listed
in :mod:`callboard.cbor.tags`. A value without a wire form raises
:class:`callboard.basp.errors.NotSerializable` at the sender, with the path of the value inside
the message. Two things are not sent: the name of a time zone, which becomes its offset, and
attributes of a dataclass that are not fields. Options: :mod:`callboard.basp.options`.

The most frequent message is one registered record whose fields are scalars, or such records.
Our encoder always writes a record the same way: tag, name, fields in order. Payloads of exactly
this form are read in one pass, at half the cost of the general decoder and its callbacks. The
general decoder reads all others: another order of fields, another release, other nested values,
malformed bytes.
"""

import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from copy import copy
from functools import partial
from struct import Struct
from typing import Any, Final

from callboard.basp.errors import (
    MalformedPayload,
    NotSerializable,
    PayloadTooHeavy,
    RemoteProtocolError,
)
from callboard.basp.header import MAX_ACTOR
from callboard.basp.node_id import NODE_ID_SIZE
from callboard.basp.options import (
    DEADLINE_MS,
    LONGEST_ALONE,
    NO_OPTIONS,
    WITH_OPTIONS,
    has_options,
    split_deadline,
    write_deadline,
)
from callboard.basp.registry import MessageRegistry, RecordType, refused
from callboard.cbor import tags
from callboard.cbor.pieces import CONTAINER, check_weight, weigh
from callboard.cbor.reader import (
    PYTHON_TAGS,
    CborReader,
    RunsUserCode,
    TagReader,
    bad_content,
    remote_error,
)
from callboard.cbor.writer import (
    Encoder,
    EncoderTable,
    Unserializable,
    encode_bytes,
    encode_int,
    encode_text,
    head,
)
from callboard.support.keyed_name import is_key, is_type_name

#: Nested containers of a message; the interpreter's stack has room for more.
DEFAULT_DEPTH_LIMIT: Final = 64

# cbor2 counts every tag as a level: a record is a tag, an array and a map.
_LEVELS_PER_DEPTH: Final = 3
#: Characters of a path in an error text.
_PATH_LIMIT: Final = 200
#: Errors of encoders for values without a wire form.
_CANNOT: Final = (Unserializable, UnicodeEncodeError, AttributeError, LookupError)

#: Larger payloads are read in pieces by a codec that limits the items of a message.
_IN_PIECES: Final = 65_536

#: Types that a codec must not decode, for a codec that runs user functions.
_NO_TYPES: Final[Mapping[bytes, object]] = {}

#: Returned when the general decoder has to read the payload.
_NOT_FLAT: Final = object()

#: Immutable scalars that take one byte, by that byte.
_ONE_BYTE: Final[Mapping[int, object]] = {
    **{number: number for number in range(24)},
    **{0x20 + number: -1 - number for number in range(24)},
    **{0x40: b"", 0x60: "", 0xF4: False, 0xF5: True, 0xF6: None},
}
#: Bytes of an unsigned integer after its first byte, by this first byte.
_UNSIGNED_WIDTHS: Final[Mapping[int, int]] = {0x18: 1, 0x19: 2, 0x1A: 4, 0x1B: 8}

_RECORD_PREFIX: Final = b"\x81\xd9" + tags.REGISTERED.to_bytes(2, "big") + b"\x82"
#: Start of a nested record after the first byte of its tag.
_INNER_PREFIX: Final = _RECORD_PREFIX[2:]
#: Bytes of a record before its name.
_RECORD_HEAD: Final = len(_RECORD_PREFIX) - 1
_read_float = Struct(">d").unpack_from
_REGISTERED_TAG: Final = 0xD9
#: From this size on, a byte string is encoded and decoded with one copy less. For smaller ones
#: the check costs more than the copy.
_LARGE: Final = 4096
_FLOAT: Final = 0xFB
#: An empty map, which ends a record without fields.
_NO_FIELDS: Final = 0xA0


_REFERENCE_HEAD: Final = head(0xC0, tags.REFERENCE) + b"\x82"

#: Creates a reference from a node id and an actor number.
PairHook = Callable[[bytes, int], Any]
#: Creates a reference from the type and the key of an entity.
NamesHook = Callable[[str, str], Any]


def _reference_encoder(to_pair: Callable[[Any], tuple[bytes, int]]) -> Encoder:
    """Return the encoder of actor references."""

    def encode(value: object, _depth: int) -> bytes:
        node, actor = to_pair(value)
        return _REFERENCE_HEAD + encode_bytes(node) + encode_int(actor)

    return encode


def _encode_names(value: Any, _depth: int) -> bytes:
    """Encode the reference of an entity."""
    type_name, key = value.wire_names
    return _REFERENCE_HEAD + encode_text(type_name) + encode_text(key)


def _reference_reader(
    pair_to_ref: PairHook | None, names_to_ref: Callable[[str, str], Any]
) -> TagReader:
    """Return the function of the tag ``REFERENCE``."""

    def read(content: Any, _is_key: object) -> Any:
        node, actor = content
        if is_type_name(node) and is_key(actor):
            return names_to_ref(node, actor)
        if pair_to_ref is None:
            message = (
                "a message contains an actor reference, which this codec was not made to read"
            )
            raise MalformedPayload(message)
        is_node = type(node) is bytes and len(node) == NODE_ID_SIZE
        if is_node and type(actor) is int and 0 <= actor <= MAX_ACTOR:
            return pair_to_ref(node, actor)
        raise bad_content(content, "actor reference")

    return read


def read_flat_record(
    payload: bytes, kinds: Mapping[bytes, RecordType], levels: int = 2
) -> object:
    """Read a payload that is one flat record; return ``_NOT_FLAT`` for any other.

    Args:
        payload: ``[message]`` without options.
        kinds: flat records by the CBOR of their name.
        levels: limit of nested records.

    Raises:
        RemoteProtocolError: the constructor of the record refused its fields.
    """
    if not payload.startswith(_RECORD_PREFIX):
        return _NOT_FLAT
    if payload[-1] == _NO_FIELDS and levels:  # such as a question without parameters
        bare = kinds.get(payload[_RECORD_HEAD + 1 : -1])
        if bare is not None and not bare.field_names:
            try:
                return bare.construct()
            except BaseException as cause:
                raise refused(bare.name, cause) from cause
    try:
        record = _read_fields(payload, 1, kinds, levels)
    except Exception:  # noqa: BLE001  (truncated, or not UTF-8: the general decoder reports it)
        return _NOT_FLAT
    # A slice beyond the end of the payload does not raise, but is too short. Then the end of
    # the record is greater than the size of the payload.
    if record is None or record[2] != len(payload):
        return _NOT_FLAT
    kind, values, _ = record
    try:
        return kind.construct(*values)
    except BaseException as cause:  # a constructor of the user
        raise refused(kind.name, cause) from cause


# One loop with a branch for each scalar: function calls would cost as much time as is saved.
def _read_fields(  # noqa: C901
    payload: bytes, offset: int, kinds: Mapping[bytes, RecordType], levels: int
) -> tuple[RecordType, list[object], int] | None:
    """Read the record at ``offset``: its type, its fields, and the offset of its end.

    Returns:
        None if the general decoder has to read the payload; so it does if this raises an
        exception, such as `IndexError`.
    """
    offset += _RECORD_HEAD
    first = payload[offset]
    end = offset + (first - 0x5F if first < 0x78 else 2 + payload[offset + 1])
    kind = kinds.get(payload[offset:end])
    if kind is None or not levels:
        return None
    offset = end
    values: list[object] = []
    for key in kind.wire_keys:
        if not payload.startswith(key, offset):
            return None
        offset += len(key)
        if not kind.field_names:
            break
        first = payload[offset]
        offset += 1
        if first in _ONE_BYTE:
            values.append(_ONE_BYTE[first])
        elif 0x60 < first < 0x79:
            if first == 0x78:
                end = offset + 1 + payload[offset]
                offset += 1
            else:
                end = offset + first - 0x60
            values.append(payload[offset:end].decode())
            offset = end
        elif first in _UNSIGNED_WIDTHS:
            end = offset + _UNSIGNED_WIDTHS[first]
            values.append(int.from_bytes(payload[offset:end], "big"))
            offset = end
        elif first == _FLOAT:
            values.append(_read_float(payload, offset)[0])
            offset += 8
        elif 0x58 <= first <= 0x5B:  # 24 bytes or more
            start = offset + (1 << (first - 0x58))
            offset = start + int.from_bytes(payload[offset:start], "big")
            values.append(payload[start:offset])
        elif first == _REGISTERED_TAG and payload.startswith(_INNER_PREFIX, offset):
            inner = _read_fields(payload, offset - 1, kinds, levels - 1)
            if inner is None:
                return None
            try:
                values.append(inner[0].construct(*inner[1]))
            except BaseException:  # noqa: BLE001  (the general decoder reports it)
                return None
            offset = inner[2]
        else:
            return None
    return kind, values, offset


def _name_of(payload: bytes) -> bytes:
    """Return the CBOR of the name of a record; of a truncated one, some other bytes."""
    offset = _RECORD_HEAD + 1
    first = payload[offset] if len(payload) > offset + 1 else 0
    return payload[
        offset : offset + (first - 0x5F if first < 0x78 else 2 + payload[offset + 1])
    ]


class LargePayload(Exception):  # an instruction to the caller, not an error
    """A payload takes long to read: use `PayloadCodec.decode_in_pieces`, which pauses."""


class StandIn:
    """Placeholder for a value that was not created."""

    def __init__(self, name: str) -> None:
        """Create a placeholder for a value of the type ``name``."""
        self.name = name


class PayloadCodec:
    """Encode and decode messages with one registry.

    Encoding is thread-safe, and so is decoding if the given hooks are thread-safe.
    """

    def __init__(
        self,
        registry: MessageRegistry,
        *,
        ref_types: tuple[type, ...] = (),
        ref_to_pair: Callable[[Any], tuple[bytes, int]] | None = None,
        pair_to_ref: PairHook | None = None,
        depth_limit: int = DEFAULT_DEPTH_LIMIT,
        with_options: Callable[[object, Mapping[int, object]], object] | None = None,
        max_items: int | None = None,
    ) -> None:
        """Create a codec.

        Args:
            registry: the types that may be sent, including types registered later.
            ref_types: exact classes of actor references.
            ref_to_pair: returns the node id and actor number of a reference.
            pair_to_ref: creates a reference from them; called once for each decoded reference.
            depth_limit: limit of nested containers, in both directions.
            with_options: called with a message and its options; `decode_message` returns its
                result. Without it, options are dropped.
            max_items: limit of containers and tags in a message, or of eight times as many
                scalars; large messages are then read in pieces. None for no limit.
        """
        #: Number of fields in received messages that their class here lacks: their senders
        #: have a later release.
        self.dropped_fields = 0
        self._with_options = with_options
        # An item has at least one byte, so a smaller payload cannot be too heavy.
        self._weighed_from = sys.maxsize if max_items is None else max_items
        self._max_weight = CONTAINER * (max_items or 0)
        self._in_pieces_from = sys.maxsize if max_items is None else _IN_PIECES
        self.registry = registry
        self.depth_limit = depth_limit
        self._flat_levels = min(2, depth_limit)
        #: Creates references of entities; set by nodes that use entities.
        self.names_to_ref: NamesHook | None = None
        self._encoders = EncoderTable(depth_limit, self._find_encoder)
        if ref_to_pair is not None:
            self._encoders.update(dict.fromkeys(ref_types, _reference_encoder(ref_to_pair)))
        self._read_reference = _reference_reader(pair_to_ref, self._entity)
        self._reader = self._make_reader(registry.reader(self._count_dropped))
        self._flat, self._coded = registry.flat, _NO_TYPES

    def _make_reader(self, read_registered: TagReader) -> CborReader:
        """Return a reader of messages that reads registered types with ``read_registered``."""
        return CborReader(
            "messages",
            {
                **PYTHON_TAGS,
                tags.REGISTERED: read_registered,
                tags.REFERENCE: self._read_reference,
            },
            # One more level for the map of options, and one for the array around both.
            max_depth=_LEVELS_PER_DEPTH * (self.depth_limit + 1) + 1,
            trusted=tags.TRUSTED_TAGS,
        )

    def without_user_code(self) -> "PayloadCodec":
        """Return a copy of this codec that runs no user functions.

        It raises `RunsUserCode` for a message whose class has such functions. A node decodes
        the message in the turn of the receiving actor, because they may take any time and
        would delay all other links.
        """
        codec = copy(self)
        registry = self.registry
        read = registry.reader(self._count_dropped, runs_code=False)
        codec._reader = self._make_reader(read)  # noqa: SLF001  # a copy of this object
        codec._flat, codec._coded = registry.plain_flat, registry.coded  # noqa: SLF001
        return codec

    def with_stand_ins(self) -> "PayloadCodec":
        """Return a copy of this codec that replaces values whose class runs user functions.

        A `StandIn` replaces each of them, so the rest of a message can be inspected outside
        the turn of an actor.
        """
        codec = self.without_user_code()
        read = self.registry.reader(self._count_dropped, runs_code=False, stand_in=StandIn)
        codec._reader = self._make_reader(read)  # noqa: SLF001  # a copy of this object
        codec._coded = _NO_TYPES  # noqa: SLF001
        return codec

    def _find_encoder(self, table: EncoderTable, cls: type) -> Encoder | None:
        """Return the encoder of a class; None if its instances cannot be sent."""
        if isinstance(getattr(cls, "wire_names", None), property):
            return _encode_names
        return self.registry.find_encoder(table, cls)

    def _entity(self, type_name: str, key: str) -> Any:
        """Create the reference of an entity."""
        if self.names_to_ref is None:
            message = (
                "a message contains a reference to an entity, which this codec was not made "
                "to read"
            )
            raise MalformedPayload(message)
        return self.names_to_ref(type_name, key)

    def _count_dropped(self, _name: str, fields: Collection[str]) -> None:
        """Count the unknown fields of a message."""
        self.dropped_fields += len(fields)

    def encode(self, message: object, options: Mapping[int, object] | None = None) -> bytes:
        """Return the payload of ``message``; later changes of the message have no effect.

        Raises:
            NotSerializable: names the type and path of the value without a wire form.
        """
        encoders = self._encoders
        if type(message) is bytes and len(message) >= _LARGE and not options:
            return b"".join((b"\x81", head(0x40, len(message)), message))
        try:
            body = encoders[type(message)](message, 0)
            if options:
                return b"\x82" + body + self._write_options(options)
        except _CANNOT as cause:
            raise self._explain(message, options, cause) from None
        return b"\x81" + body

    def _write_options(self, options: Mapping[int, object]) -> bytes:
        """Encode options; a single deadline has a short form of ten bytes."""
        if len(options) == 1:
            deadline = options.get(DEADLINE_MS)
            if type(deadline) is int and 0 <= deadline <= LONGEST_ALONE:
                return write_deadline(deadline)
        return self._encoders[dict](dict(options), 0)

    def decode(self, payload: bytes) -> tuple[object, Mapping[int, object]]:
        """Return the message and its options.

        Raises:
            RemoteProtocolError: :class:`MessageVersion` and :class:`UnknownMessageType`
                for a type of another release, otherwise :class:`MalformedPayload`.
            LargePayload: use `decode_in_pieces`.
        """
        if not has_options(payload):
            return self.decode_message(payload), NO_OPTIONS
        if len(payload) > self._in_pieces_from:
            raise LargePayload
        message, options = self._reader.read(payload)
        return message, self._checked(options)

    def decode_whole(self, payload: bytes) -> object:
        """Return the message of a payload of any size; this may take long.

        Raises:
            RemoteProtocolError: as for :meth:`decode`.
        """
        try:
            return self.decode_message(payload)
        except LargePayload:
            pieces = self.decode_in_pieces(payload)
        while True:
            try:
                next(pieces)
            except StopIteration as end:
                return end.value

    def _checked(self, options: object) -> Mapping[int, object]:
        """Return the options; refuse malformed ones."""
        if type(options) is not dict:
            msg = f"options must be a map, not {type(options).__name__}"
            raise MalformedPayload(msg)
        for key in options:
            if type(key) is not int:
                msg = f"option keys must be integers, not {type(key).__name__}"
                raise MalformedPayload(msg)
        return options

    def check_weight(self, payload: bytes) -> None:
        """Refuse a message that holds more items than receivers accept.

        Raises:
            PayloadTooHeavy: the message holds more items than that.
        """
        if len(payload) > self._weighed_from:
            check_weight(payload, self._max_weight)

    def decode_in_pieces(self, payload: bytes) -> Generator[None, None, object]:
        """Return the result of `decode_message`; yield after each piece.

        Raises:
            RemoteProtocolError: as for :meth:`decode`.
            PayloadTooHeavy: the message holds too many items.
        """
        if len(payload) > self._weighed_from:
            yield from weigh(payload, self._max_weight)
        if not has_options(payload):
            (message,) = yield from self._reader.read_in_pieces(payload, 1, 1)
            return message
        message, options = yield from self._reader.read_in_pieces(payload, 1, 2)
        checked = self._checked(options)
        if self._with_options is None or not checked:
            return message
        return self._with_options(message, checked)

    # One branch for each scalar: a function call would cost as much time as is saved.
    def decode_message(self, payload: bytes) -> object:  # noqa: C901
        """Return the message; options are checked, and passed to `with_options` or dropped.

        Raises:
            RemoteProtocolError: as for :meth:`decode`.
            LargePayload: use `decode_in_pieces`.
        """
        if payload.startswith(_RECORD_PREFIX):  # checked first: nearly all messages are records
            record = read_flat_record(payload, self._flat, self._flat_levels)
            if record is not _NOT_FLAT:
                return record
            if self._coded and _name_of(payload) in self._coded:
                raise RunsUserCode
        size = len(payload)
        if size < 2 or payload[0] != 0x81:
            if size and payload[0] == WITH_OPTIONS:
                return self._decode_with_options(payload)
            if not size:  # `FrameReader.drop_payload` removed it, on this node or on the path
                msg = (
                    "the message arrived without its payload: a node on its path had no "
                    "memory for the payload"
                )
                raise PayloadTooHeavy(msg)
            msg = f"payload of {size:,} B is not an array of one message and its options"
            raise MalformedPayload(msg)
        first = payload[1]
        if size == 2:
            if first in _ONE_BYTE:
                return _ONE_BYTE[first]
        elif 0x17 < first < 0x1C:
            if size == _UNSIGNED_WIDTHS[first] + 2:
                return int.from_bytes(payload[2:], "big")
        elif 0x60 <= first < 0x78:
            if size == first - 0x5E:
                try:
                    return payload[2:].decode()
                except UnicodeDecodeError as cause:
                    raise remote_error(cause) from None
        elif first == _FLOAT:
            if size == 10:
                return _read_float(payload, 2)[0]
        elif 0x40 <= first < 0x58 and size == first - 0x3E:
            return payload[2:]
        elif size >= _LARGE and 0x58 <= first <= 0x5B:
            start = 2 + (1 << (first - 0x58))
            if size - start == int.from_bytes(payload[2:start], "big"):
                return payload[start:]
        if size > self._in_pieces_from:
            raise LargePayload
        return self._reader.read(payload[1:])

    def _decode_with_options(self, payload: bytes) -> object:
        """Return a message that has options."""
        parts = split_deadline(payload)
        if parts is not None:
            try:
                message = self.decode_message(parts[0])
            except RemoteProtocolError:
                pass  # the split was wrong, or the message is; `decode` below raises the error
            else:
                combine = self._with_options
                return message if combine is None else combine(message, {DEADLINE_MS: parts[1]})
        message, options = self.decode(payload)
        if self._with_options is None or not options:
            return message
        return self._with_options(message, options)

    def _explain(
        self, message: object, options: Mapping[int, object] | None, cause: Exception
    ) -> NotSerializable:
        """Return the error for the value that could not be encoded; slow, for errors only."""
        for path, value in (("message", message), ("options", dict(options or {}))):
            try:
                self._encoders.encode(value)
            except _CANNOT as error:
                return NotSerializable(self._find(value, path, 0, error))
        return NotSerializable(f"message is not serializable: {cause}")

    def _find(self, value: object, path: str, depth: int, cause: Exception) -> str:
        """Return the error text for a value that could not be encoded, or for a part of it."""
        place = path if len(path) <= _PATH_LIMIT else path[:_PATH_LIMIT] + "…"
        if depth > self.depth_limit:
            return (
                f"{place} is nested deeper than {self.depth_limit} containers (or in a "
                f"cycle); flatten the message or raise depth_limit on both nodes"
            )
        for child_path, child in self._children(value, path):
            try:
                self._encoders.encode(child, depth + 1)
            except _CANNOT as error:
                return self._find(child, child_path, depth + 1, error)
        cls = type(value)
        name, advice = f"{cls.__module__}.{cls.__qualname__}", self.registry.advice(cls)
        if self.registry.type_of(cls) is None and cls not in self._encoders:
            return f"{place} is a {name}, which has no wire form; {advice}"
        if isinstance(cause, LookupError):
            return f"{place} is class {cause}, which is not listed; {advice}"
        return f"{place} is a {name} that cannot be encoded: {cause}"

    def _children(self, value: object, path: str) -> Iterator[tuple[str, object]]:
        """Yield the parts of a value with their paths."""
        if isinstance(value, dict):
            for key, item in value.items():
                yield f"{path} key {key!r:.60}", key
                yield f"{path}[{key!r:.60}]", item
        elif type(value) in {list, tuple}:
            for index, item in enumerate(value):  # type: ignore[arg-type]
                yield f"{path}[{index}]", item
        elif isinstance(value, (set, frozenset)):
            for item in value:
                yield f"{path}{{{item!r:.60}}}", item
        elif (kind := self.registry.type_of(type(value))) is not None:
            for field in filter(partial(hasattr, value), kind.names_of(value)):
                yield f"{path}.{field}", getattr(value, field)
