"""Options of a spawn: class attributes of the actor, or given with `with_options`."""

from dataclasses import dataclass
from typing import Any

from actors.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class SpawnOptions:
    """How an actor is run, apart from its class and arguments."""

    trap_exit: bool = False
    mailbox: Mailbox | None = None
    detached: bool = False


class ClassWithOptions:
    """An actor class and options for one spawn: what `Actor.with_options` returns."""

    __slots__ = ("actor_class", "options")

    def __init__(self, actor_class: type, options: SpawnOptions) -> None:
        self.actor_class = actor_class
        self.options = options


def options_of(actor_class: Any) -> tuple[Any, SpawnOptions]:
    """Split what was given to `spawn` into the class and its options.

    Raises:
        TypeError: it is no class.
    """
    if isinstance(actor_class, ClassWithOptions):
        return actor_class.actor_class, actor_class.options
    if not isinstance(actor_class, type):
        msg = f"{actor_class!r} is no actor class; derive one from callboard.Actor"
        raise TypeError(msg)
    options = SpawnOptions(
        trap_exit=bool(getattr(actor_class, "trap_exit", False)),
        mailbox=_bounds_of(actor_class),
        detached=getattr(actor_class, "detached", False) is True,
    )
    return actor_class, options


def _bounds_of(actor_class: Any) -> Mailbox | None:
    """Return the bounds that a class declares; its `mailbox` may be something else."""
    declared = getattr(actor_class, "mailbox", None)
    return declared if isinstance(declared, Mailbox) else None
