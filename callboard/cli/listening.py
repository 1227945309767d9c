"""What commands with a node of their own share: its port, and the signals that end it."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

from callboard import Node
from callboard.cli.failure import FAILED, MISUSED, Failure
from callboard.operation import settings

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def catch_signals(stop: threading.Event) -> Iterator[None]:
    """Let the first signal set `stop`, also during the set-up, and the next one end all.

    That end is at once: nothing is closed, whatever some handler does, and the others see the
    links break.
    """

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os.write(2, b"callboard: ended by a second signal; one lets it finish first\n")
            os._exit(FAILED)
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_port(node: Node, listen: str, *, insecure: bool) -> None:
    """Let a node listen.

    Raises:
        Failure: the port is taken, or the address is not one of this machine.
    """
    address, port = parse_listen(listen)
    try:
        node.listen(address, port, insecure=insecure)
    except OSError as error:
        raise Failure(
            why=f"cannot listen on {listen}: {error.strerror or error}",
            step="choose another --listen HOST:PORT, port 0 picks a free one",
        ) from error


def parse_listen(text: str) -> tuple[str, int]:
    """Return what `node.listen` takes for `HOST:PORT` or `unix:/PATH`.

    Raises:
        Failure: the text is something else.
    """
    try:
        return settings.parse_listen(text)
    except ValueError as error:
        raise Failure(
            why=f"{text!r} is no HOST:PORT",
            step="write it like --listen 127.0.0.1:4222",
            code=MISUSED,
        ) from error
