"""Imports of the packages from the core, by their syntax trees.

The facade (`__init__.py`, `node.py`, `errors.py`, `events.py`) is not a package. It exports
names of users, such as `Actor` or `NodeClosed`. A package imports these from the kernel, too,
because the facade imports all packages. They are described in the reference, and change only
with a deprecation. So they are counted apart from the names that only packages use.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import callboard
from callboard import errors, events
from scripts.structure.figure import Figure
from scripts.structure.source import SourceFile, canonical

CORE: Final = ("actors", "basp", "proxies")
"""The packages of the core."""

KERNEL: Final = "callboard.kernel"
"""The interface of the core."""

FACADE: Final = ("callboard", "callboard.node", "callboard.errors", "callboard.events")
"""Modules of public names, which users import."""


USERS_NAMES: Final = frozenset(
    name for module in (callboard, errors, events) for name in vars(module)["__all__"]
)
"""The names that the facade exports."""


def packages(source: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the files of the packages above the core."""
    return [
        file
        for file in source
        if file.room not in CORE and not is_kernel(file.module) and file.module not in FACADE
    ]


def is_core(module: str) -> bool:
    """Return whether a module is one of the core."""
    return canonical(module).partition(".")[0] in CORE


def is_kernel(module: str) -> bool:
    """Return whether a module is one of the kernel."""
    return module == KERNEL or module.startswith(f"{KERNEL}.")


def import_figures(source: Iterable[SourceFile]) -> Iterator[Figure]:
    """Yield the numbers of names that packages import from the core and the kernel."""
    past, kernel = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for file in packages(source):
        for module, name in file.imports_from():
            if is_core(module):
                past[f"{canonical(module)}.{name}"].add(str(file.path))
            elif is_kernel(module):
                kernel[f"{module}.{name}"].add(str(file.path))
    yield Figure(
        "names_past_kernel",
        len(past),
        "names that packages import from the core past the kernel",
        found=lines_of(past),
    )
    yield Figure(
        "modules_past_kernel",
        len({name.rpartition(".")[0] for name in past}),
        "modules of the core that packages import past the kernel",
    )
    of_users = {name: files for name, files in kernel.items() if is_users(name)}
    yield Figure(
        "kernel_names",
        len(kernel) - len(of_users),
        "names that packages import from the kernel, without names of users",
        found=lines_of({name: kernel[name] for name in kernel.keys() - of_users.keys()}),
    )
    yield Figure(
        "users_names",
        len(of_users),
        "names of users that packages import from the kernel",
        found=lines_of(of_users),
    )


def is_users(name: str) -> bool:
    """Return whether the facade exports the last part of a dotted name."""
    return name.rpartition(".")[2] in USERS_NAMES


def lines_of(users: dict[str, set[str]]) -> list[str]:
    """Return a line for each name, with the files that use it."""
    return [f"{name}: {' '.join(sorted(files))}" for name, files in sorted(users.items())]
