"""callboard runs your Python classes as actors on any number of machines.

It reports the end of an actor within a second, and accounts for every message.

    from callboard import Actor, Node, handler

    class Echo(Actor):
        @handler
        def text(self, message: str) -> str:
            return message

    with Node() as node:
        print(node.spawn(Echo).ask("hi").result(5))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from callboard import composition as _composition  # noqa: F401 - its import fills the slots

if TYPE_CHECKING:
    from callboard import errors as errors
    from callboard import events as events
    from callboard.actors.actor import Actor as Actor
    from callboard.actors.actor import Promise as Promise
    from callboard.actors.asking.gathering import as_completed as as_completed
    from callboard.actors.asking.gathering import gather as gather
    from callboard.actors.asking.gathering import wait as wait
    from callboard.actors.dispatch import handler as handler
    from callboard.actors.envelope import traced as traced
    from callboard.actors.envelope import traceparent as traceparent
    from callboard.actors.envelope import tracestate as tracestate
    from callboard.actors.errors import CallboardError as CallboardError
    from callboard.actors.exit_reason import ExitReason as ExitReason
    from callboard.actors.future import Future as Future
    from callboard.actors.mailbox import Mailbox as Mailbox
    from callboard.actors.reference import ActorRef as ActorRef
    from callboard.actors.reference import Down as Down
    from callboard.actors.reference import Query as Query
    from callboard.actors.reference import StreamQuery as StreamQuery
    from callboard.actors.refusal import Refusal as Refusal
    from callboard.actors.signals import Exit as Exit
    from callboard.actors.signals import Restarted as Restarted
    from callboard.actors.streams.stream import Stream as Stream
    from callboard.actors.supervision.child import Child as Child
    from callboard.actors.supervision.supervisor import Supervisor as Supervisor
    from callboard.broker import Endpoint as Endpoint
    from callboard.entity.entity import Entity as Entity
    from callboard.entity.entity import event as event
    from callboard.entity.entity import upcast as upcast
    from callboard.entity.event_json import UnreadableValue as UnreadableValue
    from callboard.entity.journal.entry import Entry as Entry
    from callboard.entity.journal.entry import RawEvent as RawEvent
    from callboard.entity.journal.journal import Journal as Journal
    from callboard.entity.queue.messages import QueueStats as QueueStats
    from callboard.entity.queue.work_queue import DeadJob as DeadJob
    from callboard.entity.queue.work_queue import QueueJob as QueueJob
    from callboard.entity.queue.work_queue import WorkQueue as WorkQueue
    from callboard.entity.reminders import ParkedReminder as ParkedReminder
    from callboard.log_service.log_writer import LogWriter as LogWriter
    from callboard.node import Node as Node
    from callboard.proxies.errors import LinkError as LinkError
    from callboard.proxies.errors import LinkFull as LinkFull
    from callboard.proxies.errors import MessageTooLarge as MessageTooLarge
    from callboard.proxies.errors import PublicAddress as PublicAddress
    from callboard.proxies.events import NodeDown as NodeDown
    from callboard.proxies.link.limits import Limits as Limits
    from callboard.proxies.messages import message as message
    from callboard.proxies.names.group import Group as Group
    from callboard.proxies.names.watch import NameAdded as NameAdded
    from callboard.proxies.names.watch import NameRemoved as NameRemoved
    from callboard.proxies.rights.rights import Rights as Rights
    from callboard.proxies.stats import AccountInfo as AccountInfo
    from callboard.proxies.stats import LinkInfo as LinkInfo
    from callboard.proxies.stats import NodeStats as NodeStats
    from callboard.proxies.workers.pool import Worker as Worker
    from callboard.proxies.workers.pool import WorkerPool as WorkerPool
    from callboard.tls.contexts import Tls as Tls
    from callboard.topics.actor_subscription import TopicMessage as TopicMessage
    from callboard.topics.actor_subscription import topic as topic

# A name is imported at its first use, so a program loads only the packages that it uses: Spark
# executors read logs without actors. A test compares this table with the imports above.
_HOMES: Final = {
    name: home
    for home, names in {
        "callboard.actors.actor": "Actor Promise",
        "callboard.actors.supervision.child": "Child",
        "callboard.actors.asking.gathering": "as_completed gather wait",
        "callboard.actors.dispatch": "handler",
        "callboard.actors.envelope": "traced traceparent tracestate",
        "callboard.actors.errors": "CallboardError",
        "callboard.actors.exit_reason": "ExitReason",
        "callboard.actors.future": "Future",
        "callboard.actors.mailbox": "Mailbox",
        "callboard.actors.signals": "Exit Restarted",
        "callboard.actors.reference": "ActorRef Down Query StreamQuery",
        "callboard.actors.refusal": "Refusal",
        "callboard.actors.streams.stream": "Stream",
        "callboard.actors.supervision.supervisor": "Supervisor",
        "callboard.broker": "Endpoint",
        "callboard.topics.actor_subscription": "TopicMessage topic",
        "callboard.proxies.errors": "LinkError LinkFull MessageTooLarge PublicAddress",
        "callboard.proxies.events": "NodeDown",
        "callboard.proxies.names.group": "Group",
        "callboard.proxies.link.limits": "Limits",
        "callboard.proxies.messages": "message",
        "callboard.proxies.names.watch": "NameAdded NameRemoved",
        "callboard.entity.entity": "Entity event upcast",
        "callboard.entity.event_json": "UnreadableValue",
        "callboard.entity.journal.entry": "Entry RawEvent",
        "callboard.entity.journal.journal": "Journal",
        "callboard.entity.queue.messages": "QueueStats",
        "callboard.entity.queue.work_queue": "DeadJob QueueJob WorkQueue",
        "callboard.entity.reminders": "ParkedReminder",
        "callboard.node": "Node",
        "callboard.proxies.rights.rights": "Rights",
        "callboard.proxies.stats": "AccountInfo LinkInfo NodeStats",
        "callboard.tls.contexts": "Tls",
        "callboard.proxies.workers.pool": "Worker WorkerPool",
        "callboard.log_service.log_writer": "LogWriter",
    }.items()
    for name in names.split()
}
_MODULES: Final = ("errors", "events")
#: Packages that are attributes of `callboard` without an import of their own.
_PACKAGES: Final = ("broker", "commitlog", "simulation")

if not TYPE_CHECKING:  # type checkers use the imports instead
    __all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name (PEP 562)."""
    if name in _MODULES or name in _PACKAGES:
        return import_module(f"callboard.{name}")
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return all public names, including those that are not imported yet."""
    return sorted({*globals(), *_HOMES, *_MODULES})
