"""The payload of a dispatch: the CBOR of ``[message]`` or ``[message, options]``.

A message is equal and of the same type before and after; the tags that make it so are listed
in :mod:`basp.cbor_tags`. What has no wire form raises :class:`basp.errors.NotSerializable`
at the sender, with the path of the value inside the message. Known differences, all of
them equal to the original: a time zone becomes its offset, and attributes that are not
fields of a dataclass stay behind.

What options there are: :mod:`basp.options`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from struct import Struct
from typing import Any, Final

import cbor2

from basp.cbor_decoding import PairHook, refuse_tag, tag_callbacks
from basp.cbor_encoding import EncoderTable, Unserializable, head
from basp.errors import MalformedPayload, NotSerializable, RemoteProtocolError
from basp.flat_record import NOT_FLAT, ONE_BYTE, UNSIGNED_WIDTHS, read_flat_record
from basp.options import (
    DEADLINE_MS,
    LONGEST_ALONE,
    NO_OPTIONS,
    WITH_OPTIONS,
    has_options,
    split_deadline,
    write_deadline,
)
from basp.plain_cbor import parse_whole, remote_error
from basp.registry import MessageRegistry

__all__ = ["DEFAULT_DEPTH_LIMIT", "PayloadCodec"]

#: Deep enough for any message a person designs, shallow enough for any stack.
DEFAULT_DEPTH_LIMIT: Final = 64

# cbor2 counts every tag as a level: a record is a tag, an array and a map.
_LEVELS_PER_DEPTH: Final = 3
_PATH_SHOWN: Final = 200
_CANNOT: Final = (Unserializable, UnicodeEncodeError, AttributeError, LookupError)

_read_float = Struct(">d").unpack_from
_REGISTERED_TAG: Final = 0xD9
_LARGE: Final = 4096
"""Bytes from which on a copy less is worth a look at the length."""
_FLOAT: Final = 0xFB


class PayloadCodec:
    """Encode and decode messages with one registry.

    Encoding is thread-safe; so is decoding as far as the given hooks are.
    """

    __slots__ = (
        "_encoders",
        "_loads",
        "_with_options",
        "depth_limit",
        "dropped_fields",
        "registry",
    )

    def __init__(
        self,
        registry: MessageRegistry,
        *,
        ref_types: tuple[type, ...] = (),
        ref_to_pair: Callable[[Any], tuple[bytes, int]] | None = None,
        pair_to_ref: PairHook | None = None,
        depth_limit: int = DEFAULT_DEPTH_LIMIT,
        with_options: Callable[[object, Mapping[int, object]], object] | None = None,
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
        """
        #: Fields of messages read here that no class knows: their senders are newer.
        self.dropped_fields = 0
        self._with_options = with_options
        self.registry = registry
        self.depth_limit = depth_limit
        self._encoders = EncoderTable(registry, depth_limit)
        if ref_to_pair is not None:
            for ref_type in ref_types:
                self._encoders.add_reference(ref_type, ref_to_pair)
        self._loads = partial(
            cbor2.loads,
            semantic_decoders=tag_callbacks(registry, pair_to_ref, self._note_dropped),
            tag_hook=refuse_tag,
            max_depth=_LEVELS_PER_DEPTH * depth_limit + _LEVELS_PER_DEPTH,
            strict_hashable_types=True,
        )

    def _note_dropped(self, count: int) -> None:
        self.dropped_fields += count

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
        if len(options) == 1:
            left = options.get(DEADLINE_MS)
            if type(left) is int and 0 <= left <= LONGEST_ALONE:
                return write_deadline(left)
        return self._encoders[dict](dict(options), 0)

    def append_options(self, payload: bytes, options: Mapping[int, object]) -> bytes:
        """Add options to a payload that was written without; the message is not touched.

        Raises:
            ValueError: the payload has options already.
            NotSerializable: an option has no wire form.
        """
        if not options:
            return payload
        if has_options(payload):
            msg = "the payload has options already; decode it and write the message again"
            raise ValueError(msg)
        plain = dict(options)
        try:
            return b"".join((b"\x82", payload[1:], self._write_options(plain)))
        except (Unserializable, UnicodeEncodeError, AttributeError) as cause:
            raise self._explain(None, plain, cause) from None

    def decode(self, payload: bytes) -> tuple[object, Mapping[int, object]]:
        """Return the message and its options.

        Raises:
            RemoteProtocolError: :class:`MessageVersion` and :class:`UnknownMessageType`
                for a type of another release, otherwise :class:`MalformedPayload`.
        """
        if not has_options(payload):
            return self.decode_message(payload), NO_OPTIONS
        message, options = parse_whole(self._loads, payload[1:], 2)
        if type(options) is not dict:
            msg = f"options must be a map, not {type(options).__name__}"
            raise MalformedPayload(msg)
        for key in options:
            if type(key) is not int:
                msg = f"option keys must be integers, not {type(key).__name__}"
                raise MalformedPayload(msg)
        return message, options

    # One branch for each scalar: a call would cost as much as the parse it saves.
    def decode_message(self, payload: bytes) -> object:  # noqa: C901
        """Return the message; options are checked, and dropped or given to `with_options`.

        Raises:
            RemoteProtocolError: as :meth:`decode`.
        """
        size = len(payload)
        if size < 2 or payload[0] != 0x81:
            if size and payload[0] == WITH_OPTIONS:
                return self._decode_with_options(payload)
            msg = f"payload of {size:,} B is not an array of one message and its options"
            raise MalformedPayload(msg)
        first = payload[1]
        if size == 2:
            if first in ONE_BYTE:
                return ONE_BYTE[first]
        elif 0x17 < first < 0x1C:
            if size == UNSIGNED_WIDTHS[first] + 2:
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
        elif first == _REGISTERED_TAG:
            record = read_flat_record(payload, self.registry.flat)
            if record is not NOT_FLAT:
                return record
        elif 0x40 <= first < 0x58 and size == first - 0x3E:
            return payload[2:]
        elif size >= _LARGE and 0x58 <= first <= 0x5B:
            start = 2 + (1 << (first - 0x58))
            if size - start == int.from_bytes(payload[2:start], "big"):
                return payload[start:]
        return parse_whole(self._loads, payload[1:], 1)[0]

    def _decode_with_options(self, payload: bytes) -> object:
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
        found = self._find(message, "message", 0)
        if found is None and options:
            found = self._find(dict(options), "options", 0)
        return NotSerializable(found or f"message is not serializable: {cause}")

    def _find(self, value: object, path: str, depth: int) -> str | None:
        shown = path if len(path) <= _PATH_SHOWN else path[:_PATH_SHOWN] + "…"
        if depth > self.depth_limit:
            return (
                f"{shown} is nested deeper than {self.depth_limit} containers (or in a "
                f"cycle); flatten the message or raise depth_limit on both nodes"
            )
        cls = type(value)
        name = f"{cls.__module__}.{cls.__qualname__}"
        try:
            encode = self._encoders[cls]
        except Unserializable:
            return f"{shown} is a {name}, which has no wire form; {self.registry.advice(cls)}"
        try:
            children = list(self._children(value, path))
            if not children:
                encode(value, 0)
        except LookupError as cause:
            return f"{shown} is class {cause}, which is not listed; {self.registry.advice(cls)}"
        except _CANNOT as cause:
            return f"{shown} is a {name} that cannot be written: {cause}"
        for child_path, child in children:
            found = self._find(child, child_path, depth + 1)
            if found is not None:
                return found
        return None

    def _children(self, value: object, path: str) -> Iterator[tuple[str, object]]:
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
            for field in kind.names_of(value):
                yield f"{path}.{field}", getattr(value, field)
