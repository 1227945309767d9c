"""Modules that tests link."""

import threading
from typing import Any

from callboard.gateway.module import Module
from callboard.gateway.wire.message import Message

LIMIT = 60.0
"""Seconds that a test waits for a condition that will come."""


class Recorder(Module):
    """Keeps what it receives, and sees whether calls of it overlap."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.calls: list[str] = []
        self.overlaps = 0
        self.args: Any = None
        self._inside = 0
        self._more = threading.Condition()

    def create(self, args: Any) -> None:
        self._note("create")
        self.args = args

    def start(self) -> None:
        self._note("start")

    def destroy(self) -> None:
        self._note("destroy")

    def receive(self, message: Message) -> None:
        self._inside += 1
        self.overlaps += self._inside > 1
        try:
            self.handle(message)
            with self._more:
                self.got.append(message)
                self._more.notify_all()
        finally:
            self._inside -= 1

    def handle(self, message: Message) -> None:
        """Do more with a message."""

    def _note(self, call: str) -> None:
        with self._more:
            self.calls.append(call)
            self._more.notify_all()

    def until(self, count: int) -> list[Message]:
        """Wait for a number of messages."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.got) >= count, LIMIT), len(self.got)
            return list(self.got)

    def until_called(self, call: str, times: int = 1) -> None:
        with self._more:
            assert self._more.wait_for(lambda: self.calls.count(call) >= times, LIMIT)

    @property
    def contents(self) -> list[bytes]:
        return [message.content for message in self.got]


class Quiet(Module):
    """Only publishes what others give it."""


class Relay(Recorder):
    """Publishes what it receives."""

    def handle(self, message: Message) -> None:
        self.publish(message)


class Gate(Recorder):
    """Receives only while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.entered = threading.Event()

    def handle(self, message: Message) -> None:
        self.entered.set()
        assert self.open.wait(LIMIT)


class Failing(Recorder):
    """Raises for some contents."""

    def handle(self, message: Message) -> None:
        if message.content.startswith(b"bad"):
            error = f"cannot take {message.content!r}"
            raise ValueError(error)
