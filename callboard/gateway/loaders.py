"""Loaders: from an entry of a configuration to what makes a module.

| type | entrypoint | |
|---|---|---|
| `python` | `{"module.path": "package.file:Class"}`, or a ready-made module's name | default |
| `outprocess` | see `outprocess` | a module in a process of its own |
| `remote` | `{"address": "basp://HOST:PORT", "module.name": "…"}` | on a node that offers it |

The types `native`, `java`, `node`, `dotnet` and `dotnetcore` of the Azure IoT gateway load code
of other languages into the process; they are known, and refused.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard.gateway.errors import GatewayError
from callboard.gateway.module import Module
from callboard.gateway.modules import READY_MADE

if TYPE_CHECKING:
    from actors.actor import Actor

__all__ = [
    "LOADER_TYPES",
    "InvalidEntrypoint",
    "Loaded",
    "Loader",
    "built_in_loaders",
    "load",
]

LOADER_TYPES: Final = ("python", "outprocess", "remote")

FOREIGN: Final = ("native", "java", "node", "dotnet", "dotnetcore")
"""Types of the original that load code which is not Python."""

MODULE_PATH: Final = "module.path"


class InvalidEntrypoint(GatewayError, ValueError):
    """An entrypoint names nothing that can be loaded; `key` is the place in the entry."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Loader:
    """A loader under a name of its own: `loaders` in a configuration.

    Attributes:
        name: what modules call it.
        type: one of `LOADER_TYPES`.
        configuration: for `python` the folder `path` from which modules are imported.
    """

    name: str
    type: str
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What makes a module, and how it has to be run."""

    factory: Callable[[], Module]
    host: "type[Actor] | None" = None


def built_in_loaders() -> dict[str, Loader]:
    """Return the loaders that are there without a configuration."""
    return {kind: Loader(kind, kind) for kind in LOADER_TYPES}


def refusal_of(kind: str) -> str:
    """Return why a type of loader cannot be used."""
    if kind in FOREIGN:
        return (
            f"loader type {kind!r} loads code of another language into the process; run such a "
            "module in a process of its own, with the loader 'outprocess'"
        )
    return f"there is no loader type {kind!r}; choose one of {', '.join(LOADER_TYPES)}"


def load(loader: Loader, entrypoint: Mapping[str, Any], folder: Path) -> Loaded:
    """Find what an entrypoint names.

    Args:
        loader: which one loads it.
        entrypoint: as in the configuration.
        folder: where the configuration is: Python modules beside it can be imported.

    Raises:
        InvalidEntrypoint: it names nothing that can be loaded.
    """
    match loader.type:
        case "python":
            return Loaded(_python(loader, entrypoint, folder))
        case "outprocess":
            from callboard.gateway.outprocess import OutProcess

            settings = OutProcess.read_entrypoint(entrypoint, folder)
            return Loaded(partial(OutProcess, settings))
        case "remote":
            from callboard.gateway.remote import RemoteHost, RemoteModule

            place = RemoteModule.read_entrypoint(entrypoint)
            return Loaded(partial(RemoteModule, *place), host=RemoteHost)
    raise InvalidEntrypoint(refusal_of(loader.type))


def _python(
    loader: Loader, entrypoint: Mapping[str, Any], folder: Path
) -> Callable[[], Module]:
    unknown = sorted(set(entrypoint) - {MODULE_PATH})
    if unknown:
        msg = f"there is no such key here; there is {MODULE_PATH}"
        raise InvalidEntrypoint(msg, unknown[0])
    text = entrypoint.get(MODULE_PATH)
    if not isinstance(text, str) or not text:
        msg = "it has to be there: package.file:Class, or the name of a ready-made module"
        raise InvalidEntrypoint(msg, MODULE_PATH)
    extra = loader.configuration.get("path")
    for place in (folder, *((folder / str(extra),) if extra else ())):
        if str(place.resolve()) not in sys.path:
            sys.path.insert(0, str(place.resolve()))
    return find_module(text)


def find_module(text: str) -> Callable[[], Module]:
    """Return the module class `package.file:Class`, or a ready-made one by its name.

    Raises:
        InvalidEntrypoint: there is none.
    """
    path, colon, name = READY_MADE.get(text, text).rpartition(":")
    if not colon:
        ready = ", ".join(READY_MADE)
        msg = f"{text!r} names no module; write package.file:Class, or one of {ready}"
        raise InvalidEntrypoint(msg, MODULE_PATH)
    try:
        found: Any = importlib.import_module(path)
    except Exception as error:
        msg = f"{path} cannot be imported: {type(error).__name__}: {error}"
        raise InvalidEntrypoint(msg, MODULE_PATH) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Module)):
        msg = f"there is no module class {name} in {path}; derive one from callboard's Module"
        raise InvalidEntrypoint(msg, MODULE_PATH)
    return found
