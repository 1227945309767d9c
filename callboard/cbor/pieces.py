"""Large items: their weight, and reading them in pieces.

cbor2 reads an item in one call, which holds the interpreter's lock until it returns. For 16 MiB
of empty lists this takes seconds. So the sender weighs a large item before it sends it, and the
receiver reads it here with a pause after each piece, in which the node runs other turns. The
weight estimates the reader's time and memory, in eighths of a container:

- a container or a tag weighs 8, a scalar 1;
- an element of a set, or of a map with keys other than text, weighs 8, because we hash it.

cbor2 still reads small items: the items of a large container one by one from a window
of the payload, and runs of short scalars in one call. Only an item that does not fit into the
window is split here. Its length must be definite; our encoders write no others.
"""

import io
import mmap
import re
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import cache
from typing import Any, Final

import cbor2

from callboard.cbor import tags
from callboard.cbor.collisions import TEXTS
from callboard.protocol_errors import MalformedPayload, PayloadTooHeavy
from callboard.support.dataclass import dataclass

#: Creates a decoder for a stream of small items, with a limit of nested levels.
OpenReader = Callable[[io.BytesIO, int], cbor2.CBORDecoder]

#: Creates a value from a tag's content; the flag is true while a map key is read.
TagFunction = Callable[[Any, bool], Any]

#: Weight of a container or a tag; a scalar weighs 1.
CONTAINER: Final = 8

#: Bytes that cbor2 reads between two pauses; they take some milliseconds.
_WINDOW: Final = 8_192

#: Items of a container that are read one by one between two pauses.
_READ_LIMIT: Final = 2_048

#: Bytes that are weighed between two pauses.
_WEIGH_LIMIT: Final = 16_384

#: Bytes of memory for one byte of payload, at most: an empty map, and its slot in a list.
_GROWTH: Final = 160

#: Bytes of the shortest run of scalars that is read in a call of its own.
_LONG_RUN: Final = 256

#: Items of a map that are collected before they are added to it.
_PENDING_LIMIT: Final = 2_048

#: The tags whose elements we hash.
_HASHED: Final = frozenset({tags.SET, tags.FROZENSET, tags.PAIRS})

_UNSIGNED, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = 0, 2, 3, 4, 5, 6

_SHORT_SCALARS: Final = b"|".join(
    [
        rb"[\x00-\x17\x20-\x37\x40\x60\xf4-\xf6]",
        rb"[\x18\x38].",
        rb"[\x19\x39\xf9].{2}",
        rb"[\x1a\x3a\xfa].{4}",
        rb"[\x1b\x3b\xfb].{8}",
        *[b"[\\x%02x\\x%02x].{%d}" % (0x40 + size, 0x60 + size, size) for size in range(1, 24)],
    ]
)
#: Compiles a pattern at its first use: compiling takes long, and few nodes read large items.
_compiled: Final = cache(re.compile)

_SCALARS: Final = b"(?s:(?:" + _SHORT_SCALARS + b")++)"

#: Heads of small containers and tags, one byte each; and the tag of registered types.
_SHORT_HEADS: Final = rb"[\x80-\x97\xa0-\xb7\xc0-\xd7]"
_REGISTERED: Final = b"\xd9" + tags.REGISTERED.to_bytes(2, "big")
_SHORT_ITEMS: Final = b"(?s:(?:%b++|%b|%b)++)" % (
    *(_SHORT_HEADS, _SHORT_SCALARS, re.escape(_REGISTERED)),
)
#: Finds runs of heads, and the tag of registered types; matches a scalar with an empty group.
_WEIGHTS: Final = b"(?s:(%b++|%b)|(?:%b))" % (
    *(_SHORT_HEADS, re.escape(_REGISTERED), _SHORT_SCALARS),
)


def reserve(size: int) -> None:
    """Check that the values of a payload of ``size`` bytes fit into memory.

    If memory runs out in the middle of an item, cbor2 aborts the process or never returns.

    Raises:
        PayloadTooHeavy: there is not enough memory.
    """
    try:
        mmap.mmap(-1, _GROWTH * size).close()
    except OSError:
        msg = f"there is no memory left to read {size:,} B of a message"
        raise PayloadTooHeavy(msg) from None


def _head(payload: bytes, offset: int) -> tuple[int, int, int]:
    """Read the head of an item.

    Returns:
        Its major type, its argument, and the offset of its end.

    Raises:
        MalformedPayload: the item is truncated, or its length is indefinite.
    """
    if offset >= len(payload):
        raise _truncated(payload)
    first = payload[offset]
    major, short = first >> 5, first & 0x1F
    if short < 24:
        return major, short, offset + 1
    width = 1 << (short - 24)
    end = offset + 1 + width
    if short > 27:
        length = "an indefinite length" if short == 31 else "no length"
        msg = f"the item at byte {offset:,} of a large payload has {length}; send its length"
        raise MalformedPayload(msg)
    if end > len(payload):
        raise _truncated(payload)
    return major, int.from_bytes(payload[offset + 1 : end], "big"), end


