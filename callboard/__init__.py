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

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from actors.actor import Actor, Promise
    from actors.child import Child
    from actors.dispatch import handler
    from actors.envelope import traced, traceparent, tracestate
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
    "tracestate",
]

# A name is imported when it is first used, so that who needs one room pays for no other: Spark
# executors read logs without actors. A test holds this equal to the imports above.
_HOMES: Final = {
    "Actor": "actors.actor",
    "Promise": "actors.actor",
    "Child": "actors.child",
    "handler": "actors.dispatch",
    "traced": "actors.envelope",
    "traceparent": "actors.envelope",
    "tracestate": "actors.envelope",
    "CallboardError": "actors.errors",
    "ExitReason": "actors.exit_reason",
    "Future": "actors.future",
    "Mailbox": "actors.mailbox",
    "ActorRef": "actors.reference",
    "Down": "actors.signals",
    "Exit": "actors.signals",
    "Query": "actors.signals",
    "Restarted": "actors.signals",
    "Supervisor": "actors.supervisor",
    "Endpoint": "callboard.broker",
    "LinkError": "proxies.errors",
    "LinkFull": "proxies.errors",
    "MessageTooLarge": "proxies.errors",
    "PublicAddress": "proxies.errors",
    "NodeDown": "proxies.events",
    "Group": "proxies.group",
    "Limits": "proxies.limits",
    "message": "proxies.messages",
    "NameAdded": "proxies.name_watch",
    "NameRemoved": "proxies.name_watch",
    "Node": "proxies.node",
    "AccountInfo": "proxies.stats",
    "LinkInfo": "proxies.stats",
    "NodeStats": "proxies.stats",
    "Tls": "proxies.tls",
    "Worker": "proxies.worker",
    "WorkerPool": "proxies.workers",
}
_MODULES: Final = ("errors", "events")
_ROOMS: Final = ("broker", "commitlog", "simulation")
"""Packages that `import callboard` alone reaches by their names."""


def __getattr__(name: str) -> Any:
    """Import a public name (PEP 562)."""
    if name in _MODULES or name in _ROOMS:
        return import_module(f"callboard.{name}")
    if name not in _HOMES:
        what = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(what)
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return what can be imported, also where nobody has yet."""
    return sorted({*globals(), *__all__})
