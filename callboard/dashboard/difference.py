"""Differences of JSON values as merge patches (RFC 7396).

A patch of an object has its changed members, and null for each removed member; so a null value
is equivalent to a missing member. Other values, lists included, are replaced as a whole.
"""

from collections.abc import Set as AbstractSet
from typing import Any


def difference(old: Any, new: Any, unless: AbstractSet[str] = frozenset()) -> Any:
    """Return the patch that turns `old` into `new`; an empty object if they are equal.

    Objects that differ only in members named in `unless` count as equal.
    """
    if old is new:
        return {}
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = {name: None for name in old if name not in new}
    for name, value in new.items():
        old_value = old.get(name)
        if value is None:
            if old_value is not None:
                patch[name] = None
        elif isinstance(value, dict) and isinstance(old_value, dict):
            if inner := difference(old_value, value, unless):
                patch[name] = inner
        elif old_value != value or type(old_value) is not type(value):
            patch[name] = value
    return patch if patch.keys() - unless else {}


def patched(old: Any, patch: Any) -> Any:
    """Apply a patch to a value, as the script of the pages does."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = patched(new.get(name), value)
    return new
