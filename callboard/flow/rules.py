"""Rules over what a BOT says, as S-expressions, and file names made of it.

    (and (= stream "raw") (or (> credit 5) (in host "a" "b")) (not urgent))

A word is an attribute (missing ones are null), or one of `true`, `false`, `null`; texts stand
in double quotes, numbers as usual. Operators: and, or, not, =, ==, !=, <, >, <=, >=, in. Values
of kinds that have no order are neither less nor greater.

File names are patterns with plain names in braces, `{host}/{run}.zio`. Attributes come from
remote clients, so a name that would leave its folder is refused.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NoReturn

from callboard.flow.errors import InvalidRule

__all__ = ["Rule", "fill_pattern", "path_inside"]

DEPTH_LIMIT: Final = 32
"""Expressions inside of expressions; nobody writes more by hand."""

LENGTH_LIMIT: Final = 4096
"""Characters of a rule."""

_TOKEN: Final = re.compile(r'\s*(?:([()])|("(?:[^"\\]|\\.)*")|([^\s()"]+))')
_NAME: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ORDER: Final = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}

Term = Callable[[Mapping[str, Any]], Any]


class Rule:
    """One expression."""

    def __init__(self, text: str) -> None:
        """Read it.

        Raises:
            InvalidRule: it cannot be read; the text says where.
        """
        self.text = text
        if len(text) > LENGTH_LIMIT:
            msg = f"a rule of {len(text):,} characters exceeds {LENGTH_LIMIT:,}"
            raise InvalidRule(msg)
        reader = _Reader(text)
        self._term = reader.term(0)
        reader.finish()

    def holds(self, attributes: Mapping[str, Any]) -> bool:
        """Tell whether it is true of these attributes."""
        return bool(self._term(attributes))

    def __repr__(self) -> str:
        return f"<Rule {self.text}>"


class _Reader:
    """Turns text into functions of the attributes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def term(self, depth: int) -> Term:
        """Read one term."""
        bracket, quoted, word = self._next()
        if bracket == "(":
            if depth >= DEPTH_LIMIT:
                self._fail(f"more than {DEPTH_LIMIT} brackets are open")
            return self._expression(depth + 1)
        if bracket:
            self._fail("an expression is missing before ')'")
        if quoted:
            return _constant(self._unquoted(quoted))
        return _word(word)

    def finish(self) -> None:
        """Look that nothing is left."""
        if self._text[self._at :].strip():
            self._fail("the rule goes on after its end")

    def _expression(self, depth: int) -> Term:
        _, _, name = self._next()
        arguments = []
        while not self._closes():
            arguments.append(self.term(depth))
        return self._combined(name, arguments)

    def _closes(self) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is not None and match[1] == ")":
            self._at = match.end()
            return True
        return False

    def _combined(self, name: str, terms: list[Term]) -> Term:
        term = _logic(name, terms) or _comparison(name, terms)
        if term is None:
            known = "and, or, not X, = X Y, != X Y, < X Y, > X Y, <= X Y, >= X Y, in X Y…"
            self._fail(f"({name or '…'}) with {len(terms)} terms is none of: {known}")
        return term

    def _next(self) -> tuple[str, str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            self._fail("the rule ends too early, or a quote is not closed")
        self._at = match.end()
        return match[1] or "", match[2] or "", match[3] or ""

    def _unquoted(self, quoted: str) -> Any:
        try:
            return json.loads(quoted)
        except ValueError:
            self._fail(f"{quoted} is no text as JSON has it")

    def _fail(self, why: str) -> NoReturn:
        msg = f"rule {self._text[:80]!r}, character {self._at}: {why}"
        raise InvalidRule(msg)


def _logic(name: str, terms: list[Term]) -> Term | None:
    if name in ("and", "or"):
        fold = all if name == "and" else any
        return lambda about: fold(term(about) for term in terms)
    if name == "not" and len(terms) == 1:
        return lambda about: not terms[0](about)
    if name == "in" and len(terms) > 1:
        return lambda about: _is_among(terms[0](about), [t(about) for t in terms[1:]])
    return None


def _comparison(name: str, terms: list[Term]) -> Term | None:
    if len(terms) != 2:
        return None
    left, right = terms
    if name in ("=", "=="):
        return lambda about: _is_same(left(about), right(about))
    if name == "!=":
        return lambda about: not _is_same(left(about), right(about))
    compare = _ORDER.get(name)
    if compare is None:
        return None
    return lambda about: _compared(compare, left(about), right(about))


def _constant(value: Any) -> Term:
    return lambda _: value


def _word(word: str) -> Term:
    if word in _CONSTANTS:
        return _constant(_CONSTANTS[word])
    for kind in (int, float):
        try:
            return _constant(kind(word))
        except ValueError:
            continue
    return lambda about: about.get(word)


def _is_same(left: Any, right: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _is_among(value: Any, found: list[Any]) -> bool:
    """Tell whether a value is one of these, or of the list that an attribute holds."""
    if len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    return any(_is_same(value, each) for each in found)


def _compared(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> bool:
    try:
        return bool(compare(left, right))
    except TypeError:
        return False


def fill_pattern(pattern: str, attributes: Mapping[str, Any], root: Path) -> Path:
    """Return the file that a pattern names, inside of `root`.

    Raises:
        InvalidRule: an attribute is missing or is no text or number, or the name would be
            outside of the folder.
    """

    def fill(match: re.Match[str]) -> str:
        value = attributes.get(match[1])
        if not isinstance(value, str | int) or isinstance(value, bool):
            msg = f"pattern {pattern!r} needs {match[1]!r} as text or number, not {value!r}"
            raise InvalidRule(msg)
        return str(value)

    name = _NAME.sub(fill, pattern)
    if "{" in _NAME.sub("", pattern) or "}" in _NAME.sub("", pattern):
        msg = f"pattern {pattern!r}: only plain names stand in braces, such as {{host}}"
        raise InvalidRule(msg)
    return path_inside(name, root)


def path_inside(name: str, root: Path) -> Path:
    """Return the file of that name in a folder, which a peer may have said.

    Raises:
        InvalidRule: it would be outside of the folder, also by a symbolic link.
    """
    path = PurePosixPath(name)
    is_bad = "\0" in name or "\\" in name or not path.parts
    if is_bad or path.is_absolute() or ".." in path.parts:
        msg = f"{name[:100]!r} is no name inside of the folder"
        raise InvalidRule(msg)
    full = (root / path).resolve()
    if not full.is_relative_to(root.resolve()):
        msg = f"{name[:100]!r} leads out of the folder"
        raise InvalidRule(msg)
    return full
