"""Actor classes, handlers, refs, ends of actors, and declarations of messages."""

from callboard.actors.actor import Actor
from callboard.actors.cell import Monitor, Reminder
from callboard.actors.dispatch import handler
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import ActorRef, Call, Down, Query
from callboard.actors.signals import Exit, Restarted
from callboard.actors.supervision.child import Child, Restart
from callboard.actors.supervision.supervisor import Supervisor
from callboard.proxies.messages import errors_travel, frozen_message, message
from callboard.proxies.names.group import Group
from callboard.proxies.names.watch import NameAdded, NameRemoved

__all__ = [
    "Actor",
    "ActorRef",
    "Call",
    "Child",
    "Down",
    "Exit",
    "ExitReason",
    "Group",
    "Monitor",
    "NameAdded",
    "NameRemoved",
    "Query",
    "Reminder",
    "Restart",
    "Restarted",
    "Supervisor",
    "errors_travel",
    "frozen_message",
    "handler",
    "message",
]
