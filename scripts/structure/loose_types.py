"""Types that say nothing, in the packages where actors meet the network and the database."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from scripts.structure.figure import Figure
from scripts.structure.source import Function, SourceFile, canonical

PACKAGES: Final = ("actors.", "proxies.", "callboard.entity.")
"""Beginnings of the names of the measured modules."""

_IGNORED: Final = re.compile(r"#\s*type:\s*ignore")
_IN_QUOTES: Final = re.compile(r"\b(?:Any|object)\b")


def loose_types(source: Sequence[SourceFile]) -> Figure:
    """Return the number of `Any`, `object` as a type, `cast` and `type: ignore`."""
    counts = {
        str(file.path): count_loose(file)
        for file in source
        if f"{canonical(file.module)}.".startswith(PACKAGES)
    }
    return Figure(
        "loose_types",
        sum(counts.values()),
        "`Any`, `object` as a type, `cast` and `type: ignore` in actors, proxies and entity",
        found=[f"{n} {path}" for path, n in sorted(counts.items(), key=_by_count) if n],
    )


def _by_count(entry: tuple[str, int]) -> int:
    return -entry[1]


def count_loose(file: SourceFile) -> int:
    """Return the number of loose types in one file; imports of the names do not count."""
    count = len(_IGNORED.findall(file.text))
    for node in file.nodes:
        match node:
            case ast.Name(id="Any") | ast.Call(func=ast.Name(id="cast")):
                count += 1
            case _:
                pass
    for annotation in _annotations(file):
        for node in ast.walk(annotation):
            match node:
                case ast.Name(id="object"):
                    count += 1
                case ast.Constant(value=str(text)):
                    count += len(_IN_QUOTES.findall(text))
                case _:
                    pass
    return count


def _annotations(file: SourceFile) -> Iterator[ast.expr]:
    for node in file.nodes:
        if isinstance(node, Function):
            arguments = node.args
            declared = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            declared += [extra for extra in (arguments.vararg, arguments.kwarg) if extra]
            yield from (one.annotation for one in declared if one.annotation)
            if node.returns:
                yield node.returns
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation
