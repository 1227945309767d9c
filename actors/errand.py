"""Errands: code of users that an actor of callboard has called in a turn of its own.

A constructor that an actor of the node calls for others may block for long. In that actor's own
turn it would hold up all who ask that actor. An errand waits in the run queue as an actor
does, and if it blocks, the runner goes on without that thread.
"""

import contextvars
from collections.abc import Callable
from typing import Any, Final

from callboard.actors.actor import Promise
from callboard.actors.cell import ActorHost
from callboard.actors.errors import NotSpawnable
from callboard.actors.runner.loop import current_task_cleared

#: Errands of a node that may be under way at once: each one that blocks holds a thread.
ERRAND_LIMIT: Final = 64


class Errand:
    """A call whose outcome is the answer to an ask."""

    __slots__ = ("_function", "_promise", "_runtime")

    def __init__(
        self, runtime: ActorHost, promise: Promise, function: Callable[[], object]
    ) -> None:
        self._runtime = runtime
        self._promise = promise
        self._function = function

    def run(self) -> None:
        """Call the function and answer; called by the runner."""
        current_task_cleared(self._runtime.runner.loop, None)
        contextvars.Context().run(self._call)

    def _call(self) -> None:
        under_way: set[Any] = self._runtime.errands
        if len(under_way) >= ERRAND_LIMIT:
            text = f"{ERRAND_LIMIT} constructors are under way here, the limit; ask again later"
            self._promise.set_exception(NotSpawnable(text))
            return
        under_way.add(self)
        try:
            self._promise.set_result(self._function())
        except BaseException as error:  # noqa: BLE001  # the failure of __init__ is the asker's
            self._promise.set_exception(error)
        finally:
            under_way.discard(self)
