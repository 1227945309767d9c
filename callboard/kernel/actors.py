"""Actor classes, handlers, refs, ends of actors, and declarations of messages."""

from callboard.actors.actor import Actor as Actor
from callboard.actors.cell import Reminder as Reminder
from callboard.actors.dispatch import handler as handler
from callboard.actors.exit_reason import ExitReason as ExitReason
from callboard.actors.reference import ActorRef as ActorRef
from callboard.actors.reference import Call as Call
from callboard.actors.reference import Down as Down
from callboard.actors.reference import Query as Query
from callboard.actors.reference import StreamQuery as StreamQuery
from callboard.actors.reference import checked_ref as checked_ref
from callboard.actors.signals import Exit as Exit
from callboard.actors.signals import Restarted as Restarted
from callboard.actors.supervision.child import Child as Child
from callboard.actors.supervision.child import Restart as Restart
from callboard.actors.supervision.supervisor import Supervisor as Supervisor
from callboard.proxies.messages import errors_travel as errors_travel
from callboard.proxies.messages import frozen_message as frozen_message
from callboard.proxies.messages import message as message
from callboard.proxies.names.group import Group as Group
from callboard.proxies.names.watch import NameAdded as NameAdded
from callboard.proxies.names.watch import NameRemoved as NameRemoved
