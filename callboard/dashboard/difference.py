"""Differences of JSON values: what a page lacks of what is there, as a merge patch (RFC 7396).

An object is told by the members that changed, and a member that is gone by null; so null is no
value of its own: what is not there is not told. Anything else is told whole.
"""

from collections.abc import Set as AbstractSet
from typing import Any


def difference(old: Any, new: Any, unless: AbstractSet[str] = frozenset()) -> Any:
    """Return the patch that makes `new` of `old`; an empty object where they are equal.

    An object of which only the members in `unless` changed counts as equal.
    """
    if old is new:
        return {}
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if value is None:
            if before is not None:
                patch[name] = None
        elif isinstance(value, dict) and isinstance(before, dict):
            if inner := difference(before, value, unless):
                patch[name] = inner
        elif before != value or type(before) is not type(value):
            patch[name] = value
    return patch if patch.keys() - unless else {}


def patched(old: Any, patch: Any) -> Any:
    """Return what a patch makes of a value, as pages do."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = patched(new.get(name), value)
    return new
