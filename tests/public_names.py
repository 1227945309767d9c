"""The public names of callboard; `python -m tests.public_names` writes them to a file.

Programs of users depend on these names. A name that leaves the list breaks such programs, so it
first becomes an alias with a `DeprecationWarning` for one minor release.
"""

import ast
import importlib
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("public_names.txt")

#: The packages whose `__all__` is public.
PACKAGES: Final = (
    "callboard",
    "callboard.backup",
    "callboard.broker",
    "callboard.caf",
    "callboard.channel",
    "callboard.commitlog",
    "callboard.dashboard",
    "callboard.flow",
    "callboard.gateway",
    "callboard.mqtt",
    "callboard.operation",
    "callboard.pipeline",
    "callboard.simulation",
    "callboard.store",
    "callboard.zeek",
)

#: Packages whose `__all__` is for other packages of callboard only.
INTERNAL: Final = {"callboard.actors", "callboard.basp", "callboard.cli", "callboard.demo"}

_KERNEL: Final = Path(__file__).parents[1] / "callboard" / "kernel"


def public_names() -> list[str]:
    """Return all public names in alphabetical order, each with its module."""
    names = [
        f"{package}.{name}"
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
    ]
    for path in _KERNEL.glob("*.py"):
        if path.stem != "__init__":
            names += [f"callboard.kernel.{path.stem}.{name}" for name in _exported(path)]
    return sorted(names)


def _exported(path: Path) -> list[str]:
    """Return the names that a module of the kernel defines, or imports as themselves."""
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom():
                names += [alias.name for alias in node.names if alias.asname == alias.name]
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.append(node.name)
    return [name for name in names if not name.startswith("_")]


if __name__ == "__main__":
    LIST.write_text("\n".join(public_names()) + "\n")
