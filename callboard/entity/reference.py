"""Refs of entities: equal by type and key on every node, wherever the entity is active."""

from collections.abc import Callable, Container
from typing import Any, NoReturn, Protocol, TypeVar
from urllib.parse import quote, unquote

from callboard.entity.entity import checked_key
from callboard.entity.errors import NotAnActor
from callboard.kernel.activation import Home, NoActor
from callboard.kernel.actors import ActorRef
from callboard.kernel.errors import InvalidAddress
from callboard.kernel.reply import Asker, Sender

E = TypeVar("E", covariant=True)

#: Start of the text of an entity's ref; without host and port, as an entity moves.
PREFIX = "basp:///"


class EntityRouter(Protocol):
    """Routes messages to entities on any node."""

    runtime: Home
    #: The types that this node hosts.
    hosted: Container[str]

    def route(
        self,
        type_name: str,
        key: str,
        message: Any,
        sender: Sender | None,
        /,
        *,
        is_urgent: bool,
    ) -> None:
        """Send a message to an entity. Can be called from any thread; never blocks."""

    def error_of_unsent(
        self, type_name: str, key: str, asker: Asker, /
    ) -> BaseException | None:
        """Return the error of an expired ask that was never sent; None if it was sent."""

    def passivate(self, type_name: str, key: str, /) -> None:
        """Passivate an entity at its owner."""

    def owner(self, type_name: str, key: str, /) -> bytes:
        """Return the node that owns an entity; empty if it is not known."""


class EntityTarget(NoActor):
    """The target of an entity's ref."""

    __slots__ = ("key", "router", "type_name")

    def __init__(self, router: EntityRouter, type_name: str, key: str) -> None:
        self.router = router
        self.type_name, self.key = type_name, key

    def post(self, message: Any, sender: Sender | None = None) -> None:
        """Send a message. Can be called from any thread; never blocks."""
        self.router.route(self.type_name, self.key, message, sender, is_urgent=False)

    def post_urgent(self, message: Any, sender: Sender | None = None) -> None:
        """Send a message ahead of those without priority."""
        self.router.route(self.type_name, self.key, message, sender, is_urgent=True)

    def error_of_unsent(self, asker: Asker) -> BaseException | None:
        """Return the error of an expired ask that was never sent; None if it was sent."""
        return self.router.error_of_unsent(self.type_name, self.key, asker)

    def give_up(self, asker: Asker) -> None:
        """Do nothing: a cancelled ask is handled, as its events may be stored already."""

    def stop(self) -> None:
        """Passivate the entity; the next message activates it again."""
        self.router.passivate(self.type_name, self.key)

    def kill(self) -> None:
        """Refuse: an entity outlives its activations."""
        self._refuse("killed")

    def monitor(self, key: object, watcher: Callable[..., object]) -> None:
        """Refuse: an entity never ends."""
        self._refuse("monitored")

    def link(self, other: ActorRef) -> None:
        """Refuse: an entity never ends."""
        self._refuse("linked")

    def _refuse(self, verb: str) -> NoReturn:
        """Raise the error for an operation that entities do not support."""
        text = entity_text(self.type_name, self.key)
        msg = (
            f"{text} is an entity and never ends, so it cannot be {verb}; node.events() "
            "reports nodes that are lost"
        )
        raise NotAnActor(msg)


class EntityRef(ActorRef[E]):
    """The address of an entity: its type and its key."""

    __slots__ = ()

    target: EntityTarget

    def __init__(self, home: Home, router: EntityRouter, type_name: str, key: str) -> None:
        """Only nodes make these refs: `node.entity(Cart, "u-17")`."""
        super().__init__(home, b"", 0, EntityTarget(router, type_name, key))
        # Compared with the keys of other refs, whose first part is a node's 18 bytes.
        self._key = (b"entity:" + type_name.encode(), key)  # type: ignore[assignment]

    @property
    def type_name(self) -> str:
        """The name of the entity's type."""
        return self.target.type_name

    @property
    def key(self) -> str:
        """The entity's key."""
        return self.target.key

    @property
    def wire_names(self) -> tuple[str, str]:
        """Type and key, as the wire has them: see `callboard.cbor.tags`."""
        return self.target.type_name, self.target.key

    @property
    def node_id(self) -> bytes:
        """The node that owns the entity; empty if it is not known here."""
        return self.target.router.owner(self.target.type_name, self.target.key)

    @property
    def actor_id(self) -> int:
        """Zero: entities are not numbered."""
        return 0

    @property
    def is_local(self) -> bool:
        """Whether this node owns the entity, by its own table."""
        target = self.target  # first the cheap test: each ask passes here
        return target.type_name in target.router.hosted and self.node_id == self.home.node_id

    def __str__(self) -> str:
        return entity_text(self.target.type_name, self.target.key)


def entity_text(type_name: str, key: str) -> str:
    """Return the text of an entity's ref; the key is percent-encoded."""
    return f"{PREFIX}{type_name}/{quote(key, safe='')}"


def entity_parts(text: str) -> tuple[str, str] | None:
    """Return type and key of the text of an entity's ref; None for another text.

    Raises:
        InvalidAddress: the key is invalid.
    """
    if not text.startswith(PREFIX):
        return None
    type_name, slash, key = text[len(PREFIX) :].partition("/")
    if not slash or not type_name:
        return None
    try:
        return type_name, checked_key(unquote(key, errors="strict"))
    except ValueError as error:
        msg = f"{text!r:.300} is not the address of an entity: {error}"
        raise InvalidAddress(msg) from None
