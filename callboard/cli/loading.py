"""Loading a user's APP.py from its path."""

import importlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from callboard.cli.cli_error import CliError, UsageError
from callboard.support.text import describe

if TYPE_CHECKING:
    from callboard.kernel.actors import Actor

_log: Final = logging.getLogger("callboard")


def load_app(path: Path) -> ModuleType:
    """Run a Python file as a module with the file's name.

    Its folder is first on the module path, as with `python APP.py`.

    Raises:
        CliError: the file is missing, or it cannot be run.
    """
    if not path.is_file():
        raise UsageError(why=f"there is no file {path}", step="give the path of a Python file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(_module_name(path), path)
    if spec is None or spec.loader is None:
        step = "pass a file whose name ends in .py"
        raise UsageError(why=f"{path} is not a Python file", step=step)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and typing search modules by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        location = f"{error.filename}:{error.lineno}"
        reason = f"{location}: {error.msg}"
        raise CliError(why=reason, step="correct that line and run it again") from error
    except Exception as error:
        text = f"{path} failed to load{_line_text(error, path)}: {describe(error)}"
        raise CliError(why=text, step=f"python {path} shows the traceback") from error
    return module


def spawnable_classes(module: ModuleType) -> "dict[str, type[Actor]]":
    """Return the classes that other nodes may spawn.

    These are the module's `spawnable`, or its public actor classes. Entities are not among the
    latter, because they are hosted and cannot be spawned.

    Raises:
        CliError: `spawnable` is not a mapping of names to actor classes.
    """
    from callboard.entity.entity import Entity
    from callboard.kernel.actors import Actor

    spawnable: Any = getattr(module, "spawnable", None)
    if spawnable is None:
        return {
            name: value
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, Actor)
            and not issubclass(value, Entity)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        }
    if not isinstance(spawnable, Mapping) or not all(
        isinstance(name, str) and inspect.isclass(value) for name, value in spawnable.items()
    ):
        reason = f"spawnable of {module.__name__} does not map names to actor classes"
        raise CliError(why=reason, step='write it like spawnable = {"counter": Counter}')
    return dict(spawnable)


def find_class(text: str, module: ModuleType | None) -> "type[Actor]":
    """Return the actor class `module:Class`, or `Class` of the app's module.

    Raises:
        CliError: the module or class is missing, or it is not an actor class.
    """
    module_name, colon, name = text.rpartition(":")
    namespace: Any = module
    if colon:
        try:
            namespace = importlib.import_module(module_name)
        except ImportError as error:
            reason = f"the module of class {text} cannot be imported: {error}"
            step = "put its folder into PYTHONPATH, or next to the app's file"
            raise CliError(why=reason, step=step) from error
    candidate: Any = getattr(namespace, name, None)
    is_actor_class = inspect.isclass(candidate) and hasattr(candidate, "receiveMessage")
    if not is_actor_class:
        source = module_name or ("no app" if module is None else module.__name__)
        reason = f"there is no actor class {name} in {source}"
        raise CliError(why=reason, step="write module:Class, or set app")
    actor_class: type[Actor] = candidate
    return actor_class


def set_up(module: ModuleType, node: object, path: Path) -> None:
    """Call the module's `setup(node)`, if there is one.

    Raises:
        CliError: `setup` failed.
    """
    setup = getattr(module, "setup", None)
    if setup is None:
        return
    try:
        setup(node)
    except Exception as error:
        text = f"setup(node) failed{_line_text(error, path)}: {describe(error)}"
        raise CliError(why=text, step="correct it and run it again") from error


def tear_down(module: ModuleType | None, node: object, path: Path | None) -> CliError | None:
    """Call the module's `teardown(node)`, if there is one; return the error if it failed.

    The node ends all the same, so the error is not raised.
    """
    teardown = getattr(module, "teardown", None)
    if teardown is None or path is None:
        return None
    try:
        teardown(node)
    except Exception as error:  # noqa: BLE001 - returned, as the node has to end
        _log.exception("teardown(node) of %s failed", path)
        text = f"teardown(node) failed{_line_text(error, path)}: {describe(error)}"
        return CliError(why=text, step="correct it; the node has ended")
    return None


def _module_name(path: Path) -> str:
    """Return the file's name, or a prefixed one if it is taken by another module."""
    loaded = sys.modules.get(path.stem)
    is_free = loaded is None or getattr(loaded, "__file__", None) == str(path)
    return path.stem if is_free else f"callboard_app_{path.stem}"


def _line_text(error: Exception, path: Path) -> str:
    """Return the deepest line of the user's file in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == path.name]
    return f" at line {lines[-1]}" if lines else ""
