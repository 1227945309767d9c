"""Messages between the administrators of a convention's systems."""

from dataclasses import field
from typing import Any

from callboard.kernel.actors import ActorRef, frozen_message


@frozen_message("callboard.convention.Join")
class Join:
    """A system joins the convention, or its capabilities have changed.

    As an ask it is answered with the `Join` of the receiver.
    """

    admin: ActorRef
    capabilities: dict[Any, Any]


@frozen_message("callboard.convention.Introduce")
class Introduce:
    """Systems that the sender has joined."""

    systems: list[Join] = field(default_factory=list)


@frozen_message("callboard.convention.Leave")
class Leave:
    """The sender leaves the receiver's convention."""

    admin: ActorRef


@frozen_message("callboard.convention.Create")
class Create:
    """Create an actor here; answered by its ref, or None if its class refuses this system.

    Attributes:
        actor_class: `module.Class`; the module must be imported already.
        requirements: the requirements passed to the class's check and to its `__init__`.
        source_hash: always refused: sources belong to the system that loaded them.
        global_name: the global name to hold; if it is held already, the reply is its holder.
        parent: the creator; when its node is lost, the actor is asked to exit.
    """

    actor_class: str
    requirements: Any = None
    source_hash: str | None = None
    global_name: str | None = None
    parent: ActorRef | None = None
