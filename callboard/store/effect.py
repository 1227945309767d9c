"""What the machines of masters and clones want done, in this order."""

from dataclasses import dataclass, field
from typing import Any, Final

from callboard.store.command_cbor import CommandRun
from callboard.store.store_event import Change
from callboard.store.stored import Stored, Token

__all__ = ["ERASED", "Answer", "Effect", "Persist", "Refused", "Row", "Tell", "Transmit"]

ERASED: Final[Any] = object()
"""Stands for the row of a key that is gone."""

Row = tuple[Stored, float | None]
"""A value, and when it expires in the seconds of the machine's clock (None: never)."""


@dataclass(slots=True)
class WriterRow:
    """How far the commands of one writer were carried out.

    Attributes:
        seq: the number of the last one.
        answers: what was answered to its latest requests.
    """

    seq: int = 0
    answers: dict[int, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Persist:
    """Write to the backend, all or nothing; whatever follows waits until it is durable.

    Attributes:
        is_cleared: remove all rows first.
        rows: new rows by key, `ERASED` for those to remove.
        writers: how far writers are, by entity: the number of the last command and pairs of
        request and answer; `ERASED` for those to forget.
    """

    is_cleared: bool = False
    rows: dict[Token, Any] = field(default_factory=dict)
    writers: dict[tuple[bytes, int], Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.is_cleared or self.rows or self.writers)


@dataclass(slots=True)
class Transmit:
    """Send commands: to one receiver, or (nil) to all masters or clones of the store."""

    run: CommandRun
    to_master: bool


@dataclass(slots=True)
class Answer:
    """Answer a request of a frontend here."""

    request: int
    value: Any


@dataclass(slots=True)
class Tell:
    """Report changes."""

    changes: list[Change]


@dataclass(slots=True)
class Refused:
    """Commands were not carried out, and nobody waits to hear it."""

    count: int
    reason: str


Effect = Persist | Transmit | Answer | Tell | Refused
