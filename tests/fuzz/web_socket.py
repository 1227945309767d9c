"""Zeek's WebSocket: damaged handshakes, frames and texts at the port's machine."""

import random

from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from callboard.zeek.web_socket import Admission, SessionState, ZeekServerSession
from tests.callboard.zeek.conversation import frames
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes

_TEXTS = frames("", is_sent=True)
_LIMIT = 4_096


def _stream(rng: random.Random) -> bytes:
    """Return what a client says: request, filter and messages, some of them damaged."""
    core = ClientProtocol(parse_uri("ws://zeek/v1/messages/json"))
    core.key = "dGhlIHNhbXBsZSBub25jZQ=="  # a seed gives the same stream again
    core.send_request(core.connect())
    out = b"".join(core.data_to_send())
    if rng.random() < 0.2:
        return mutate_bytes(rng, out)
    for text in ['["/pong"]', *rng.choices(_TEXTS, k=20)]:
        data = text.encode()
        data = mutate_bytes(rng, data) if rng.random() < 0.3 else data
        head = bytes((0x81, 0x80 | len(data))) if len(data) < 126 else b"\x81\xfe"
        head += b"" if len(data) < 126 else min(len(data), 65_535).to_bytes(2)
        frame = head + bytes(4) + data
        out += mutate_bytes(rng, frame) if rng.random() < 0.05 else frame
    return out


class WebSocket:
    """Feeds the machine of the port, in pieces."""

    name = "websocket"

    def make(self, seed: int) -> Case:
        """Return a stream, and how it is cut."""
        rng = random.Random(seed)
        return {"stream": _stream(rng), "piece": rng.choice([1, 7, 100, 65_536])}

    def run(self, case: Case) -> int:
        """Feed the stream; whatever it is, the machine goes on or ends."""
        session = ZeekServerSession(Admission(), "e", "v", 0.0, limit=_LIMIT)
        stream, piece = case["stream"], case["piece"]
        for at in range(0, len(stream), piece):
            found, effects = session.take(stream[at : at + piece], 0.0)
            require(not (found and effects), "messages and effects in one")
            if session.is_over():
                require(session.state is SessionState.ENDED, "it is over and has not ended")
                break
        return 20
