"""Messages and control messages of gateways."""

import random

from callboard.gateway.errors import MalformedControl, MalformedMessage
from callboard.gateway.wire.control import (
    Control,
    ControlCreate,
    ControlDestroy,
    ControlReply,
    ControlStart,
    decode_control,
    encode_control,
)
from callboard.gateway.wire.message import Message
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes

_WORDS = ("", "k", "unit", "ä", "x" * 40)


class Gateways:
    """Feeds damaged bytes to both codecs."""

    name = "gateway"

    def make(self, seed: int) -> Case:
        """Return messages of both kinds, most of them damaged."""
        rng = random.Random(seed)
        messages = [_message(rng) for _ in range(6)]
        controls = [encode_control(_control(rng)) for _ in range(6)]
        return {
            "messages": [_damaged(rng, data, messages + controls[:1]) for data in messages * 4],
            "controls": [_damaged(rng, data, controls + messages[:1]) for data in controls * 4],
        }

    def run(self, case: Case) -> int:
        """Read each input; a value must be written back to the same bytes."""
        for data in case["messages"]:
            _read_message(data)
        for data in case["controls"]:
            _read_control(data)
        return len(case["messages"]) + len(case["controls"])


def _damaged(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    return mutate_bytes(rng, data, corpus) if rng.random() < 0.7 else data


def _message(rng: random.Random) -> bytes:
    properties = {rng.choice(_WORDS): rng.choice(_WORDS) for _ in range(rng.randrange(4))}
    return Message(rng.randbytes(rng.choice((0, 1, 30, 300))), properties).data


def _control(rng: random.Random) -> Control:
    return rng.choice(
        (
            ControlCreate(f"ipc:///tmp/{rng.random()}", rng.choice(("", "null", '{"a": 1}'))),
            ControlCreate("", "", uri_type=rng.randrange(256)),
            ControlReply(rng.randrange(256)),
            ControlStart(),
            ControlDestroy(),
        )
    )


def _read_message(data: bytes) -> None:
    for versioned in (False, True):
        try:
            message = Message.decode(data, versioned=versioned)
        except MalformedMessage:
            continue
        require(versioned or message.data == data, "a message was read as another one")
        again = Message(message.content, message.properties)
        require(Message.decode(again.data) == message, "a message changed on its way")


def _read_control(data: bytes) -> None:
    try:
        message = decode_control(data)
    except MalformedControl:
        return
    require(encode_control(message) == data, "a control message was read as another one")
