"""The source of a class: the facts with which another process can load it without pickle."""

import importlib
import importlib.util
import inspect
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from callboard.actors.errors import NotSpawnable
from callboard.actors.reference import current_cell
from callboard.proxies.errors import WorkerFailed
from callboard.support.text import describe

#: Advice for a program whose classes are loaded by workers.
MAIN_GUARD: Final = 'put what the program does under if __name__ == "__main__":'


class ClassSource(NamedTuple):
    """A class, identified by its module, the module's file, and its qualified name."""

    module: str
    path: str
    name: str

    @property
    def key(self) -> str:
        """A name that is unique among the classes of the program."""
        return f"{self.module}:{self.name}"


def source_of(actor_class: type) -> ClassSource:
    """Return the source of a class.

    Raises:
        NotSpawnable: the class is local to a function, or was defined without a file.
    """
    name = actor_class.__qualname__
    if "<locals>" in name:
        msg = f"{name} is local to a function; define it at its file's top for other processes"
        raise NotSpawnable(msg)
    try:
        path = inspect.getfile(actor_class)
    except (OSError, TypeError) as error:
        msg = f"{name} lacks a source file, so another process cannot load it ({error})"
        raise NotSpawnable(msg) from None
    module = actor_class.__module__
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    # Started by python -m: other processes import it.
    if module == "__main__" and main is not None:
        module = main.name
    return ClassSource(module, str(Path(path).absolute()), name)


def load_class(source: ClassSource) -> Any:
    """Load a class from its module, or from its file if that is not the module's.

    The main file of a program is executed once, under another name than `__main__`.
    """
    return attrgetter(source.name)(_imported(source) or _executed(source.path))


def _imported(source: ClassSource) -> ModuleType | None:
    """Import the module by its name; return None if the name belongs to another file."""
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
#: The files that are being executed.
_EXECUTING: set[str] = set()


def _executed(path: str) -> ModuleType:
    """Execute a file as a module, once.

    Raises:
        NotSpawnable: the file raised an error; perhaps because it does work that belongs only
            into the program itself.
    """
    module = _EXECUTED.get(path)
    if module is None:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(spec.name, module)
        sys.path.insert(0, str(Path(path).parent))
        _EXECUTING.add(path)
        try:
            spec.loader.exec_module(module)
        except WorkerFailed as error:
            raise NotSpawnable(str(error)) from None
        except BaseException as error:
            msg = f"{describe(error)}; if it should not run here, {MAIN_GUARD} in {path}"
            raise NotSpawnable(msg) from error
        finally:
            _EXECUTING.discard(path)
        _EXECUTED[path] = module
    return module


def refuse_while_loading() -> None:
    """Raise an error if workers are started while a worker executes a program's file.

    A worker executes the file only for its classes, and a file without a guard would start
    workers in each worker. Actors in a worker may start workers at any time.

    Raises:
        WorkerFailed: the program's file is being executed, and starts workers each time.
    """
    if _EXECUTING and current_cell.get() is None:
        path = min(_EXECUTING)
        msg = f"a worker executed {path}, which starts workers again: {MAIN_GUARD}"
        raise WorkerFailed(msg)
