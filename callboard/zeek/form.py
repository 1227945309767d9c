"""The forms of messages: those that differ from one that was read in their scalars alone.

What sends events writes them with one program, so that the text of most is, but for the
arguments, the text of an earlier one. Such a message is read by looking at what is equal and
converting what is between: no JSON is parsed, and no object made. A form stands for one topic,
one event and one shape of arguments:

    {"type":"data-message", … "data":"ping"}, … "@data-type":"count","data":|7|}]}]}]}
    ──────────────────── what is equal in all ─────────────────────────────  ────────

It is used for texts that the parser would read the same: strings without escapes, numbers as
JSON has them. All others are parsed, and so are sets, tables and what is malformed.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from callboard.kernel.codec import head
from callboard.model.encoding import MAX_ITEMS
from callboard.model.errors import EndpointError
from callboard.zeek.json_message import reader_of

#: Characters of a message that is learned from; larger ones seldom have the form of another.
LENGTH_LIMIT: Final = 4_096

#: Forms of one sender, and those that begin alike: each is looked at, one after the other.
FORM_LIMIT: Final = 64
ALIKE_LIMIT: Final = 8

#: Characters of a scalar whose CBOR is kept.
KEPT_LIMIT: Final = 64

_TOKEN: Final = re.compile(r'[ \t\r\n]*([{}\[\]:,]|"[^"\\]*"|[^\s{}\[\]:,"]+)')
_REAL: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_BOOLEANS: Final = {"true": b"\xf5", "false": b"\xf4"}
_DATA: Final = '"data"'
#: How the CBOR of events begins: a vector of three, version 1, and kind 1.
_EVENT: Final = b"\x83\xd9\xbf\x18\x01\xd9\xbf\x18\x01"
_ARRAY: Final = 0x80

_Convert = Callable[[str], bytes]


def _text(kind: str) -> _Convert:
    """Return what reads any text between quotes."""
    read = reader_of(kind)

    def convert(text: str) -> bytes:
        if "\\" in text or not text.isprintable():
            raise ValueError(text)
        return read(text, 0)

    return convert


def _strict(kind: str) -> _Convert:
    """Return what reads a type whose texts have no escapes; most come again and again."""
    read = reader_of(kind)

    @lru_cache(1024)
    def convert(text: str) -> bytes:
        if len(text) > KEPT_LIMIT:
            raise ValueError(text)
        return read(text, 0)

    return convert


def _number(kind: str, pattern: re.Pattern[str], make: Callable[[str], float]) -> _Convert:
    """Return what reads a number."""
    read = reader_of(kind)

    @lru_cache(1024)
    def convert(text: str) -> bytes:
        if not pattern.fullmatch(text):
            raise ValueError(text)
        return read(make(text), 0)

    return convert


#: What ends each kind of scalar, and what reads it.
_SCALARS: Final[dict[str, tuple[str, _Convert]]] = {
    "boolean": ("}", lambda text: _BOOLEANS[text]),
    "count": ("}", _number("count", _INTEGER, int)),
    "integer": ("}", _number("integer", _INTEGER, int)),
    "real": ("}", _number("real", _REAL, float)),
    **{kind: ('"', _text(kind)) for kind in ("string", "enum-value")},
    **{
        kind: ('"', _strict(kind))
        for kind in ("address", "subnet", "port", "timestamp", "timespan")
    },
}


class TextSlot(NamedTuple):
    """A scalar: what stands before it, in JSON and in CBOR, and how it is read."""

    before: str
    ending: str
    convert: _Convert
    piece: bytes


class TextForm(NamedTuple):
    """A message without its scalars."""

    topic: str
    slots: tuple[TextSlot, ...]
    rest: str
    last: bytes

    def match(self, text: str) -> bytes | None:
        """Return the value that a text of this form holds, as topics carry it; else None."""
        at, out = 0, []
        try:
            for before, ending, convert, piece in self.slots:
                if not text.startswith(before, at):
                    return None
                start = at + len(before)
                at = text.index(ending, start)
                out.append(piece)
                out.append(convert(text[start:at]))
        except (ValueError, KeyError, EndpointError):
            return None
        if text[at:] != self.rest:
            return None
        out.append(self.last)
        return b"".join(out)


class Forms:
    """The forms of what one connection brings."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known: dict[str, list[TextForm]] = {}
        self._left = FORM_LIMIT

    def match(self, text: str) -> tuple[str, bytes] | None:
        """Return topic and value of a message whose form is known."""
        for form in self._known.get(text[: text.find(_DATA)], ()):
            content = form.match(text)
            if content is not None:
                return None if len(content) > MAX_ITEMS else (form.topic, content)
        return None

    def learn(self, text: str, message: tuple[str, bytes]) -> None:
        """Take the form of a message that was parsed, the second time that one begins so."""
        if not self._left or len(text) > LENGTH_LIMIT:
            return
        start = text[: text.find(_DATA)]
        alike = self._known.get(start)
        if alike is None:
            if len(self._known) < FORM_LIMIT:
                self._known[start] = []
        elif len(alike) < ALIKE_LIMIT:
            self._left -= 1
            is_event = message[1].startswith(_EVENT)
            form = _Learner(text).form(message[0], is_event=is_event)
            if form is not None and form.match(text) == message[1]:
                alike.append(form)


