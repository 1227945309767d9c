"""Counts of wording that makes readers stop, in prose and in names, one figure per package.

Prose is docstrings, comments, and the texts of errors and log lines. Each pattern below has an
example that it finds and a plain sentence that it leaves alone, in
`tests/scripts/structure/test_wording.py`. A match is a place to read again: a few are correct
English. Therefore the limits are the present counts, and not zero.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from scripts.structure.figure import Figure
from scripts.structure.source import Function, SourceFile

ANYWHERE: Final[Mapping[str, re.Pattern[str]]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "clause as noun": (
            r"\bwhat\b(?! to\b)|\bwho(?:m|m?ever)\b"
            r"|(?:^|[.:;(,]\s+|\b(?:and|or|but|of|for|to|by|than|from|with|at)\s+)who\b"
        ),
        "is no": (
            r"(?<!there )\b(?:is|are|was|were|be) no "
            r"(?!longer\b|later\b|earlier\b|more than\b|less than\b|fewer\b)\w+"
        ),
        "any more": r"\bany ?more\b",
        "behind": r"\bbehind\b",
        "goes on": r"\b(?:go|goes|going|went|gone) on\b",
        "nobody": r"\b(?:no|some|every|any)body\b",
        "told": r"\b(?:told|said)\b",
    }.items()
}
"""Patterns for all prose, by the names that `--find` prints."""

HEADS: Final[Mapping[str, re.Pattern[str]]] = {
    "question as head": re.compile(r"(?:What|Which|Who|Whom|Whose|How|Where|Why)\b"),
    "vague verb as head": re.compile(r"(?:Let|Take|Tell|Say|Look|Bring)\b(?! note of)"),
}
"""Patterns for the first words of a docstring."""

PARTICIPLES: Final = (
    *("asked", "brought", "found", "given", "gone", "held", "kept", "known", "made", "meant"),
    *("said", "seen", "shown", "taken", "told", "wanted"),
)
PRONOUNS: Final = (
    *("each", "it", "itself", "one", "others", "that", "them", "they", "those"),
    *("what", "which", "who", "whom"),
)
ADVERBS: Final = ("at", "before", "behind", "here", "how", "then", "there", "where", "why")
VAGUE_NAMES: Final = frozenset({*PARTICIPLES, *PRONOUNS, *ADVERBS})
"""As the name of a variable, such a word does not describe the value."""

_MESSAGES: Final = ("msg", "message", "text")
_LOG_METHODS: Final = ("debug", "info", "warning", "error", "exception", "critical")


def wording_figures(source: Sequence[SourceFile]) -> Iterator[Figure]:
    """Yield two figures for each package: matches in its prose, and vague names."""
    packages: defaultdict[str, list[SourceFile]] = defaultdict(list)
    for file in source:
        packages[package_of(file)].append(file)
    for package, files in sorted(packages.items()):
        places = [place for file in files for place in find_prose(file)]
        yield Figure(
            f"wording_{package}",
            len(places),
            f"places in the prose of {package} to read again",
            found=places,
            default_limit=0,
        )
        names = [place for file in files for place in find_names(file)]
        yield Figure(
            f"vague_names_{package}",
            len(names),
            f"variables of {package} whose name is a participle, pronoun or adverb",
            found=names,
            default_limit=0,
        )


def package_of(file: SourceFile) -> str:
    """Return the package of a file: the folder below `callboard`, or the one at the top."""
    *folders, _ = file.path.parts
    return folders[1] if len(folders) > 1 and folders[0] == "callboard" else folders[0]


# ------------------------------------------------------------------------------------ prose


def find_prose(file: SourceFile) -> Iterator[str]:
    """Yield the place of each match in the prose of a file."""
    for line, text in (*_docstrings(file), *_comments(file), *_messages(file)):
        for name in matches(text):
            yield f"{file.path}:{line} {name}: {text[:80]}"
    for line, text in _docstrings(file):
        for name, pattern in HEADS.items():
            if pattern.match(text):
                yield f"{file.path}:{line} {name}: {text[:80]}"


def matches(text: str) -> Iterator[str]:
    """Yield the name of a pattern for each of its matches in a text."""
    for name, pattern in ANYWHERE.items():
        for _ in pattern.finditer(text):
            yield name


def _docstrings(file: SourceFile) -> Iterator[tuple[int, str]]:
    for node in file.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, " ".join(text.split())


def _comments(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield comments; one that continues on the next line is one text."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if lines and line != last + 1:
            yield first, " ".join(lines)
            lines = []
        if not lines:
            first = line
        lines.append(token.string.lstrip("#: "))
        last = line
    if lines:
        yield first, " ".join(lines)


def _messages(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield the constant parts of texts that are raised, logged, or assigned to a message."""
    for node in file.nodes:
        match node:
            case ast.Raise(exc=ast.Call(args=arguments)):
                pass
            case ast.Call(func=ast.Attribute(attr=name), args=arguments) if (
                name in _LOG_METHODS
            ):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in _MESSAGES:
                arguments = [value]
            case _:
                continue
        for argument in arguments:
            text = _constant_text(argument)
            if " " in text:
                yield node.lineno, text


def _constant_text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_constant_text, parts))
        case _:
            return ""


# ------------------------------------------------------------------------------------ names


def find_names(file: SourceFile) -> Iterator[str]:
    """Yield the place of each variable, parameter or function with a vague name."""
    for node in file.nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case _:
                continue
        if is_vague(name):
            yield f"{file.path}:{node.lineno} {name}"


def is_vague(name: str) -> bool:
    """Return whether a name is one of `VAGUE_NAMES`, with or without underscores around it."""
    return name.strip("_") in VAGUE_NAMES
