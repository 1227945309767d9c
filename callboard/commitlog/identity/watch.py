"""Notices that a log that is being read becomes another one, or continues after a loss."""

from typing import Final, Protocol

from callboard.commitlog.folder import LAST_OFFSET
from callboard.commitlog.identity.position import LogIdentity, Position, PositionOwner, resume

_WAY: Final = "open the log again, and start at the offset that you want"


class Identified(Protocol):
    """A log with an identity."""

    @property
    def folder(self) -> str:
        """The path of the log; empty in memory."""

    @property
    def identity(self) -> LogIdentity:
        """The id of the log and its epochs."""

    @property
    def identity_mark(self) -> object:
        """A value that changes with the identity, and is read faster than the identity."""


class IdentityWatch:
    """Compares the identity of a log, each time it changes, with the position of its reader.

    Attributes:
        identity: The identity at the last comparison.
    """

    def __init__(self, log: Identified, offset: int, name: str) -> None:
        """Start at an offset; `name` is that of the reader, for errors."""
        self._log = log
        self._name = name
        self._mark = log.identity_mark
        self.identity = log.identity
        #: Records before this offset were read with this identity.
        self._offset = offset

    @property
    def is_changed(self) -> bool:
        """Whether the identity may have changed since the last comparison."""
        return self._log.identity_mark != self._mark

    def check(self, offset: int) -> None:
        """Compare the log with the records that were read before an offset.

        Raises:
            OtherLog: the log is another one now.
            OtherEpoch: records that were read before were replaced.
            LogFailed: the disk or the server reports an error.
        """
        mark = self._log.identity_mark
        if mark != self._mark:
            identity = self._log.identity
            if identity != self.identity:
                owner = PositionOwner(self._name, self._log.folder, _WAY)
                position = self.identity.position(self._offset)
                if position.log or identity.log:
                    resume(position, identity, LAST_OFFSET, owner)
                self.identity = identity
            self._mark = mark
        self._offset = offset

    def position(self, offset: int) -> Position:
        """Return the position at an offset, for a reader that has read up to it."""
        self.check(min(offset, self._offset) if self.is_changed else offset)
        return self.identity.position(offset)
