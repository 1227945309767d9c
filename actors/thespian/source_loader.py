"""Loads modules of a source: their finder, and the `import` statement for these modules.

Thespian's loader prefixes the modules of a source with `{{hash}}`, rewrites their import
statements, and replaces `builtins.__import__` for calls of `__import__`, which it cannot
rewrite. That is harmless in a separate process. In a process with other code, the hook must
affect modules of sources only, and the finder must not offer them to other modules.
"""

import builtins
import contextlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from thespian.system.sourceLoader import SourceHashFinder, loadModuleFromHashSource

from callboard import locks

_original_import: Final = builtins.__import__

#: Guards imports, which change tables of the whole process.
_IMPORTING: Final = locks.lock(
    "imports of Thespian sources", 100, reentrant=True, runs_users=True
)


def source_import(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002  # names of the built-in
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """`__import__` for a process with loaded sources: their modules first find each other."""
    caller = globals if globals is not None else sys._getframe(1).f_globals
    root = _root_of(str(caller.get("__name__", "")))
    if root and level == 0 and not name.startswith(root):
        with contextlib.suppress(ImportError):
            return importlib.__import__(root + name, globals, locals, fromlist or (), level)
    return importlib.__import__(name, globals, locals, fromlist or (), level)


def _root_of(module: str) -> str:
    """Return the `{{hash}}` prefix of the name of a source's module, or an empty text."""
    return module[: module.index("}}") + 2] if module.startswith("{{") else ""


class SourceFinder(SourceHashFinder):
    """Finds the modules of one source, for modules of that source only."""

    def __init__(self, source_hash: str, content: bytes) -> None:
        super().__init__(source_hash, lambda encrypted: encrypted, content)
        self.src_hashimporter = source_import

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Find a module whose name has the prefix of this source."""
        if not fullname.startswith(self.hashRoot()):
            return None
        return super().find_spec(fullname, path, target)


def load_class(source_hash: str, content: bytes, module: str, name: str) -> Any:
    """Return a class of a source; its modules stay loaded until `forget`.

    Raises:
        ImportError: the source has no such module, or the module cannot be read.
        AttributeError: the module has no such class.
    """
    with _IMPORTING:
        if _finder_of(source_hash) is None:
            sys.meta_path.insert(0, SourceFinder(source_hash, content))
        return loadModuleFromHashSource(source_hash, {source_hash: content}, module, name)


def forget(source_hash: str) -> None:
    """Remove the modules of a source from the process."""
    with _IMPORTING:
        finder = _finder_of(source_hash)
        if finder is None:
            return
        sys.meta_path.remove(finder)
        for module in [name for name in sys.modules if name.startswith(finder.hashRoot())]:
            del sys.modules[module]
        if not any(isinstance(other, SourceFinder) for other in sys.meta_path):
            builtins.__import__ = _original_import


def _finder_of(source_hash: str) -> Any:
    finders = (finder for finder in sys.meta_path if isinstance(finder, SourceFinder))
    return next((finder for finder in finders if finder.srcHash == source_hash), None)
