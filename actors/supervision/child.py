"""What a supervisor starts, and what it knows about each child."""

from collections.abc import Iterable
from typing import Any, Final, Literal, cast, get_args

from callboard.actors.actor import Actor
from callboard.actors.errors import InvalidSeconds, WrongArgument, WrongValue, require
from callboard.actors.exit_reason import ExitReason
from callboard.actors.mailbox import options_of
from callboard.actors.seconds import limit
from callboard.support.text import safe_repr

Restart = Literal["permanent", "transient", "temporary"]

#: Seconds that a child may take to end when its supervisor ends it.
SHUTDOWN_TIME: Final = 5.0

_KINDS: Final[tuple[str, ...]] = get_args(Restart)
_CLEAN: Final = frozenset({ExitReason.NORMAL, ExitReason.SHUTDOWN})


class Child:
    """What a supervisor starts: `Child(Counter, 40, restart="permanent", name="till")`.

    Attributes:
        restart: `permanent` children are always started again, `transient` ones unless they
            ended normally, `temporary` ones never.
        name: the name that each incarnation is registered under on the node, so that others
            find the one that runs. Messages to an earlier incarnation are dead letters.
        on: the node that it runs on: an address, a node id, a worker or a pool of workers; None
            for the supervisor's own. A list of these names several: it runs on the first that
            takes it, and moves to the next one when its node is gone.
        shutdown: seconds that it may take to end when the supervisor ends it; then it is killed
            and no longer waited for. None for no limit.
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
        """Describe a child; what is not named above goes to the `__init__` of its class.

        Raises:
            ValueError: `restart` is none of the three, or `shutdown` is negative.
            WrongArgument: `on` is a list without nodes.
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
            msg = f"shutdown={shutdown!r}: give seconds, or None to wait for ever"
            raise InvalidSeconds(msg)
        self.actor_class = actor_class
        self.args = args
        self.kwargs = kwargs
        self.restart = restart
        self.name = name
        self.on = on
        #: The nodes that it may run on, the first to try first; none for the supervisor's own.
        self.places = tuple(on) if isinstance(on, list | tuple) else () if on is None else (on,)
        self.label: str = name or str(getattr(actor_class, "__name__", actor_class))

    def __repr__(self) -> str:
        return f"<Child {self.label}, {self.restart}>"

    def wants_restart(self, reason: str) -> bool:
        """Return whether a child that ended for this reason is to be started again."""
        return self.restart == "permanent" or (
            self.restart == "transient" and reason not in _CLEAN
        )


def check_children(children: object) -> None:
    """Look whether these are the children of a supervisor.

    Raises:
        WrongArgument: they are no list of `Child`.
    """
    if isinstance(children, Child | type):
        msg = "a supervisor takes a list of children: [Child(Counter, 40)]"
        raise WrongArgument(msg)
    for child in cast("Iterable[object]", children):
        if not isinstance(child, Child):
            named = child.__name__ if isinstance(child, type) else "Counter"
            msg = f"{safe_repr(child):.100} is no child; write Child({named}, …)"
            raise WrongArgument(msg)
