"""Refusals for lack of rights: counted, reported, and written to the audit log."""

import logging
from collections.abc import Callable
from typing import Any, Final

from callboard.actors.values import Event
from callboard.proxies.events import PermissionRefused
from callboard.support.dataclass import dataclass
from callboard.support.text import printable
from callboard.support.token_bucket import TokenBucket

#: Seconds between two events, so that a peer that asks endlessly does not fill a log.
INTERVAL: Final = 1.0

#: Lines of the audit log per second on average, and in a burst; further ones are only counted.
LINES_PER_SECOND: Final = 10.0
LINES_AT_ONCE: Final = 100.0

#: Characters of a name in a report, as the name comes from a peer.
NAME_SHOWN: Final = 200

_log = logging.getLogger("callboard.audit")


@dataclass(eq=False, repr=False)
class Audit:
    """The refusals of one node. Call it on the thread with the runner's role."""

    #: Returns monotonic seconds.
    _now: Callable[[], float]
    #: Calls a function after some seconds.
    _call_later: Callable[..., Any]
    #: Receives the events.
    _emit: Callable[[Event], object]
    #: Number of refusals.
    count: int = 0
    _unwritten: int = 0
    _unreported: int = 0
    _latest: tuple[str, bytes, str, str] = ("", b"", "", "")
    _is_waiting: bool = False

    def __post_init__(self) -> None:
        self._lines = TokenBucket(LINES_PER_SECOND, LINES_AT_ONCE)

    def refused(self, identity: str, node: bytes, right: str, name: str) -> None:
        """Record a refusal."""
        name = printable(name[:NAME_SHOWN])
        self.count += 1
        self._unreported += 1
        self._latest = (identity, node, right, name)
        if self._lines.allows(self._now()):
            suppressed, self._unwritten = self._unwritten, 0
            more = f" ({suppressed:,} more before, not written)" if suppressed else ""
            text = "refused: %s of node %s has no right %s for %s%s"
            _log.warning(text, printable(identity), node.hex(), right, name, more)
        else:
            self._unwritten += 1
        if not self._is_waiting:
            self._report()

    def _report(self) -> None:
        """Report the refusals since the last report, if there are any."""
        count, self._unreported = self._unreported, 0
        self._is_waiting = count > 0
        if count:
            self._emit(PermissionRefused(*self._latest, count))
            self._call_later(INTERVAL, self._report)
