"""Values that logs can hold."""

from hypothesis import strategies as st

TEXTS = st.text(max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
PAYLOADS = st.binary(max_size=40) | PLAIN
KEYS = st.none() | TEXTS | st.binary(max_size=8)
HEADERS = st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3)
TIMES = st.integers(-(2**63), 2**63 - 1)
