"""Message templates: read a message by comparing it with an earlier one.

A program that sends events writes them with the same code, so most messages equal an earlier
one except for the arguments. A template holds the equal text and the slots of the arguments.
A text that matches it is read by comparing the text around the slots and converting the text in
them: no JSON is parsed, and no object is created. A template stands for one topic, one event
and one shape of arguments:

    {"type":"data-message", … "data":"ping"}, … "@data-type":"count","data":|7|}]}]}]}
    ──────────────────── equal in all messages ─────────────────────────────  ────────

Templates handle only texts that the parser reads alike: strings without escapes, and numbers
in JSON's form. Other texts, sets and tables, and malformed messages are parsed.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from callboard.cbor.writer import head
from callboard.model.encoding import MAX_ITEMS
from callboard.model.errors import EndpointError
from callboard.zeek.json_message import reader_of

#: Longest message in characters that becomes a template; longer ones seldom recur.
LENGTH_LIMIT: Final = 4_096

#: Templates of one sender, and templates with the same beginning, which are tried in turn.
FORM_LIMIT: Final = 64
ALIKE_LIMIT: Final = 8

#: Longest scalar in characters whose CBOR is cached.
KEPT_LIMIT: Final = 64

_TOKEN: Final = re.compile(r'[ \t\r\n]*([{}\[\]:,]|"[^"\\]*"|[^\s{}\[\]:,"]+)')
_REAL: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_BOOLEANS: Final = {"true": b"\xf5", "false": b"\xf4"}
_DATA: Final = '"data"'
#: First bytes of an event in CBOR: a vector of three items, version 1, and kind 1.
_EVENT: Final = b"\x83\xd9\xbf\x18\x01\xd9\xbf\x18\x01"
_ARRAY: Final = 0x80

_Convert = Callable[[str], bytes]


def _text(kind: str) -> _Convert:
    """Return a converter for strings."""
    read = reader_of(kind)

    def convert(text: str) -> bytes:
        if "\\" in text or not text.isprintable():
            raise ValueError(text)
        return read(text, 0)

    return convert


def _strict(kind: str) -> _Convert:
    """Return a cached converter for a type without escapes; most values recur."""
    read = reader_of(kind)

    @lru_cache(1024)
    def convert(text: str) -> bytes:
        if len(text) > KEPT_LIMIT:
            raise ValueError(text)
        return read(text, 0)

    return convert


def _number(kind: str, pattern: re.Pattern[str], make: Callable[[str], float]) -> _Convert:
    """Return a cached converter for numbers that match a pattern."""
    read = reader_of(kind)

    @lru_cache(1024)
    def convert(text: str) -> bytes:
        if not pattern.fullmatch(text):
            raise ValueError(text)
        return read(make(text), 0)

    return convert


#: The character after each type of scalar, and its converter.
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
    """A scalar: the JSON and CBOR before it, and its converter."""

    before: str
    ending: str
    convert: _Convert
    piece: bytes


class TextForm(NamedTuple):
    """A template: a message without its scalars."""

    topic: str
    slots: tuple[TextSlot, ...]
    rest: str
    last: bytes

    def match(self, text: str) -> bytes | None:
        """Return the value of a text in CBOR, or None if the text does not match."""
        offset, out = 0, []
        try:
            for before, ending, convert, piece in self.slots:
                if not text.startswith(before, offset):
                    return None
                start = offset + len(before)
                offset = text.index(ending, start)
                out.append(piece)
                out.append(convert(text[start:offset]))
        except (ValueError, KeyError, EndpointError):
            return None
        if text[offset:] != self.rest:
            return None
        out.append(self.last)
        return b"".join(out)


class MessageTemplates:
    """The templates of one connection."""

    def __init__(self) -> None:
        """Start without templates."""
        self._by_start: dict[str, list[TextForm]] = {}
        self._left = FORM_LIMIT

    def match(self, text: str) -> tuple[str, bytes] | None:
        """Return topic and value of a text that matches a template, else None."""
        for form in self._by_start.get(text[: text.find(_DATA)], ()):
            content = form.match(text)
            if content is not None:
                return None if len(content) > MAX_ITEMS else (form.topic, content)
        return None

    def learn(self, text: str, message: tuple[str, bytes]) -> None:
        """Make a template of a parsed message, unless its beginning is new.

        A beginning is only remembered when it is new, so that a message that never recurs costs
        little.
        """
        if not self._left or len(text) > LENGTH_LIMIT:
            return
        start = text[: text.find(_DATA)]
        similar = self._by_start.get(start)
        if similar is None:
            if len(self._by_start) < FORM_LIMIT:
                self._by_start[start] = []
        elif len(similar) < ALIKE_LIMIT:
            self._left -= 1
            is_event = message[1].startswith(_EVENT)
            form = _Learner(text).form(message[0], is_event=is_event)
            if form is not None and form.match(text) == message[1]:
                similar.append(form)


class _NoTemplate(Exception):
    """A text that does not have the usual order of types and values."""


class _Learner:
    """Makes the template of a message."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_TOKEN.finditer(text))
        self._index = 0
        #: The value: constant CBOR, and scalars as start, end and type.
        self._parts: list[bytes | tuple[int, int, str]] = []

    def form(self, topic: str, *, is_event: bool) -> TextForm | None:
        """Return the template; None if the text has none."""
        ends = [0, *(token.end() for token in self._tokens)]
        if ends[:-1] != [token.start() for token in self._tokens]:
            return None  # there is other text between the tokens
        try:
            self._outer(topic, is_event=is_event)
        except (_NoTemplate, IndexError):
            return None
        if self._index != len(self._tokens) or ends[-1] != len(self._text):
            return None
        slots, pieces, offset = [], [], 0
        for part in self._parts:
            if isinstance(part, bytes):
                pieces.append(part)
            else:
                start, end, kind = part
                slots.append(
                    TextSlot(self._text[offset:start], *_SCALARS[kind], b"".join(pieces))
                )
                offset, pieces = end, []
        return TextForm(topic, tuple(slots), self._text[offset:], b"".join(pieces))

    @property
    def _current(self) -> str:
        """The current token."""
        return self._tokens[self._index][1]

    def _skip(self, *tokens: str) -> None:
        """Skip the given tokens."""
        for token in tokens:
            if self._current != token:
                raise _NoTemplate
            self._index += 1

    def _outer(self, topic: str, *, is_event: bool) -> None:
        """Read the object: an optional type, the topic, and the value."""
        expected = {'"type"': '"data-message"', '"topic"': f'"{topic}"'}
        self._skip("{")
        while self._current in expected:
            self._skip(key := self._current, ":", expected.pop(key), ",")
        if '"topic"' in expected:
            raise _NoTemplate
        self._value(is_event=is_event)

    def _value(self, depth: int = 0, place: int = 0, *, is_event: bool = False) -> None:
        """Read the type and the value of an object, up to its end."""
        self._skip('"@data-type"', ":")
        kind = self._current[1:-1]
        self._skip(f'"{kind}"', ",", _DATA, ":")
        if kind == "vector":
            self._vector(depth, is_event=is_event and (depth, place) in ((0, 0), (1, 2)))
        elif kind == "none":
            self._skip("{", "}")
            self._parts.append(b"\xf6")
        elif kind in _SCALARS:
            self._scalar(kind, is_equal=is_event and (depth == 1 or place == 0))
        else:
            raise _NoTemplate
        self._skip("}")

    def _vector(self, depth: int, *, is_event: bool) -> None:
        """Read the items of a vector."""
        head_index, count = len(self._parts), 0
        self._parts.append(b"")
        self._skip("[")
        while self._current != "]":
            if count:
                self._skip(",")
            self._skip("{")
            self._value(depth + 1, count, is_event=is_event)
            count += 1
        self._skip("]")
        self._parts[head_index] = head(_ARRAY, count)

    def _scalar(self, kind: str, *, is_equal: bool) -> None:
        """Read a scalar; version, kind and name of an event become constant."""
        token = self._tokens[self._index]
        self._index += 1
        ending, convert = _SCALARS[kind]
        is_text = ending == '"'
        start, end = token.start(1) + is_text, token.end(1) - is_text
        if is_text != (token[1][0] == '"'):
            raise _NoTemplate
        if is_equal:
            self._parts.append(convert(self._text[start:end]))
        else:
            self._parts.append((start, end, kind))
