"""What bounds the time to build a dict or set from keys that a peer chose.

Python finds keys by their hash, and compares all that have the same one. Hashes of text and
bytes depend on a secret of the process. Those of numbers do not: all multiples of 2^61 - 1
have the hash 0, so 20,000 of them in one map mean 200 million comparisons. Decimals, UUIDs,
networks, and tuples and records of such values are as easy to choose.

So plain CBOR maps may have only text and bytes as keys, which cbor2 checks while it reads
them; every other map, and every set, is built by us, after this check. It bounds equal hashes.
Hashes that differ and yet meet in the same places of a table are not seen; see the page on
security.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from callboard.basp.errors import CollidingKeys

#: Keys of one map, or elements of one set, that may have the same hash. Honest values reach
#: 35 (all powers of two that a float can hold); 16 MiB of keys that all go to the limit
#: decode within a few times the time of honest ones.
SAME_HASH_LIMIT: Final = 64

#: Types of the keys of a plain CBOR map: their hashes are secret.
TEXTS: Final = frozenset({str, bytes})

_MODULUS: Final = sys.hash_info.modulus
_INT: Final = {int}


def check_hashes(keys: Sequence[Any]) -> None:
    """Refuse keys of which too many have the same hash. Linear in their number.

    Raises:
        CollidingKeys: more than ``SAME_HASH_LIMIT`` have one hash.
        TypeError: one cannot be hashed.
    """
    if len(keys) <= SAME_HASH_LIMIT:
        return
    types = set(map(type, keys))
    if types <= TEXTS:
        return
    if types == _INT and min(keys) > -_MODULUS and max(keys) < _MODULUS:
        return  # each is its own hash, but for -1
    hashes = list(map(hash, keys))
    if len(hashes) - len(set(hashes)) < SAME_HASH_LIMIT:
        return
    _, most = Counter(hashes).most_common(1)[0]
    if most > SAME_HASH_LIMIT:
        msg = (
            f"{most:,} of {len(keys):,} keys of a map or set have the same hash, at most "
            f"{SAME_HASH_LIMIT} may: finding them would take quadratic time; send a list"
        )
        raise CollidingKeys(msg)
