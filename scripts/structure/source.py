"""The source files of a checkout, each read and parsed once."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

ROOMS: Final = ("actors", "basp", "proxies", "callboard")
"""The folders of the installed packages."""

TEMPLATES: Final = "project"
"""The folder of templates for users' projects, which are not measured."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One Python file.

    Attributes:
        path: its path below the root of the checkout.
        text: its content.
    """

    path: PurePosixPath
    text: str

    @property
    def room(self) -> str:
        """The folder at the top of the checkout that the file is in."""
        return self.path.parts[0]

    @property
    def module(self) -> str:
        """The dotted name, `actors.cell`, without a package's `callboard.` before it."""
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")

    @property
    def is_package(self) -> bool:
        """Whether the file is a package's `__init__`."""
        return self.path.name == "__init__.py"

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods, nested ones too."""
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All classes, nested ones too."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    def imported_names(self) -> list[str]:
        """Return the imported dotted names, also under TYPE_CHECKING or by a string."""
        return self._imported_names

    @cached_property
    def _imported_names(self) -> list[str]:
        return list(self._find_imported_names())

    def _find_imported_names(self) -> Iterator[str]:
        yield from self.strings_imported()
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)

    def strings_imported(self) -> list[str]:
        """Return the names of our modules that are imported by a string.

        In `composition.py` every string with such a name counts, because it fills slots. In
        other files the arguments of `import_module` count. Of a formatted name, the constant
        start counts, which ends with a dot: it may be any module of that package.
        """
        return self._strings_imported

    @cached_property
    def _strings_imported(self) -> list[str]:
        return list(self._find_strings_imported())

    def _find_strings_imported(self) -> Iterator[str]:
        fills = self.path.name == "composition.py"
        for node in self.nodes:
            if fills and isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = node.value
            elif isinstance(node, ast.Call) and _IMPORTS(_name_of(node.func)):
                found = _start_of(node.args[0]) if node.args else ""
                found = found.replace("__name__", self.module)
            else:
                continue
            if _OURS(found):
                yield found.replace(":", ".")

    @cached_property
    def bound_names(self) -> frozenset[str]:
        """All names that the file binds by a definition, an assignment or an import."""
        names: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.ClassDef | Function):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.alias):
                names.add(node.asname or node.name)
        return frozenset(names)

    def imports_from(self) -> Iterator[tuple[str, str]]:
        """Yield module and name of each import; the name is `*` for a whole module."""
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from ((node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "*") for alias in node.names)


def _name_of(function: ast.expr) -> str:
    """Return the name of a called function; empty for a call of another expression."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return ""


_IMPORTS: Final = re.compile(r"(importlib\.)?(import_module|__import__)").fullmatch

_OURS: Final = re.compile(r"callboard(\.\w+)+\.?(:\w+)?").fullmatch


def _start_of(name: ast.expr) -> str:
    """Return the constant start of a text: all of a constant, or the start of an f-string."""
    match name:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[first, *rest]):
            return _start_of(first) + (_start_of(rest[0]) if rest else "")
        case ast.FormattedValue(value=ast.Name(id="__name__")):
            return "__name__"
        case _:
            return ""


def canonical(name: str) -> str:
    """Return a dotted name as it is in the tree: `callboard.actors.cell` is `actors.cell`.

    The packages of the core are at the top of the checkout, and symbolic links in `callboard/`
    make them importable with its name.
    """
    return re.sub(r"^callboard\.(actors|basp|proxies)(?=\.|$)", r"\1", name)


def tracked_files(root: Path) -> list[SourceFile]:
    """Return the Python files of a checkout that git tracks, without symbolic links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=root, capture_output=True, text=True, check=True
    )
    paths = [PurePosixPath(name) for name in listed.stdout.split("\0") if name]
    return [
        SourceFile(path, (root / path).read_text())
        for path in paths
        if (root / path).is_file() and not (root / path).is_symlink()
    ]


def select_source(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the files of the installed packages."""
    return [file for file in files if file.room in ROOMS and TEMPLATES not in file.path.parts]


def select_tests(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the test files, except tests that start and kill real processes."""
    return [file for file in files if file.room == "tests" and "faults" not in file.path.parts]
