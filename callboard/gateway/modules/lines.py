"""Messages as lines of JSON: what the `file` module writes and reads, and `--input` takes.

    {"content": "21.5", "properties": {"unit": "C"}}

Content that is no UTF-8 stands under `hex` instead.
"""

import json
from typing import Any

from callboard.gateway.errors import MalformedMessage
from callboard.gateway.message import Message

__all__ = ["message_of", "read_line", "to_line"]


def to_line(message: Message) -> str:
    """Return a message as one line, without its end."""
    try:
        fields: dict[str, Any] = {"content": message.content.decode()}
    except UnicodeDecodeError:
        fields = {"hex": message.content.hex()}
    if message.properties:
        fields["properties"] = dict(message.properties)
    return json.dumps(fields, ensure_ascii=False)


def read_line(line: str | bytes) -> dict[str, Any]:
    """Read a line as an object.

    Raises:
        MalformedMessage: it is none.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = f"a line is no JSON: {error}"
        raise MalformedMessage(msg) from None
    if not isinstance(fields, dict):
        msg = f"a line is a {type(fields).__name__}, not an object with content"
        raise MalformedMessage(msg)
    return fields


def message_of(fields: dict[str, Any]) -> Message:
    """Make the message that a line holds; its content may also be any JSON value.

    Raises:
        MalformedMessage: it holds none.
    """
    try:
        if "hex" in fields:
            content = bytes.fromhex(fields["hex"])
        else:
            held = fields["content"]
            content = (held if isinstance(held, str) else json.dumps(held)).encode()
        return Message(content, fields.get("properties"))
    except KeyError:
        msg = f"a line has neither content nor hex, only {', '.join(fields) or 'nothing'}"
        raise MalformedMessage(msg) from None
    except (TypeError, ValueError, AttributeError) as error:
        msg = f"a line holds no message: {error}"
        raise MalformedMessage(msg) from None
