"""Nodes out of reach that this node remembers, and when it forgets them. Pure.

A lost node may return: a network heals, a machine wakes up. So its state is kept for a while
and dropped in two steps: first the state of a receiver (order and count of arrivals), later the
state of a sender (the path epoch of its account). So when a sender starts again with epoch 0,
the receiver has forgotten the earlier epochs and does not mistake its messages for late ones.

Nodes without any exchanged message are forgotten at once, and above `DEPARTED_LIMIT` the oldest
ones, because a member can announce nodes that do not exist.
"""

from typing import Final

#: Seconds to keep order and count of a lost node's messages: most networks heal in ten minutes,
#: and the receiver must forget before its senders do.
ARRIVALS_KEPT: Final = 600.0

#: Seconds to keep account, name and address of a lost node. Both ends of a path notice its loss
#: within seconds, so by then the other end has forgotten its arrivals.
ACCOUNTS_KEPT: Final = 1200.0

#: Nodes out of reach that are remembered.
DEPARTED_LIMIT: Final = 16_384


class NodeTombstones:
    """The nodes out of reach, in the order in which they will be forgotten."""

    __slots__ = ("_arrivals_until", "_rest_until", "_strange")

    def __init__(self) -> None:
        """Start empty."""
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
        """Record the loss of a node.

        A node without any exchanged message (`is_strange`) is forgotten at once.
        """
        self.returned(node)
        self._rest_until[node] = now + ACCOUNTS_KEPT
        if is_strange:
            self._strange[node] = None
            return
        self._arrivals_until[node] = now + ARRIVALS_KEPT
        if len(self._arrivals_until) > DEPARTED_LIMIT:
            self._strange[next(iter(self._arrivals_until))] = None

    def returned(self, node: bytes) -> None:
        """Record that a path leads to a node."""
        for table in (self._arrivals_until, self._rest_until, self._strange):
            table.pop(node, None)

    def due(self, now: float) -> tuple[list[bytes], list[bytes]]:
        """Return the nodes whose arrivals to forget now, and those of which to forget all."""
        strange = list(self._strange)
        for node in strange:
            self.returned(node)
        arrivals, rest = _pop_due(self._arrivals_until, now), _pop_due(self._rest_until, now)
        return strange + arrivals, strange + rest


def _pop_due(until: dict[bytes, float], now: float) -> list[bytes]:
    """Remove and return the nodes whose time has passed."""
    due = []
    for node, time in until.items():
        if time > now:
            break
        due.append(node)
    for node in due:
        del until[node]
    return due
