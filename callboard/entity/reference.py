"""Refs of entities: equal by type and key, on every node, wherever the entity runs."""

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

#: What the text of an entity's ref begins with; there is no host and port, for it moves.
PREFIX = "basp:///"


class EntityRouter(Protocol):
    """What brings messages to entities, wherever they are."""

    runtime: Home
    #: The types of which entities may run on this node.
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
        """Bring a message to an entity; from any thread, never blocks."""

    def error_of_unsent(
        self, type_name: str, key: str, asker: Asker, /
    ) -> BaseException | None:
        """Return why an ask was never sent to an owner; None if it was."""

    def put_away(self, type_name: str, key: str, /) -> None:
        """Let an entity be put away by its owner."""

    def owner(self, type_name: str, key: str, /) -> bytes:
        """Return the node that owns an entity, as far as is known; empty if nobody is."""


class EntityTarget(NoActor):
    """Where the ref of an entity leads."""

    __slots__ = ("key", "router", "type_name")

    def __init__(self, router: EntityRouter, type_name: str, key: str) -> None:
        self.router = router
        self.type_name, self.key = type_name, key

    def post(self, message: Any, sender: Sender | None = None) -> None:
        """Hand a message over; from any thread, never blocks."""
        self.router.route(self.type_name, self.key, message, sender, is_urgent=False)

    def post_urgent(self, message: Any, sender: Sender | None = None) -> None:
        """Hand over a message that goes before those without priority."""
        self.router.route(self.type_name, self.key, message, sender, is_urgent=True)

    def error_of_unsent(self, asker: Asker) -> BaseException | None:
        """Return why an ask whose time is over was never sent; None if it was."""
        return self.router.error_of_unsent(self.type_name, self.key, asker)

    def give_up(self, asker: Asker) -> None:
        """What an asker no longer waits for is handled all the same: it may be stored."""

    def stop(self) -> None:
        """Put the entity away; the next message makes it again."""
        self.router.put_away(self.type_name, self.key)

    def kill(self) -> None:
        """Refuse: an entity outlives its activations."""
        self._refuse("killed")

    def monitor(self, key: object, watcher: Callable[..., object]) -> None:
        """Refuse: an entity has no end."""
        self._refuse("monitored")

    def link(self, other: ActorRef[Any]) -> None:
        """Refuse: an entity has no end."""
        self._refuse("linked")

    def _refuse(self, what: str) -> NoReturn:
        text = entity_text(self.type_name, self.key)
        msg = (
            f"{text} is an entity and has no end, so it cannot be {what}; node.events() tells "
            "of nodes that are lost"
        )
        raise NotAnActor(msg)


class EntityRef(ActorRef[E]):
    """The address of an entity: its type and its key."""

    __slots__ = ()

    target: EntityTarget

    def __init__(self, home: Home, router: EntityRouter, type_name: str, key: str) -> None:
        """Only nodes make them: `node.entity(Cart, "u-17")`."""
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
        """What it is on the wire: see `callboard.basp.cbor.tags`."""
        return self.target.type_name, self.target.key

    @property
    def node_id(self) -> bytes:
        """The node that owns the entity, as far as is known here; empty if that is nobody."""
        return self.target.router.owner(self.target.type_name, self.target.key)

    @property
    def actor_id(self) -> int:
        """Zero: entities have no numbers."""
        return 0

    @property
    def is_local(self) -> bool:
        """Whether the entity runs on this node, as far as is known."""
        target = self.target  # as nearly always where nothing is hosted: each ask comes here
        return target.type_name in target.router.hosted and self.node_id == self.home.node_id

    def __str__(self) -> str:
        return entity_text(self.target.type_name, self.target.key)


def entity_text(type_name: str, key: str) -> str:
    """Return the text of an entity's ref; what could end it is written with %."""
    return f"{PREFIX}{type_name}/{quote(key, safe='')}"


def entity_parts(text: str) -> tuple[str, str] | None:
    """Return type and key of the text of an entity's ref; None for another text.

    Raises:
        InvalidAddress: the key is none.
    """
    if not text.startswith(PREFIX):
        return None
    type_name, slash, key = text[len(PREFIX) :].partition("/")
    if not slash or not type_name:
        return None
    try:
        return type_name, checked_key(unquote(key, errors="strict"))
    except ValueError as error:
        msg = f"{text!r:.300} is no address of an entity: {error}"
        raise InvalidAddress(msg) from None
