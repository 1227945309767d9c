"""Limits for the depth of values, checked before a native encoder or parser is called.

Encoders and parsers in C and Rust recurse on the native stack. Some of them count their levels
(`json` raises `RecursionError`), others do not: `cbor2.dumps` crashes the process with a
segmentation fault for a list of some thousand levels. On Python 3.13 `json.loads` returns lists
of up to 10,000 levels, so a few kilobytes of a client's JSON would suffice for such a crash.
Therefore every value of a user or a peer is encoded by `to_cbor` and parsed by `parse_json`; a
test searches the source for calls that bypass them.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import cbor2

#: Nested levels of containers: the default limit of `cbor2.loads`, and far below the limit of
#: any native stack.
LEVEL_LIMIT: Final = 400

_SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})
_DICT: Final = {dict}
_ARRAYS: Final = frozenset({list, tuple})
#: With more containers on one level, equal references are visited only once.
_MANY: Final = 1_000
_TEXTUAL: Final = (str, bytes, bytearray, memoryview)
_TEXTS: Final = frozenset({str, bytes})


class NestedTooDeep(ValueError):
    """Containers are nested deeper than the limit, or in a cycle."""

    def __init__(self, limit: int = LEVEL_LIMIT) -> None:
        super().__init__(
            f"it is nested deeper than {limit} containers, or in a cycle; flatten it"
        )


def check_levels(value: Any, limit: int = LEVEL_LIMIT) -> None:
    """Refuse a value whose containers are nested too deep, without recursing.

    Args:
        value: any value; mappings, sequences, sets and tags are searched.
        limit: nested levels of containers.

    Raises:
        NestedTooDeep: the value has more levels.
    """
    if limit > 0 and type(value) is dict and _is_flat(value):
        return
    check_all_levels([value], limit)


def check_all_levels(values: Sequence[Any], limit: int = LEVEL_LIMIT) -> None:
    """Refuse values if one is nested too deep; faster than a call for each value.

    Raises:
        NestedTooDeep: a value has more levels than the limit.
    """
    level = values
    for _ in range(limit):
        kinds = set(map(type, level))
        if kinds <= _SCALARS:
            return
        parts: list[Any]
        if kinds == _DICT and _TEXTS.issuperset(map(type, chain.from_iterable(level))):
            parts = list(chain.from_iterable(map(dict.values, level)))
        elif kinds <= _ARRAYS:
            parts = list(chain.from_iterable(level))
        else:
            parts = list(chain.from_iterable(map(_parts, level)))
        if _SCALARS.issuperset(map(type, parts)):
            return
        level = [part for part in parts if type(part) not in _SCALARS]
        # A list that contains one list twice, which contains one list twice, and so on, would
        # otherwise double the work on each level.
        if len(level) > _MANY:
            level = list({id(part): part for part in level}.values())
    if any(map(_is_container, level)):
        raise NestedTooDeep(limit)


def _is_flat(value: dict[Any, Any]) -> bool:
    """Return whether a mapping has only scalars."""
    return _SCALARS.issuperset(map(type, value.values())) and _TEXTS.issuperset(
        map(type, value)
    )


def _parts(value: Any) -> Collection[Any]:
    """Return the items of a container; none for any other value."""
    parts = _reader(type(value))  # type: ignore[arg-type]  # mypy: types are hashable
    return () if parts is None else parts(value)


def _is_container(value: Any) -> bool:
    """Return whether a value is a container."""
    return _reader(type(value)) is not None  # type: ignore[arg-type]


@lru_cache(maxsize=1_000)
def _reader(kind: type) -> Callable[[Any], Collection[Any]] | None:
    """Return a function for the items of containers of a type; None for other types.

    Cached, because messages have few types, and checks for abstract classes are slow.
    """
    if issubclass(kind, Mapping):
        return _parts_of_mapping
    if issubclass(kind, cbor2.CBORTag):
        return _parts_of_tag
    is_plain = issubclass(kind, Sequence | AbstractSet) and not issubclass(kind, _TEXTUAL)
    return _items if is_plain else None


def _parts_of_mapping(value: Mapping[Any, Any]) -> Collection[Any]:
    return [*value, *value.values()]


def _parts_of_tag(value: cbor2.CBORTag) -> Collection[Any]:
    return (value.value,)


def _items(value: Collection[Any]) -> Collection[Any]:
    return value


def to_cbor(value: Any, limit: int = LEVEL_LIMIT, **options: Any) -> bytes:
    """Return the CBOR of a value of a user or a peer.

    Args:
        value: the value.
        limit: nested levels of containers.
        options: options of `cbor2.dumps`.

    Raises:
        NestedTooDeep: the value has more levels.
        cbor2.CBOREncodeError: a value has no form in CBOR.
    """
    if type(value) not in _SCALARS:
        check_levels(value, limit)
    return cbor2.dumps(value, **options)


def parse_json(
    text: str | bytes,
    limit: int = LEVEL_LIMIT,
    parse: Callable[[Any], Any] = json.loads,
) -> Any:
    """Return the value of a JSON text of a user or a peer.

    Args:
        text: the JSON; bytes are UTF-8, UTF-16 or UTF-32.
        limit: nested levels of containers.
        parse: the parser, such as the `decode` of a `json.JSONDecoder`.

    Raises:
        NestedTooDeep: the value has more levels.
        ValueError: the text is not JSON.
    """
    try:
        value = parse(text)
    except RecursionError:
        raise NestedTooDeep(limit) from None
    if len(text) > limit:  # each level has at least one character
        check_levels(value, limit)
    return value
