"""Hypothesis strategies for everything that basp reads or writes."""

import math
from datetime import timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from callboard.basp.node_id import NodeId
from tests.basp.message_types import (
    Access,
    Box,
    Color,
    Empty,
    Level,
    Mode,
    Pair,
    Point,
    Ref,
    Word,
)

node_ids = st.binary(min_size=18, max_size=18).filter(any).map(NodeId)
actors = st.integers(0, 2**32 - 1)
payloads = st.binary(max_size=200)

#: (operation, operation data, source, destination, source actor, destination actor, payload)
frame_arguments = st.tuples(
    st.integers(0, 14),
    st.integers(0, 2**64 - 1),
    node_ids,
    node_ids,
    actors,
    actors,
    payloads,
)

offsets = st.integers(-86_399, 86_399).map(lambda s: timezone(timedelta(seconds=s)))
zones = st.none() | offsets
folds = st.integers(0, 1)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.integers().map(lambda n: n**9),
    st.floats(),
    st.text(),
    st.text(max_size=400),
    st.binary(max_size=400),
)
values = st.one_of(
    scalars,
    st.decimals(allow_nan=False),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.uuids(),
    st.ip_addresses(),
    st.sampled_from([*Color, *Level, *Word, *Access, *Mode, Access(3), Mode(0), Mode(7)]),
    st.builds(Ref, node_ids, actors),
)
hashables: st.SearchStrategy[Any] = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)
messages: st.SearchStrategy[Any] = st.recursive(
    hashables | st.binary(max_size=30).map(bytearray),
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.lists(inner, max_size=5).map(tuple),
        st.sets(hashables, max_size=4),
        st.dictionaries(hashables, inner, max_size=5),
        st.dictionaries(scalars, scalars, max_size=20),
        st.builds(Point, inner, inner),
        st.builds(Box, inner, st.text(), st.lists(inner, max_size=3)),
        st.builds(Pair, inner, inner),
        st.builds(Empty),
    ),
    max_leaves=20,
)


def is_same(left: Any, right: Any) -> bool:
    """Equal and of the same type at every depth; NaN equals NaN, -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        same_sign = math.copysign(1.0, left) == math.copysign(1.0, right)
        return (left == right and same_sign) or (math.isnan(left) and math.isnan(right))
    if type(left) is int:
        return bool(left == right)
    if type(left) in {list, tuple}:
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, (set, frozenset)):
        return is_same(*(sorted(map(describe, side)) for side in (left, right)))
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=True)
        return len(left) == len(right) and all(is_same(a, b) for a, b in pairs)
    if isinstance(left, (Point, Box, Pair)):
        names = [
            name for name in ("x", "y", "content", "label", "items") if hasattr(left, name)
        ]
        if isinstance(left, Pair):
            names = ["left", "right"]
        return all(is_same(getattr(left, n), getattr(right, n)) for n in names)
    return repr(left) == repr(right) or bool(left == right)


def describe(value: Any) -> str:
    """Write type and content so that unordered collections can be compared."""
    if isinstance(value, (tuple, list)) and type(value) in {tuple, list}:
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}{{{', '.join(sorted(map(describe, value)))}}}"
    if isinstance(value, Point):
        return f"Point({describe(value.x)}, {describe(value.y)})"
    if isinstance(value, Pair):
        return f"Pair({describe(value.left)}, {describe(value.right)})"
    if isinstance(value, Ref):
        return f"Ref{value.pair}"
    if hasattr(value, "utcoffset"):
        return f"{type(value).__name__} {value.isoformat()} {value.fold}"
    return f"{type(value).__name__} {value!r}"
