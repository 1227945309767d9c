"""What doors are told to bring in from outside, whenever that changes."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

from callboard.endpoint.machine.core import Core
from callboard.support.dataclass import dataclass

#: Seconds in which changes are collected: filters change in bursts.
WISHES_PAUSE: Final = 0.02

#: Takes the shortest prefixes of what is wanted, sorted.
WishListener = Callable[[tuple[str, ...]], object]


@dataclass(eq=False, slots=True)
class _Watch:
    """A door, what it is told by, and what it was told last."""

    bringer: object
    told: WishListener
    last: tuple[str, ...] | None = None


@dataclass(eq=False, repr=False)
class Wishes:
    """The doors of one hub that follow what is wanted; on the node's thread."""

    _core: Core
    #: Calls a function in a turn of the hub, after so many seconds.
    _later: Callable[[float, Callable[[], object]], Any]
    _watches: list[_Watch] = field(default_factory=list)
    _is_due: bool = False

    def begin(self, bringer: object, told: WishListener) -> None:
        """Tell a door now, and from here on."""
        self._core.tells_wishes = True
        self._watches.append(_Watch(bringer, told))
        self._tell()

    def end(self, bringer: object) -> None:
        """Tell a door nothing any more."""
        self._watches = [each for each in self._watches if each.bringer is not bringer]
        self._core.tells_wishes = bool(self._watches)

    def changed(self) -> None:
        """Look soon whether somebody is to be told."""
        if not self._is_due:
            self._is_due = True
            self._later(WISHES_PAUSE, self._tell)

    def _tell(self) -> None:
        """Tell the doors whose wishes differ from those they were told last."""
        self._is_due = False
        for watch in list(self._watches):
            wishes = self._core.wishes(watch.bringer)
            if wishes != watch.last:
                watch.last = wishes
                watch.told(wishes)
