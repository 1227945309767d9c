"""The errors of logs.

    LogError
    ├── LogLocked       another process (or this one) writes the log
    ├── LogClosed       the log was closed
    ├── LogCorrupt      bytes that were durable are damaged
    ├── LogFailed       (OSError) the disk refused something
    │   ├── LogReplaced a file or the folder was removed or replaced under the writer
    │   └── NotPlain    what is in a file's place is a link, a pipe or a device
    │       └── FolderInPlace (IsADirectoryError) or a folder
    ├── InvalidRecord   (ValueError) this cannot be stored
    ├── InvalidOption   (ValueError) an option or argument has a value that means nothing
    │   ├── WrongKind   (TypeError) or is of another kind
    │   └── FieldConflict   a field of this name is declared already, with another type
    ├── ProducerError   the records of a producer are not taken
    │   ├── ProducerFenced      it was opened again elsewhere
    │   ├── ProducerForgotten   the log does not know it (any more)
    │   ├── WrongNumber         (ValueError) a number leaves a gap, or is that of another record
    │   └── ReceiptUnknown      (TimeoutError) whether they were taken is not known yet
    ├── LogInUse        (WouldDeadlock) the call runs inside another one of the same log
    └── ExtraMissing    (ImportError) an optional package is not installed

The log imports no actors, so that programs without these can read it; therefore its errors have
a root of their own.
"""

from callboard.support.reentry import WouldDeadlock


class LogError(Exception):
    """Root of all errors of logs."""


class LogLocked(LogError):
    """Another process, or another `CommitLog` of this one, writes the log."""


class LogClosed(LogError):
    """The log was closed."""


class LogCorrupt(LogError):
    """Bytes that were durable are damaged or gone.

    Attributes:
        offset: The first record that cannot be read.
        next_offset: Where reading can go on; the records from `offset` up to here are lost.
    """

    def __init__(self, what: str, *, offset: int = 0, next_offset: int = 0) -> None:
        super().__init__(what)
        self.offset = offset
        self.next_offset = next_offset


class LogInUse(LogError, WouldDeadlock):
    """A finalizer, signal or logging handler used the log that its thread is writing to.

    Nothing was done. It cannot wait for the call that it interrupts; use a queue or a thread.
    """


class LogFailed(LogError, OSError):
    """The disk refused to write or to sync; nothing of that call was acknowledged."""


class LogReplaced(LogFailed):
    """The log's folder, or a file that its writer has open, was removed or replaced.

    What was acknowledged since then may be gone, and nothing more is acknowledged.
    """


class NotPlain(LogFailed):
    """A link, a pipe or a device is in the place of a file: it is neither followed nor read."""


class FolderInPlace(NotPlain, IsADirectoryError):
    """A folder is in the place of a file."""


class InvalidRecord(LogError, ValueError):
    """A record cannot be stored as it is."""


class InvalidOption(LogError, ValueError):
    """An option or argument has a value that means nothing; the text says what to give."""


class FieldConflict(InvalidOption):
    """A field of this name is declared already, with another type or other capitals."""


class WrongKind(InvalidOption, TypeError):
    """An option or argument is of another kind than the call takes."""


def require_kind(is_so: object, needed: str, given: object) -> None:
    """Refuse an argument of another kind; `needed` says which it takes.

    Raises:
        WrongKind: `is_so` is not true.
    """
    if not is_so:
        what = f"{needed}, not {given!r:.100}"
        raise WrongKind(what)


class ProducerError(LogError):
    """The records of a producer are not taken, or it is not known whether they are."""


class ProducerFenced(ProducerError):
    """The producer was opened again later, here or elsewhere; that one may append."""


class ProducerForgotten(ProducerError):
    """The log does not know the producer, or no longer: a double could not be told."""


class WrongNumber(ProducerError, ValueError):
    """A number leaves a gap, or was taken with another record; nothing was appended."""


class ReceiptUnknown(ProducerError, TimeoutError):
    """Whether a record was taken is not known; append it again with the same number.

    Attributes:
        number: That of the first record.
    """

    def __init__(self, what: str, number: int = 0) -> None:
        super().__init__(what)
        self.number = number


class ExtraMissing(LogError, ImportError):
    """An optional package is not installed."""
