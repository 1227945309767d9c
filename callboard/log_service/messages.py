"""What readers of a served log ask of the node that has it.

The bytes of files travel as they are on the disk; who reads checks and decodes them. So every
answer stands for itself: nothing of a reader is kept at the node, and one that was cut off asks
on from where it was.
"""

import struct
from typing import Final, NamedTuple

from callboard.commitlog.folder import LAST_OFFSET, SERVED, SERVED_NAME
from callboard.kernel.actors import Query, frozen_message

#: Bytes of one answer: a frame delays what is behind it on its link.
PIECE: Final = 256 << 10

#: Before the bytes of an answer: the size of the file then, or an error number below zero.
_SIZE: Final = struct.Struct(">q")


@frozen_message("callboard.ListLogs")
class ListLogs(Query[tuple[str, ...]]):
    """To a log service: which logs are there, that the asker may read? Answered by names."""


@frozen_message("callboard.ListLogFiles")
class ListLogFiles(Query[tuple[str, ...]]):
    """To a log service: which files has a log? Answered by their names."""

    log: str


@frozen_message("callboard.ReadLogFile")
class ReadLogFile(Query[bytes]):
    """To a log service: bytes of a file; answered as `FileBytes` are packed.

    There are fewer than asked at the end of the file, and where `PIECE` or what a message may
    hold is less.

    Attributes:
        log: its name.
        file: that of the file.
        at: the first byte.
        size: how many; with 0 only the size of the file is told.
        reader: tells the readers of one node apart, for figures.
    """

    log: str
    file: str
    at: int = 0
    size: int = 0
    reader: int = 0


@frozen_message("callboard.AwaitLogGrowth")
class AwaitLogGrowth(Query["tuple[str, int]"]):
    """To a log service: tell when a log's newest segment is another, or has another size.

    Answered by both at once where that is so already, and after some seconds in any case.
    """

    log: str
    file: str = ""
    size: int = -1


#: Questions about one log, whose name is `log`.
LogQuestion = ListLogFiles | ReadLogFile | AwaitLogGrowth


def objection(question: LogQuestion) -> str:
    """Return why a question is none that a reader asks; empty if it is one."""
    log: object = question.log
    if type(log) is not str or not SERVED_NAME.fullmatch(log):
        return "a log's name has letters, digits and -_.+@="
    if isinstance(question, ListLogFiles):
        return ""
    file: object = question.file
    if type(file) is not str or not (SERVED.fullmatch(file) or file == ""):
        return "this is no file of a log"
    if isinstance(question, AwaitLogGrowth):
        is_size = type(question.size) is int and -1 <= question.size <= LAST_OFFSET
        return "" if is_size else "a size is a number from -1 on"
    numbers = (question.at, question.size, question.reader)
    are_so = all(type(each) is int and 0 <= each <= LAST_OFFSET for each in numbers)
    return "" if are_so and file else "at, size and reader are numbers from 0 on"


class FileBytes(NamedTuple):
    """Bytes of a file, and its size; an error number below zero where it cannot be read."""

    size: int
    data: bytes = b""

    def pack(self) -> bytes:
        """Return the answer: one byte string, which is read at once however long it is."""
        return _SIZE.pack(self.size) + self.data


def unpack_file_bytes(answer: object) -> FileBytes:
    """Read an answer.

    Raises:
        ValueError: it is none.
    """
    if type(answer) is not bytes or len(answer) < _SIZE.size:
        what = "the answer holds no bytes of a file"
        raise ValueError(what)
    return FileBytes(_SIZE.unpack_from(answer)[0], answer[_SIZE.size :])
