"""Where a class comes from, so that another process can load it: never by pickle."""

import importlib
import importlib.util
import inspect
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from callboard.actors.errors import NotSpawnable


class ClassSource(NamedTuple):
    """A class by its module, the file of that, and its qualified name there."""

    module: str
    path: str
    name: str

    @property
    def key(self) -> str:
        """A name that no other class of the program has."""
        return f"{self.module}:{self.name}"


def source_of(actor_class: type) -> ClassSource:
    """Return where a class is defined.

    Raises:
        NotSpawnable: it is local to a function, or was typed in without a file.
    """
    name = actor_class.__qualname__
    if "<locals>" in name:
        msg = f"{name} is local to a function; define it at its file's top for other processes"
        raise NotSpawnable(msg)
    try:
        path = inspect.getfile(actor_class)
    except (OSError, TypeError) as error:
        msg = f"{name} comes from no file, so another process cannot load it ({error})"
        raise NotSpawnable(msg) from None
    return ClassSource(actor_class.__module__, str(Path(path).absolute()), name)


def load_class(source: ClassSource) -> Any:
    """Load a class from its module, or from its file where that is not the module's.

    A program's main file is executed under another name than `__main__`, once.
    """
    return attrgetter(source.name)(_imported(source) or _executed(source.path))


def _imported(source: ClassSource) -> ModuleType | None:
    """Import the module by its name; None when that name means another file here."""
    if source.module in ("", "__main__"):
        return None
    try:
        spec = importlib.util.find_spec(source.module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or Path(spec.origin) != Path(source.path):
        return None
    return importlib.import_module(source.module)


_EXECUTED: dict[str, ModuleType] = {}


def _executed(path: str) -> ModuleType:
    """Execute a file as a module, once."""
    module = _EXECUTED.get(path)
    if module is None:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = _EXECUTED[path] = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(spec.name, module)
        sys.path.insert(0, str(Path(path).parent))
        spec.loader.exec_module(module)
    return module
