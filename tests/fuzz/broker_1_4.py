"""Broker 1.4: damaged handshakes, frames and batches at the machines of both ends.

The bytes after the handshake are fed twice, whole and in pieces: the result must not depend on
how a network cut them. Every decoded message must be valid: its value decodes, and a batch
with it is read as the same again.
"""

import random
from typing import Any, Final

from callboard.basp.errors import RemoteProtocolError
from callboard.basp.foreign import Admitted, Arrived
from callboard.basp.link import Closed, Transmit
from callboard.caf.wire.frame import CafOperation, caf_frame
from callboard.caf.wire.reader import CafNode, message_bytes, sized
from callboard.model.data import Data
from callboard.model.encoding import data_from_cbor, python_to_cbor
from callboard.zeek.broker_1_4 import Broker14Session, PeerKnown, PeerTopics
from callboard.zeek.node_message import DataRun, data_message_bytes, read_messages
from callboard.zeek.transcoder import broker_from_cbor
from callboard.zeek.value import value_to_bytes
from tests.fuzz.case import READ, Case, require
from tests.fuzz.datum import datum
from tests.fuzz.mutation import mutate_bytes

_LIMIT: Final = 4_096
_HOST: Final = bytes(range(20))
_NODES: Final = CafNode(1, _HOST), CafNode(2, _HOST)
_TOPICS: Final = ("/t", "", "/zeek/event", "<$>/local/x", "/ü", "t" * 300)


def _session(number: int) -> Broker14Session:
    """Return one end: 0 is who dials."""
    return Broker14Session(_NODES[number], 0.0, is_dialed=not number, limit=_LIMIT)


def _handshake() -> tuple[list[list[bytes]], list[Broker14Session]]:
    """Return what each end says until both are open, and the ends."""
    ends, said = [_session(0), _session(1)], [[], []]
    waiting = [(number, effect) for number in (0, 1) for effect in ends[number].start()]
    while waiting:
        number, effect = waiting.pop(0)
        if isinstance(effect, Arrived):
            if isinstance(effect.messages[0], PeerKnown | PeerTopics):
                data = ends[number].introduce(("/t",))
                waiting += [(number, Transmit(data))] if data else []
        elif isinstance(effect, Transmit):
            said[number].append(effect.data)
            other = 1 - number
            waiting += [(other, each) for each in ends[other].take(effect.data, 0.0)[1]]
    return said, ends


def _command(rng: random.Random) -> bytes:
    """Return a message with a command of a store, some of whose fields are wrong."""
    value = broker_from_cbor(python_to_cbor(rng.choice((1, "x", None, (1, "y")))))
    node = rng.choice((_NODES[0].to_bytes(), b"\0" * 7 + b"\x0f"))
    expiry = rng.choice((b"\0", b"\1" + bytes(8), b"\2"))
    actor = bytes(8) + node
    fields = rng.choice(
        (
            b"\1" + value + value + expiry + node + bytes(8),
            b"\2" + value + value + expiry + actor + bytes(8) + node + bytes(8),
            b"\3" + value + node + bytes(8),
            b"\5" + value + value + rng.choice((b"\2", b"\x0f")) + expiry + node + bytes(8),
            b"\7" + actor + actor,
            b"\x09" + rng.choice((b"\1" + value + value, b"\xff\xff\x7f", b"\0")),
            b"\x0a",
            b"\x0b",
        )
    )
    return b"\1" + sized(b"s/<$>/data/master") + fields + bytes(2) + b"\0"


def _message(rng: random.Random) -> bytes:
    """Return a node message."""
    if rng.random() < 0.2:
        return _command(rng)
    value = value_to_bytes(datum(rng))
    return data_message_bytes(rng.choice(_TOPICS), value, rng.choice((0, 1, 20)))


