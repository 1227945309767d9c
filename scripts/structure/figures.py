"""Figures of the source: size, circles, names, docstrings, private names, tests.

Ruff checks docstrings of modules, undocumented public names and private names used elsewhere
(rules D and SLF). Import-linter checks layers and purity. The figures here are checked by
neither.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from scripts.structure.circles import circles, import_graph
from scripts.structure.figure import Figure
from scripts.structure.kernel_imports import import_figures
from scripts.structure.loose_types import loose_types
from scripts.structure.source import Function, SourceFile, canonical
from scripts.structure.wording import wording_figures

RUNTIME_INTERNALS: Final = ("runner", "cells", "spawn", "closed", "emit", "ref_to")
"""Attributes of the runtime that only `actors` may use."""

NAMED_TUPLE_API: Final = frozenset(
    {"_replace", "_asdict", "_make", "_fields", "_field_defaults"}
)

_REACH: Final = re.compile(rf"\._cell\b|\bruntime\.(?:{'|'.join(RUNTIME_INTERNALS)})\b")

_SLEEP: Final = re.compile(r"(?<!self\.)(?<!actor\.)\bsleep\((?!0\))")
"""A call of `sleep` that takes time. `sleep(0)` takes none, and `sleep` of an actor is tested
itself. Programs in strings count, too, so the pattern is for text and not for the tree."""


def measure(source: Sequence[SourceFile], tests: Sequence[SourceFile]) -> list[Figure]:
    """Return all figures of the source files and the test files of a checkout."""
    return [
        Figure(
            "files",
            sum(not file.is_package for file in source),
            "source files without __init__",
        ),
        Figure(
            "code_lines",
            sum(code_lines(file) for file in source),
            "lines without blank lines, comments and docstrings",
        ),
        *_circle_figures(source),
        _string_imports(source),
        *import_figures(source),
        _largest_folder(source),
        _longest_function(source),
        _documented(source),
        _double_names(source),
        _runtime_reaches(source),
        _private_reaches(source),
        _sleeps(tests),
        _missing_names(source, tests),
        loose_types(source),
        *wording_figures(source),
    ]


# ------------------------------------------------------------------------------------- size


def code_lines(file: SourceFile) -> int:
    """Return the number of lines that are neither blank nor comment nor docstring."""
    silent: set[int] = set()
    for node in file.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            silent.update(_docstring_lines(node))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in silent
        for number, line in enumerate(file.text.split("\n"), 1)
    )


def _docstring_lines(node: ast.Module | ast.ClassDef | Function) -> range:
    if ast.get_docstring(node, clean=False) is None:
        return range(0)
    first = node.body[0]
    return range(first.lineno, (first.end_lineno or first.lineno) + 1)


def _largest_folder(source: Sequence[SourceFile]) -> Figure:
    folders = Counter(str(file.path.parent) for file in source).most_common()
    return Figure(
        "largest_folder",
        folders[0][1] if folders else 0,
        "files in the largest folder",
        found=[f"{count} {folder}" for folder, count in folders],
    )


def _longest_function(source: Sequence[SourceFile]) -> Figure:
    lengths = sorted(
        (
            (function_length(function), f"{file.path}:{function.name}")
            for file in source
            for function in file.functions
        ),
        reverse=True,
    )
    return Figure(
        "longest_function",
        lengths[0][0] if lengths else 0,
        "lines of the longest function without its docstring",
        found=[f"{length} {name}" for length, name in lengths[:20]],
    )


def function_length(function: Function) -> int:
    """Return the lines of a function from its `def` on, without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    return lines - len(_docstring_lines(function))


# ---------------------------------------------------------------------------------- circles


def _circle_figures(source: Sequence[SourceFile]) -> Iterator[Figure]:
    groups = circles(import_graph(source))
    lines = [f"circle of {len(group)}: {' '.join(group)}" for group in groups]
    yield Figure(
        "circles", len(groups), "circles of imports, TYPE_CHECKING counted", found=lines
    )
    yield Figure("files_in_circles", sum(map(len, groups)), "files in circles of imports")
    yield Figure(
        "largest_circle",
        max(map(len, groups), default=0),
        "files in the largest circle of imports",
    )


def _string_imports(source: Sequence[SourceFile]) -> Figure:
    found = [
        f"{file.path}: {name}"
        for file in source
        if file.path.name not in ("composition.py", "__init__.py")
        for name in file.strings_imported()
    ]
    return Figure(
        "string_imports",
        len(found),
        "modules of ours imported by a string outside composition.py and lazy __init__ files",
        found=found,
    )


# ------------------------------------------------------------------------ names and docstrings


def _documented(source: Sequence[SourceFile]) -> Figure:
    counted: list[bool] = []
    missing: list[str] = []
    for file in source:
        for function in _top_level(file):
            has_docstring = ast.get_docstring(function, clean=False) is not None
            counted.append(has_docstring)
            if not has_docstring:
                missing.append(f"{file.path}:{function.lineno} {function.name}")
    return Figure(
        "documented",
        round(sum(counted) / len(counted), 3) if counted else 1.0,
        "share of functions and methods with a docstring (no dunders, overloads, nested ones)",
        is_floor=True,
        found=missing,
    )


