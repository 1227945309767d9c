"""What a core actor is told and asked: by its hub, by its node, by itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors.reference import ActorRef
from callboard.endpoint.core_effect import Pair, RunReceiver
from callboard.endpoint.message import MessageType

if TYPE_CHECKING:
    from callboard.endpoint.hub import Receiver

__all__ = [
    "BringIn",
    "CoreFound",
    "Drain",
    "FLUSH",
    "FindReceivers",
    "Flush",
    "NoAnswer",
    "Order",
    "ReceiverAdded",
    "ReceiverRelaxed",
    "ReceiverRemoved",
    "SendCommands",
    "SendDirectly",
    "Tick",
]


class Flush:
    """Take what was published."""


FLUSH: Final = Flush()


class Tick:
    """A second is over."""


class Drain:
    """Look whether full links have room."""


@dataclass(frozen=True, slots=True)
class ReceiverAdded:
    """Let a local receiver take messages."""

    receiver: "Receiver | RunReceiver"
    topics: tuple[str, ...]
    kind: MessageType
    sees_own: bool


@dataclass(frozen=True, slots=True)
class ReceiverRemoved:
    """Take topics, or all (None), from a receiver."""

    receiver: "Receiver | RunReceiver"
    topics: tuple[str, ...] | None
    kind: MessageType


@dataclass(frozen=True, slots=True)
class ReceiverRelaxed:
    """A receiver that was behind has caught up."""

    receiver: object


@dataclass(frozen=True, slots=True)
class SendCommands:
    """Send commands of stores to one endpoint.

    To all that want their topic if it is None, or if its node is not known.
    """

    endpoint: bytes | None
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class BringIn:
    """Publish what a door brings from outside, for others and all receivers here but it."""

    bringer: object
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class SendDirectly:
    """Send messages to one node only."""

    node: bytes
    kind: MessageType
    pairs: tuple[Pair, ...]


Order = BringIn | SendCommands | SendDirectly
"""What waits for the core among the data that was published."""


@dataclass(frozen=True, slots=True)
class FindReceivers:
    """Tell which nodes want a topic; answered behind all that was published before."""

    topic: str


@dataclass(frozen=True, slots=True)
class CoreFound:
    """A node's directory says that it has a core."""

    ref: ActorRef[Any]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A node's directory did not answer."""

    node: bytes
