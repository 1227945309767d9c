"""What the administrators of a convention's systems tell each other."""

from dataclasses import field
from typing import Any

from callboard.kernel.actors import ActorRef, frozen_message


@frozen_message("callboard.convention.Join")
class Join:
    """A system comes into the convention, or says what it can do since then.

    Sent as an ask it is answered by the `Join` of the other side.
    """

    admin: ActorRef[Any]
    capabilities: dict[Any, Any]


@frozen_message("callboard.convention.Introduce")
class Introduce:
    """Systems that the sender is joined with."""

    systems: list[Join] = field(default_factory=list)


@frozen_message("callboard.convention.Leave")
class Leave:
    """A system wants to have nothing to do with the receiver any more."""

    admin: ActorRef[Any]


@frozen_message("callboard.convention.Create")
class Create:
    """Create an actor here; answered by its ref, or None if its class refuses this system.

    Attributes:
        actor_class: `module.Class`; the module has to be imported already.
        requirements: for the class's check and its `__init__`.
        source_hash: always refused: sources are for the system that loaded them.
        global_name: the name to hold; its holder, if there is one.
        parent: who created it; when its node is lost, the actor is asked to exit.
    """

    actor_class: str
    requirements: Any = None
    source_hash: str | None = None
    global_name: str | None = None
    parent: ActorRef[Any] | None = None
