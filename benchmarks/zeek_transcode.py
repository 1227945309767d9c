"""Doors to Zeek: an event of three arguments, from Broker's bytes to ours and back.

The peer converts by way of objects, with `zeek.value` and `model.encoding`, which define the
result.
A checkout without the short way measures that one as its own; in instructions, beside one that
has commit 722bf6e:

    python -m benchmarks.compare FOLDER zeek_transcode --instructions --turns 1 --share 0.05
"""

import ipaddress
import time
from collections.abc import Callable
from functools import partial

from benchmarks.measure import Measure, Subject
from callboard.zeek.value import value_from_bytes, value_to_bytes

try:
    from callboard.model.data import Data
    from callboard.model.encoding import data_from_cbor, data_to_cbor
    from callboard.model.scalar import Count
except ModuleNotFoundError:  # a checkout with the model among its endpoints, as 722bf6e
    from callboard.endpoint.data import Data  # type: ignore[import-not-found,no-redef]
    from callboard.endpoint.data_cbor import (  # type: ignore[import-not-found,no-redef]
        data_from_cbor,
        data_to_cbor,
    )
    from callboard.endpoint.scalar import Count  # type: ignore[import-not-found,no-redef]

EVENTS = 40_000

Way = Callable[[bytes], bytes]


def _in_by_objects(payload: bytes) -> bytes:
    return data_to_cbor(value_from_bytes(payload))


def _out_by_objects(content: bytes) -> bytes:
    return value_to_bytes(data_from_cbor(content))


try:
    from callboard.zeek.transcoder import broker_from_cbor, cbor_from_broker
except ImportError:
    cbor_from_broker, broker_from_cbor = _in_by_objects, _out_by_objects


def _measure(inward: Way, outward: Way, share: float) -> float:
    """Decode events and encode them again; return the events per second."""
    arguments = ("hello world", Count(42), ipaddress.ip_address("10.0.0.1"))
    payload = value_to_bytes(Data((Count(1), Count(1), ("Test::ping", arguments))))
    events = max(1, int(EVENTS * share))
    began = time.perf_counter()
    for _ in range(events):
        outward(inward(payload))
    return events / (time.perf_counter() - began)


MEASURE = Measure(
    title="events of Zeek, from its encoding to ours and back",
    unit="events/s",
    subjects=(
        Subject("callboard", partial(_measure, cbor_from_broker, broker_from_cbor)),
        Subject(
            "by objects",
            partial(_measure, _in_by_objects, _out_by_objects),
            against="callboard",
        ),
    ),
)
