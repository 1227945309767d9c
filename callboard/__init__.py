"""callboard runs your Python classes as actors on any number of machines.

It tells you within a second when one dies, and accounts for every message.

    from callboard import Actor, Node, handler

    class Echo(Actor):
        @handler
        def text(self, message: str) -> str:
            return message

    with Node() as node:
        print(node.spawn(Echo).ask("hi").result(5))
"""

from actors.actor import Actor, Promise
from actors.child import Child
from actors.dispatch import handler
from actors.envelope import traced, traceparent
from actors.errors import CallboardError
from actors.exit_reason import ExitReason
from actors.future import Future
from actors.mailbox import Mailbox
from actors.reference import ActorRef
from actors.signals import Down, Exit, Query, Restarted
from actors.supervisor import Supervisor
from callboard import errors, events
from callboard.broker import Endpoint
from proxies.errors import LinkError, LinkFull, MessageTooLarge, PublicAddress
from proxies.events import NodeDown
from proxies.group import Group
from proxies.limits import Limits
from proxies.messages import message
from proxies.name_watch import NameAdded, NameRemoved
from proxies.node import Node
from proxies.stats import AccountInfo, LinkInfo, NodeStats
from proxies.tls import Tls
from proxies.worker import Worker
from proxies.workers import WorkerPool

__all__ = [
    "Actor",
    "events",
    "PublicAddress",
    "NodeStats",
    "MessageTooLarge",
    "LinkInfo",
    "LinkFull",
    "LinkError",
    "AccountInfo",
    "ActorRef",
    "CallboardError",
    "Child",
    "Down",
    "Endpoint",
    "Exit",
    "ExitReason",
    "Future",
    "Group",
    "Limits",
    "Mailbox",
    "NameAdded",
    "NameRemoved",
    "Node",
    "NodeDown",
    "Promise",
    "Query",
    "Restarted",
    "Supervisor",
    "Tls",
    "Worker",
    "WorkerPool",
    "errors",
    "handler",
    "message",
    "traced",
    "traceparent",
]
