"""The conversation with a real Broker 2.7.0 that was recorded: its parts and frames."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).parent / "recorded" / "websocket.txt"


class Recorded(NamedTuple):
    """One text frame: in which part of the conversation, and whether the client sent it."""

    part: str
    is_sent: bool
    text: str


def recorded() -> Iterator[Recorded]:
    """Yield the frames in their order."""
    part = ""
    for line in _FILE.read_text().splitlines():
        if line.startswith("# "):
            part = line.removeprefix("# ")
        else:
            yield Recorded(part, line.startswith(">"), line[2:])


def frames(part: str, *, is_sent: bool) -> list[str]:
    """Return the frames of the parts whose names begin so, of one side."""
    return [
        each.text
        for each in recorded()
        if each.part.startswith(part) and each.is_sent is is_sent
    ]
