"""Notifies doors which topics to subscribe to outside, on every change."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

from callboard.endpoint.machine.core import Core
from callboard.support.dataclass import dataclass

#: Seconds in which changes are collected: filters change in bursts.
WISHES_PAUSE: Final = 0.02

#: Called with the shortest prefixes of all wanted topics, sorted.
WishListener = Callable[[tuple[str, ...]], object]


@dataclass(eq=False, slots=True)
class _Watch:
    """A door, its listener, and the prefixes that the listener got last."""

    bringer: object
    on_change: WishListener
    last: tuple[str, ...] | None = None


@dataclass(eq=False, repr=False)
class Interest:
    """The doors of a hub that follow the wanted topics; used on the node's thread."""

    _core: Core
    #: Schedules a function in a turn of the hub, after so many seconds.
    _later: Callable[[float, Callable[[], object]], Any]
    _watches: list[_Watch] = field(default_factory=list)
    _is_due: bool = False

    def begin(self, bringer: object, on_change: WishListener) -> None:
        """Notify a door now and on every change."""
        self._core.tells_wishes = True
        self._watches.append(_Watch(bringer, on_change))
        self._notify()

    def end(self, bringer: object) -> None:
        """Stop notifying a door."""
        self._watches = [watch for watch in self._watches if watch.bringer is not bringer]
        self._core.tells_wishes = bool(self._watches)

    def changed(self) -> None:
        """Schedule a check of all doors."""
        if not self._is_due:
            self._is_due = True
            self._later(WISHES_PAUSE, self._notify)

    def _notify(self) -> None:
        """Notify the doors whose wanted topics have changed."""
        self._is_due = False
        for watch in list(self._watches):
            wishes = self._core.wishes(watch.bringer)
            if wishes != watch.last:
                watch.last = wishes
                watch.on_change(wishes)
