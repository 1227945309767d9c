"""Parser for `broker.conf`: keys, values, and groups in braces.

    # comment
    broker {
      ttl = 16
      metrics { port = 4040, export.prefixes = ["broker_", "callboard_"] }
    }
    broker.disable-ssl = true

Keys are joined with dots: the example sets `broker.metrics.port`. Values are true or false,
numbers, quoted text, a timespan (`500ms`), or a list of texts. Line breaks and commas are only
separators. (The language is CAF's, the library on which Broker is based.)
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from callboard.model.errors import InvalidOption

_TOKEN: Final = re.compile(
    r"""\s+ | ,                                   # separators
    | (?P<comment> \#[^\n]* )
    | (?P<quoted> "(?: \\. | [^"\\\n] )*" )
    | (?P<mark> [{}\[\]=] )
    | (?P<bare> [^\s{}\[\]=,\#"]+ )
    """,
    re.VERBOSE,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

#: Nesting depth of groups.
DEPTH_LIMIT: Final = 16


class Entry(NamedTuple):
    """The value of a key: text, or a list of texts, and the line."""

    value: str | tuple[str, ...]
    line: int


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse_conf(text: str) -> dict[str, Entry]:
    """Return the entries of a file by full key; a later entry replaces an earlier one.

    Raises:
        InvalidOption: a syntax error; the text contains the line.
    """
    tokens = list(_tokens(text))
    tokens.append(_Token("end", "the end", 1 + text.count("\n")))
    entries: dict[str, Entry] = {}
    groups: list[str] = []
    index = 0
    while tokens[index].kind != "end":
        token = tokens[index]
        index += 1
        if token.text == "}" and token.kind == "mark" and groups:
            groups.pop()
            continue
        if token.kind not in ("bare", "quoted"):
            _refuse(token, "a key")
        next_token = tokens[index]
        index += next_token.text == "="
        if tokens[index].text == "{" and tokens[index].kind == "mark":
            if len(groups) == DEPTH_LIMIT:
                _refuse(tokens[index], f"'}}', as at most {DEPTH_LIMIT} groups can be nested")
            groups.append(token.text)
            index += 1
        elif next_token.text != "=":
            _refuse(next_token, f"'=' or '{{' after {token.text!r}")
        else:
            value, index = _value(tokens, index)
            entries[".".join((*groups, token.text))] = Entry(value, token.line)
    if groups:
        _refuse(tokens[index], f"the '}}' of {groups[-1]!r}")
    return entries


def _value(tokens: list[_Token], index: int) -> tuple[str | tuple[str, ...], int]:
    """Return a value and the index after it."""
    token = tokens[index]
    if token.kind in ("bare", "quoted"):
        return token.text, index + 1
    if token.text != "[" or token.kind != "mark":
        _refuse(token, "a value")
    items = []
    index += 1
    while tokens[index].kind in ("bare", "quoted"):
        items.append(tokens[index].text)
        index += 1
    if tokens[index].text != "]":
        _refuse(tokens[index], "']'")
    return tuple(items), index + 1


def _tokens(text: str) -> Iterator[_Token]:
    index, line = 0, 1
    while index < len(text):
        match = _TOKEN.match(text, index)
        if match is None:  # only an unclosed quote matches nothing
            _refuse(_Token("mark", text[index], line), "a text that ends on its line")
        index = match.end()
        kind = match.lastgroup
        if kind == "quoted":
            inner = match["quoted"][1:-1]
            plain = re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), inner)
            yield _Token(kind, plain, line)
        elif kind in ("mark", "bare"):
            yield _Token(kind, match[kind], line)
        line += match[0].count("\n")


def _refuse(token: _Token, expected: str) -> NoReturn:
    msg = f"line {token.line}: {token.text[:40]!r} instead of {expected}"
    raise InvalidOption(msg)
