"""The internal view of a node and of a system actor: clock, timers, messages, children."""

from callboard.actors.reference import current_cell
from callboard.actors.system_actor import (
    ActorContext,
    CallBack,
    NodeContext,
    SystemActor,
    attached,
)
from callboard.proxies.node import Node

__all__ = [
    "ActorContext",
    "CallBack",
    "Node",
    "NodeContext",
    "SystemActor",
    "attached",
    "current_cell",
]
