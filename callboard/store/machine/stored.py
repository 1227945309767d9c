"""Stored forms of keys and values: plain Python values, or the bytes of their CBOR.

A value is stored as None, bool, int, float, str or a tuple of these. They are immutable and
need no conversion for a reader, another node or a disk. Any other data (sets, tables, counts,
addresses …) is stored as the bytes of its CBOR, see `model.encoding`.

A key is stored as a *token*: text as str, any other key as the bytes of its CBOR. In Python
`1`, `1.0` and `True` are equal, and a peer could choose numbers with colliding hashes. Tokens
differ whenever the data differ, and the hashes of str and bytes are salted for each process.
"""

import math
from contextlib import suppress
from typing import Any, Final

import cbor2

from callboard.model.data import Data
from callboard.model.encoding import (
    data_from_cbor,
    python_from_cbor,
    python_to_cbor,
    refuse_heavy,
)
from callboard.model.errors import InvalidData
from callboard.support.text import safe_repr

#: A key as stores hold it.
Token = str | bytes

#: A value as stores hold it.
Stored = Any

#: Bytes of one key or value. A key and a value together fit a frame (16 MiB) on any path.
SIZE_LIMIT: Final = 4 * 1024 * 1024

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1
_SAME: Final = frozenset((float, bool, type(None)))
_PLAIN_DEPTH: Final = 16
_TAG_MAJOR: Final = 6


class _NotPlain(Exception):
    """A value has parts that must be stored as CBOR."""


def stored_of(value: Any) -> Stored:
    """Return the stored form of a Python value; it shares no mutable object with the value.

    Raises:
        EndpointError: the value is not one of the data model, or exceeds `SIZE_LIMIT`.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() and len(value) <= SIZE_LIMIT else _checked_text(value)
    if kind in _SAME or (kind is int and _LOWEST <= value <= _HIGHEST):
        return value
    encoded = _checked_size(python_to_cbor(value))
    refuse_heavy(encoded)
    if encoded[0] >> 5 == _TAG_MAJOR:
        return encoded
    plain = python_from_cbor(encoded)
    if type(plain) is bytes:
        return encoded
    try:
        return _frozen(plain, 0)
    except _NotPlain:
        return encoded


def token_of(key: Any) -> Token:
    """Return the token of a key.

    Raises:
        EndpointError: as for `stored_of`.
    """
    if type(key) is str and key.isascii() and len(key) <= SIZE_LIMIT:
        return key
    stored = stored_of(key)
    if type(stored) is str:
        return stored
    if type(stored) is float:
        # Data calls both zeros equal, and all NaN.
        stored = math.nan if math.isnan(stored) else stored + 0.0
    return stored if type(stored) is bytes else cbor2.dumps(stored)


def key_of(token: Token) -> Any:
    """Return a key as a hashable Python value."""
    if isinstance(token, str):
        return token
    (key,) = Data.to_py(Data({data_from_cbor(token)}))
    return key


def python_of(stored: Stored) -> Any:
    """Return a value as Broker's Python package does; the caller may modify it."""
    return python_from_cbor(stored) if type(stored) is bytes else stored


def data_of(stored: Stored) -> Data:
    """Return a value as data."""
    return data_from_cbor(stored) if type(stored) is bytes else Data(stored)


def checked_stored(part: Any) -> Stored:
    """Return the stored form of a value that a peer sent or a disk returned.

    Raises:
        InvalidData: the bytes are not the CBOR of a value.
    """
    kind = type(part)
    if kind is str or kind in _SAME or (kind is int and _LOWEST <= part <= _HIGHEST):
        return part
    if kind is bytes:
        return stored_of(data_from_cbor(part))
    if kind is tuple:
        with suppress(_NotPlain):
            return _frozen(part, 0)
    msg = f"{safe_repr(part, 60)} is not a value of a store"
    raise InvalidData(msg)


def checked_token(part: Any) -> Token:
    """Return the token of a key that a peer sent or a disk returned.

    Raises:
        InvalidData: the bytes are not the CBOR of a key.
    """
    if type(part) is str:
        return part
    if type(part) is bytes:
        return token_of(data_from_cbor(part))
    msg = f"{safe_repr(part, 60)} is not a key of a store"
    raise InvalidData(msg)


def _checked_text(value: str) -> str:
    """Return a text after checking its length and that it has a UTF-8 form."""
    try:
        _checked_size(value.encode())
    except UnicodeEncodeError as cause:
        msg = f"a string has no UTF-8 form: {cause}"
        raise InvalidData(msg) from cause
    return value


def _checked_size(encoded: bytes) -> bytes:
    """Return CBOR after checking its length."""
    if len(encoded) > SIZE_LIMIT:
        msg = (
            f"a key or value of {len(encoded):,} B exceeds the limit of {SIZE_LIMIT:,} B; "
            "store its parts under several keys"
        )
        raise InvalidData(msg)
    return encoded


def _frozen(value: Any, depth: int) -> Stored:
    """Return a plain value after checking that all of its parts are immutable."""
    kind = type(value)
    if kind is str or kind in _SAME or (kind is int and _LOWEST <= value <= _HIGHEST):
        return value
    if kind is tuple and depth < _PLAIN_DEPTH:
        return tuple([_frozen(item, depth + 1) for item in value])
    raise _NotPlain
