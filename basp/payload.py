"""The payload of a dispatch: the CBOR of ``[message]`` or ``[message, options]``.

A message is equal and of the same type before and after; the tags that make it so are listed
in :mod:`callboard.basp.cbor.tags`. What has no wire form raises
:class:`callboard.basp.errors.NotSerializable` at the sender, with the path of the value inside
the message. Known differences, all of them equal to the original: a time zone becomes its
offset, and attributes that are not fields of a dataclass stay behind.

What options there are: :mod:`callboard.basp.options`.

There is a short cut for the commonest message, one registered record whose fields are scalars,
or such records. Our own encoder always writes a record the same way: tag, name, fields in
order. Bytes that look exactly so are read in one pass, at half the cost of the general decoder
and its callbacks; whatever else comes (another order, another release, other nested values,
anything broken) is left to it.
"""

import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from copy import copy
from functools import partial
from struct import Struct
from typing import Any, Final

from callboard.basp.cbor import tags
from callboard.basp.cbor.pieces import CONTAINER, check_weight, weigh
from callboard.basp.cbor.reader import (
    PYTHON_TAGS,
    CborReader,
    RunsUserCode,
    TagReader,
    bad_content,
    remote_error,
)
from callboard.basp.cbor.writer import (
    Encoder,
    EncoderTable,
    Unserializable,
    encode_bytes,
    encode_int,
    encode_text,
    head,
)
from callboard.basp.errors import (
    MalformedPayload,
    NotSerializable,
    PayloadTooHeavy,
    RemoteProtocolError,
)
from callboard.basp.header import MAX_ACTOR
from callboard.basp.keyed_name import is_key, is_type_name
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

#: Deep enough for any message a person designs, shallow enough for any stack.
DEFAULT_DEPTH_LIMIT: Final = 64

# cbor2 counts every tag as a level: a record is a tag, an array and a map.
_LEVELS_PER_DEPTH: Final = 3
_PATH_SHOWN: Final = 200
_CANNOT: Final = (Unserializable, UnicodeEncodeError, AttributeError, LookupError)

#: Bytes of a payload that is read in pieces, where its parts may be as many.
_IN_PIECES: Final = 65_536

#: The types that run functions of users, for a codec that runs them.
_NO_TYPES: Final[Mapping[bytes, object]] = {}

#: Returned when the general decoder has to read the payload.
_NOT_FLAT: Final = object()

#: Immutable scalars that take one byte, by that byte.
_ONE_BYTE: Final[Mapping[int, object]] = {
    **{number: number for number in range(24)},
    **{0x20 + number: -1 - number for number in range(24)},
    **{0x40: b"", 0x60: "", 0xF4: False, 0xF5: True, 0xF6: None},
}
#: Bytes of an unsigned integer behind its first byte.
_UNSIGNED_WIDTHS: Final[Mapping[int, int]] = {0x18: 1, 0x19: 2, 0x1A: 4, 0x1B: 8}

_RECORD_PREFIX: Final = b"\x81\xd9" + tags.REGISTERED.to_bytes(2, "big") + b"\x82"
#: What a record begins with behind the first byte of its tag, and bytes before its name.
_INNER_PREFIX: Final = _RECORD_PREFIX[2:]
_RECORD_HEAD: Final = len(_RECORD_PREFIX) - 1
_read_float = Struct(">d").unpack_from
_REGISTERED_TAG: Final = 0xD9
#: Bytes of a payload from which on saving a copy is worth comparing lengths.
_LARGE: Final = 4096
_FLOAT: Final = 0xFB
#: The map of a record's fields, where it has none.
_NO_FIELDS: Final = 0xA0


_REFERENCE_HEAD: Final = head(0xC0, tags.REFERENCE) + b"\x82"

#: Makes a reference of a node id and an actor number.
PairHook = Callable[[bytes, int], Any]
#: Makes a reference of the type and the key of an entity.
NamesHook = Callable[[str, str], Any]


