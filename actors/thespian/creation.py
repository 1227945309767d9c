"""How actors of plain Thespian classes are made: `__init__` first, then the runtime."""

import logging
from collections.abc import Callable
from typing import Any, Final

from thespian import actors as thespian_actors
from thespian.actors import InvalidActorSpecification
from thespian.system.utilis import actualActorClass, withPossibleInitArgs

from actors.cell import Cell
from actors.thespian.cell import Creation, PlainCell
from actors.thespian.context import ThespianContext

log = logging.getLogger("callboard.thespian")


class PlainActors:
    """How the runtime makes actors of classes that are Thespian's and not callboard's."""

    cell_class: Final = PlainCell

    def __init__(self, capabilities: dict[str, Any]) -> None:
        self._capabilities = capabilities

    def attach(
        self, actor_class: type, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make the actor of a cell; a `Creation` as only argument says what was asked for."""
        if not issubclass(actor_class, thespian_actors.Actor):
            msg = (
                f"{actor_class.__qualname__} is no actor class; derive it from callboard.Actor"
            )
            raise TypeError(msg)
        assert isinstance(cell, PlainCell)
        if args and isinstance(args[0], Creation):
            cell.creation, args = args[0], ()
        if args or kwargs:
            actor = actor_class(*args, **kwargs)
        else:
            actor = withPossibleInitArgs(
                capabilities=self._capabilities, requirements=cell.creation.requirements
            ).create(actor_class)
        if hasattr(actor_class, "_post_init_pending"):
            # Thespian keeps this list on the class; in one process the instances must not share
            # it.
            actor._post_init_pending = []
        actor._myRef = ThespianContext(cell)
        return actor


def find_class(
    specification: type | str, load: Callable[[str, str], Any] | None = None
) -> type:
    """Return an actor's class, given as such or as `package.module.Class`.

    Args:
        specification: the class or its name.
        load: returns a class of a loaded source, by module and name.

    Raises:
        InvalidActorSpecification: the name has no module, or the module has no such class.
        ImportError: there is no such module.
    """
    try:
        found = actualActorClass(specification, load)
    except AttributeError as error:
        raise InvalidActorSpecification(specification, str(error)) from error
    return found  # type: ignore[no-any-return]


def is_compatible(
    actor_class: type, capabilities: dict[str, Any], requirements: dict[str, Any] | None
) -> bool:
    """Ask the class whether its actors can run on a system; an exception means no."""
    check = getattr(actor_class, "actorSystemCapabilityCheck", None)
    if check is None:
        return True
    try:
        return bool(check(capabilities, requirements or {}))
    except Exception:
        log.exception("%s could not check capabilities; it counts as incompatible", actor_class)
        return False