def _truncated(payload: bytes) -> MalformedPayload:
    """Return the error for a payload that ends inside an item."""
    return MalformedPayload(f"a payload of {len(payload):,} B ends inside an item")


def weigh(
    payload: bytes, limit: int, hashed: Collection[int] = _HASHED
) -> Generator[None, None, int]:
    """Weigh the items of a payload; yield every ``_WEIGH_LIMIT`` bytes.

    Args:
        payload: the bytes.
        limit: the greatest weight that is allowed.
        hashed: tags whose elements the reader hashes.

    Returns:
        The weight, when the generator ends.

    Raises:
        PayloadTooHeavy: the items weigh more than `limit`.
        MalformedPayload: a head of an item is not CBOR.
    """
    offset = weight = 0
    pause = _WEIGH_LIMIT
    while offset < len(payload) and weight <= limit:
        if offset > pause:
            pause = offset + _WEIGH_LIMIT
            yield
        run = _compiled(_SHORT_ITEMS).match(payload, offset, offset + _WEIGH_LIMIT)
        if run is not None:
            heads = _compiled(_WEIGHTS).findall(run[0])
            wide = (len(_REGISTERED) - 1) * heads.count(_REGISTERED)
            weight += CONTAINER * (sum(map(len, heads)) - wide) + heads.count(b"")
            offset = run.end()
            continue
        major, argument, offset = _head(payload, offset)
        if major in {_ARRAY, _MAP, _TAG}:
            weight += CONTAINER
            if major == _TAG and argument in hashed:
                weight += _extra_weight(payload, offset)
            continue
        weight += 1
        if major in {_BYTES, _TEXT}:
            offset += argument
    if weight > limit:
        msg = (
            f"a message of {len(payload):,} B holds more than {limit // CONTAINER:,} "
            f"containers (or {CONTAINER} times as many scalars)"
        )
        raise PayloadTooHeavy(msg)
    return weight


def check_weight(payload: bytes, limit: int, hashed: Collection[int] = _HASHED) -> int:
    """Return the weight of a payload, without pauses; see `weigh`.

    Raises:
        PayloadTooHeavy: the payload weighs more than `limit`.
    """
    pieces = weigh(payload, limit, hashed)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return int(end.value)


#: Last bytes of the head of every reference.
_REFERENCE_SIGN: Final = tags.REFERENCE.to_bytes(2, "big")


#: Target of a reference: the node id and number of an actor, or the type of an entity and "".
Named = tuple[bytes, int] | tuple[str, str]


def find_references(payload: bytes, limit: int) -> list[Named]:
    """Return the targets of all references in a payload.

    Args:
        payload: the bytes; one search excludes most payloads, which contain none.
        limit: bytes of heads and short items to scan; long strings are skipped and not counted.

    Raises:
        PayloadTooHeavy: more bytes have to be scanned.
        MalformedPayload: the bytes are not CBOR with definite lengths, or a reference has
            another form than our encoders write.
    """
    targets: list[Named] = []
    if _REFERENCE_SIGN not in payload:
        return targets
    offset = scanned = 0
    while offset < len(payload):
        start = offset
        run = _compiled(_SHORT_ITEMS).match(payload, offset)
        if run is not None:
            offset = run.end()
        else:
            major, argument, offset = _head(payload, offset)
            if major == _TAG and argument == tags.REFERENCE:
                start = offset
                (kind, count, offset) = _head(payload, offset)
                (first, size, begin) = _head(payload, offset)
                (second, number, offset) = _head(payload, begin + size)
                content = payload[begin : begin + size]
                if (kind, count, first, second) == (_ARRAY, 2, _TEXT, _TEXT):
                    targets.append((content.decode(errors="replace"), ""))
                    offset += number
                elif (kind, count, first, second) == (_ARRAY, 2, _BYTES, _UNSIGNED):
                    targets.append((content, number))
                else:
                    msg = "a reference must consist of a node id and a number"
                    raise MalformedPayload(msg)
            elif major in {_BYTES, _TEXT}:
                scanned -= argument
                offset += argument
        scanned += offset - start
        if scanned > limit:
            msg = f"a message of {len(payload):,} B with references has too many items"
            raise PayloadTooHeavy(msg)
    return targets


def _extra_weight(payload: bytes, offset: int) -> int:
    """Return the additional weight of the elements of an array because they are hashed."""
    major, count, _ = _head(payload, offset)
    return count * (CONTAINER - 1) if major == _ARRAY else 0