def _reference_encoder(to_pair: Callable[[Any], tuple[bytes, int]]) -> Encoder:
    """Return the encoder of references."""

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
            message = "message holds an actor reference, which this codec does not know"
            raise MalformedPayload(message)
        is_node = type(node) is bytes and len(node) == NODE_ID_SIZE
        if is_node and type(actor) is int and 0 <= actor <= MAX_ACTOR:
            return pair_to_ref(node, actor)
        raise bad_content(content, "actor reference")

    return read


def read_flat_record(
    payload: bytes, kinds: Mapping[bytes, RecordType], levels: int = 2
) -> object:
    """Read a whole payload, or return ``_NOT_FLAT``.

    Args:
        payload: ``[message]`` without options.
        kinds: positional records by the CBOR of their name.
        levels: records inside each other, at most.

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
        found = _read_fields(payload, 1, kinds, levels)
    except Exception:  # noqa: BLE001  (cut short, or no UTF-8: the general decoder tells)
        return _NOT_FLAT
    # A slice that runs over the end is short, and its end shows it here.
    if found is None or found[2] != len(payload):
        return _NOT_FLAT
    kind, values, _ = found
    try:
        return kind.construct(*values)
    except BaseException as cause:  # a constructor of the user
        raise refused(kind.name, cause) from cause


# One loop with one branch for each scalar: calls would cost what the short cut saves.
def _read_fields(  # noqa: C901
    payload: bytes, at: int, kinds: Mapping[bytes, RecordType], levels: int
) -> tuple[RecordType, list[object], int] | None:
    """Read the record that begins at a place: its kind, its fields, and where it ends.

    Returns:
        None where the general decoder has to read it; `IndexError` and the like say the same.
    """
    at += _RECORD_HEAD
    first = payload[at]
    end = at + (first - 0x5F if first < 0x78 else 2 + payload[at + 1])
    kind = kinds.get(payload[at:end])
    if kind is None or not levels:
        return None
    at = end
    values: list[object] = []
    for key in kind.wire_keys:
        if not payload.startswith(key, at):
            return None
        at += len(key)
        if not kind.field_names:
            break
        first = payload[at]
        at += 1
        if first in _ONE_BYTE:
            values.append(_ONE_BYTE[first])
        elif 0x60 < first < 0x79:
            if first == 0x78:
                end = at + 1 + payload[at]
                at += 1
            else:
                end = at + first - 0x60
            values.append(payload[at:end].decode())
            at = end
        elif first in _UNSIGNED_WIDTHS:
            end = at + _UNSIGNED_WIDTHS[first]
            values.append(int.from_bytes(payload[at:end], "big"))
            at = end
        elif first == _FLOAT:
            values.append(_read_float(payload, at)[0])
            at += 8
        elif 0x58 <= first <= 0x5B:  # long bytes, such as many things in one message
            start = at + (1 << (first - 0x58))
            at = start + int.from_bytes(payload[at:start], "big")
            values.append(payload[start:at])
        elif first == _REGISTERED_TAG and payload.startswith(_INNER_PREFIX, at):
            inner = _read_fields(payload, at - 1, kinds, levels - 1)
            if inner is None:
                return None
            try:
                values.append(inner[0].construct(*inner[1]))
            except BaseException:  # noqa: BLE001  (the general decoder tells)
                return None
            at = inner[2]
        else:
            return None
    return kind, values, at


def _name_of(payload: bytes) -> bytes:
    """Return the CBOR of the name of a record; something else if it is cut short."""
    at = _RECORD_HEAD + 1
    first = payload[at] if len(payload) > at + 1 else 0
    return payload[at : at + (first - 0x5F if first < 0x78 else 2 + payload[at + 1])]


class LargePayload(Exception):  # it tells the caller what to do, nothing is wrong
    """A payload takes long to read: `PayloadCodec.decode_in_pieces` does it bit by bit."""


class StandIn:
    """What is in the place of a value that was not made."""

    def __init__(self, name: str) -> None:
        """Stand for a value of a type, by its name."""
        self.name = name


class PayloadCodec:
    """Encode and decode messages with one registry.

    Encoding is thread-safe; so is decoding as far as the given hooks are.
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
        """Make a codec.

        Args:
            registry: the types that may travel; later registrations count too.
            ref_types: exact classes of actor references.
            ref_to_pair: gives the node id and actor number of a reference.
            pair_to_ref: makes a reference of them; called once for each one decoded.
            depth_limit: containers inside each other, on both sides.
            with_options: makes what `decode_message` returns of a message that has options;
                without it they are dropped.
            max_items: containers and tags that a message may hold, or eight times as many
                scalars; large messages are then read in pieces. None for no limit.
        """
        #: Fields of messages read here that no class knows: their senders are newer.
        self.dropped_fields = 0
        self._with_options = with_options
        # Each item has a byte: what is shorter cannot weigh more.
        self._weighed_from = sys.maxsize if max_items is None else max_items
        self._max_weight = CONTAINER * (max_items or 0)
        self._in_pieces_from = sys.maxsize if max_items is None else _IN_PIECES
        self.registry = registry
        self.depth_limit = depth_limit
        self._flat_levels = min(2, depth_limit)
        #: Makes references of entities; a node that can reach some sets it.
        self.names_to_ref: NamesHook | None = None
        self._encoders = EncoderTable(depth_limit, self._find_encoder)
        if ref_to_pair is not None:
            self._encoders.update(dict.fromkeys(ref_types, _reference_encoder(ref_to_pair)))
        self._read_reference = _reference_reader(pair_to_ref, self._entity)
        self._reader = self._make_reader(registry.reader(self._note_dropped))
        self._flat, self._coded = registry.flat, _NO_TYPES

    def _make_reader(self, read_registered: TagReader) -> CborReader:
        """Return a reader of messages, with what reads instances of registered types."""
        return CborReader(
            "messages",
            {
                **PYTHON_TAGS,
                tags.REGISTERED: read_registered,
                tags.REFERENCE: self._read_reference,
            },
            # With options in an array.
            max_depth=_LEVELS_PER_DEPTH * (self.depth_limit + 1) + 1,
            trusted=tags.TRUSTED_TAGS,
        )

    def without_user_code(self) -> "PayloadCodec":
        """Return a codec that shares all with this one, and runs no functions of users.

        Its readers raise `RunsUserCode` for a message with such a class: a node decodes it in
        the turn of the actor that gets it, because the function may take any time.
        """
        careful = copy(self)
        registry = self.registry
        read = registry.reader(self._note_dropped, runs_code=False)
        careful._reader = self._make_reader(read)  # noqa: SLF001  # one of its own class
        careful._flat, careful._coded = registry.plain_flat, registry.coded  # noqa: SLF001
        return careful

    def with_stand_ins(self) -> "PayloadCodec":
        """Return a codec that shares all with this one, and reads no code of users.

        A `StandIn` is in the place of each value whose class has functions of users: who looks
        at the rest of a message needs no turn of an actor.
        """
        careful = self.without_user_code()
        read = self.registry.reader(self._note_dropped, runs_code=False, stand_in=StandIn)
        careful._reader = self._make_reader(read)  # noqa: SLF001  # one of its own class
        careful._coded = _NO_TYPES  # noqa: SLF001
        return careful

    def _find_encoder(self, table: EncoderTable, cls: type) -> Encoder | None:
        """Return the encoder of a class; None for one that may not travel."""
        if isinstance(getattr(cls, "wire_names", None), property):
            return _encode_names
        return self.registry.find_encoder(table, cls)

    def _entity(self, type_name: str, key: str) -> Any:
        """Return the reference of an entity."""
        if self.names_to_ref is None:
            message = "message holds the reference of an entity, which this codec does not know"
            raise MalformedPayload(message)
        return self.names_to_ref(type_name, key)

    def _note_dropped(self, _name: str, fields: Collection[str]) -> None:
        """Count fields that no class here knows."""
        self.dropped_fields += len(fields)

    def encode(self, message: object, options: Mapping[int, object] | None = None) -> bytes:
        """Return the payload of ``message``; what changes later is not sent.

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
        """Encode options, a deadline alone in ten bytes."""
        if len(options) == 1:
            left = options.get(DEADLINE_MS)
            if type(left) is int and 0 <= left <= LONGEST_ALONE:
                return write_deadline(left)
        return self._encoders[dict](dict(options), 0)

    def decode(self, payload: bytes) -> tuple[object, Mapping[int, object]]:
        """Return the message and its options.

        Raises:
            RemoteProtocolError: :class:`MessageVersion` and :class:`UnknownMessageType`
                for a type of another release, otherwise :class:`MalformedPayload`.
            LargePayload: it is to be read in pieces.
        """
        if not has_options(payload):
            return self.decode_message(payload), NO_OPTIONS
        if len(payload) > self._in_pieces_from:
            raise LargePayload
        message, options = self._reader.read(payload)
        return message, self._checked(options)

    def decode_whole(self, payload: bytes) -> object:
        """Return the message of a payload of any size; that may take long.

        Raises:
            RemoteProtocolError: as :meth:`decode`.
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
        """Return options that are well-formed."""
        if type(options) is not dict:
            msg = f"options must be a map, not {type(options).__name__}"
            raise MalformedPayload(msg)
        for key in options:
            if type(key) is not int:
                msg = f"option keys must be integers, not {type(key).__name__}"
                raise MalformedPayload(msg)
        return options

    def check_weight(self, payload: bytes) -> None:
        """Refuse a message that holds more than its readers take.

        Raises:
            PayloadTooHeavy: it does.
        """
        if len(payload) > self._weighed_from:
            check_weight(payload, self._max_weight)

    def decode_in_pieces(self, payload: bytes) -> Generator[None, None, object]:
        """Return what `decode_message` would, with a pause after each piece.

        Raises:
            RemoteProtocolError: as :meth:`decode`.
            PayloadTooHeavy: the message holds more than it may.
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

    # One branch for each scalar: a call would cost as much as the parse it saves.
    def decode_message(self, payload: bytes) -> object:  # noqa: C901
        """Return the message; options are checked, and dropped or given to `with_options`.

        Raises:
            RemoteProtocolError: as :meth:`decode`.
            LargePayload: it is to be read in pieces.
        """
        if payload.startswith(_RECORD_PREFIX):  # looked for first: so is nearly every message
            record = read_flat_record(payload, self._flat, self._flat_levels)
            if record is not _NOT_FLAT:
                return record
            if self._coded and _name_of(payload) in self._coded:
                raise RunsUserCode
        size = len(payload)
        if size < 2 or payload[0] != 0x81:
            if size and payload[0] == WITH_OPTIONS:
                return self._decode_with_options(payload)
            if not size:  # `FrameReader.drop_payload` leaves it so, here or on the way
                msg = "the message arrived without its payload: a node had no memory for it"
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
        found = split_deadline(payload)
        if found is not None:
            try:
                message = self.decode_message(found[0])
            except RemoteProtocolError:
                pass  # no message; or one that cannot be made, which is told below
            else:
                take = self._with_options
                return message if take is None else take(message, {DEADLINE_MS: found[1]})
        message, options = self.decode(payload)
        if self._with_options is None or not options:
            return message
        return self._with_options(message, options)

    def _explain(
        self, message: object, options: Mapping[int, object] | None, cause: Exception
    ) -> NotSerializable:
        """Find what stopped the encoder; slow, for the error only."""
        for path, value in (("message", message), ("options", dict(options or {}))):
            try:
                self._encoders.encode(value)
            except _CANNOT as error:
                return NotSerializable(self._find(value, path, 0, error))
        return NotSerializable(f"message is not serializable: {cause}")

    def _find(self, value: object, path: str, depth: int, cause: Exception) -> str:
        """Return the place of what has no wire form, in or at a value that was not encoded."""
        shown = path if len(path) <= _PATH_SHOWN else path[:_PATH_SHOWN] + "…"
        if depth > self.depth_limit:
            return (
                f"{shown} is nested deeper than {self.depth_limit} containers (or in a "
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
            return f"{shown} is a {name}, which has no wire form; {advice}"
        if isinstance(cause, LookupError):
            return f"{shown} is class {cause}, which is not listed; {advice}"
        return f"{shown} is a {name} that cannot be written: {cause}"

    def _children(self, value: object, path: str) -> Iterator[tuple[str, object]]:
        """Return the parts of a value with their paths."""
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
