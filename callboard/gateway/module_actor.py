"""What the actor of a module is on every node: it calls back in its own turn, and ends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors.actor import Actor
from actors.dispatch import handler
from callboard.gateway.module import Cancellable

__all__ = ["ModuleActor"]


@dataclass(frozen=True, slots=True)
class _Later:
    """To the actor itself: call this function."""

    callback: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class _Fail:
    """To the actor itself: end, because of this error."""

    error: BaseException


class ModuleActor(Actor):
    """Runs a module, here for its gateway or for one on another node."""

    remote_methods = frozenset()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back in this actor's turn."""
        return self.after(seconds, _Later(callback))

    def call_often(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back again and again in this actor's turn."""
        return self.every(seconds, _Later(callback))

    def end_by(self, error: BaseException) -> None:
        """End with an error; from any thread."""
        self._cell.post(_Fail(error), None)

    def callback_failed(self, error: Exception) -> None:
        """Take note of what a callback raised; what this raises ends the actor."""
        raise NotImplementedError

    @handler
    def call_back(self, later: _Later) -> None:
        """Call what the module wanted to be called."""
        try:
            later.callback()
        except Exception as error:  # noqa: BLE001  (a module may raise anything)
            self.callback_failed(error)

    @handler
    def fail(self, failure: _Fail) -> None:
        """End with what a thread of the module found."""
        raise failure.error
