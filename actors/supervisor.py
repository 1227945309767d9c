"""Supervisors: actors that start children and start them again when they end."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal

from actors.actor import Actor
from actors.dispatch import handler
from actors.events import ActorRestarted, RestartsExhausted
from actors.exit_reason import ExitReason
from actors.reference import ActorRef
from actors.signals import ChildDown

Restart = Literal["permanent", "transient", "temporary"]

_CLEAN: Final = frozenset({ExitReason.NORMAL, ExitReason.SHUTDOWN})


class Child:
    """What a supervisor starts: `Child(Counter, 40, restart="permanent", name="till")`.

    Attributes:
        restart: `permanent` children are always started again, `transient` ones unless they
            ended normally, `temporary` ones never.
        name: the name that each incarnation is registered under on the node, so that others
            find the one that runs.
    """

    def __init__(
        self,
        actor_class: type[Actor],
        *args: Any,
        restart: Restart = "permanent",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if restart not in ("permanent", "transient", "temporary"):
            msg = f"restart={restart!r}: choose permanent, transient or temporary"
            raise ValueError(msg)
        self.actor_class = actor_class
        self.args = args
        self.kwargs = kwargs
        self.restart = restart
        self.name = name
        self.label: str = name or str(getattr(actor_class, "__name__", actor_class))

    def wants_restart(self, reason: str) -> bool:
        """Return True when a child that ended for this reason is to be started again."""
        return self.restart == "permanent" or (
            self.restart == "transient" and reason not in _CLEAN
        )


class Supervisor(Actor):
    """Starts its children, and each one again when it ends (`one_for_one`).

    More than `intensity[0]` restarts within `intensity[1]` seconds end the supervisor and its
    children, with one `RestartsExhausted` event: a child that cannot live is somebody's task.
    """

    trap_exit = True

    def __init__(
        self,
        children: Sequence[Child],
        strategy: str = "one_for_one",
        intensity: tuple[int, float] = (3, 5.0),
    ) -> None:
        if strategy != "one_for_one":
            msg = f"strategy={strategy!r} is not known; use one_for_one"
            raise ValueError(msg)
        self._limit, self._period = intensity
        self._restarts: deque[float] = deque()
        self._total = 0
        self._running: dict[ActorRef[Any], Child] = {}
        for child in children:
            self._start(child)

    def children(self) -> list[ActorRef[Any]]:
        """Return the refs of the children that run, in the order of their start."""
        return list(self._running)

    def restarts(self) -> int:
        """Return how many restarts there have been."""
        return self._total

    def _start(self, child: Child) -> ActorRef[Any]:
        ref = self.spawn(child.actor_class, *child.args, **child.kwargs)
        self._running[ref] = child
        if child.name is not None:
            self.node.register(child.name, ref)
        return ref

    @handler
    def child_ended(self, down: ChildDown) -> None:
        """Start a child again, if it is to be and may be."""
        child = self._running.pop(down.ref, None)
        if child is None or not child.wants_restart(down.reason):
            return
        reason = str(down.reason)
        while self._may_restart(child):
            try:
                ref = self._start(child)
            except Exception as error:  # noqa: BLE001  # a failed start counts as one more end
                reason = f"{type(error).__name__}: {error}"
                continue
            self._cell.runtime.emit(ActorRestarted(ref, child.label, self._total, reason))
            return
        self._cell.runtime.emit(
            RestartsExhausted(self.me, child.label, len(self._restarts), self._period)
        )
        self.stop_self(ExitReason.SHUTDOWN, f"{child.label} ended too often, last: {reason}")

    def _may_restart(self, child: Child) -> bool:
        now = self._cell.runner.now()
        while self._restarts and self._restarts[0] < now - self._period:
            self._restarts.popleft()
        if len(self._restarts) >= self._limit:
            return False
        self._restarts.append(now)
        self._total += 1
        return True
