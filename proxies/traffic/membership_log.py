"""Log lines when links and nodes come and go, with the reason.

What nobody wanted is a warning, the rest is information, as is all about a node that is closed.
Peers that come and go without end must not fill a log, so lines are bounded; of the others
their number is told.
"""

import logging
from collections.abc import Callable
from typing import Final

from callboard.actors.token_bucket import TokenBucket
from callboard.proxies.address import endpoint_text
from callboard.proxies.link.wire import CLOSING, Wire
from callboard.support.text import printable

#: Lines in a second in the long run, and at once.
LINES_PER_SECOND: Final = 10.0
LINES_AT_ONCE: Final = 500.0

_log = logging.getLogger("callboard.nodes")


class MembershipLog:
    """Writes for one node. To be used on the runner, with its role."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Begin without a line; `now` tells monotonic seconds."""
        self._now = now
        self._lines = TokenBucket(LINES_PER_SECOND, LINES_AT_ONCE)
        self._unwritten = 0

    def link_up(self, wire: Wire, *, is_quiet: bool) -> None:
        """A link is established; quiet lines are those about tools."""
        self._write("link with %s is up", _name_of(wire), is_quiet=is_quiet)

    def link_down(self, wire: Wire, reason: str, *, is_wanted: bool, is_quiet: bool) -> None:
        """A link ended."""
        name, text = _name_of(wire), "link with %s is down: %s"
        self._write(text, name, reason, is_quiet=is_quiet, is_wanted=is_wanted)

    def node_up(self, name: str, hops: int, *, is_quiet: bool) -> None:
        """A node came into reach."""
        where = "linked with this one" if hops == 1 else f"{hops} links away"
        self._write("node %s is in reach, %s", name, where, is_quiet=is_quiet)

    def node_down(self, name: str, reason: str, lost: int, *, is_quiet: bool) -> None:
        """A node is out of reach."""
        text = "node %s is out of reach: %s"
        if lost:
            text += f"; {lost:,} messages to it are lost or unconfirmed"
        is_wanted = (
            not lost or reason == CLOSING
        )  # its program's last words are often unconfirmed
        self._write(text, name, reason, is_quiet=is_quiet, is_wanted=is_wanted)

    def _write(self, text: str, *args: str, is_quiet: bool, is_wanted: bool = True) -> None:
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
    """Return the neighbor of a link, and the other end of the connection."""
    name = wire.peer_name or (wire.peer or b"").hex()
    return name if wire.remote is None else f"{name} ({endpoint_text(wire.remote)})"
