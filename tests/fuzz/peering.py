"""Broker 2.x's wire: damaged sessions at the machine in both roles, values and commands."""

import random

from callboard.basp.errors import RemoteProtocolError
from callboard.basp.foreign import Arrived
from callboard.basp.link import Closed
from callboard.model.errors import EndpointError
from callboard.zeek.peering import (
    MAGIC,
    NOBODY,
    PeerFilter,
    PeeringFrame,
    PeeringSession,
    filter_to_bytes,
    handshake_frame,
    message_frame,
)
from callboard.zeek.transcoder import broker_from_cbor, cbor_from_broker
from tests.callboard.zeek.broker_command import command_from_bytes
from tests.callboard.zeek.peering_ends import LARGE, REAL, SMALL, frames_of, recording
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes

_LIMIT = 8_192

#: By role: our id, whether we dialed, and what a real session brings.
_SESSIONS = [
    (SMALL, True, frames_of(recording("cap-originator-in"))),
    (LARGE, True, frames_of(recording("cap-responder-in"))),
    (REAL, False, frames_of(recording("cap-originator-out"))),
    (REAL, False, frames_of(recording("cap-responder-out"))),
]
_COMMANDS = [
    each
    for name in ("store-c2s", "store-s2c")
    for each in frames_of(recording(name))
    if len(each) > 41
]
_VALUES = [
    bytes.fromhex("0e030200000000000000010200000000000000010e02050470696e670e00"),
    bytes.fromhex("0c0205016105016b"),
    bytes.fromhex("0d01050161040000000000000000"),
    bytes.fromhex("0800500106" + 10 * "00" + "ffff0a000001"),
]


def _odd_frame(rng: random.Random) -> bytes:
    """Return a whole frame that a session may bring at a wrong moment."""
    peer = rng.choice((SMALL, LARGE, REAL, NOBODY))
    topics = filter_to_bytes(["/a"] * rng.randrange(4))
    kinds = PeeringFrame
    return rng.choice(
        (
            handshake_frame(kinds.HELLO, MAGIC, peer, rng.randrange(3), rng.randrange(3)),
            handshake_frame(kinds.VERSION_SELECT, MAGIC, peer, rng.randrange(3)),
            handshake_frame(kinds.DROP_CONN, MAGIC, peer, rng.randrange(256), rest=b"\x02no"),
            handshake_frame(kinds.ORIGINATOR_SYN, rest=topics),
            handshake_frame(kinds.RESPONDER_SYN_ACK, rest=topics),
            handshake_frame(kinds.ORIGINATOR_ACK),
            message_frame(peer, NOBODY, rng.randrange(8), b"<$>", topics, rng.randrange(20)),
            message_frame(peer, NOBODY, kinds.DATA, b"/t", rng.choice(_VALUES)),
        )
    )


class Peering:
    """Feeds the machine, in pieces, and reads what it hands on."""

    name = "peering"

    def make(self, seed: int) -> Case:
        """Return a role, a stream, and how it is cut."""
        rng = random.Random(seed)
        role = rng.randrange(len(_SESSIONS))
        frames = [*_SESSIONS[role][2], *rng.choices(_COMMANDS, k=4)]
        stream = b""
        for number, frame in enumerate(frames):
            if rng.random() < (0.02 if number < 4 else 0.2):
                frame = mutate_bytes(rng, frame)
                if rng.random() < 0.8:  # so that later bytes are read as frames
                    frame = max(1, len(frame) - 4).to_bytes(4) + frame[4:]
            if rng.random() < 0.02:
                stream += _odd_frame(rng)
            stream += frame
        return {"role": role, "stream": stream, "piece": rng.choice([1, 7, 100, 65_536])}

    def run(self, case: Case) -> int:
        """Feed the stream; the machine must continue, or end with one of its errors."""
        own, is_dialed, _ = _SESSIONS[case["role"]]
        known: dict[bytes, PeeringSession] = {}
        session = PeeringSession(
            own, lambda: ("/own",), known, 0.0, is_dialed=is_dialed, frame_limit=_LIMIT
        )
        session.start()
        stream, piece, frames = case["stream"], case["piece"], 0
        for at in range(0, len(stream), piece):
            found, effects = session.take(stream[at : at + piece], 0.0)
            require(not (found and effects), "messages and effects in one")
            for effect in effects:
                if isinstance(effect, Arrived):
                    found = [*found, *effect.messages]
                elif isinstance(effect, Closed):
                    is_ours = effect.error is None or isinstance(
                        effect.error, RemoteProtocolError
                    )
                    require(is_ours, f"it ended with {effect.error!r}")
            frames += len(found)
            self._read(found)
            if session.is_over():
                require(not known, "an ended session stands in the way of the next")
                return max(frames, 4)
        session.tick(100.0)
        return max(frames, 4)

    @staticmethod
    def _read(found: list[object]) -> None:
        """Read values and commands: they are some, or an error of ours."""
        for message in found:
            if isinstance(message, PeerFilter):
                continue
            try:
                if message.kind == PeeringFrame.COMMAND:  # type: ignore[attr-defined]
                    command_from_bytes(message.payload)  # type: ignore[attr-defined]
                else:
                    broker_from_cbor(cbor_from_broker(message.payload))  # type: ignore[attr-defined]
            except EndpointError:
                pass
