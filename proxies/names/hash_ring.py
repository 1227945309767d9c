"""Consistent hashing: which member of a changing set a key belongs to.

Each member has `POINTS` places on a ring of 2^64; a key belongs to the member whose place comes
next. A member that comes or goes moves only the keys between its places and the next ones,
about one in n of them. Places depend only on the members' ids, so all nodes agree.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

T = TypeVar("T")

#: Places of one member: shares differ by about a tenth; more would cost memory and time.
POINTS: Final = 128


class HashRing(Generic[T]):
    """The places of some members; never changes, `updated` makes another one."""

    def __init__(self, members: Mapping[bytes, T] | None = None) -> None:
        """Place members, given by their ids."""
        self._members = dict(members or {})
        self._points: dict[bytes, list[tuple[int, bytes]]] = {}
        self._order()

    def updated(self, members: Mapping[bytes, T]) -> "HashRing[T]":
        """Return the ring of other members; places of those that stay are not made again."""
        ring: HashRing[T] = HashRing()
        ring._members = dict(members)
        ring._points = {key: self._points[key] for key in members if key in self._points}
        ring._order()
        return ring

    def find(self, key: bytes) -> T | None:
        """Return the member that a key belongs to; None when there are no members."""
        if not self._places:
            return None
        index = bisect_right(self._places, _hash(b"key", key)) % len(self._places)
        return self._members[self._owners[index]]

    def _order(self) -> None:
        """Sort the places of all members."""
        for member in self._members:
            if member not in self._points:
                self._points[member] = sorted(
                    (_hash(index.to_bytes(4), member), member) for index in range(POINTS)
                )
        merged = sorted(point for points in self._points.values() for point in points)
        self._places = [place for place, _ in merged]
        self._owners = [owner for _, owner in merged]


def key_bytes(key: Any) -> bytes:
    """Turn a key into bytes, the same on all nodes.

    Raises:
        TypeError: the key is not of a kind that is the same everywhere.
    """
    if type(key) is bytes:
        return b"b" + key
    if type(key) is str:
        return b"s" + key.encode()
    if type(key) in (int, bool, float, type(None), UUID):
        return b"v" + repr(key).encode()
    if type(key) is tuple:
        parts = [key_bytes(part) for part in key]
        return b"t" + b"".join(len(part).to_bytes(4) + part for part in parts)
    msg = (
        f"a key of type {type(key).__qualname__} cannot be hashed alike on all nodes; "
        "use str, bytes, int, float, bool, UUID or a tuple of them"
    )
    raise TypeError(msg)


def _hash(kind: bytes, data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=kind).digest())