class _Unlike(Exception):
    """This text is not made of types and values in their usual order."""


class _Learner:
    """Makes the form of a text that is a message."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_TOKEN.finditer(text))
        self._at = 0
        #: What the value is made of: CBOR that is equal in all, and scalars.
        self._parts: list[bytes | tuple[int, int, str]] = []

    def form(self, topic: str, *, is_event: bool) -> TextForm | None:
        """Return the form; None where the text has none."""
        ends = [0, *(found.end() for found in self._tokens)]
        if ends[:-1] != [found.start() for found in self._tokens]:
            return None  # something odd is between
        try:
            self._outer(topic, is_event=is_event)
        except (_Unlike, IndexError):
            return None
        if self._at != len(self._tokens) or ends[-1] != len(self._text):
            return None
        slots, pieces, at = [], [], 0
        for part in self._parts:
            if isinstance(part, bytes):
                pieces.append(part)
            else:
                start, end, kind = part
                slots.append(TextSlot(self._text[at:start], *_SCALARS[kind], b"".join(pieces)))
                at, pieces = end, []
        return TextForm(topic, tuple(slots), self._text[at:], b"".join(pieces))

    @property
    def _word(self) -> str:
        """The next word."""
        return self._tokens[self._at][1]

    def _take(self, *words: str) -> None:
        """Pass these words by."""
        for word in words:
            if self._word != word:
                raise _Unlike
            self._at += 1

    def _outer(self, topic: str, *, is_event: bool) -> None:
        """Pass the message by: its topic and, where it is told, its type, then its value."""
        known = {'"type"': '"data-message"', '"topic"': f'"{topic}"'}
        self._take("{")
        while self._word in known:
            self._take(key := self._word, ":", known.pop(key), ",")
        if '"topic"' in known:
            raise _Unlike
        self._value(is_event=is_event)

    def _value(self, depth: int = 0, place: int = 0, *, is_event: bool = False) -> None:
        """Pass type and value by, and the end of their object."""
        self._take('"@data-type"', ":")
        kind = self._word[1:-1]
        self._take(f'"{kind}"', ",", _DATA, ":")
        if kind == "vector":
            self._vector(depth, is_event=is_event and (depth, place) in ((0, 0), (1, 2)))
        elif kind == "none":
            self._take("{", "}")
            self._parts.append(b"\xf6")
        elif kind in _SCALARS:
            self._scalar(kind, is_equal=is_event and (depth == 1 or place == 0))
        else:
            raise _Unlike
        self._take("}")

    def _vector(self, depth: int, *, is_event: bool) -> None:
        """Pass the items of a vector by."""
        at, count = len(self._parts), 0
        self._parts.append(b"")
        self._take("[")
        while self._word != "]":
            if count:
                self._take(",")
            self._take("{")
            self._value(depth + 1, count, is_event=is_event)
            count += 1
        self._take("]")
        self._parts[at] = head(_ARRAY, count)

    def _scalar(self, kind: str, *, is_equal: bool) -> None:
        """Pass a scalar by: version, kind and name of an event are equal in all."""
        found = self._tokens[self._at]
        self._at += 1
        ending, convert = _SCALARS[kind]
        is_text = ending == '"'
        start, end = found.start(1) + is_text, found.end(1) - is_text
        if is_text != (found[1][0] == '"'):
            raise _Unlike
        if is_equal:
            self._parts.append(convert(self._text[start:end]))
        else:
            self._parts.append((start, end, kind))
