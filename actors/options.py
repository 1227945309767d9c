"""Options of a spawn: class attributes of the actor, or given with `with_options`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SpawnOptions:
    """How an actor is run, apart from its class and arguments."""

    trap_exit: bool = False


class ClassWithOptions:
    """An actor class and options for one spawn: what `Actor.with_options` returns."""

    __slots__ = ("actor_class", "options")

    def __init__(self, actor_class: type, options: SpawnOptions) -> None:
        self.actor_class = actor_class
        self.options = options


def options_of(actor_class: Any) -> tuple[Any, SpawnOptions]:
    """Split what was given to `spawn` into the class and its options."""
    if isinstance(actor_class, ClassWithOptions):
        return actor_class.actor_class, actor_class.options
    return actor_class, SpawnOptions(trap_exit=bool(getattr(actor_class, "trap_exit", False)))
