"""Targets of references in pages: an attribute of a module, and the comment above it."""

import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any, Final


class TableError(Exception):
    """A table cannot be made: the page and the code do not agree."""


_COMMENT: Final = re.compile(r"^ *#: ?(.*)$")


def module_of(name: str) -> ModuleType:
    """Return a module by its name.

    Raises:
        TableError: there is none.
    """
    try:
        return import_module(name)
    except ImportError as error:
        msg = f"there is no module {name!r}: {error}"
        raise TableError(msg) from None


def attribute(target: str) -> Any:
    """Return the target of `module:name` or `module:name[key]`.

    The key of a dictionary is written as an attribute of the module or as an integer.

    Raises:
        TableError: there is no such attribute.
    """
    found = re.fullmatch(r"([\w.]+):([\w.]+)(?:\[([\w.]+)\])?", target)
    if not found:
        msg = f"{target!r} is not of the form module:name or module:name[key]"
        raise TableError(msg)
    module = module_of(found[1])
    value = _walk(module, found[2])
    if not found[3]:
        return value
    return value[int(found[3]) if found[3].isdigit() else _walk(module, found[3])]


def _walk(module: ModuleType, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        if not hasattr(value, name):
            msg = f"{module.__name__} has no {path}"
            raise TableError(msg)
        value = getattr(value, name)
    return value


def comment_of(module: ModuleType, name: str) -> str:
    """Return the comment above an assignment of a module, the lines that begin with `#:`."""
    lines = inspect.getsource(module).splitlines()
    start = re.compile(rf"{re.escape(name)}(:| =)")
    at = next((i for i, line in enumerate(lines) if start.match(line)), 0)
    found: list[str] = []
    while at and (match := _COMMENT.match(lines[at - 1])):
        found.insert(0, match[1])
        at -= 1
    return " ".join(found)


def summary(of: object) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(of) or "").partition("\n\n")[0].split())
