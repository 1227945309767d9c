"""Run a program in a separate terminal, and record its output."""

import fcntl
import os
import pty
import struct
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Sequence
from pathlib import Path

from scripts.films.cast import Cast

__all__ = ["ProgramFailedError", "record"]


class ProgramFailedError(RuntimeError):
    """A recorded program ended with an error: that is not what the docs show."""


def record(command: Sequence[str], typed: str, columns: int, rows: int, folder: Path) -> Cast:
    """Run a command to its end, and return what it wrote.

    Args:
        command: the program and its arguments.
        typed: what the recording shows as typed by its user.
        columns: width of the terminal.
        rows: its height.
        folder: where it runs.

    Raises:
        ProgramFailedError: it did not end with 0.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(rows))
        os.environ.pop("NO_COLOR", None)
        os.chdir(folder)
        os.execvp(command[0], [*command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    events = [(0.0, f"\x1b[32m$\x1b[0m {typed}\r\n")]
    begin = time.monotonic()
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    while data := _read(terminal):
        events.append((time.monotonic() - begin, decoder.decode(data)))
    _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        *_, (_, shown) = Cast(columns, rows, typed, tuple(events)).frames()
        text = "\n".join("".join(run.text for run in row) for row in shown if row)
        message = f"{typed} ended with {code}:\n{text}"
        raise ProgramFailedError(message)
    return Cast(columns, rows, typed, tuple(_whole(events)))


def _read(terminal: int) -> bytes:
    """Return the output since the last call; b"" when the program has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: Linux says so when no one holds the other side
        return b""


def _whole(events: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Join the two parts of a sequence that was cut."""
    whole, rest = [], ""
    for seconds, text in events:
        text = rest + text
        cut = text.rfind("\x1b")
        rest = ""
        if cut >= 0 and not any(letter.isalpha() for letter in text[cut:]):
            text, rest = text[:cut], text[cut:]
        whole.append((seconds, text))
    return whole
