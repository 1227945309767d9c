"""Specifications of a supervisor's children."""

from collections.abc import Iterable
from typing import Any, Final, Literal, cast, get_args

from callboard.actors.actor import Actor
from callboard.actors.errors import InvalidSeconds, WrongArgument, WrongValue
from callboard.actors.exit_reason import ExitReason
from callboard.actors.mailbox import options_of
from callboard.arguments import limit, require
from callboard.support.text import safe_repr

Restart = Literal["permanent", "transient", "temporary"]

#: Seconds that a child has to end when its supervisor ends it.
SHUTDOWN_TIME: Final = 5.0

_KINDS: Final[tuple[str, ...]] = get_args(Restart)
_CLEAN: Final = frozenset({ExitReason.NORMAL, ExitReason.SHUTDOWN})


class Child:
    """The specification of a child: `Child(Counter, 40, restart="permanent", name="till")`.

    Attributes:
        restart: `permanent` children are always restarted, `transient` ones unless they ended
            normally, `temporary` ones never.
        name: the name under which each incarnation is registered on the node, so that others
            find the current one. Messages to an earlier incarnation are dead letters.
        on: the node to run on: an address, a node id, a worker or a pool of workers; None for
            the supervisor's own node. A list names several: the child runs on the first that
            accepts it, and moves to the next one when its node is lost.
        shutdown: seconds that the child has to end when the supervisor ends it; after that it
            is killed, and the supervisor no longer waits for it. None for no limit.
    """

    def __init__(
        self,
        actor_class: type[Actor],
        *args: Any,
        restart: Restart = "permanent",
        name: str | None = None,
        on: Any = None,
        shutdown: float | None = SHUTDOWN_TIME,
        **kwargs: Any,
    ) -> None:
        """Create a specification; other arguments go to the `__init__` of the actor class.

        Raises:
            ValueError: `restart` is not one of the three, or `shutdown` is negative.
            WrongArgument: `on` is an empty list, or contains None.
        """
        if isinstance(on, list | tuple) and (not on or None in on):
            msg = (
                f"on={on!r}: name the nodes, Child(Counter, on=[first.address, second.address])"
            )
            raise WrongArgument(msg)
        if restart not in _KINDS:
            msg = f"restart={restart!r}: choose permanent, transient or temporary"
            raise WrongValue(msg)
        plain, _ = options_of(actor_class)
        require(isinstance(plain, type), "Child takes a class, then its arguments", plain)
        self.shutdown = limit(shutdown, "shutdown")
        if shutdown is not None and shutdown < 0:
            msg = f"shutdown={shutdown!r}: give seconds, or None to wait without limit"
            raise InvalidSeconds(msg)
        self.actor_class = actor_class
        self.args = args
        self.kwargs = kwargs
        self.restart = restart
        self.name = name
        self.on = on
        #: The nodes that the child may run on, in the order of trial; empty for the own node.
        self.places = tuple(on) if isinstance(on, list | tuple) else () if on is None else (on,)
        self.label: str = name or str(getattr(actor_class, "__name__", actor_class))

    def __repr__(self) -> str:
        return f"<Child {self.label}, {self.restart}>"

    def wants_restart(self, reason: str) -> bool:
        """Return whether a child that ended for this reason is to be restarted."""
        return self.restart == "permanent" or (
            self.restart == "transient" and reason not in _CLEAN
        )


def check_children(children: object) -> None:
    """Check the children of a supervisor.

    Raises:
        WrongArgument: the argument is not a list of `Child`.
    """
    if isinstance(children, Child | type):
        msg = "a supervisor takes a list of children: [Child(Counter, 40)]"
        raise WrongArgument(msg)
    for child in cast("Iterable[object]", children):
        if not isinstance(child, Child):
            name = child.__name__ if isinstance(child, type) else "Counter"
            msg = f"{safe_repr(child):.100} is not a Child; write Child({name}, …)"
            raise WrongArgument(msg)
