"""Names of callboard itself, and which of them a leaf may look up."""

from typing import Final

from callboard.proxies.rights.rights import Rights

#: The name of the actor of topics and stores; it looks at each value of a leaf itself.
CORE_NAME: Final = "callboard.core"
#: What the names of the masters of stores begin with; the name of the store follows in hex.
MASTER_NAME: Final = "callboard.master."


def may_look_up(rights: Rights, name: str, *, is_here: bool = True) -> bool:
    """Return whether a leaf may look up or watch a name, at its member or one behind that.

    The endpoints of both sides find each other where a topic or store is open. Masters are
    found through the topics of their stores.
    """
    if name == CORE_NAME:
        return is_here and rights.has_topics
    return not name.startswith(MASTER_NAME) and rights.permit("names", name)
