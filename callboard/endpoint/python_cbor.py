"""The short way of a message: Python values to CBOR and back, without data in between.

Publishers hand over Python values, subscribers get Python values. Going by way of `Data`
makes an object for each value, twice; most values are plain and need none. The bytes are
those of `data_cbor` and the values those of `Data.to_py`: tests hold both equal.
"""

from typing import Any, Final

import cbor2

from callboard.endpoint.data import DEPTH_LIMIT, Data, ImmutableData
from callboard.endpoint.data_cbor import data_of_item, item_of_data, read_item
from callboard.endpoint.errors import InvalidData

__all__ = ["immutable_from_cbor", "immutable_of_item", "python_from_cbor", "python_to_cbor"]

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1
_PLAIN_DEPTH: Final = 16
_SAME: Final = frozenset((str, float, bool, type(None)))


def python_to_cbor(value: Any) -> bytes:
    """Return the bytes of `data_to_cbor(Data(value))`.

    Raises:
        EndpointError: as `Data` does.
    """
    kind = type(value)
    try:
        if kind is list or kind is tuple:
            for item in value:  # a few texts and numbers, mostly: found out without a call
                inner = type(item)
                if inner in _SAME or (inner is int and _LOWEST <= item <= _HIGHEST):
                    continue
                break
            else:
                return cbor2.dumps(value)
        return cbor2.dumps(value if _is_plain(value, 0) else _item(value, 0))
    except UnicodeEncodeError as cause:
        msg = f"a string has no UTF-8 form: {cause}"
        raise InvalidData(msg) from cause


def python_from_cbor(payload: bytes) -> Any:
    """Return the value of `Data.to_py(data_from_cbor(payload))`.

    Raises:
        InvalidData: the bytes are no such value.
    """
    return read_item(payload, _python)


def immutable_from_cbor(payload: bytes) -> Any:
    """Return the value of `ImmutableData.to_py(data_from_cbor(payload))`.

    Raises:
        InvalidData: the bytes are no such value.
    """
    return read_item(payload, immutable_of_item)


def immutable_of_item(node: Any, depth: int) -> Any:
    """Return an item that cbor2 has read, at some depth, as Python values that never change."""
    kind = type(node)
    if kind in _SAME:
        return node
    if kind is int and _LOWEST <= node <= _HIGHEST:
        return node
    if (kind is list or kind is tuple) and depth < DEPTH_LIMIT:
        return tuple([immutable_of_item(each, depth + 1) for each in node])
    return ImmutableData.to_py(data_of_item(node, depth))


def _is_plain(value: object, depth: int) -> bool:
    """Return whether CBOR itself has all types in a value: then nothing is converted."""
    kind = type(value)
    if kind in _SAME:
        return True
    if type(value) is int:
        return _LOWEST <= value <= _HIGHEST
    if (type(value) is list or type(value) is tuple) and depth < _PLAIN_DEPTH:
        for item in value:
            # The same tests as above: a call for each element would double the time.
            inner = type(item)
            if inner in _SAME or (inner is int and _LOWEST <= item <= _HIGHEST):
                continue
            if not _is_plain(item, depth + 1):
                return False
        return True
    return False


def _item(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _SAME:
        return value
    if kind is int and _LOWEST <= value <= _HIGHEST:
        return value
    if kind is list or kind is tuple:
        if depth >= DEPTH_LIMIT:
            msg = f"data is nested deeper than {DEPTH_LIMIT} containers"
            raise InvalidData(msg)
        return [_item(each, depth + 1) for each in value]
    return item_of_data(Data(value), depth)


def _python(node: Any, depth: int) -> Any:
    kind = type(node)
    if kind in _SAME:
        return node
    if kind is int and _LOWEST <= node <= _HIGHEST:
        return node
    if kind is list and depth < DEPTH_LIMIT:
        return tuple([_python(each, depth + 1) for each in node])
    return Data.to_py(data_of_item(node, depth))
