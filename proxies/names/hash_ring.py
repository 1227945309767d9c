"""Consistent hashing: assigns keys to the members of a changing set.

Each member has `POINTS` places on a ring of 2^64; a key belongs to the member of the next
place. A member that joins or leaves moves only the keys between its places and the next ones,
about one in n of all keys. Places depend only on the members' ids, so all nodes agree.
"""

import hashlib
import sys
from bisect import bisect_right
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

#: Places of one member: shares differ by about a tenth; more would cost memory and time.
POINTS: Final = 128

#: Places of one member, each with its id.
Points = list[tuple[int, bytes]]


class HashRing(Generic[T]):
    """An immutable ring of members; `updated` returns another one."""

    def __init__(
        self, members: Mapping[bytes, T], computed: Mapping[bytes, Points] | None = None
    ) -> None:
        """Place members by their ids, reusing places that were computed before."""
        self._members = dict(members)
        self._points = {
            member: (computed or {}).get(member) or _points_of(member) for member in members
        }
        merged = sorted(chain.from_iterable(self._points.values()))
        self._places = [place for place, _ in merged]
        self._owners = [owner for _, owner in merged]

    def updated(self, members: Mapping[bytes, T]) -> "HashRing[T]":
        """Return the ring of other members, reusing the places of remaining ones."""
        return HashRing(members, self._points)

    def find(self, key: bytes) -> T | None:
        """Return the member that a key belongs to; None without members."""
        if not self._places:
            return None
        index = bisect_right(self._places, _hash(b"key", key)) % len(self._places)
        return self._members[self._owners[index]]


def _points_of(member: bytes) -> Points:
    """Return the places of a member, in order."""
    return sorted((_hash(index.to_bytes(4), member), member) for index in range(POINTS))


def _uuid_type() -> type | None:
    """Return the type of UUIDs if its module, which is slow to import, is loaded."""
    return getattr(sys.modules.get("uuid"), "UUID", None)


def key_bytes(key: Any) -> bytes:
    """Encode a key as bytes, the same on all nodes.

    Raises:
        TypeError: the key's type cannot be encoded alike on all nodes.
    """
    if type(key) is bytes:
        return b"b" + key
    if type(key) is str:
        return b"s" + key.encode()
    if type(key) in (int, bool, float, type(None)) or type(key) is _uuid_type():
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