def _top_level(file: SourceFile) -> Iterator[Function]:
    holders: list[ast.Module | ast.ClassDef] = [file.tree, *file.classes]
    for holder in holders:
        for node in holder.body:
            if (
                isinstance(node, Function)
                and not _is_dunder(node.name)
                and not _is_overload(node)
            ):
                yield node


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_overload(function: Function) -> bool:
    return any(
        (isinstance(decorator, ast.Name) and decorator.id == "overload")
        or (isinstance(decorator, ast.Attribute) and decorator.attr == "overload")
        for decorator in function.decorator_list
    )


def _double_names(source: Sequence[SourceFile]) -> Figure:
    exported = {name for file in source if file.is_package for name in _exported(file)}
    imported = {canonical(name) for file in source for name in file.imported_names()}
    exported |= {
        node.name for file in source if f"{file.module}.*" in imported for node in file.classes
    }
    places: defaultdict[str, set[str]] = defaultdict(set)
    for file in source:
        for node in file.classes:
            places[node.name].add(str(file.path))
    found = [
        f"{name}: {' '.join(sorted(paths))}"
        for name, paths in sorted(places.items())
        if len(paths) > 1 and not name.startswith("_") and name not in exported
    ]
    return Figure(
        "double_names",
        len(found),
        "class names in two files, exported ones not counted",
        found=found,
    )


def _exported(file: SourceFile) -> Iterator[str]:
    """Yield the names in `__all__`, and names that are imported as themselves."""
    for node in file.nodes:
        if isinstance(node, ast.alias) and node.name == node.asname:
            yield node.name
        elif (
            isinstance(node, ast.Assign)
            and any(
                isinstance(target, ast.Name) and target.id == "__all__"
                for target in node.targets
            )
            and isinstance(node.value, ast.List | ast.Tuple)
        ):
            for element in node.value.elts:
                if isinstance(element, ast.Constant) and isinstance(element.value, str):
                    yield element.value


# ---------------------------------------------------------------------------- private names


def _runtime_reaches(source: Sequence[SourceFile]) -> Figure:
    found = [
        line
        for file in source
        if file.room != "actors"
        for line in _matching_lines(file, _REACH)
    ]
    return Figure(
        "runtime_reaches",
        len(found),
        "uses of _cell and runtime.* in other rooms than actors",
        found=found,
    )


def _private_reaches(source: Sequence[SourceFile]) -> Figure:
    defined = {file.module: private_definitions(file) for file in source}
    ours = set().union(*defined.values())
    found = [
        f"{file.path}:{line} {name}"
        for file in source
        for line, name in private_uses(file)
        if name in ours and name not in defined[file.module]
    ]
    return Figure(
        "private_reaches",
        len(found),
        "private names of one module used in another, but on self and cls",
        found=found,
    )


def private_definitions(file: SourceFile) -> set[str]:
    """Return the private names that a module defines: functions, classes, attributes, slots."""
    names: set[str] = set()
    for node in file.nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=slots)):
                names.update(
                    str(slot.value) for slot in slots if isinstance(slot, ast.Constant)
                )
            case _:
                pass
    return {name for name in names if _is_private(name)}


def private_uses(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield line and name of each private name taken from another object or module.

    Names of a module that is imported as a whole, such as `os._exit`, are not counted.
    """
    modules = {
        alias.asname or alias.name
        for node in file.nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in file.nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=holder)) if holder in modules | {
                "self",
                "cls",
            }:
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=name) if _is_private(name):
                yield node.lineno, name
            case ast.ImportFrom():
                for alias in node.names:
                    if _is_private(alias.name):
                        yield node.lineno, alias.name
            case _:
                pass


def _is_private(name: str) -> bool:
    return name.startswith("_") and not _is_dunder(name) and name not in NAMED_TUPLE_API | {"_"}


# ------------------------------------------------------------------------------------ tests


def _sleeps(tests: Sequence[SourceFile]) -> Figure:
    found = [line for file in tests for line in _matching_lines(file, _SLEEP)]
    return Figure("sleeps", len(found), "sleeps in tests outside tests/faults", found=found)


def _matching_lines(file: SourceFile, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the place and the line of each match of a pattern."""
    for number, line in enumerate(file.text.split("\n"), 1):
        for _ in pattern.findall(line):
            yield f"{file.path}:{number} {line.strip()}"


# ---------------------------------------------------------------------------- names of tests


def _missing_names(source: Sequence[SourceFile], tests: Sequence[SourceFile]) -> Figure:
    """Return the names that tests import from a module that lacks them.

    The type checker does not read the tests, and an import inside a test fails only when this
    test runs.
    """
    files = {file.module: file for file in (*source, *tests)}
    found = [
        f"{file.path}:{node.lineno}: {module} has no {alias.name}"
        for file in tests
        for node in file.nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        if (module := canonical(node.module)) in files
        for alias in node.names
        if f"{module}.{alias.name}" not in files and not _has(files[module], alias.name)
    ]
    return Figure(
        "missing_names", len(found), "imports of names that do not exist", found=found
    )


def _has(file: SourceFile, name: str) -> bool:
    """Return whether a module binds a name, or has `__getattr__` or a star import."""
    return not file.bound_names.isdisjoint((name, "__getattr__", "*"))
