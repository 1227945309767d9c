"""Which nodes out of reach this node still remembers, and when it forgets them. Pure.

A node that is lost may come back: a network heals, a machine wakes up. So what is known of it
stays for a while. It goes in two steps. What a receiver keeps (the order and the count of
arrivals) goes first, what a sender keeps (the path epoch of its account) later: when a sender
begins again with epoch 0, the receiver has long forgotten the epochs before and does not
take its messages for late ones.

Nodes that nothing came of and nothing was sent to are forgotten at once, and with more than
`DEPARTED_LIMIT` the oldest of all: a member can tell of nodes that there are not.
"""

from typing import Final

#: Seconds that the order and count of what a lost node sent are kept: most networks heal in
#: ten minutes, and a receiver's memory has to end before its senders'.
ARRIVALS_KEPT: Final = 600.0

#: Seconds that the account, the name and the address of a lost node are kept: both ends of a
#: path notice its loss within seconds, so by then the other end's memory has ended.
ACCOUNTS_KEPT: Final = 1200.0

#: Nodes out of reach that are remembered.
DEPARTED_LIMIT: Final = 16_384


class NodeTombstones:
    """The nodes out of reach, in the order in which they will be forgotten."""

    __slots__ = ("_arrivals_until", "_rest_until", "_strange")

    def __init__(self) -> None:
        """Begin with none."""
        self._arrivals_until: dict[bytes, float] = {}
        self._rest_until: dict[bytes, float] = {}
        self._strange: dict[bytes, None] = {}

    def __len__(self) -> int:
        """Count the nodes that will be forgotten."""
        return len(self._rest_until)

    def __contains__(self, node: bytes) -> bool:
        """Return whether a node is out of reach and not forgotten."""
        return node in self._rest_until

    def lost(self, node: bytes, now: float, *, is_strange: bool = False) -> None:
        """Take note that no path leads to a node any more; a strange one is due at once."""
        self.found(node)
        self._rest_until[node] = now + ACCOUNTS_KEPT
        if is_strange:
            self._strange[node] = None
            return
        self._arrivals_until[node] = now + ARRIVALS_KEPT
        if len(self._arrivals_until) > DEPARTED_LIMIT:
            self._strange[next(iter(self._arrivals_until))] = None

    def found(self, node: bytes) -> None:
        """Take note that a path leads to a node."""
        for kept in (self._arrivals_until, self._rest_until, self._strange):
            kept.pop(node, None)

    def due(self, now: float) -> tuple[list[bytes], list[bytes]]:
        """Return the nodes whose arrivals are due to be forgotten, and those whose rest is."""
        strange = list(self._strange)
        for node in strange:
            self.found(node)
        arrivals, rest = _pop_due(self._arrivals_until, now), _pop_due(self._rest_until, now)
        return strange + arrivals, strange + rest


def _pop_due(until: dict[bytes, float], now: float) -> list[bytes]:
    """Take out the nodes whose time has come."""
    due = []
    for node, time in until.items():
        if time > now:
            break
        due.append(node)
    for node in due:
        del until[node]
    return due
