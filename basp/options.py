"""Options of a dispatch: metadata sent with a message.

=== ================ ===========================================================
key name             value
=== ================ ===========================================================
1   deadline         milliseconds left when the dispatch was sent
2   trace context    W3C ``traceparent``, or ``[traceparent, tracestate]``
3   idempotency key  text or bytes that identify a request, however often it is sent
4   chain            texts ``TYPE/KEY`` of the entities that wait for the answer of an ask
=== ================ ===========================================================

Unknown keys are ignored, but kept for forwarding. A malformed trace context is ignored too, as
the W3C recommendation on trace context (section 2.3) demands.

Most options are a deadline alone. It is always encoded in four bytes, so that these options are
the same ten bytes except for the number. They are at the end of the payload, where they are
found without decoding the rest: :func:`write_deadline`, :func:`split_deadline`.

``PayloadCodec.decode_message`` ignores options. A reader that needs them checks the first byte
with :func:`has_options`, calls ``PayloadCodec.decode``, and converts its map with
:func:`read_options`.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from types import MappingProxyType
from typing import Final

from callboard.basp.errors import MalformedPayload
from callboard.cbor import tags
from callboard.cbor.collisions import TEXTS
from callboard.cbor.plain import is_natural
from callboard.support.dataclass import dataclass

DEADLINE_MS: Final = 1
TRACE_CONTEXT: Final = 2
IDEMPOTENCY_KEY: Final = 3
CHAIN: Final = 4

#: Characters or bytes of an idempotency key; short, because receivers store many of them.
KEY_LIMIT: Final = 255

#: Entities in the chain of an ask, and characters of each; a longer chain is ignored.
CHAIN_LIMIT: Final = 100
CHAIN_TEXT_LIMIT: Final = 512

NO_OPTIONS: Final[Mapping[int, object]] = MappingProxyType({})

# W3C trace context, section 3.2: version, trace id, parent id, flags; later versions may have
# more after another hyphen. Ids of only zeros, and the version ff, are invalid.
_TRACE_PARENT: Final = (
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
#: Compiles a pattern at its first use.
_compiled: Final = cache(re.compile)
#: First byte of a payload that has options.
WITH_OPTIONS: Final = 0x82
_DEADLINE_ALONE: Final = (
    b"\xd9" + tags.PAIRS.to_bytes(2, "big") + bytes((0x82, DEADLINE_MS, 0x1A))
)
_DEADLINE_SIZE: Final = len(_DEADLINE_ALONE) + 4
#: Limit in milliseconds of a deadline in four bytes: 49 days.
LONGEST_ALONE: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """The options of a message.

    Attributes:
        deadline_ms: milliseconds left; None for no deadline.
        trace_parent: W3C ``traceparent``; "" for none.
        trace_state: W3C ``tracestate`` of ``trace_parent``.
        idempotency_key: id of the request, 1 to ``KEY_LIMIT`` long; None if
            it has no key.
        others: options unknown to this release, by key.
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
            ValueError: a value is invalid.
        """
        if self.deadline_ms is not None and not is_natural(self.deadline_ms):
            msg = f"deadline_ms must be milliseconds from 0 on, not {self.deadline_ms!r:.80}"
            raise ValueError(msg)
        if self.trace_parent and not _compiled(_TRACE_PARENT).fullmatch(self.trace_parent):
            msg = f"trace_parent is not a W3C traceparent: {self.trace_parent[:80]!r}"
            raise ValueError(msg)
        if self.trace_state and not self.trace_parent:
            msg = "trace_state needs trace_parent"
            raise ValueError(msg)
        key = self.idempotency_key
        if key is not None and not (type(key) in TEXTS and 0 < len(key) <= KEY_LIMIT):
            msg = f"idempotency_key must be text or bytes, 1-{KEY_LIMIT} long, not {key!r:.80}"
            raise ValueError(msg)

    def to_map(self) -> dict[int, object]:
        """Return the options by key; empty if none is set."""
        options: dict[int, object] = dict(self.others)
        if self.deadline_ms is not None:
            options[DEADLINE_MS] = self.deadline_ms
        if self.trace_state:
            options[TRACE_CONTEXT] = [self.trace_parent, self.trace_state]
        elif self.trace_parent:
            options[TRACE_CONTEXT] = self.trace_parent
        if self.idempotency_key is not None:
            options[IDEMPOTENCY_KEY] = self.idempotency_key
        if self.chain:
            options[CHAIN] = list(self.chain)
        return options


def read_options(options: Mapping[int, object]) -> DispatchOptions:
    """Convert the map returned by ``PayloadCodec.decode``.

    Raises:
        MalformedPayload: a deadline or an idempotency key is malformed.
    """
    unknown = dict(options)
    deadline = unknown.pop(DEADLINE_MS, None)
    parent, state = _read_trace(unknown.pop(TRACE_CONTEXT, None))
    key, chain = unknown.pop(IDEMPOTENCY_KEY, None), _read_chain(unknown.pop(CHAIN, None))
    try:
        return DispatchOptions(deadline, parent, state, key, unknown, chain)  # type: ignore[arg-type]
    except ValueError as cause:
        raise MalformedPayload(str(cause)) from None


def _read_chain(chain: object) -> tuple[str, ...]:
    """Return the entities of a chain; none if it is malformed."""
    if (
        isinstance(chain, list | tuple)
        and len(chain) <= CHAIN_LIMIT
        and all(type(entity) is str and len(entity) <= CHAIN_TEXT_LIMIT for entity in chain)
    ):
        return tuple(chain)
    return ()


def _read_trace(context: object) -> tuple[str, str]:
    """Return traceparent and tracestate; empty texts if they are malformed."""
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
    """Encode options with only a deadline of at most ``LONGEST_ALONE``."""
    return _DEADLINE_ALONE + milliseconds.to_bytes(4, "big")


def split_deadline(payload: bytes) -> tuple[bytes, int] | None:
    """Split a deadline, which seems to be the only option, off the end of a payload.

    Returns the payload without options, and the milliseconds. If the rest decodes as a message,
    the split was right, because no CBOR item is a prefix of another one. If not, the bytes were
    part of something else.
    """
    start = len(payload) - _DEADLINE_SIZE
    if not payload.startswith(_DEADLINE_ALONE, start):
        return None
    return b"\x81" + payload[1:start], int.from_bytes(payload[-4:], "big")
