"""The former name of `callboard.topics`; removed in 0.3."""

import sys
import warnings
from importlib import import_module
from pkgutil import walk_packages

from callboard import topics

warnings.warn(
    "callboard.endpoint is deprecated, import callboard.topics instead",
    DeprecationWarning,
    stacklevel=2,
)

# The same modules under both names: a class that existed twice would fail `isinstance`.
for _entry in walk_packages(topics.__path__, f"{topics.__name__}."):
    _name = _entry.name.removeprefix(f"{topics.__name__}.")
    sys.modules[f"{__name__}.{_name}"] = import_module(_entry.name)
    if "." not in _name:  # an import that finds a module in `sys.modules` sets no attribute
        globals()[_name] = sys.modules[_entry.name]
