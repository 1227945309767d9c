"""Rules over the attributes of a BOT, as S-expressions, and file names made of them.

    (and (= stream "raw") (or (> credit 5) (in host "a" "b")) (not urgent))

A word is an attribute (null if it is missing), or one of `true`, `false`, `null`. Texts are in
double quotes. Operators: and, or, not, =, ==, !=, <, >, <=, >=, in. Values of types without a
common order are neither less nor greater.

File names are patterns with plain names in braces, `{host}/{run}.zio`. Attributes come from
remote clients, so a name outside of its folder is refused.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NoReturn

from callboard.flow.errors import InvalidRule
from callboard.support.nesting import parse_json

#: Nested expressions; more than anyone writes by hand.
DEPTH_LIMIT: Final = 32

#: Characters of a rule.
LENGTH_LIMIT: Final = 4096

_TOKEN: Final = re.compile(r'\s*(?:([()])|("(?:[^"\\]|\\.)*")|([^\s()"]+))')
_NAME: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
_CONSTANTS: Final = {"true": True, "false": False, "null": None}

Term = Callable[[Mapping[str, Any]], Any]


class Rule:
    """One expression."""

    def __init__(self, text: str) -> None:
        """Parse a rule.

        Raises:
            InvalidRule: the text is not a rule; the message has the position.
        """
        self.text = text
        if len(text) > LENGTH_LIMIT:
            invalid_rule(f"a rule of {len(text):,} characters exceeds {LENGTH_LIMIT:,}")
        reader = _Reader(text)
        self._term = reader.term(0)
        if text[reader.offset :].strip():
            reader.fail("text follows the end of the rule")

    def holds(self, attributes: Mapping[str, Any]) -> bool:
        """Return whether the rule is true for attributes."""
        return bool(self._term(attributes))

    def __repr__(self) -> str:
        return f"<Rule {self.text}>"


class _Reader:
    """A parser that turns text into functions of attributes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.offset = 0

    def term(self, depth: int) -> Term:
        """Read one term."""
        bracket, quoted, word = self._next()
        if bracket == "(":
            if depth >= DEPTH_LIMIT:
                self.fail(f"more than {DEPTH_LIMIT} brackets are open")
            return self._expression(depth + 1)
        if bracket:
            self.fail("an expression is missing before ')'")
        return _constant(self._unquoted(quoted)) if quoted else _word(word)

    def _expression(self, depth: int) -> Term:
        """Read an expression after its opening bracket."""
        _, _, name = self._next()
        terms = []
        while (match := _TOKEN.match(self._text, self.offset)) is None or match[1] != ")":
            terms.append(self.term(depth))
        self.offset = match.end()
        function, least, most = _OPERATORS.get(name, (None, 0, 0))
        if function is None or not least <= len(terms) <= most:
            forms = "and, or, not X, = X Y, != X Y, < X Y, > X Y, <= X Y, >= X Y, in X Y…"
            self.fail(f"({name or '…'}) with {len(terms)} terms is not one of: {forms}")
        return lambda attributes: function(*[term(attributes) for term in terms])

    def _next(self) -> tuple[str, str, str]:
        """Read the next token: a bracket, a quoted text or a word."""
        if (match := _TOKEN.match(self._text, self.offset)) is None:
            self.fail("the rule ends too early, or a quote is not closed")
        self.offset = match.end()
        return match[1] or "", match[2] or "", match[3] or ""

    def _unquoted(self, quoted: str) -> Any:
        """Return the value of a quoted text."""
        try:
            return parse_json(quoted)
        except ValueError:
            self.fail(f"{quoted} is not a JSON string")

    def fail(self, problem: str) -> NoReturn:
        """Raise `InvalidRule` with the position in the rule."""
        invalid_rule(f"rule {self._text[:80]!r}, character {self.offset}: {problem}")


def _constant(value: Any) -> Term:
    """Return a term with a constant value."""
    return lambda _: value


def _word(word: str) -> Term:
    """Return the term of a constant, a number or an attribute."""
    if word in _CONSTANTS:
        return _constant(_CONSTANTS[word])
    for kind in (int, float):
        try:
            return _constant(kind(word))
        except ValueError:
            continue
    return lambda attributes: attributes.get(word)


def _is_same(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal; unlike in Python, true does not equal 1."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _is_among(value: Any, *options: Any) -> bool:
    """Return whether a value is one of the options, or an element of the only one, a list."""
    if len(options) == 1 and isinstance(options[0], list):
        options = tuple(options[0])
    return any(_is_same(value, option) for option in options)


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    """Return a comparison that is false for values without a common order."""

    def holds(left: Any, right: Any) -> bool:
        try:
            return bool(compare(left, right))
        except TypeError:
            return False

    return holds


#: For each operator: a function of the values of its terms, and the bounds of their number.
_OPERATORS: Final[dict[str, tuple[Callable[..., Any], int, float]]] = {
    "and": (lambda *values: all(values), 0, math.inf),
    "or": (lambda *values: any(values), 0, math.inf),
    "not": (operator.not_, 1, 1),
    "in": (_is_among, 2, math.inf),
    "=": (_is_same, 2, 2),
    "==": (_is_same, 2, 2),
    "!=": (lambda left, right: not _is_same(left, right), 2, 2),
    "<": (_compared(operator.lt), 2, 2),
    ">": (_compared(operator.gt), 2, 2),
    "<=": (_compared(operator.le), 2, 2),
    ">=": (_compared(operator.ge), 2, 2),
}


def fill_pattern(pattern: str, attributes: Mapping[str, Any], root: Path) -> Path:
    """Return the path of the file that a pattern names, inside of `root`.

    Raises:
        InvalidRule: an attribute is missing, or is neither text nor an integer; or the file
            would be outside of the folder.
    """

    def fill(match: re.Match[str]) -> str:
        value = attributes.get(match[1])
        if not isinstance(value, str | int) or isinstance(value, bool):
            invalid_rule(
                f"pattern {pattern!r} needs {match[1]!r} as a text or an integer, not {value!r}"
            )
        return str(value)

    name = _NAME.sub(fill, pattern)
    if "{" in _NAME.sub("", pattern) or "}" in _NAME.sub("", pattern):
        invalid_rule(f"pattern {pattern!r}: braces hold a plain name, such as {{host}}")
    return path_inside(name, root)


def path_inside(name: str, root: Path) -> Path:
    """Return the path of a file in a folder; its name may come from a peer.

    Raises:
        InvalidRule: the file would be outside of the folder, directly or by a symbolic link.
    """
    path = PurePosixPath(name)
    is_bad = "\0" in name or "\\" in name or not path.parts
    if is_bad or path.is_absolute() or ".." in path.parts:
        invalid_rule(f"{name[:100]!r} is not a name inside of the folder")
    full = (root / path).resolve()
    if not full.is_relative_to(root.resolve()):
        invalid_rule(f"{name[:100]!r} leads out of the folder")
    return full


def invalid_rule(text: str) -> NoReturn:
    """Raise the error of an invalid rule, pattern or name."""
    raise InvalidRule(text) from None
