"""Futures with which threads wait for orders to a hub, and for conditions of its core."""

from collections.abc import Callable
from typing import Any

from callboard.arguments import seconds
from callboard.kernel.actors import Down
from callboard.kernel.context import SystemActor
from callboard.kernel.errors import ActorDown
from callboard.kernel.reply import Future
from callboard.topics.machine.core import Core

Condition = Callable[[Core], bool]


class CoreWaits:
    """Futures that complete in turns of a hub, and fail when the hub ends.

    Attributes:
        conditions: conditions that are not met yet, each with the future that gets True.
    """

    def __init__(self, actor: SystemActor, core: Core) -> None:
        """Create the waits for a hub and its core."""
        self._actor, self._core = actor, core
        self.conditions: list[tuple[Condition, Future[bool]]] = []
        self._orders: set[Future[bool]] = set()
        self._down: Future[Down] | None = None

    # --- from any thread ---

    def begin(self, order: Callable[..., object], *args: Any) -> Future[bool]:
        """Call an order in a turn of the hub; its last argument is the returned future."""
        done: Future[bool] = Future()
        self._orders.add(done)
        done.on_done(lambda _: self._orders.discard(done))
        self._actor.call_soon(order, *args, done)
        if self._down is None:  # one monitor for all orders, because monitors are never removed
            self._down = self._actor.node.monitor(self._actor.me)
            self._down.on_done(self._fail_orders)
        elif self._down.done():
            self._fail_orders(self._down)
        return self._actor.runtime.shutdown.guard(done)

    def until(self, condition: Condition, timeout: float) -> Future[bool]:
        """Return a future of True when a condition is met, or False after the timeout.

        The condition is checked on the node's thread, whenever peers or filters change.
        """
        return self.begin(self.add, condition, seconds(timeout))

    def _fail_orders(self, down: Future[Down]) -> None:
        """Fail the orders, because the hub has ended and will not complete them."""
        if down.exception() is not None:
            return  # the node was closed, and `shutdown` fails the futures
        reason = str(down.result().reason)
        for done in list(self._orders):
            text = f"the topics of {self._actor.runtime.name} have ended"
            done.set_exception(ActorDown(text, reason))

    # --- on the node's thread ---

    def add(self, condition: Condition, timeout: float, done: Future[bool]) -> None:
        """Complete a future with True when a condition is met, or False after the timeout."""
        if condition(self._core):
            done.set_result(True)
        elif timeout <= 0.0:
            done.set_result(False)
        else:
            self.conditions.append((condition, done))
            self._actor.runtime.call_later(timeout, done.set_result, False)  # noqa: FBT003

    def check(self) -> None:
        """Check all conditions, because the core has changed."""
        conditions, self.conditions = self.conditions, []
        for condition, done in conditions:
            if condition(self._core):
                done.set_result(True)
            elif not done.done():
                self.conditions.append((condition, done))
