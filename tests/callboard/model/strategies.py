"""Hypothesis strategies for data: descriptions, and the described values.

A description is a pair (type name, literal) that two implementations can build; reals are text,
since Python has no literal for infinity.
"""

from hypothesis import strategies as st

from callboard.model.address import Address, Port, Subnet
from callboard.model.data import Data
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp

_I64 = st.integers(-(2**63), 2**63 - 1)
_V4 = st.binary(min_size=4, max_size=4)
_V6 = st.binary(min_size=16, max_size=16)
_ADDRESSES = st.tuples(_V4, st.just(4)) | st.tuples(_V6, st.just(6))
_REALS = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0])
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)

SCALARS = st.one_of(
    st.just(("none", None)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("count"), st.integers(0, 2**64 - 1) | st.integers(0, 3)),
    st.tuples(st.just("integer"), _I64 | st.integers(-2, 3)),
    st.tuples(st.just("real"), _REALS.map(repr)),
    st.tuples(st.just("string"), _TEXTS),
    st.tuples(st.just("address"), _ADDRESSES),
    st.tuples(st.just("subnet"), st.tuples(_ADDRESSES, st.integers(0, 128))),
    st.tuples(st.just("port"), st.tuples(st.integers(0, 65_535), st.integers(0, 3))),
    st.tuples(st.just("timestamp"), st.integers(-(2**31), 2**32)),
    st.tuples(st.just("timespan"), _I64),
    st.tuples(st.just("enum"), _TEXTS),
)


def _grown(inner):
    few = st.lists(inner, max_size=4)
    pairs = st.lists(st.tuples(inner, inner), max_size=3)
    return st.one_of(
        st.tuples(st.just("set"), few),
        st.tuples(st.just("table"), pairs),
        st.tuples(st.just("vector"), few),
    )


def _possible(description):
    """Keep a subnet's length within its family."""
    kind, value = description
    if kind == "subnet":
        (packed, family), length = value
        return kind, ((packed, family), min(length, 32) if _is_v4(packed) else length)
    if kind in ("set", "vector"):
        return kind, [_possible(item) for item in value]
    if kind == "table":
        return kind, [(_possible(key), _possible(item)) for key, item in value]
    return kind, value


def _is_v4(packed):
    return len(packed) == 4 or packed.startswith(bytes(10) + b"\xff\xff")


DESCRIPTIONS = st.recursive(SCALARS, _grown, max_leaves=8).map(_possible)

_MAKE = {
    "none": lambda _: None,
    "count": Count,
    "real": float,
    "address": lambda value: Address(*value),
    "subnet": lambda value: Subnet(Address(*value[0]), value[1]),
    "port": lambda value: Port(*value),
    "timestamp": Timestamp,
    "timespan": Timespan,
    "enum": Enum,
}


def build(description):
    """Make the data that a description tells of."""
    kind, value = description
    if kind == "set":
        return Data(frozenset(build(item) for item in value))
    if kind == "table":
        return Data({build(key): build(item) for key, item in value})
    if kind == "vector":
        return Data([build(item) for item in value])
    return Data(_MAKE.get(kind, lambda same: same)(value))


NANS = st.just(Data(float("nan")))
DATA = DESCRIPTIONS.map(build) | NANS
