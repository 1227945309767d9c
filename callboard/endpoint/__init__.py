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
for _module in walk_packages(topics.__path__, f"{topics.__name__}."):
    _former = _module.name.replace(topics.__name__, __name__, 1)
    sys.modules[_former] = import_module(_module.name)
