"""Large items: how much they hold, and reading them in pieces.

cbor2 reads an item in one call, which holds the interpreter until it returns: for seconds,
where 16 MiB are millions of empty lists. So a large item is weighed before it is sent, and
read here with a pause after each piece, so that a node has other turns in between. The weight
says what an item costs its reader in time and memory, in eighths of a container:

- a container or a tag weighs 8, a scalar 1;
- what is in a set, or in a map with other keys than text, weighs 8, for it is hashed by us.

What is small is still read by cbor2: the items of a large container one by one out of a window
of the payload, runs of short scalars in one call. Only what does not fit into the window is
taken apart here; its length must be definite, as all encoders here write it.
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

from callboard.basp.cbor import tags
from callboard.basp.cbor.collisions import TEXTS
from callboard.basp.errors import MalformedPayload, PayloadTooHeavy
from callboard.support.dataclass import dataclass

#: Makes the reader of a stream of small items, with so many levels inside each other.
OpenReader = Callable[[io.BytesIO, int], cbor2.CBORDecoder]

#: Makes a value of a tag's content; also told whether a map key is being read.
TagFunction = Callable[[Any, bool], Any]

#: What a container or a tag weighs; a scalar weighs 1.
CONTAINER: Final = 8

#: Bytes that are read by cbor2 between two pauses: some milliseconds.
_WINDOW: Final = 8_192

#: Items of a container that are read one by one between two pauses.
_READ_AT_ONCE: Final = 2_048

#: Bytes that are weighed between two pauses.
_WEIGHED_AT_ONCE: Final = 16_384

#: Bytes of memory that one byte can become, at most: an empty map, and its place in a list.
_GROWTH: Final = 160

#: Bytes of scalars that are worth a call of their own.
_LONG_RUN: Final = 256

#: Items of a map that wait to be put into it.
_WAITING_PAIRS: Final = 2_048

#: The tags whose content is hashed by us.
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
#: Compiles a pattern when it is first used: that takes long, and few nodes see large items.
_compiled: Final = cache(re.compile)

_SCALARS: Final = b"(?s:(?:" + _SHORT_SCALARS + b")++)"

#: Heads of small containers and tags, one byte each; and the tag of registered types.
_SHORT_HEADS: Final = rb"[\x80-\x97\xa0-\xb7\xc0-\xd7]"
_REGISTERED: Final = b"\xd9" + tags.REGISTERED.to_bytes(2, "big")
_SHORT_ITEMS: Final = b"(?s:(?:%b++|%b|%b)++)" % (
    *(_SHORT_HEADS, _SHORT_SCALARS, re.escape(_REGISTERED)),
)
#: Finds runs of heads, the tag, and nothing for a scalar.
_WEIGHTS: Final = b"(?s:(%b++|%b)|(?:%b))" % (
    *(_SHORT_HEADS, re.escape(_REGISTERED), _SHORT_SCALARS),
)


def reserve(size: int) -> None:
    """See to it that there is memory for what so many bytes can become.

    cbor2 does not survive that none is left in the middle of an item: it ends the process, or
    stops it for good.

    Raises:
        PayloadTooHeavy: there is not.
    """
    try:
        mmap.mmap(-1, _GROWTH * size).close()
    except OSError:
        msg = f"there is no memory left to read {size:,} B of a message"
        raise PayloadTooHeavy(msg) from None


def _head(payload: bytes, at: int) -> tuple[int, int, int]:
    """Read the head of an item.

    Returns:
        Its major type, its argument, and where the head ends.

    Raises:
        MalformedPayload: it is cut short, or has no definite length.
    """
    if at >= len(payload):
        raise _cut_short(payload)
    first = payload[at]
    major, short = first >> 5, first & 0x1F
    if short < 24:
        return major, short, at + 1
    width = 1 << (short - 24)
    end = at + 1 + width
    if short > 27:
        what = "a length that is open" if short == 31 else "no length"
        msg = f"an item of a large payload has {what}; write its length in front of it"
        raise MalformedPayload(msg)
    if end > len(payload):
        raise _cut_short(payload)
    return major, int.from_bytes(payload[at + 1 : end], "big"), end


def _cut_short(payload: bytes) -> MalformedPayload:
    """Return the error for bytes that end inside an item."""
    return MalformedPayload(f"a payload of {len(payload):,} B ends inside an item")


def weigh(
    payload: bytes, most: int, hashed: Collection[int] = _HASHED
) -> Generator[None, None, int]:
    """Weigh the items of a payload, with a pause now and then.

    Args:
        payload: the bytes.
        most: what they may weigh.
        hashed: tags whose content is hashed by who reads it.

    Returns:
        The weight, when the generator ends.

    Raises:
        PayloadTooHeavy: they weigh more than `most`.
        MalformedPayload: the bytes are no CBOR, as far as their heads say.
    """
    at = weight = 0
    pause = _WEIGHED_AT_ONCE
    while at < len(payload) and weight <= most:
        if at > pause:
            pause = at + _WEIGHED_AT_ONCE
            yield
        run = _compiled(_SHORT_ITEMS).match(payload, at, at + _WEIGHED_AT_ONCE)
        if run is not None:
            heads = _compiled(_WEIGHTS).findall(run[0])
            wide = (len(_REGISTERED) - 1) * heads.count(_REGISTERED)
            weight += CONTAINER * (sum(map(len, heads)) - wide) + heads.count(b"")
            at = run.end()
            continue
        major, argument, at = _head(payload, at)
        if major in {_ARRAY, _MAP, _TAG}:
            weight += CONTAINER
            if major == _TAG and argument in hashed:
                weight += _extra_weight(payload, at)
            continue
        weight += 1
        if major in {_BYTES, _TEXT}:
            at += argument
    if weight > most:
        msg = (
            f"a message of {len(payload):,} B holds more than {most // CONTAINER:,} containers "
            f"(or {CONTAINER} times as many scalars)"
        )
        raise PayloadTooHeavy(msg)
    return weight


def check_weight(payload: bytes, most: int, hashed: Collection[int] = _HASHED) -> int:
    """Return what a payload weighs, without a pause; see `weigh`.

    Raises:
        PayloadTooHeavy: it does.
    """
    pieces = weigh(payload, most, hashed)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return int(end.value)


#: The tag of references, as every form of its head ends.
_REFERENCE_SIGN: Final = tags.REFERENCE.to_bytes(2, "big")


#: An actor: its node id and its number; or the type of an entity, and an empty text.
Named = tuple[bytes, int] | tuple[str, str]


def find_references(payload: bytes, most: int) -> list[Named]:
    """Return what each reference in a payload names: a node id and a number, or an entity.

    Of the reference of an entity it is the name of the type, and an empty text.

    Args:
        payload: the bytes; most have no reference, which one look tells.
        most: bytes of heads and short items to go through; what is in long strings is none.

    Raises:
        PayloadTooHeavy: there is more to go through.
        MalformedPayload: the bytes are no CBOR with definite lengths, or a reference has
            another form than the encoders here give it.
    """
    found: list[Named] = []
    if _REFERENCE_SIGN not in payload:
        return found
    at = passed = 0
    while at < len(payload):
        start = at
        run = _compiled(_SHORT_ITEMS).match(payload, at)
        if run is not None:
            at = run.end()
        else:
            major, argument, at = _head(payload, at)
            if major == _TAG and argument == tags.REFERENCE:
                start = at
                (kind, count, at) = _head(payload, at)
                (first, size, begin) = _head(payload, at)
                (second, number, at) = _head(payload, begin + size)
                content = payload[begin : begin + size]
                if (kind, count, first, second) == (_ARRAY, 2, _TEXT, _TEXT):
                    found.append((content.decode(errors="replace"), ""))
                    at += number
                elif (kind, count, first, second) == (_ARRAY, 2, _BYTES, _UNSIGNED):
                    found.append((content, number))
                else:
                    msg = "a reference has another form than a node id and a number"
                    raise MalformedPayload(msg)
            elif major in {_BYTES, _TEXT}:
                passed -= argument
                at += argument
        passed += at - start
        if passed > most:
            msg = f"a message of {len(payload):,} B with references has too many items"
            raise PayloadTooHeavy(msg)
    return found


def _extra_weight(payload: bytes, at: int) -> int:
    """Return what the elements of an array that are hashed weigh beyond their own weight."""
    major, count, _ = _head(payload, at)
    return count * (CONTAINER - 1) if major == _ARRAY else 0


@dataclass(slots=True)
class _Open:
    """A container or tag whose content is being read.

    Attributes:
        left: items that are missing.
        make: makes the value of a tag's content; None for a container.
        items: what was read of it.
        pairs: the map that takes the items, two by two; None for an array or a tag.
    """

    left: int
    make: TagFunction | None = None
    pairs: dict[Any, Any] | None = None
    items: list[Any] = field(default_factory=list)

    def add(self, values: list[Any]) -> None:
        """Take items that were read."""
        self.items += values
        self.left -= len(values)
        if self.pairs is not None and (not self.left or len(self.items) > _WAITING_PAIRS):
            self._pair_up(self.pairs)

    def _pair_up(self, pairs: dict[Any, Any]) -> None:
        """Put the pairs that are complete into the map."""
        even = len(self.items) & ~1
        keys = self.items[:even:2]
        strange = set(map(type, keys)) - TEXTS
        if strange:
            msg = f"a map key must be text or bytes, not {strange.pop().__name__}"
            raise MalformedPayload(msg)
        pairs.update(zip(keys, self.items[1:even:2], strict=True))
        del self.items[:even]

    def value(self) -> Any:
        """Return what the items make, when none is missing."""
        if self.pairs is not None:
            return self.pairs
        return self.items if self.make is None else self.make(self.items[0], False)  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class PieceReader:
    """Reads large payloads, with a pause after each piece.

    Attributes:
        open_reader: makes the reader of a stream of small items, with levels inside each other.
        table: the function of each tag.
        max_depth: levels inside each other: each container and each tag is one.
    """

    open_reader: OpenReader
    table: Mapping[int, TagFunction]
    max_depth: int

    def read(self, payload: bytes, at: int, count: int) -> Generator[None, None, list[Any]]:
        """Read the items that fill the rest of a payload, which was weighed.

        Args:
            payload: the bytes.
            at: where the items begin.
            count: how many they are.

        Returns:
            The items, when the generator ends.

        Raises:
            MalformedPayload: the bytes are no such items, or bytes follow them.
        """
        size = len(payload)
        root = _Open(count)
        stack = [root]
        while root.left:
            yield
            levels = self.max_depth - len(stack) + 1
            reserve(_WINDOW)
            window = payload[at : at + _WINDOW]
            run = _compiled(_SCALARS).match(window)
            if run is not None and run.end() >= _LONG_RUN:
                values = self._decode(b"\x9f" + run[0] + b"\xff", levels + 1)
                at += run.end()
            else:
                values, taken = self._read_small(window, levels, stack[-1].left)
                at += taken
            if not values:
                values, at = self._take_apart(payload, at, stack, levels)
            _give(stack, values, size)
        if at != size:
            raise _goes_on(size)
        return root.items

    def _decode(self, item: bytes, levels: int) -> Any:
        """Read one item."""
        return self.open_reader(io.BytesIO(item), levels).decode()

    def _read_small(self, window: bytes, levels: int, most: int) -> tuple[list[Any], int]:
        """Read the items at the beginning of a window; returns them and where they end.

        What does not fit, or is wrong, is found again when it is taken apart.
        """
        values: list[Any] = []
        stream = io.BytesIO(window)
        reader = self.open_reader(stream, levels)
        taken = 0
        with suppress(Exception):
            while len(values) < min(most, _READ_AT_ONCE):
                values.append(reader.decode())
                taken = stream.tell()
        return values, taken

    def _take_apart(
        self, payload: bytes, at: int, stack: list[_Open], levels: int
    ) -> tuple[list[Any], int]:
        """Open a large container or tag, or read a long string; returns it and what follows."""
        major, argument, end = _head(payload, at)
        is_opened = major in {_ARRAY, _MAP, _TAG}
        if major == _TAG and argument not in self.table:
            # A tag that cbor2 reads itself, of a string; or one that it refuses.
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
            return [self._decode(payload[at:end], levels)], end
        if levels < 1:
            msg = "the items of a payload are nested too deep"
            raise MalformedPayload(msg)
        if major == _TAG:
            stack.append(_Open(1, self.table[argument]))
        elif argument > len(payload) - end:
            raise _cut_short(payload)
        elif major == _ARRAY:
            stack.append(_Open(argument))
        else:
            stack.append(_Open(2 * argument, pairs={}))
        return [], end


def _goes_on(size: int) -> MalformedPayload:
    """Return the error for bytes behind the last item."""
    return MalformedPayload(f"bytes follow the last item in a payload of {size:,} B")


def _give(stack: list[_Open], values: list[Any], size: int) -> None:
    """Give values that follow each other to the containers that they fill, and close those.

    Raises:
        MalformedPayload: nothing takes the last of them.
    """
    taken = 0
    while True:
        top = stack[-1]
        part = values[taken : taken + top.left]
        taken += len(part)
        top.add(part)
        while not top.left and len(stack) > 1:
            stack.pop()
            value = top.value()
            top = stack[-1]
            top.add([value])
        if taken == len(values):
            return
        if not top.left:
            raise _goes_on(size)
