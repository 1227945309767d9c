"""Gateways: messages of modules, control messages, lines of files."""

from typing import get_args

from callboard.gateway.wire.control import (
    DETACH,
    FAILED,
    OK,
    Control,
    ControlCreate,
    ControlDestroy,
    ControlReply,
    ControlStart,
    decode_control,
    encode_control,
)
from callboard.gateway.wire.message import Message, message_of, read_line, to_line
from tests.golden.sample import Sample

MESSAGES = {
    "empty": Message(),
    "content": Message(b"21.5"),
    "properties": Message(b"\0\xff", {"unit": "C", "ä": "", "third": "x" * 300}),
    "properties alone": Message(properties={"k": "v"}),
}
CONTROLS = {
    "create": ControlCreate("ipc:///tmp/a", '{"x": "ä"}'),
    "create without arguments": ControlCreate("", "", 0, 1),
    "ok": ControlReply(OK),
    "failed": ControlReply(FAILED),
    "detach": ControlReply(DETACH),
    "start": ControlStart(),
    "destroy": ControlDestroy(),
}


def versioned(message: Message) -> bytes:
    """Return the form of the original's documents, which we only read."""
    data = message.data
    return data[:2] + b"\x01" + (len(data) + 1).to_bytes(4, "big") + data[6:]


SAMPLES = {
    f"message: {name}": Sample(message, lambda m: m.data, Message.decode)
    for name, message in MESSAGES.items()
}
SAMPLES |= {
    f"with a version: {name}": Sample(
        message, versioned, lambda data: Message.decode(data, versioned=True)
    )
    for name, message in MESSAGES.items()
}
SAMPLES |= {
    f"line: {name}": Sample(
        message,
        lambda m: to_line(m).encode(),
        lambda data: message_of(read_line(data)),
    )
    for name, message in MESSAGES.items()
}
SAMPLES |= {
    f"control: {name}": Sample(control, encode_control, decode_control)
    for name, control in CONTROLS.items()
}


def missing() -> set[str]:
    """Return control messages without a sample."""
    found = {type(each) for each in CONTROLS.values()}
    return {kind.__name__ for kind in get_args(Control) if kind not in found}