def _part(rng: random.Random, end: Broker14Session, number: int) -> bytes:
    """Return something that an end may say, or that is wrong."""
    kind = rng.random()
    streams = end._streams
    assert streams is not None
    if kind < 0.6:
        count = rng.randrange(4)
        part = streams.batch([_message(rng) for _ in range(count)], number)
    elif kind < 0.75:
        part = streams.ack_batch(rng.choice((0, 1, 50, 2**31 - 1)), 50, rng.choice((0, 0, 1)))
    elif kind < 0.85:
        end.topics = ()
        part = end.update(tuple(rng.choices(_TOPICS[:-1], k=rng.randrange(1, 4))))
    elif kind < 0.97:
        name = rng.choice(("@atom+@atom+@str", "@atom+@atom+@atom+@str", "@error", "x"))
        payload = b"\0" + message_bytes(name, bytes(rng.randrange(40)))
        ids = {"source": rng.randrange(9), "target": rng.choice((1, 6, 7))}
        part = caf_frame(CafOperation.DIRECT, payload, **ids)
    else:
        part = rng.choice(
            (streams.close(), streams.drop(), streams.open(None), end.start()[0].data)
        )
    return mutate_bytes(rng, part) if rng.random() < 0.15 else part


def _play(session: Broker14Session, pieces: list[bytes]) -> list[Any]:
    """Feed pieces; returns what arrived: messages one by one."""
    arrived: list[Any] = []
    session.start()
    for piece in pieces:
        found, effects = session.take(piece, 0.0)
        require(not found, "messages beside effects")
        for effect in effects:
            if isinstance(effect, Arrived):
                for each in effect.messages:
                    if isinstance(each, DataRun):
                        arrived += [(each.ttl, *one) for one in each.messages]
                    else:
                        arrived.append(each)
                    if isinstance(each, PeerKnown | PeerTopics):
                        session.introduce(("/t",))
            elif isinstance(effect, Closed):
                arrived.append(Closed)
                is_typed = isinstance(effect.error, RemoteProtocolError | None)
                require(is_typed, f"{effect.error!r} is none of the protocol's errors")
            else:
                require(isinstance(effect, Transmit | Admitted), "an unknown effect")
        require(session.is_over() == (Closed in arrived), "its state is not what it told")
        require(session._frames._size <= (1 << 20) + READ, "it keeps more than a frame")
        if session.is_over():
            require(session.take(b"x", 0.0) == ([], []), "it goes on behind its end")
            break
    return arrived


def _check(arrived: list[Any]) -> None:
    """Check that all arrivals are messages."""
    for each in arrived:
        if type(each) is tuple and len(each) == 3:
            ttl, topic, content = each
            data = data_from_cbor(content)
            require(isinstance(data, Data), "it is no value")
            again = data_message_bytes(topic, broker_from_cbor(content), ttl)
            ((run,), end) = read_messages(again, 0, 1)
            require(end == len(again), "its end is elsewhere")
            require(run == DataRun(ttl, [(topic, content)]), f"{data} changed")


class Broker14:
    """Feeds the machines of who dials and of who listens."""

    name = "broker-1.4"

    def make(self, seed: int) -> Case:
        """Return what one end says: handshake and messages, some of them damaged."""
        rng = random.Random(seed)
        number = rng.randrange(2)
        said, ends = _handshake()
        start = said[number]
        if rng.random() < 0.1:
            at = rng.randrange(len(start))
            start[at] = mutate_bytes(rng, start[at])
        parts = [_part(rng, ends[number], count + 1) for count in range(12)]
        return {"end": number, "start": start, "parts": parts, "piece": rng.choice([1, 7, 100])}

    def run(self, case: Case) -> int:
        """Feed the stream; on any input the machine must continue or end."""
        other, piece = 1 - case["end"], case["piece"]
        stream = b"".join(case["parts"])
        cuts = [stream[at : at + piece] for at in range(0, len(stream), piece)]
        whole = _play(_session(other), [*case["start"], stream])
        pieces = _play(_session(other), [*case["start"], *cuts])
        require(whole == pieces, f"it depends on the cuts: {whole} and {pieces}")
        _check(pieces)
        return len(case["start"]) + len(case["parts"])
