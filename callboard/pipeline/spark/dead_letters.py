"""Records that do not decode: they go into a log of their own, with offset and reason.

Tasks append to it, one at a time. A task that Spark runs again finds that its range is there
already and adds nothing.
"""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from callboard.commitlog import CommitLog, LogLocked, Retention
from callboard.pipeline.errors import PublishFailed

#: The topic of a dead letter: this, and that of the record.
TOPIC: Final = "/dead-letters"

#: Seconds that a task waits for the others that write the same log.
_PATIENCE: Final = 60.0

_PAUSE: Final = 0.02
_RANGE: Final = "range"


class DeadLetter(NamedTuple):
    """A record whose payload does not fit the schema; its time is in nanoseconds."""

    offset: int
    time: int
    topic: str
    key: bytes | None
    payload: bytes
    is_bytes: bool
    reason: str


def bury(
    folder: str,
    source: str,
    span: tuple[int, int],
    letters: Sequence[DeadLetter],
    retain: Retention | None = None,
) -> None:
    """Append dead letters of a range of records, unless they are there; durable on return.

    Args:
        folder: The directory of their log.
        source: The log that they come from.
        span: The offsets of the range.
        letters: What did not decode in it.
        retain: How long dead letters are kept; their age counts from the time of the record.

    Raises:
        PublishFailed: others write that log all the time.
        LogFailed: the disk refuses.
    """
    place = f"{source}:{span[0]}-{span[1]}"
    with _open(folder, retain) as log:
        if any(record.headers.get(_RANGE) == place for record in log):
            return
        log.append_batch(
            [letter.payload for letter in letters],
            topic=[topic_of(letter) for letter in letters],
            key=[key_of(letter) for letter in letters],
            headers=[headers_of(letter, place) for letter in letters],
            time=[letter.time for letter in letters],
        )
        log.flush()


def topic_of(letter: DeadLetter) -> str:
    """Return the topic that a dead letter has."""
    return TOPIC + (letter.topic if letter.topic.startswith("/") else f"/{letter.topic}")


def key_of(letter: DeadLetter) -> str | bytes | None:
    """Return the key of the record; columns hold text as bytes."""
    try:
        return letter.key and letter.key.decode()
    except UnicodeDecodeError:
        return letter.key


def headers_of(letter: DeadLetter, place: str) -> dict[str, str]:
    """Return what a dead letter tells beside the payload."""
    return {
        "offset": str(letter.offset),
        "reason": letter.reason,
        "encoding": "bytes" if letter.is_bytes else "cbor",
        _RANGE: place,
    }


def _open(folder: str, retain: Retention | None) -> CommitLog:
    """Open the log of dead letters, waiting for other tasks that write it."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return CommitLog(folder, sync="none", retain=retain)
        except LogLocked:
            if time.monotonic() > deadline:
                what = f"{folder} is locked for {_PATIENCE:g} s; see who writes it"
                raise PublishFailed(what) from None
            time.sleep(_PAUSE)
