"""What `node.events()` and `node.subscribed()` tell, as dataclasses."""

from actors.events import (
    ActorFailed,
    ActorRestarted,
    ActorStarted,
    ActorStopped,
    DeadLetter,
    RestartsExhausted,
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
)

__all__ = [
    "ActorFailed",
    "ActorRestarted",
    "ActorStarted",
    "ActorStopped",
    "ConnectionsRefused",
    "DeadLetter",
    "LinkDown",
    "LinkRefused",
    "LinkUp",
    "MessagesLost",
    "NodeDown",
    "NodeUp",
    "RestartsExhausted",
    "Undeliverable",
    "Unexpected",
]
