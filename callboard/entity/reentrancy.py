"""Detects asks that come back to an entity that waits for their answer.

An ask carries its chain: the entities that wait for its answer, as `TYPE/KEY`. Handlers of an
entity run one after the other, so an ask that comes back to an entity in its chain would wait
for ever. The node of the entity decides whether the ask fails, because only that node knows
whether the entity still waits and whether the handler is read-only.
"""

from collections.abc import Sequence
from typing import Final

from callboard.kernel.activation import Envelope
from callboard.kernel.errors import WouldDeadlock

#: Entities of a cycle that an error text shows.
_CYCLE_SHOWN: Final = 8


def is_nested(message: object) -> bool:
    """Return whether a handler of an entity waits for the answer, directly or indirectly."""
    return type(message) is Envelope and bool(message.chain)


def comes_back(message: object, name: str) -> bool:
    """Return whether the chain of a message includes an entity."""
    return type(message) is Envelope and name in message.chain


def would_deadlock(chain: Sequence[str], name: str) -> WouldDeadlock:
    """Return the error of an ask that closes a cycle, or whose chain is too long."""
    names = [*chain[chain.index(name) :], name] if name in chain else [*chain[-3:], name]
    if len(names) > _CYCLE_SHOWN:
        names = [*names[: _CYCLE_SHOWN - 2], "…", *names[-2:]]
    path = " asks ".join(names)
    if name in chain:
        return WouldDeadlock(f"these entities would wait for one another: {path}")
    return WouldDeadlock(
        f"{len(chain)} entities wait for this answer, the limit; the last ones: {path}"
    )