@dataclass(slots=True)
class _Open:
    """A container or tag whose content is being read.

    Attributes:
        left: number of missing items.
        make: creates the value from a tag's content; None for a container.
        items: items that were read; of a map, keys and values that are not in it yet.
        pairs: the map that is filled; None for an array or a tag.
    """

    left: int
    make: TagFunction | None = None
    pairs: dict[Any, Any] | None = None
    items: list[Any] = field(default_factory=list)

    def add(self, values: list[Any]) -> None:
        """Add items that were read."""
        self.items += values
        self.left -= len(values)
        if self.pairs is not None and (not self.left or len(self.items) > _PENDING_LIMIT):
            self._pair_up(self.pairs)

    def _pair_up(self, pairs: dict[Any, Any]) -> None:
        """Move the complete pairs into the map."""
        even = len(self.items) & ~1
        keys = self.items[:even:2]
        other_types = set(map(type, keys)) - TEXTS
        if other_types:
            msg = f"a map key must be text or bytes, not {other_types.pop().__name__}"
            raise MalformedPayload(msg)
        pairs.update(zip(keys, self.items[1:even:2], strict=True))
        del self.items[:even]

    def value(self) -> Any:
        """Return the complete value."""
        if self.pairs is not None:
            return self.pairs
        return self.items if self.make is None else self.make(self.items[0], False)  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class PieceReader:
    """Reads large payloads, with a pause after each piece.

    Attributes:
        open_reader: creates a decoder for a stream of small items.
        table: the function of each tag.
        max_depth: limit of nested levels: each container and each tag is one.
    """

    open_reader: OpenReader
    table: Mapping[int, TagFunction]
    max_depth: int

    def read(self, payload: bytes, offset: int, count: int) -> Generator[None, None, list[Any]]:
        """Read the items that fill the rest of a payload, which was weighed.

        Args:
            payload: the bytes.
            offset: offset of the first item.
            count: number of items.

        Returns:
            The items, when the generator ends.

        Raises:
            MalformedPayload: the bytes are not ``count`` items.
        """
        size = len(payload)
        root = _Open(count)
        stack = [root]
        while root.left:
            yield
            levels = self.max_depth - len(stack) + 1
            reserve(_WINDOW)
            window = payload[offset : offset + _WINDOW]
            run = _compiled(_SCALARS).match(window)
            if run is not None and run.end() >= _LONG_RUN:
                values = self._decode(b"\x9f" + run[0] + b"\xff", levels + 1)
                offset += run.end()
            else:
                values, size_read = self._read_small(window, levels, stack[-1].left)
                offset += size_read
            if not values:
                values, offset = self._split(payload, offset, stack, levels)
            _deliver(stack, values, size)
        if offset != size:
            raise _trailing_bytes(size)
        return root.items

    def _decode(self, item: bytes, levels: int) -> Any:
        """Read one item."""
        return self.open_reader(io.BytesIO(item), levels).decode()

    def _read_small(self, window: bytes, levels: int, limit: int) -> tuple[list[Any], int]:
        """Read the items at the start of a window; return them and the offset of their end.

        It stops at an item that is incomplete or malformed. If it is the first one of a
        window, `_split` handles it.
        """
        values: list[Any] = []
        stream = io.BytesIO(window)
        reader = self.open_reader(stream, levels)
        end = 0
        with suppress(Exception):
            while len(values) < min(limit, _READ_LIMIT):
                values.append(reader.decode())
                end = stream.tell()
        return values, end

    def _split(
        self, payload: bytes, offset: int, stack: list[_Open], levels: int
    ) -> tuple[list[Any], int]:
        """Open a large container or tag, or read a long string.

        Returns:
            The string in a list, or an empty list; and the offset after the string or head.
        """
        major, argument, end = _head(payload, offset)
        is_opened = major in {_ARRAY, _MAP, _TAG}
        if major == _TAG and argument not in self.table:
            # cbor2 reads this tag with its string itself, or refuses it.
            is_opened = False
            major, argument, end = _head(payload, end)
        elif major in {_BYTES, _TEXT} and end + argument <= len(payload):
            content = memoryview(payload)[end : end + argument]  # cbor2 copies it three times
            with suppress(UnicodeDecodeError):
                value = bytes(content) if major == _BYTES else str(content, "utf-8")
                return [value], end + argument
        if not is_opened:
            if major in {_BYTES, _TEXT}:
                end += argument
            return [self._decode(payload[offset:end], levels)], end
        if levels < 1:
            msg = "the items of a payload are nested too deep"
            raise MalformedPayload(msg)
        if major == _TAG:
            stack.append(_Open(1, self.table[argument]))
        elif argument > len(payload) - end:
            raise _truncated(payload)
        elif major == _ARRAY:
            stack.append(_Open(argument))
        else:
            stack.append(_Open(2 * argument, pairs={}))
        return [], end


def _trailing_bytes(size: int) -> MalformedPayload:
    """Return the error for bytes after the last item."""
    return MalformedPayload(f"bytes follow the last item in a payload of {size:,} B")


def _deliver(stack: list[_Open], values: list[Any], size: int) -> None:
    """Add consecutive values to the open containers, and close those that are complete.

    Raises:
        MalformedPayload: no container is open for the last values.
    """
    used = 0
    while True:
        top = stack[-1]
        part = values[used : used + top.left]
        used += len(part)
        top.add(part)
        while not top.left and len(stack) > 1:
            stack.pop()
            value = top.value()
            top = stack[-1]
            top.add([value])
        if used == len(values):
            return
        if not top.left:
            raise _trailing_bytes(size)
