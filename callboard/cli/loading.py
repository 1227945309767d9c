"""Loading a user's APP.py from its path."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from callboard.cli.problem import Misuse, Problem
from callboard.support.text import describe

if TYPE_CHECKING:
    from callboard.kernel.actors import Actor


def load_app(path: Path) -> ModuleType:
    """Run a Python file as a module of its own name.

    Its folder is put on the module path first, as `python APP.py` does.

    Raises:
        Problem: there is no such file, or it cannot be run.
    """
    if not path.is_file():
        raise Misuse(why=f"there is no file {path}", step="give the path of a Python file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(_module_name(path), path)
    if spec is None or spec.loader is None:
        raise Misuse(why=f"{path} is no Python file", step="give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and typing look modules up by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        why = f"{where}: {error.msg}"
        raise Problem(why=why, step="correct that line and run it again") from error
    except Exception as error:
        text = f"{path} failed when it was loaded{_where(error, path)}: {describe(error)}"
        raise Problem(why=text, step=f"python {path} shows the traceback") from error
    return module


def spawnable_classes(module: ModuleType) -> "dict[str, type[Actor]]":
    """Return what other nodes may spawn: the module's `spawnable`, or its public actor classes.

    Entities are not among the latter: they are hosted, and cannot be spawned.

    Raises:
        Problem: `spawnable` is something else than a mapping of names to actor classes.
    """
    from callboard.entity.entity import Entity
    from callboard.kernel.actors import Actor

    given: Any = getattr(module, "spawnable", None)
    if given is None:
        return {
            name: value
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, Actor)
            and not issubclass(value, Entity)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        }
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and inspect.isclass(value) for name, value in given.items()
    ):
        why = f"spawnable of {module.__name__} is no mapping of names to actor classes"
        raise Problem(why=why, step='write it like spawnable = {"counter": Counter}')
    return dict(given)


def find_class(text: str, module: ModuleType | None) -> "type[Actor]":
    """Return the actor class `module:Class`, or `Class` of the app's module.

    Raises:
        Problem: there is no such module or class, or it is no actor's.
    """
    where, colon, name = text.rpartition(":")
    holder: Any = module
    if colon:
        try:
            holder = importlib.import_module(where)
        except ImportError as error:
            why = f"the module of class {text} cannot be imported: {error}"
            step = "put its folder into PYTHONPATH, or next to the app's file"
            raise Problem(why=why, step=step) from error
    found: Any = getattr(holder, name, None)
    is_actor_class = inspect.isclass(found) and hasattr(found, "receiveMessage")
    if not is_actor_class:
        place = where or ("no app" if module is None else module.__name__)
        why = f"there is no actor class {name} in {place}"
        raise Problem(why=why, step="write module:Class, or set app")
    actor_class: type[Actor] = found
    return actor_class


def set_up(module: ModuleType, node: object, path: Path) -> None:
    """Call the module's `setup(node)`, if it has one.

    Raises:
        Problem: it raised.
    """
    setup = getattr(module, "setup", None)
    if setup is None:
        return
    try:
        setup(node)
    except Exception as error:
        text = f"setup(node) failed{_where(error, path)}: {describe(error)}"
        raise Problem(why=text, step="correct it and run it again") from error


def _module_name(path: Path) -> str:
    """Return the file's own name, unless another file's module of that name is loaded."""
    loaded = sys.modules.get(path.stem)
    is_free = loaded is None or getattr(loaded, "__file__", None) == str(path)
    return path.stem if is_free else f"callboard_app_{path.stem}"


def _where(error: Exception, path: Path) -> str:
    """Return the deepest line of the user's file that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == path.name]
    return f" at line {lines[-1]}" if lines else ""
