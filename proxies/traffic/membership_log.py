"""Log lines for links and nodes that appear and are lost, with the reason.

An unwanted loss is logged as a warning, and everything else as information. If this node is
closing, all lines are information. The rate of lines is limited, so that unstable peers cannot
fill a log; the number of suppressed lines is logged with the next line.
"""

import logging
from collections.abc import Callable
from typing import Final

from callboard.proxies.address import endpoint_text
from callboard.proxies.link.wire import CLOSING, Wire
from callboard.support.text import printable
from callboard.support.token_bucket import TokenBucket

#: Lines per second on average, and in a burst.
LINES_PER_SECOND: Final = 10.0
LINES_AT_ONCE: Final = 500.0

_log = logging.getLogger("callboard.nodes")


class MembershipLog:
    """Writes the membership log of one node. Call it on the thread with the runner's role."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Start with a full burst allowance; `now` returns monotonic seconds."""
        self._now = now
        self._lines = TokenBucket(LINES_PER_SECOND, LINES_AT_ONCE)
        self._unwritten = 0

    def link_up(self, wire: Wire, *, is_quiet: bool) -> None:
        """Log an established link; quiet lines are those about tools."""
        self._write("link with %s is up", _name_of(wire), is_quiet=is_quiet)

    def link_down(self, wire: Wire, reason: str, *, is_wanted: bool, is_quiet: bool) -> None:
        """Log the end of a link."""
        name, text = _name_of(wire), "link with %s is down: %s"
        self._write(text, name, reason, is_quiet=is_quiet, is_wanted=is_wanted)

    def node_up(self, name: str, hops: int, *, is_quiet: bool) -> None:
        """Log a node that became reachable."""
        distance = "linked with this one" if hops == 1 else f"{hops} links away"
        self._write("node %s is in reach, %s", name, distance, is_quiet=is_quiet)

    def node_down(self, name: str, reason: str, lost: int, *, is_quiet: bool) -> None:
        """Log a node that is out of reach."""
        text = "node %s is out of reach: %s"
        if lost:
            text += f"; {lost:,} messages to it are lost or unconfirmed"
        is_wanted = (
            not lost or reason == CLOSING
        )  # the last messages of a closing program are often unconfirmed
        self._write(text, name, reason, is_quiet=is_quiet, is_wanted=is_wanted)

    def _write(self, text: str, *args: str, is_quiet: bool, is_wanted: bool = True) -> None:
        """Write a line, unless too many lines were written recently."""
        level = logging.INFO if is_wanted else logging.WARNING
        if is_quiet:
            level = logging.DEBUG
        if not _log.isEnabledFor(level):
            return
        if not self._lines.allows(self._now()):
            self._unwritten += 1
            return
        if self._unwritten:
            text += f" ({self._unwritten:,} lines more before, not written)"
            self._unwritten = 0
        _log.log(level, text, *map(printable, args))


def _name_of(wire: Wire) -> str:
    """Return the name of the neighbor, with the address of the connection if it is known."""
    name = wire.peer_name or (wire.peer or b"").hex()
    return name if wire.remote is None else f"{name} ({endpoint_text(wire.remote)})"
