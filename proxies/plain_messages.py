"""Which plain classes of this process may travel: those of listed and imported modules."""

import sys
from collections.abc import Collection

from basp.plain_types import PlainRegistry
from basp.registry import DEFAULT_REGISTRY


def listing(modules: Collection[str], surely: Collection[type]) -> PlainRegistry:
    """Return a registry with the declared types and the plain classes of these modules."""
    return PlainRegistry(DEFAULT_REGISTRY, modules, imported_class, surely)


def imported_class(module: str, qualified: str) -> type | None:
    """Return a class of a module that is imported already; nothing is imported for a peer."""
    found: object = sys.modules.get(module)
    for name in qualified.split("."):
        if found is None:
            return None
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    if not isinstance(found, type):
        return None
    is_that_class = found.__module__ == module and found.__qualname__ == qualified
    return found if is_that_class else None
