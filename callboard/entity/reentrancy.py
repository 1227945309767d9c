"""Asks that come back to an entity which waits for their answer.

An ask carries its chain: the entities that wait for it, as `TYPE/KEY`. Handlers of an entity
run one after the other, so an ask that comes back would wait for ever. Only the owner's node
knows whether its entity waits, and whether the handler is one that may run meanwhile.
"""

from collections.abc import Sequence
from typing import Final

from callboard.kernel.activation import Envelope
from callboard.kernel.errors import WouldDeadlock

#: Entities that are shown of those which wait for one another.
_WAY_SHOWN: Final = 8


def is_nested(message: object) -> bool:
    """Return whether a handler of an entity waits for the answer, directly or by others."""
    return type(message) is Envelope and bool(message.chain)


def comes_back(message: object, name: str) -> bool:
    """Return whether an entity waits, or waited, for the answer to a message to itself."""
    return type(message) is Envelope and name in message.chain


def would_deadlock(chain: Sequence[str], name: str) -> WouldDeadlock:
    """Return the error of an ask to an entity that waits for its answer, or of a long chain."""
    way = [*chain[chain.index(name) :], name] if name in chain else [*chain[-3:], name]
    if len(way) > _WAY_SHOWN:
        way = [*way[: _WAY_SHOWN - 2], "…", *way[-2:]]
    shown_way = " asks ".join(way)
    if name in chain:
        return WouldDeadlock(f"these entities would wait for one another: {shown_way}")
    text = f"{len(chain)} entities wait for this answer, the limit; the last ones: {shown_way}"
    return WouldDeadlock(text)
