"""What `node.events()` and `node.subscribed()` tell, as dataclasses."""

from callboard.actors.events import (
    ActorFailed,
    ActorRestarted,
    ActorStarted,
    ActorStopped,
    DeadLetter,
    Expired,
    MailboxOverflow,
    RestartsExhausted,
    SlowHandler,
    Unexpected,
)
from callboard.endpoint.events import NotRecorded, Undelivered
from callboard.proxies.events import (
    ConnectionsRefused,
    FramesRefused,
    LinkDown,
    LinkRefused,
    LinkUp,
    MessagesLost,
    NodeDown,
    NodeUp,
    PathMoved,
    Undeliverable,
    WorkerEnded,
    WorkerStarted,
)
from callboard.proxies.messages import Drained
from callboard.store.store_actor import CommandsRefused

__all__ = [
    "ActorFailed",
    "ActorRestarted",
    "ActorStarted",
    "ActorStopped",
    "CommandsRefused",
    "ConnectionsRefused",
    "FramesRefused",
    "DeadLetter",
    "Drained",
    "Expired",
    "LinkDown",
    "LinkRefused",
    "LinkUp",
    "MailboxOverflow",
    "MessagesLost",
    "NodeDown",
    "NodeUp",
    "NotRecorded",
    "PathMoved",
    "RestartsExhausted",
    "SlowHandler",
    "Undeliverable",
    "Undelivered",
    "Unexpected",
    "WorkerEnded",
    "WorkerStarted",
]
