"""The errors of logs.

    LogError
    ├── LogLocked       another process (or this one) writes the log
    ├── LogClosed       the log was closed
    ├── LogCorrupt      bytes that were durable are damaged
    ├── LogFailed       (OSError) a disk operation failed
    │   ├── LogReplaced a file or the folder was removed or replaced under the writer
    │   ├── LogsNotServed the node at an address does not serve logs
    │   └── NotPlain    a link, a pipe or a device is in the place of a file
    │       └── FolderInPlace (IsADirectoryError) a folder is
    ├── PositionRefused a stored position does not belong to the log
    │   ├── OtherLog        it is a position in another log
    │   ├── OtherEpoch      the records before it were lost and replaced
    │   └── PositionAhead   the log ends before it
    ├── InvalidRecord   (ValueError) the record cannot be stored
    ├── InvalidOption   (ValueError) an option or argument has an invalid value
    │   ├── WrongKind   (TypeError) an option or argument has the wrong type
    │   └── FieldConflict   a field of this name is declared already, with another type
    ├── ProducerError   records of a producer were refused
    │   ├── ProducerFenced      the producer was opened again elsewhere
    │   ├── ProducerForgotten   the log does not know the producer, or has forgotten it
    │   ├── WrongNumber         (ValueError) the number leaves a gap or is of another record
    │   └── ReceiptUnknown      (TimeoutError) it is unknown whether the log has the records
    ├── LogInUse        (WouldDeadlock) a call inside another call of the same log
    └── ExtraMissing    (ImportError) an optional package is not installed

Programs without actors can read logs, so the log does not import actors, and its errors do not
derive from `CallboardError`.
"""

from callboard.support.reentry import WouldDeadlock


class LogError(Exception):
    """Root of all errors of logs."""


class LogLocked(LogError):
    """Another process, or another `CommitLog` of this one, writes the log."""


class LogClosed(LogError):
    """The log was closed."""


class LogCorrupt(LogError):
    """Bytes that were durable are damaged or missing.

    Attributes:
        offset: Offset of the first record that cannot be read.
        next_offset: Offset at which reading can resume; the records before it are lost.
    """

    def __init__(self, message: str, *, offset: int = 0, next_offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset
        self.next_offset = next_offset


class LogInUse(LogError, WouldDeadlock):
    """A finalizer, signal or logging handler used the log that its thread is writing to.

    Nothing was changed. The handler cannot wait for the call that it interrupts; use a queue or
    a thread.
    """


class LogFailed(LogError, OSError):
    """A disk operation failed; no record of that call was acknowledged."""


class LogReplaced(LogFailed):
    """The log's folder, or a file that its writer has open, was removed or replaced.

    Records that were acknowledged since then may be lost. No further ones are acknowledged.
    """


class LogsNotServed(LogFailed):
    """The node at an address does not serve logs."""


class NotPlain(LogFailed):
    """A link, a pipe or a device is in the place of a file; it was not followed or read."""


class FolderInPlace(NotPlain, IsADirectoryError):
    """A folder is in the place of a file."""


class PositionRefused(LogError):
    """A stored position does not belong to the log; nothing was read.

    The text names both, and says how to continue on purpose.
    """


class OtherLog(PositionRefused):
    """The position belongs to another log."""


class OtherEpoch(PositionRefused):
    """The records before the position were lost, and the log continued with others."""


class PositionAhead(PositionRefused):
    """The log ends before the position."""


class InvalidRecord(LogError, ValueError):
    """A record cannot be stored in its present form."""


class InvalidOption(LogError, ValueError):
    """An option or argument has an invalid value; the text names valid ones."""


class FieldConflict(InvalidOption):
    """A field of this name is declared already, with another type or in other case."""


class WrongKind(InvalidOption, TypeError):
    """An option or argument has the wrong type."""


def require_kind(is_so: object, needed: str, value: object) -> None:
    """Check the type of an argument; `needed` describes what the call accepts.

    Raises:
        WrongKind: `is_so` is false.
    """
    if not is_so:
        msg = f"{needed}, not {value!r:.100}"
        raise WrongKind(msg)


class ProducerError(LogError):
    """Records of a producer were refused, or it is unknown whether they were appended."""


class ProducerFenced(ProducerError):
    """The producer was opened again, here or elsewhere; only the latest one may append."""


class ProducerForgotten(ProducerError):
    """The log does not know the producer, so it could not recognize a repeated append."""


class WrongNumber(ProducerError, ValueError):
    """A number leaves a gap, or belongs to another record; nothing was appended."""


class ReceiptUnknown(ProducerError, TimeoutError):
    """It is unknown whether a record was appended; append it again with the same number.

    Attributes:
        number: Number of the first record.
    """

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class ExtraMissing(LogError, ImportError):
    """An optional package is not installed."""
