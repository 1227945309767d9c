"""From CBOR to Python values, for bytes that nobody trusts.

cbor2 parses; the callbacks here turn our tags into values. Nothing is constructed except
built-in values, references by the hook of the caller, and registered types.
"""

from collections.abc import Callable
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any, NoReturn

import cbor2

from basp import cbor_tags as tags
from basp.errors import MalformedPayload, UnknownMessageType
from basp.hash_collisions import SAME_HASH_LIMIT, check_hashes
from basp.header import MAX_ACTOR
from basp.node_id import NODE_ID_SIZE
from basp.registry import MessageRegistry

__all__ = ["Callback", "PairHook", "tag_callbacks", "refuse_tag"]

#: Called by cbor2 with the tag's content and whether a map key is being read.
Callback = Callable[[Any, bool], Any]
PairHook = Callable[[bytes, int], Any]


def refuse_tag(tag: cbor2.CBORTag, _is_key: bool) -> NoReturn:  # noqa: FBT001
    """Refuse a tag that has no callback.

    Raises:
        MalformedPayload: always.
    """
    msg = f"CBOR tag {tag.tag} is not one that messages use"
    raise MalformedPayload(msg)


def _refuser(tag: int) -> Callback:
    def refuse(_content: object, _is_key: bool) -> NoReturn:  # noqa: FBT001
        msg = f"CBOR tag {tag} is not one that messages use"
        raise MalformedPayload(msg)

    return refuse


def _refuse_content(what: str, content: object) -> NoReturn:
    msg = f"{what} cannot be made of this {type(content).__name__}"
    raise MalformedPayload(msg)


def _read_tuple(content: Any, _is_key: bool) -> tuple[object, ...]:  # noqa: FBT001
    if type(content) is list or type(content) is tuple:
        return tuple(content)
    _refuse_content("tuple", content)


def _read_set(content: Any, _is_key: bool) -> set[object]:  # noqa: FBT001
    if type(content) is list:
        check_hashes(content)
        return set(content)
    _refuse_content("set", content)


def _read_frozenset(content: Any, _is_key: bool) -> frozenset[object]:  # noqa: FBT001
    if type(content) is list or type(content) is tuple:
        check_hashes(content)
        return frozenset(content)
    _refuse_content("frozenset", content)


def _read_pairs(content: Any, _is_key: bool) -> dict[object, object]:  # noqa: FBT001
    if type(content) is list and len(content) % 2 == 0:
        if len(content) > 2 * SAME_HASH_LIMIT:
            check_hashes(content[::2])
        parts = iter(content)
        return dict(zip(parts, parts, strict=True))
    _refuse_content("map of pairs", content)


def _read_bytearray(content: Any, _is_key: bool) -> bytearray:  # noqa: FBT001
    if type(content) is bytes:
        return bytearray(content)
    _refuse_content("bytearray", content)


def _read_decimal(content: Any, _is_key: bool) -> Decimal:  # noqa: FBT001
    if type(content) is str:
        return Decimal(content)
    _refuse_content("decimal", content)


def _read_datetime(content: Any, _is_key: bool) -> datetime:  # noqa: FBT001
    return datetime.fromisoformat(content)


def _read_time(content: Any, _is_key: bool) -> time:  # noqa: FBT001
    return time.fromisoformat(content)


def _read_folded(content: Any, _is_key: bool) -> datetime | time:  # noqa: FBT001
    (moment,) = content
    if type(moment) is datetime or type(moment) is time:
        return moment.replace(fold=1)
    _refuse_content("fold", content)


def _read_timedelta(content: Any, _is_key: bool) -> timedelta:  # noqa: FBT001
    days, seconds, microseconds = content
    if type(days) is int and type(seconds) is int and type(microseconds) is int:
        return timedelta(days, seconds, microseconds)
    _refuse_content("timedelta", content)


def _read_ip(content: Any, _is_key: bool) -> Any:  # noqa: FBT001
    place, text = content
    # Given an integer, the constructors would read it as a number, not as text.
    if type(place) is int and 0 <= place < len(tags.IP_TYPES) and type(text) is str:
        return tags.IP_TYPES[place](text)
    _refuse_content("IP address", content)


def _registered_reader(
    registry: MessageRegistry, note_dropped: Callable[[int], None]
) -> Callback:
    by_name = registry.by_name

    def read(content: Any, _is_key: bool) -> object:  # noqa: FBT001
        name, fields = content
        kind = by_name.get(name) or registry.type_named(name)
        if kind is None:
            msg = (
                f"message type {str(name)[:80]!r} is not registered here; import the "
                f'module that declares it with @message("{str(name)[:80]}")'
            )
            raise UnknownMessageType(msg)
        return kind.build(fields, note_dropped)

    return read


def _reference_reader(pair_to_ref: PairHook | None) -> Callback:
    def read(content: Any, _is_key: bool) -> Any:  # noqa: FBT001
        node, actor = content
        if pair_to_ref is None:
            msg = "message holds an actor reference, which this codec does not know"
            raise MalformedPayload(msg)
        is_node = type(node) is bytes and len(node) == NODE_ID_SIZE
        if is_node and type(actor) is int and 0 <= actor <= MAX_ACTOR:
            return pair_to_ref(node, actor)
        _refuse_content("actor reference", content)

    return read


def tag_callbacks(
    registry: MessageRegistry,
    pair_to_ref: PairHook | None,
    note_dropped: Callable[[int], None],
) -> dict[int, Callback]:
    """Make the callback of every tag in :mod:`basp.cbor_tags`, and of those refused.

    Args:
        registry: the types that are constructed.
        pair_to_ref: makes a reference of a node id and an actor number.
        note_dropped: told how many fields of a message no class here knows.
    """
    callbacks: dict[int, Callback] = {tag: _refuser(tag) for tag in tags.REFUSED}
    callbacks.update(
        {
            tags.SET: _read_set,
            tags.TUPLE: _read_tuple,
            tags.FROZENSET: _read_frozenset,
            tags.PAIRS: _read_pairs,
            tags.REGISTERED: _registered_reader(registry, note_dropped),
            tags.REFERENCE: _reference_reader(pair_to_ref),
            tags.BYTEARRAY: _read_bytearray,
            tags.DECIMAL: _read_decimal,
            tags.DATETIME: _read_datetime,
            tags.TIME: _read_time,
            tags.FOLDED: _read_folded,
            tags.TIMEDELTA: _read_timedelta,
            tags.IP: _read_ip,
        }
    )
    return callbacks
