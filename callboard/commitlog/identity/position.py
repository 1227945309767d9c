"""A position in a log: the log's id, the epoch of the record before it, and the offset.

An offset alone fits every log. Used with another log than its own, it would silently skip
records or repeat them. Therefore every part that remembers an offset stores a `Position`, and
`resume` compares it with the log before use.

A log has one id for its whole life, and a new epoch whenever a writer appends its first record
after an opening. Epochs are numbers that rise by a random step. So the same offset written
twice, after records were lost or in two copies of a folder, has two epochs.

Callboard 0.1 stored offsets alone: such a position has no log, and adopts the log with which it
is used first. Epoch 0 stands for an epoch that is not known.
"""

import json
import logging
import re
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from zlib import crc32

from callboard.commitlog.errors import (
    InvalidOption,
    LogError,
    OtherEpoch,
    OtherLog,
    PositionAhead,
    PositionRefused,
)
from callboard.commitlog.folder import LAST_OFFSET
from callboard.figures import Figure, ProcessFigures, figures_of
from callboard.support.nesting import NestedTooDeep, parse_json

#: The text that stands for a log without an id.
UNKNOWN: Final = "unknown identity"

#: The largest number of an epoch; it fits into 16 digits.
LAST_EPOCH: Final = 10**16 - 1

_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_TEXT: Final = re.compile(r"(?:([0-9A-Za-z-]{1,64})/([0-9]{1,16})@)?([0-9]{1,19})", re.ASCII)
_STATE: Final = re.compile(r"([0-9A-Za-z-]{1,64})(?:/([0-9]{1,16}))?", re.ASCII)

_log = logging.getLogger("callboard.commitlog")


def is_log_id(text: object) -> bool:
    """Return whether a text can be the id of a log."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


class Position(NamedTuple):
    """A position in a log; `str(position)` is `LOG/EPOCH@OFFSET`, or `OFFSET` without a log.

    Attributes:
        log: Id of the log; empty if callboard 0.1 stored the position.
        epoch: Epoch of the record before the offset; 0 if it is not known, and at the start.
        offset: Offset of the next record.
    """

    log: str
    epoch: int
    offset: int

    def __str__(self) -> str:
        """Return the position as text."""
        return f"{self.log}/{self.epoch}@{self.offset}" if self.log else str(self.offset)

    def as_fields(self) -> dict[str, Any]:
        """Return the position for JSON: as 0.1 stored it, with the log and epoch if known."""
        fields: dict[str, Any] = {"offset": self.offset}
        return {**fields, "log": self.log, "epoch": self.epoch} if self.log else fields

    def encode(self) -> bytes:
        """Return the contents of a file with this position."""
        fields = {**self.as_fields(), "sum": crc32(str(self).encode())}
        return json.dumps(fields).encode() + b"\n"


def parse_position(text: str) -> Position:
    """Parse `LOG/EPOCH@OFFSET`, or an offset.

    Raises:
        InvalidOption: the text is neither.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None or int(match[3]) > LAST_OFFSET:
        message = f"{text!r:.120} is not a position; use an offset, or LOG/EPOCH@OFFSET"
        raise InvalidOption(message)
    return Position(match[1] or "", int(match[2] or 0), int(match[3]))


def position_of(fields: Mapping[str, Any]) -> Position:
    """Return the position in fields of JSON.

    Raises:
        ValueError: the fields are not a position.
    """
    log, epoch = fields.get("log", ""), fields.get("epoch", 0)
    offset = fields.get("offset")
    are_numbers = type(epoch) is int and type(offset) is int
    if (log == "" or is_log_id(log)) and are_numbers:
        assert isinstance(offset, int)
        if 0 <= epoch <= LAST_EPOCH and 0 <= offset <= LAST_OFFSET:
            return Position(log, epoch, offset)
    message = f"{dict(fields)!r:.200} is not a position in a log"
    raise ValueError(message)


def decode_position(data: bytes) -> Position:
    """Return the position in a file; 0.1 wrote an offset alone.

    Raises:
        ValueError: the file is empty or damaged.
    """
    text = data.decode("ascii", errors="replace").strip()
    if text.isdecimal():
        return parse_position(text)
    with suppress(json.JSONDecodeError, NestedTooDeep):
        fields = parse_json(text)
        if isinstance(fields, dict):
            position = position_of(fields)
            if fields.get("sum") == crc32(str(position).encode()):
                return position
    message = "the file is damaged" if text else "the file is empty"
    raise ValueError(message)


class Epoch(NamedTuple):
    """An epoch, and the offset of its first record."""

    number: int
    first: int


