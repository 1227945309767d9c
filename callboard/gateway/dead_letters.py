"""Dead letters as messages, for the module that receives them."""

from typing import Final

from callboard.gateway.handle import TOPIC_SIZE, DeadLetter
from callboard.gateway.message import Message

__all__ = ["as_frame"]

_TOPIC: Final = bytes(TOPIC_SIZE)
"""The gateway itself is the source; modules count from 1."""


def as_frame(letter: DeadLetter) -> bytes:
    """Return a dead letter as a frame: the lost message, with properties that say why.

    `dead.module` should have received it, `dead.source` published it, `dead.reason` and
    `dead.detail` tell why it was lost.
    """
    lost = letter.message or Message()
    about = {
        "dead.module": letter.module,
        "dead.source": letter.source,
        "dead.reason": letter.reason,
        "dead.detail": letter.detail,
    }
    cleaned = {key: _without_nul(value) for key, value in about.items()}
    return _TOPIC + Message(lost.content, {**lost.properties, **cleaned}).data


def _without_nul(text: str) -> str:
    return text.replace("\0", " ").encode(errors="replace").decode()
