"""Topics: data of every type, runs of every type of message, filter updates."""

import datetime as dt
import ipaddress

import cbor2

from callboard.broker.recording import _encoded
from callboard.model.address import Address, Port, PortProtocol, Subnet
from callboard.model.data import Data, DataType, Set, Table, Vector
from callboard.model.encoding import (
    data_from_cbor,
    data_to_cbor,
    python_from_cbor,
    python_to_cbor,
)
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp
from callboard.topics.machine.filter_exchange import FilterUpdate, read_update
from callboard.topics.machine.run import (
    PackedType,
    decode_run,
    encode_pair,
    encode_plain_pair,
    pack_runs,
)
from tests.golden.sample import Sample


def data(value: object) -> Sample:
    return Sample(Data(value), data_to_cbor, data_from_cbor)


V4 = Address(bytes((192, 0, 2, 1)), 4)
V6 = Address(ipaddress.ip_address("2001:db8::1").packed, 6)

DATA = {
    DataType.Nil: data(None),
    DataType.Boolean: data(True),
    DataType.Count: data(Count(2**64 - 1)),
    DataType.Integer: data(-(2**63)),
    DataType.Real: data(0.1),
    DataType.String: data("ä"),
    DataType.Address: data(V4),
    DataType.Subnet: data(Subnet(V6, 32)),
    DataType.Port: data(Port(443, PortProtocol.TCP)),
    DataType.Timestamp: data(Timestamp(Timespan(1_700_000_000_123_456_789))),
    DataType.Timespan: data(Timespan(-5)),
    DataType.EnumValue: data(Enum("Notice::LOG")),
    DataType.Set: Sample(
        Data.of(DataType.Set, Set([Data(1), Data("a")])), data_to_cbor, data_from_cbor
    ),
    DataType.Table: Sample(
        Data.of(DataType.Table, Table([(Data("k"), Data(2)), (Data(Count(1)), Data(None))])),
        data_to_cbor,
        data_from_cbor,
    ),
    DataType.Vector: Sample(
        Data.of(DataType.Vector, Vector([Data(1), Data.of(DataType.Vector, Vector())])),
        data_to_cbor,
        data_from_cbor,
    ),
}
PYTHON = (
    (1, 2.5, "text", None, True, (b"\xff\xfe", ())),
    Count(7),
    {"key": {1}, ("a", 1): ()},
    {Count(3)},
    dt.timedelta(seconds=1.5),
    dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
    ipaddress.ip_address("192.0.2.1"),
    ipaddress.ip_network("2001:db8::/32"),
    Port(53, PortProtocol.UDP),
    Enum("Red"),
)


def run(kind: PackedType, pairs: list[tuple[str, object]], found: object = None) -> Sample:
    """Return a run, of users' data or of what we make ourselves."""
    encode = encode_pair if kind is PackedType.DATA else encode_plain_pair

    def write(value: list[tuple[str, object]]) -> bytes:
        ((payload, count),) = pack_runs(kind, 20, [encode(*pair) for pair in value])
        assert count == len(value)
        return payload

    return Sample(pairs, write, decode_run, (kind, found or pairs))


UPDATE = FilterUpdate(b"e" * 16, True, 9, 0, 4, ("a", "b/ä"), ("old",), False, 2)


def write_update(update: FilterUpdate) -> bytes:
    pair = encode_plain_pair("", tuple(update))
    ((payload, _),) = pack_runs(PackedType.ROUTING_UPDATE, 20, [pair])
    return payload


def read_updates(payload: bytes) -> FilterUpdate:
    kind, ((topic, content),) = decode_run(payload)
    assert (kind, topic) == (PackedType.ROUTING_UPDATE, "")
    return read_update(content)


RUNS = {
    PackedType.DATA: run(
        PackedType.DATA, [("t/1", 1), ("t/2", "x"), ("t/3", (1, (2.5, None)))]
    ),
    PackedType.COMMAND: run(PackedType.COMMAND, [("store", (None, b"raw", 5))]),
    PackedType.ROUTING_UPDATE: Sample(UPDATE, write_update, read_updates),
    PackedType.PING: run(PackedType.PING, [("", (1, b"ping"))]),
    PackedType.PONG: run(PackedType.PONG, [("", (1, b"ping"))]),
    PackedType.REFUSED: run(
        PackedType.REFUSED, [("", (("write", "prices"), ("publish", "/x")))]
    ),
}
SAMPLES = {f"data: {kind.name}": sample for kind, sample in DATA.items()}
SAMPLES |= {f"run: {kind.name}": sample for kind, sample in RUNS.items()}
SAMPLES |= {
    "run with tags": run(PackedType.DATA, [("t", Count(1)), ("u", (Port(1, 1), "x"))]),
    "run of 300": run(PackedType.DATA, [("many", n) for n in range(300)]),
}
SAMPLES |= {
    f"python: {type(value).__name__} {index}": Sample(value, python_to_cbor, python_from_cbor)
    for index, value in enumerate(PYTHON)
}
RECORDED = (Count(7), dt.timedelta(seconds=1.5), Port(53, PortProtocol.UDP), Enum("Red"))
SAMPLES["recorded"] = Sample(
    (*RECORDED, b"raw", ipaddress.ip_address("192.0.2.1")),
    lambda values: bytes(_encoded(values)),
    cbor2.loads,
    [7, 1.5, "53/udp", "Red", b"raw", ipaddress.ip_address("192.0.2.1")],
)


def missing() -> set[object]:
    """Return types of data or of messages without a sample."""
    return {*DataType} - DATA.keys() | {*PackedType} - RUNS.keys()
