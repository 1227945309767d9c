"""Which methods of an actor may be called from outside."""

import functools
import inspect
from typing import Final

from actors.dispatch import is_handler

_NEVER: Final = frozenset({"receiveMessage", "receiveUnrecognizedMessage"})


@functools.cache
def callable_methods(actor_class: type) -> frozenset[str]:
    """Return the names that `ref.call` and `ref.proxy()` reach.

    These are the public functions defined in the user's own classes: not those of callboard's
    or Thespian's classes, no handlers, no properties, no static or class methods. An attribute
    `remote_methods = {"name", …}` narrows them.
    """
    names: set[str] = set()
    handlers: set[str] = set()  # what overrides a handler is one too
    for ancestor in reversed(actor_class.__mro__):
        module = ancestor.__module__
        if ancestor is object or module == "actors.actor" or module.startswith("thespian."):
            continue
        for name, value in vars(ancestor).items():
            if is_handler(value):
                handlers.add(name)
            if _is_callable_from_outside(name, value) and name not in handlers:
                names.add(name)
            else:
                names.discard(name)
    narrowed = getattr(actor_class, "remote_methods", None)
    return frozenset(names if narrowed is None else names & set(narrowed))


def _is_callable_from_outside(name: str, value: object) -> bool:
    return (
        inspect.isfunction(value)
        and not name.startswith(("_", "receiveMsg_"))
        and name not in _NEVER
    )
