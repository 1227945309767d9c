"""Requests of remote readers to the node that serves a log.

A reply holds the bytes of a file as they are on disk; the reader checks and decodes them. The
node keeps no state of readers, so a reader that lost its link continues from its position.
"""

import struct
from typing import Final, NamedTuple

from callboard.commitlog.folder import LAST_OFFSET, SERVED_NAME
from callboard.commitlog.remote.served import is_log_file, is_position
from callboard.kernel.actors import Query, frozen_message

#: Bytes of one reply: a larger frame would delay the frames queued after it on the link.
PIECE: Final = 256 << 10

#: Head of a reply: the size of the file at that moment, or a negative error number.
_SIZE: Final = struct.Struct(">q")


@frozen_message("callboard.ListLogs")
class ListLogs(Query[tuple[str, ...]]):
    """Asks a log service for the names of the logs that the asker may read."""


@frozen_message("callboard.ListLogFiles")
class ListLogFiles(Query[tuple[str, ...]]):
    """Asks a log service for the names of the files of a log."""

    log: str


@frozen_message("callboard.ReadLogFile")
class ReadLogFile(Query[bytes]):
    """Asks a log service for bytes of a file; the reply is a packed `FileBytes`.

    It holds fewer bytes than requested at the end of the file, and if `PIECE` or the message
    limit is smaller.

    Attributes:
        log: name of the log.
        file: name of the file.
        at: offset of the first byte.
        size: number of bytes; with 0 the reply holds only the size of the file.
        reader: number of the reader within its node, for figures.
    """

    log: str
    file: str
    at: int = 0
    size: int = 0
    reader: int = 0


@frozen_message("callboard.AwaitLogGrowth")
class AwaitLogGrowth(Query["tuple[str, int]"]):
    """Asks a log service to reply when the newest segment of a log changes its name or size.

    The reply is the new name and size. It is sent immediately if they differ already, and after
    some seconds in any case.
    """

    log: str
    file: str = ""
    size: int = -1


#: Requests about the log named by their field `log`.
LogQuestion = ListLogFiles | ReadLogFile | AwaitLogGrowth


def objection(question: LogQuestion) -> str:
    """Return why a request is malformed; empty if it is well formed."""
    log: object = question.log
    if type(log) is not str or not SERVED_NAME.fullmatch(log):
        return "a log name must consist of letters, digits and -_.+@="
    if isinstance(question, ListLogFiles):
        return ""
    file: object = question.file
    if file != "" and not is_log_file(file):
        return "this is not the name of a log file"
    if isinstance(question, AwaitLogGrowth):
        is_size = type(question.size) is int and -1 <= question.size <= LAST_OFFSET
        return "" if is_size else "size must be an integer from -1 on"
    numbers = (question.at, question.size, question.reader)
    return (
        ""
        if all(map(is_position, numbers)) and file
        else "at, size and reader must be integers from 0 on"
    )


class FileBytes(NamedTuple):
    """The size of a file and some of its bytes; `size` is a negative errno on failure."""

    size: int
    data: bytes = b""

    def pack(self) -> bytes:
        """Return the reply as one byte string, which decodes in constant time."""
        return _SIZE.pack(self.size) + self.data


def unpack_file_bytes(answer: object) -> FileBytes:
    """Decode a reply.

    Raises:
        ValueError: the reply is malformed.
    """
    if type(answer) is not bytes or len(answer) < _SIZE.size:
        msg = "the reply does not hold bytes of a file"
        raise ValueError(msg)
    return FileBytes(_SIZE.unpack_from(answer)[0], answer[_SIZE.size :])
