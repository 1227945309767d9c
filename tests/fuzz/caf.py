"""CAF's wire: damaged frames and messages at the machines of both ends, and at the codec.

The stream is fed twice, whole and in pieces: the result must not depend on the cuts. The
content of every decoded message is decoded, and encoded again to the same bytes.
"""

import random
from typing import Any, Final

from callboard.basp.errors import BaspError
from callboard.basp.foreign import Admitted, Arrived
from callboard.basp.link import Closed, Transmit
from callboard.caf.errors import CafError
from callboard.caf.wire import connection as caf
from callboard.caf.wire.connection import CafConnection, CafState, MessageFrame, NodeIntroduced
from callboard.caf.wire.frame import CafOperation, caf_frame
from callboard.caf.wire.message import (
    Atom,
    CafGroup,
    ConfigValue,
    DownMessage,
    Duration,
    ExitMessage,
    GroupDown,
    MessageCodec,
)
from callboard.caf.wire.reader import CafActor, CafNode
from tests.fuzz.case import READ, Case, require
from tests.fuzz.mutation import mutate_bytes

_LIMIT: Final = 4_096
_HOST: Final = bytes(range(20))
_NODES: Final = CafNode(1, _HOST), CafNode(2, _HOST), CafNode(3, _HOST)
_CODEC: Final = MessageCodec(items=1_000)
_ACTOR: Final = CafActor(9, _NODES[0])
_VALUES: Final = (
    1, -1, 1 << 40, 1 << 63, True, 1.5, "", "text", b"bytes", None, Atom("link"), Atom(""),
    ["a", "b"], {"a"}, {"k": "v"}, [_ACTOR], _ACTOR, _NODES[0], (), (1, "a"), ((1,), 2),
    CafError(28, "system", "boom"), CafGroup("local", "g", _ACTOR),
    ExitMessage(_ACTOR, CafError(4, "exit")), DownMessage(None, None), GroupDown(None),
    Duration(seconds=5), ConfigValue(7), ConfigValue([True, 2.5, {"a": Atom("b"), "c": ""}]),
)  # fmt: skip


def _machine(number: int) -> CafConnection:
    """Return one end: 0 is who dials."""
    return CafConnection(_NODES[number], 0.0, is_dialed=not number, limit=_LIMIT)


def _start(number: int) -> bytes:
    """Return the first frame of an end."""
    (effect,) = _machine(number).start()
    assert isinstance(effect, Transmit)
    return effect.data


def _part(rng: random.Random, number: int) -> bytes:
    """Return a frame of an end, sometimes a damaged one."""
    content = _CODEC.encode(tuple(rng.choices(_VALUES, k=rng.randrange(4))))
    if rng.random() < 0.2:
        content = mutate_bytes(rng, content)
    ids = rng.choice((caf.NORMAL, 0, caf.NORMAL | 7, caf.RESPONSE | 7)), rng.randrange(9)
    own, peer = _NODES[number], _NODES[1 - number]
    nodes = rng.choice(((own, peer), (_NODES[2], peer), (own, _NODES[2]), (peer, peer)))
    stack = rng.choice(((), (CafActor(8, _NODES[2]),)))
    part = rng.choice(
        (
            caf.direct(*ids, 6, content),
            caf.named(*ids, rng.choice((caf.SPAWN_NAME, caf.CONFIG_NAME, 5)), content, stack),
            caf.routed(nodes, *ids, 6, content, stack=stack),
            caf.monitor(own, CafActor(6, nodes[1])),
            caf.down(CafActor(6, nodes[0]), nodes[1], _CODEC.error_bytes(CafError(4, "exit"))),
            caf_frame(CafOperation.HEARTBEAT),
            caf_frame(CafOperation.CLIENT_HANDSHAKE, own.to_bytes(), flags=2),
        )
    )
    return mutate_bytes(rng, part) if rng.random() < 0.15 else part


def _play(end: CafConnection, pieces: list[bytes]) -> list[Any]:
    """Feed pieces; return what arrived."""
    arrived: list[Any] = []
    end.start()
    for piece in pieces:
        messages, effects = end.take(piece, 0.0)
        require(not (messages and effects), "messages beside effects")
        for effect in effects:
            if isinstance(effect, Arrived):
                messages = [*messages, *effect.messages]
            else:
                require(isinstance(effect, Closed), "an unknown effect")
                require(isinstance(effect.error, BaspError), f"{effect.error!r} is not typed")
        for message in messages:
            if isinstance(message, NodeIntroduced) and not message.is_selected:
                accepted = end.accept()
                is_over = end.state is CafState.ENDED
                require(is_over or isinstance(accepted[-1], Admitted), "it is not admitted")
        arrived += messages
        require(end._frames._size <= (1 << 16) + READ, "it keeps more than a frame")
        if end.state is CafState.ENDED:
            arrived.append(Closed)
            require(end.take(b"x", 0.0) == ([], []), "it continues after its end")
            break
    return arrived


def _check(arrived: list[Any]) -> None:
    """Decode the messages, and encode them again."""
    for message in arrived:
        if isinstance(message, MessageFrame):
            try:
                content = _CODEC.decode(message.payload, message.offset)
            except BaspError:
                continue
            again = _CODEC.encode_as(content.types, content.values)
            second = _CODEC.decode(again)
            same = repr(second.values) == repr(content.values)  # NaN is not equal to itself
            require(same, f"{content} changed")


class Caf:
    """Feeds the machines of who dials and of who listens, and the codec of messages."""

    name = "caf"

    def make(self, seed: int) -> Case:
        """Return the bytes of one end: handshake and frames, some of them damaged."""
        rng = random.Random(seed)
        number = rng.randrange(2)
        start = _start(number)
        if rng.random() < 0.1:
            start = mutate_bytes(rng, start)
        parts = [_part(rng, number) for _ in range(12)]
        return {"end": number, "start": start, "parts": parts, "piece": rng.choice([1, 7, 100])}

    def run(self, case: Case) -> int:
        """Feed the stream; on any input the machine must continue or end."""
        other, piece = 1 - case["end"], case["piece"]
        stream = b"".join([case["start"], *case["parts"]])
        cuts = [stream[at : at + piece] for at in range(0, len(stream), piece)]
        whole, pieces = _play(_machine(other), [stream]), _play(_machine(other), cuts)
        require(whole == pieces, f"it depends on the cuts: {whole} and {pieces}")
        _check(pieces)
        return 1 + len(case["parts"])
