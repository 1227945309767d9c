"""The public `Node`: a node of `callboard.proxies`, and what the rooms above add to it.

The facade, the simulation, the command line and every other room take the class from here, so
that a method added here is there wherever a node is made, in worker processes too.
"""

from typing import ClassVar

from callboard.proxies import node

__all__ = ["Node"]


class Node(node.Node):
    """A container for actors that can be linked to others.

    It runs in the background from the moment it is made; no port is open until `listen`. Use
    it as a context manager, or call `close`. All methods may be called from any thread.
    Blocking methods have an awaitable twin with an `a` in front.
    """

    worker_class: ClassVar[str] = "callboard.node:Node"
