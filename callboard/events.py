"""What `node.events()` and `node.subscribed()` tell, as dataclasses."""

from actors.events import (
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
from callboard.endpoint.not_recorded import NotRecorded
from callboard.endpoint.transmitter import Undelivered
from callboard.store.store_actor import CommandsRefused
from proxies.draining import Drained
from proxies.events import (
    ConnectionsRefused,
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

__all__ = [
    "ActorFailed",
    "ActorRestarted",
    "ActorStarted",
    "ActorStopped",
    "CommandsRefused",
    "ConnectionsRefused",
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