class LogIdentity(NamedTuple):
    """The id of a log, and its epochs.

    Attributes:
        log: The id; empty if it is unknown, because callboard 0.1 wrote the log.
        epochs: The epochs, by their first offsets; empty if they are unknown.
    """

    log: str = ""
    epochs: tuple[Epoch, ...] = ()

    def __str__(self) -> str:
        """Return `LOG/EPOCH` with the last epoch, or `unknown identity`."""
        if not self.log:
            return UNKNOWN
        return f"{self.log}/{self.epochs[-1].number if self.epochs else 0}"

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of a record; 0 if it is not known."""
        index = bisect_right(self.epochs, offset, key=lambda epoch: epoch.first) - 1
        return self.epochs[index].number if index >= 0 else 0

    def position(self, offset: int) -> Position:
        """Return the position before a record, which need not exist yet."""
        if not self.log:
            return Position("", 0, offset)
        return Position(self.log, self.epoch_of(offset - 1) if offset else 0, offset)

    def is_named(self, state: str) -> bool:
        """Return whether a text such as `LOG/EPOCH` names this log in one of its epochs."""
        if not self.log:
            return state == UNKNOWN
        match = _STATE.fullmatch(state)
        if match is None or match[1] != self.log:
            return False
        numbers = [epoch.number for epoch in self.epochs] or [0]
        return match[2] is None or int(match[2]) in numbers


class PositionOwner(NamedTuple):
    """The owner of a stored position, for errors.

    Attributes:
        name: Such as "the reader billing".
        log: The path or address of the log.
        accept: How the owner continues on purpose; `{}` stands for the log's state.
    """

    name: str
    log: str
    accept: str


def resume(
    position: Position, identity: LogIdentity, end: int, owner: PositionOwner, accept: str = ""
) -> Position:
    """Return the position at which to continue, with the log and the epoch of this log.

    Args:
        position: The stored position.
        identity: Identity of the log.
        end: The offset after the last record of the log.
        owner: The owner of the position.
        accept: State of the log, as `str(identity)`, that is accepted despite a mismatch. The
            owner then continues at the same offset, but not after the end of the log, nor after
            the first record that another epoch replaced.

    Raises:
        OtherLog: the position belongs to another log.
        OtherEpoch: the record before the position was replaced by another one.
        PositionAhead: the log ends before the position.
    """
    refusal = _refusal(position, identity, end, owner)
    if refusal is None:
        is_whole = position.log and (position.epoch or not position.offset)
        adopted = position if is_whole else identity.position(position.offset)
        if adopted != position:
            _report_adoption(position, identity, owner)
        return adopted
    if accept and identity.is_named(accept):
        first = min(position.offset, end)
        following = _after(position, identity)
        if position.log == identity.log and following is not None:
            first = min(first, following.first)
        text = "%s accepts the log %s (%s) and continues at %d; it was at %s"
        _log.warning(text, owner.name, owner.log, identity, first, position)
        return identity.position(first)
    COUNTS.refused += 1
    _OPEN.add(COUNTS)
    raise refusal


def _after(position: Position, identity: LogIdentity) -> Epoch | None:
    """Return the first epoch of a log after that of a position."""
    later = (epoch for epoch in identity.epochs if epoch.number > position.epoch)
    return next(later, None) if position.epoch else None


def _refusal(
    position: Position, identity: LogIdentity, end: int, owner: PositionOwner
) -> PositionRefused | None:
    """Return the reason why a position cannot be used with a log; None if it can."""
    offset, way = position.offset, owner.accept.format(str(identity))
    if position.log and position.log != identity.log:
        return OtherLog(
            f"{owner.name} is at {offset} of the log {position.log}/{position.epoch}, but"
            f" {owner.log} is another log: {identity}; use the log that belongs to this"
            f" position, or continue in this one on purpose: {way}"
        )
    numbers = [epoch.number for epoch in identity.epochs]
    is_checked = bool(position.log and position.epoch)
    following = _after(position, identity)
    if is_checked and (
        position.epoch not in numbers or (following is not None and following.first < offset)
    ):
        since = f" at {following.first}" if following else ""
        return OtherEpoch(
            f"{owner.name} is at {offset} in epoch {position.epoch}, but other records follow"
            f"{since} in {owner.log} ({identity}): its records were lost and replaced, or an"
            f" older copy of the folder was continued; to continue on purpose: {way}"
        )
    if offset > end:
        return PositionAhead(
            f"{owner.name} is at {offset}, but {owner.log} ({identity}) ends at {end}: its"
            " last records were lost, or an older copy is in its place; put the records back,"
            f" or continue at {end} on purpose: {way}"
        )
    return None


def _report_adoption(position: Position, identity: LogIdentity, owner: PositionOwner) -> None:
    """Report and count that a position of callboard 0.1 gets the log and the epoch."""
    COUNTS.adopted += 1
    _OPEN.add(COUNTS)
    text = "%s was stored at %d without the id of its log; it belongs to %s (%s) from now on"
    _log.warning(text, owner.name, position.offset, owner.log, identity)


class PositionCounts:
    """Counts of positions that adopted a log, or were refused, in this process."""

    def __init__(self) -> None:
        """Start at zero."""
        self.adopted = 0
        self.refused = 0


COUNTS: Final = PositionCounts()

_FIGURES: Final[tuple[Figure[PositionCounts], ...]] = figures_of(
    "callboard_log_positions_",
    (
        ("adopted_total", "Positions of callboard 0.1 that adopted a log.", "adopted"),
        ("refused_total", "Positions that did not belong to their log.", "refused"),
    ),
)

_OPEN: Final[ProcessFigures[PositionCounts]] = ProcessFigures(
    _FIGURES, lambda counts: ((), counts), LogError
)
