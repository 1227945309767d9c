"""Local actors on Thespian's actor class: mailboxes, dispatch by type, futures, supervision.

Importing this package also lets Thespian find the runtime by name: `ActorSystem("callboard")`.
"""

if __name__ != "callboard.actors":
    # Under a second name every class would exist twice, and neither would know the other's.
    what = "import callboard.actors"
    raise ImportError(what, name=__name__)

from callboard.actors.actor import Actor, Promise
from callboard.actors.dispatch import handler
from callboard.actors.errors import CallboardError
from callboard.actors.exit_reason import ExitReason
from callboard.actors.future import Future
from callboard.actors.mailbox import Mailbox
from callboard.actors.reference import ActorRef, Down, Query
from callboard.actors.runtime import Runtime
from callboard.actors.signals import Exit, Restarted
from callboard.actors.supervision.child import Child
from callboard.actors.supervision.supervisor import Supervisor
from callboard.actors.thespian import SystemBase

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
