"""Options of a dispatch: what travels beside a message.

=== ================ ===========================================================
key name             value
=== ================ ===========================================================
1   deadline         milliseconds that were left when the dispatch was sent
2   trace context    W3C ``traceparent``, or ``[traceparent, tracestate]``
3   idempotency key  text or bytes that name one request, however often it is sent
4   chain            texts ``TYPE/KEY`` of the entities that wait for the answer of an ask
=== ================ ===========================================================

Unknown keys are ignored and kept, so that they can be sent on. A trace context that is not
well-formed is ignored too, as the W3C recommendation on trace context (section 2.3) demands.

A deadline that travels alone, as nearly all do, is written in four bytes even where fewer would
hold it: such options are the same ten bytes but for the number, at the end of the payload,
and are found there without a look at the rest: :func:`write_deadline`, :func:`split_deadline`.

A reader that knows no options never looks at them: ``PayloadCodec.decode_message``. Otherwise
:func:`has_options` tells by the first byte whether ``PayloadCodec.decode`` is worth its price,
and :func:`read_options` makes values of its map.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from types import MappingProxyType
from typing import Final

from callboard.basp.cbor import tags
from callboard.basp.cbor.collisions import TEXTS
from callboard.basp.cbor.plain import is_natural
from callboard.basp.errors import MalformedPayload
from callboard.support.dataclass import dataclass

DEADLINE_MS: Final = 1
TRACE_CONTEXT: Final = 2
IDEMPOTENCY_KEY: Final = 3
CHAIN: Final = 4

#: Characters or bytes of an idempotency key: receivers remember many of them.
KEY_LIMIT: Final = 255

#: Entities in the chain of an ask, and characters of each: what is longer is no chain.
CHAIN_LIMIT: Final = 100
CHAIN_TEXT_LIMIT: Final = 512

NO_OPTIONS: Final[Mapping[int, object]] = MappingProxyType({})

# W3C trace context, section 3.2: version, trace id, parent id, flags; a later version may
# go on behind another hyphen. Ids of zeros only, and the version ff, are invalid.
_TRACE_PARENT: Final = (
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
#: Compiles a pattern when it is first used.
_compiled: Final = cache(re.compile)
#: First byte of a payload that has options.
WITH_OPTIONS: Final = 0x82
_DEADLINE_ALONE: Final = (
    b"\xd9" + tags.PAIRS.to_bytes(2, "big") + bytes((0x82, DEADLINE_MS, 0x1A))
)
_DEADLINE_SIZE: Final = len(_DEADLINE_ALONE) + 4
#: Milliseconds that four bytes hold: 49 days.
LONGEST_ALONE: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """What travels beside a message.

    Attributes:
        deadline_ms: milliseconds that are left for it; None for no end.
        trace_parent: W3C ``traceparent``; "" for none.
        trace_state: W3C ``tracestate`` that goes with it.
        idempotency_key: names the request, 1 to ``KEY_LIMIT`` long; None for none.
        others: options that this release does not know, by their keys.
        chain: the entities that wait for the answer of an ask, as ``TYPE/KEY``.
    """

    deadline_ms: int | None = None
    trace_parent: str = ""
    trace_state: str = ""
    idempotency_key: str | bytes | None = None
    others: Mapping[int, object] = field(default_factory=dict)
    chain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a value has another form than the field says.
        """
        if self.deadline_ms is not None and not is_natural(self.deadline_ms):
            msg = f"deadline_ms must be milliseconds from 0 on, not {self.deadline_ms!r:.80}"
            raise ValueError(msg)
        if self.trace_parent and not _compiled(_TRACE_PARENT).fullmatch(self.trace_parent):
            msg = f"trace_parent is not a W3C traceparent: {self.trace_parent[:80]!r}"
            raise ValueError(msg)
        if self.trace_state and not self.trace_parent:
            msg = "trace_state means nothing without trace_parent"
            raise ValueError(msg)
        key = self.idempotency_key
        if key is not None and not (type(key) in TEXTS and 0 < len(key) <= KEY_LIMIT):
            msg = f"idempotency_key must be text or bytes, 1-{KEY_LIMIT} long, not {key!r:.80}"
            raise ValueError(msg)

    def to_map(self) -> dict[int, object]:
        """Return the options by their keys; empty when there are none."""
        made: dict[int, object] = dict(self.others)
        if self.deadline_ms is not None:
            made[DEADLINE_MS] = self.deadline_ms
        if self.trace_state:
            made[TRACE_CONTEXT] = [self.trace_parent, self.trace_state]
        elif self.trace_parent:
            made[TRACE_CONTEXT] = self.trace_parent
        if self.idempotency_key is not None:
            made[IDEMPOTENCY_KEY] = self.idempotency_key
        if self.chain:
            made[CHAIN] = list(self.chain)
        return made


def read_options(options: Mapping[int, object]) -> DispatchOptions:
    """Make values of the map that ``PayloadCodec.decode`` returned.

    Raises:
        MalformedPayload: a deadline or an idempotency key has another form.
    """
    others = dict(options)
    deadline = others.pop(DEADLINE_MS, None)
    parent, state = _read_trace(others.pop(TRACE_CONTEXT, None))
    key, chain = others.pop(IDEMPOTENCY_KEY, None), _read_chain(others.pop(CHAIN, None))
    try:
        return DispatchOptions(deadline, parent, state, key, others, chain)  # type: ignore[arg-type]
    except ValueError as cause:
        raise MalformedPayload(str(cause)) from None


def _read_chain(chain: object) -> tuple[str, ...]:
    """Return the entities of a chain; none where it is not well-formed."""
    if (
        isinstance(chain, list | tuple)
        and len(chain) <= CHAIN_LIMIT
        and all(type(each) is str and len(each) <= CHAIN_TEXT_LIMIT for each in chain)
    ):
        return tuple(chain)
    return ()


def _read_trace(context: object) -> tuple[str, str]:
    """Return traceparent and tracestate; empty texts where they are not well-formed."""
    parent, state = context, ""
    if isinstance(context, list | tuple) and len(context) == 2:
        parent, state = context
    if (
        type(parent) is str
        and type(state) is str
        and _compiled(_TRACE_PARENT).fullmatch(parent)
    ):
        return parent, state
    return "", ""


def has_options(payload: bytes) -> bool:
    """Return whether options follow the message of a dispatch."""
    return payload[:1] == bytes((WITH_OPTIONS,))


def write_deadline(milliseconds: int) -> bytes:
    """Write the options that hold nothing but a deadline of at most ``LONGEST_ALONE``."""
    return _DEADLINE_ALONE + milliseconds.to_bytes(4, "big")


def split_deadline(payload: bytes) -> tuple[bytes, int] | None:
    """Take a deadline that seems to stand alone off the end of a payload.

    Returns the payload without options, and milliseconds. If what is left of the payload can
    be read as one message, the bytes at its end were its options: no item of CBOR is the
    beginning of another one. If not, they were part of something else.
    """
    start = len(payload) - _DEADLINE_SIZE
    if not payload.startswith(_DEADLINE_ALONE, start):
        return None
    return b"\x81" + payload[1:start], int.from_bytes(payload[-4:], "big")
