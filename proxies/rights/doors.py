"""Doors of callboard itself: well-known actors and own names, and what opens them.

A gate lets a leaf through to these by this page only: neither a pattern nor a ref that the leaf
was given opens them. What is said there is looked at once more, by the gate or by the actor.
"""

from collections.abc import Callable
from typing import Final

from callboard.basp.header import CORE_ACTOR, DIRECTORY, INSPECTOR, SPAWN_SERVER
from callboard.proxies.rights.rights import Rights

#: The name of the actor of topics and stores; it looks at each value of a leaf itself.
CORE_NAME: Final = "callboard.core"
#: What the names of the masters of stores begin with; the name of the store follows in hex.
MASTER_NAME: Final = "callboard.master."


def is_door(number: int) -> bool:
    """Return whether a number belongs to a well-known actor that a leaf may have rights to."""
    return number in _OPENED


def opens(rights: Rights, number: int) -> bool:
    """Return whether the rights open a well-known actor, for some of what it takes."""
    return number in _OPENED and _OPENED[number](rights)


def may_look_up(rights: Rights, name: str) -> bool:
    """Return whether a leaf may look up or watch a name."""
    if name == CORE_NAME:
        return rights.has_topics
    return not name.startswith(MASTER_NAME) and rights.permit("names", name)


_OPENED: Final[dict[int, Callable[[Rights], bool]]] = {
    CORE_ACTOR: lambda rights: rights.has_topics,
    SPAWN_SERVER: lambda rights: bool(rights.spawn),
    DIRECTORY: lambda _: True,  # each name that is asked for is looked at
    INSPECTOR: lambda rights: rights.inspect or rights.drain,
}
