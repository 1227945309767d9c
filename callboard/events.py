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
from proxies.events import (
    ConnectionsRefused,
    LinkDown,
    LinkRefused,
    LinkUp,
    MessagesLost,
    NodeDown,
    NodeUp,
    Undeliverable,
    WorkerEnded,
    WorkerStarted,
)

__all__ = [
    "ActorFailed",
    "ActorRestarted",
    "ActorStarted",
    "ActorStopped",
    "ConnectionsRefused",
    "DeadLetter",
    "Expired",
    "LinkDown",
    "LinkRefused",
    "LinkUp",
    "MailboxOverflow",
    "MessagesLost",
    "NodeDown",
    "NodeUp",
    "RestartsExhausted",
    "SlowHandler",
    "Undeliverable",
    "Unexpected",
    "WorkerEnded",
    "WorkerStarted",
]
