"""Values of topics and commands of stores, in both encodings."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import cbor2

from callboard.channel import Nack
from callboard.model.data import Data, ImmutableData
from callboard.model.encoding import (
    data_from_cbor,
    data_to_cbor,
    immutable_of_item,
    python_from_cbor,
    python_to_cbor,
    read_item,
)
from callboard.model.errors import EndpointError
from callboard.store.machine.command import Command, CommandRun, EntityId, encode_run, read_run
from callboard.topics.machine.run import PackedType, decode_run, pack_runs
from callboard.zeek.transcoder import broker_from_cbor, cbor_from_broker
from callboard.zeek.value import value_from_bytes, value_to_bytes
from tests.callboard.zeek.broker_command import (
    InternalCommand,
    command_from_bytes,
    command_to_bytes,
)
from tests.fuzz.case import Case, require
from tests.fuzz.datum import datum
from tests.fuzz.mutation import mutate_bytes

_PAYLOADS = 10


def _run_from_bytes(payload: bytes) -> list[CommandRun]:
    _, items = decode_run(payload)
    return [read_run(content) for _, content in items]


def _run_to_bytes(runs: list[CommandRun]) -> bytes:
    pairs = [cbor2.dumps("/t") + content for run in runs for content in encode_run(run)]
    return b"".join(payload for payload, _ in pack_runs(PackedType.COMMAND, 1, pairs))


_CODECS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "cbor": (data_from_cbor, data_to_cbor),
    "broker": (value_from_bytes, value_to_bytes),
    "command-run": (_run_from_bytes, _run_to_bytes),
    "command-broker": (command_from_bytes, command_to_bytes),
}


class TopicValue:
    """Feeds the four decoders, the two short cuts to Python values, and those past them."""

    name = "value"

    def make(self, seed: int) -> Case:
        """Return payloads for each codec."""
        rng = random.Random(seed)
        return {name: _payloads(rng, name) for name in _CODECS}

    def run(self, case: Case) -> int:
        """Decode; the value has one encoding, and can be decoded from it again."""
        for name, (decode, encode) in _CODECS.items():
            for payload in case.get(name, ()):  # cases kept before there was a codec
                value = _outcome(decode, payload)
                if not isinstance(value, EndpointError) and not _is_partly_unreadable(value):
                    again = encode(value)
                    require(encode(decode(again)) == again, f"{name} {payload.hex()}")
        for payload in case["cbor"]:
            _compare_short_cuts(payload)
            _compare_transcoded(broker_from_cbor, data_from_cbor, value_to_bytes, payload)
        for payload in case["broker"]:
            _compare_transcoded(cbor_from_broker, value_from_bytes, data_to_cbor, payload)
        return sum(map(len, case.values()))


def _is_partly_unreadable(value: Any) -> bool:
    """Return whether a value consists of runs with some unreadable actions."""
    return isinstance(value, list) and any(
        action[0] == Command.UNREADABLE
        for run in value
        for action in run.actions
        if isinstance(action, tuple)
    )


def _compare_short_cuts(payload: bytes) -> None:
    data = _outcome(data_from_cbor, payload)
    for short, long in (
        (python_from_cbor, Data.to_py),
        (partial(read_item, convert=immutable_of_item), ImmutableData.to_py),
        (_from_run, ImmutableData.to_py),
    ):
        direct = _outcome(short, payload)
        wanted = data if isinstance(data, EndpointError) else _outcome(long, data)
        is_same = isinstance(direct, EndpointError) == isinstance(wanted, EndpointError) and (
            isinstance(direct, EndpointError) or _is_same(direct, wanted)
        )
        require(is_same, f"{payload.hex()}: {direct!r:.200} or {wanted!r:.200}")


def _from_run(payload: bytes) -> Any:
    """Return the value of a run that holds one."""
    ((_, value),) = decode_run(b"\x84\x01\x10\x62/t" + payload)[1]
    return value


def _compare_transcoded(
    short: Callable[[bytes], bytes],
    read: Callable[[bytes], Data],
    write: Callable[[Data], bytes],
    payload: bytes,
) -> None:
    direct, wanted = _outcome(short, payload), _outcome(read, payload)
    if isinstance(wanted, Data):
        wanted = write(wanted)
    is_same = direct == wanted if isinstance(wanted, bytes) else type(direct) is type(wanted)
    require(is_same, f"{payload.hex()}: {direct!r:.200} or {wanted!r:.200}")


def _is_same(one: Any, other: Any) -> bool:
    """Compare values: not a number equals nothing, and takes any place in a set."""
    return repr(one) == repr(other) or python_to_cbor(one) == python_to_cbor(other)


def _payloads(rng: random.Random, name: str) -> list[bytes]:
    encode = _CODECS[name][1]
    make = {"command-run": _command_runs, "command-broker": _command}.get(name, datum)
    valid = [encode(make(rng)) for _ in range(4)]
    return [_payload(rng, valid) for _ in range(_PAYLOADS)]


def _command_runs(rng: random.Random) -> list[CommandRun]:
    sender = EntityId(UUID(bytes=rng.randbytes(16)), rng.getrandbits(40))
    value = rng.choice((None, 5, "text", ("a", 1.5), rng.getrandbits(40)))
    return [
        CommandRun(
            sender,
            first=rng.randrange(1, 1 << 40),
            actions=[(Command.ERASE, "k"), (Command.ERASE, value)],
        ),
        CommandRun(sender, control=Nack((1, 5, rng.getrandbits(40)))),
    ]


def _command(rng: random.Random) -> InternalCommand:
    sender, receiver = (
        EntityId(UUID(bytes=rng.randbytes(16)), rng.getrandbits(40)) for _ in range(2)
    )
    key, value = datum(rng, 1), datum(rng, 2)
    table = Data({datum(rng, 1): datum(rng, 1) for _ in range(3)})
    contents: tuple[tuple[Any, ...], ...] = (
        (Command.PUT, key, value, None),
        (Command.PUT_UNIQUE, key, value, None, sender, rng.getrandbits(30)),
        (Command.ERASE, key),
        (Command.ADD, key, value, value.get_type(), None),
        (Command.ACK_CLONE, rng.getrandbits(30), 5, table.value),
        (Command.NACK, (1, 5, rng.getrandbits(40))),
    )
    return InternalCommand(rng.getrandbits(50), sender, rng.choice(contents), receiver)


def _payload(rng: random.Random, valid: list[bytes]) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(40))
    return mutate_bytes(rng, rng.choice(valid), valid)


def _outcome(read: Callable[[Any], Any], given: Any) -> Any:
    try:
        return read(given)
    except EndpointError as error:
        return error
