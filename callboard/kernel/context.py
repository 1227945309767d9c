"""The internal view of a node and of a system actor: clock, timers, messages, children."""

from callboard.actors.reference import current_cell as current_cell
from callboard.actors.system_actor import ActorContext as ActorContext
from callboard.actors.system_actor import CallBack as CallBack
from callboard.actors.system_actor import NodeContext as NodeContext
from callboard.actors.system_actor import SystemActor as SystemActor
from callboard.actors.system_actor import attached as attached
from callboard.proxies.node import Node as Node
