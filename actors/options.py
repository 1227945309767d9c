"""Options of a spawn: class attributes of the actor, or given with `with_options`."""

from dataclasses import dataclass
from typing import Any, Final

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
    trap_exit = bool(getattr(actor_class, "trap_exit", False))
    bounds = getattr(
        actor_class, "mailbox", None
    )  # a Thespian class may have another thing there
    detached = getattr(actor_class, "detached", False) is True
    if not trap_exit and bounds is None and not detached:
        return actor_class, _DEFAULTS  # making them anew would cost a tenth of the spawn
    bounds = bounds if isinstance(bounds, Mailbox) else None
    return actor_class, SpawnOptions(trap_exit, bounds, detached)


_DEFAULTS: Final = SpawnOptions()
