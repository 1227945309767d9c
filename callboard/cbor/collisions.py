"""Protection against maps and sets whose keys a peer has chosen for their hash.

Python compares all keys of a dict that have the same hash. Hashes of text and bytes depend on
a secret of the process, but those of numbers do not: all multiples of 2^61 - 1 have the hash 0,
so 20,000 of them in one map cause 200 million comparisons. A peer can choose decimals, UUIDs,
networks, and tuples and records of such values in the same way.

Therefore plain CBOR maps may have only text and bytes as keys, which cbor2 checks while it
reads them. All other maps and all sets are built by us after this check, which limits the
number of keys with equal hashes. It does not detect different hashes that have the same
position in a table; see the page on security.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from callboard.protocol_errors import CollidingKeys

#: Keys of one map, or elements of one set, that may have the same hash. Useful values reach
#: 35 (all powers of two that a float can hold). 16 MiB of keys with this many equal hashes take
#: only a few times longer to decode than other keys.
SAME_HASH_LIMIT: Final = 64

#: Types of the keys of a plain CBOR map: their hashes are secret.
TEXTS: Final = frozenset({str, bytes})

_MODULUS: Final = sys.hash_info.modulus
_INT: Final = {int}


def check_hashes(keys: Sequence[Any]) -> None:
    """Refuse keys if too many have the same hash. The time is linear in their number.

    Raises:
        CollidingKeys: more than ``SAME_HASH_LIMIT`` have one hash.
        TypeError: a key cannot be hashed.
    """
    if len(keys) <= SAME_HASH_LIMIT:
        return
    types = set(map(type, keys))
    if types <= TEXTS:
        return
    if types == _INT and min(keys) > -_MODULUS and max(keys) < _MODULUS:
        return  # such a number is its own hash, except -1
    hashes = list(map(hash, keys))
    if len(hashes) - len(set(hashes)) < SAME_HASH_LIMIT:
        return
    _, most = Counter(hashes).most_common(1)[0]
    if most > SAME_HASH_LIMIT:
        msg = (
            f"{most:,} of {len(keys):,} keys of a map or set have the same hash; the limit "
            f"is {SAME_HASH_LIMIT}, because look-ups would take quadratic time; send a list"
        )
        raise CollidingKeys(msg)
