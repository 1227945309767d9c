"""Local actors on Thespian's actor class: mailboxes, dispatch by type, futures, supervision.

Importing this package also lets Thespian find the runtime by name: `ActorSystem("callboard")`.
"""

from actors.actor import Actor, Promise
from actors.child import Child
from actors.dispatch import handler
from actors.errors import CallboardError
from actors.exit_reason import ExitReason
from actors.future import Future
from actors.mailbox import Mailbox
from actors.reference import ActorRef
from actors.runtime import Runtime
from actors.signals import Down, Exit, Query, Restarted
from actors.supervisor import Supervisor
from actors.thespian import SystemBase

__all__ = [
    "Actor",
    "ActorRef",
    "CallboardError",
    "Child",
    "Down",
    "Exit",
    "ExitReason",
    "Future",
    "Mailbox",
    "Promise",
    "Query",
    "Restarted",
    "Runtime",
    "Supervisor",
    "SystemBase",
    "handler",
]
