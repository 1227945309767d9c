"""Actors and messages that several tests use."""

import asyncio
import threading
from dataclasses import dataclass

from callboard import Actor, handler


@dataclass(frozen=True)
class Fail:
    text: str = "as asked"


class Echo(Actor):
    @handler
    def text(self, msg: str) -> str:
        return msg

    @handler
    def fail(self, msg: Fail) -> None:
        raise ValueError(msg.text)


class Collector(Actor):
    """Keeps messages; answers `list` (the class) with all of them."""

    def __init__(self):
        self.kept = []

    @handler
    def keep(self, msg: object) -> None:
        self.kept.append(msg)

    @handler
    def give(self, msg: type) -> list:
        return list(self.kept)


class Gate(Actor):
    """Holds its thread in a handler until the test opens it."""

    def __init__(self):
        self.entered = threading.Event()
        self.opened = threading.Event()

    @handler
    def wait(self, msg: str) -> str:
        self.entered.set()
        assert self.opened.wait(150)
        return msg


class Waiter(Actor):
    """Awaits in its handler for ever; tells when it began and how it ended."""

    def __init__(self):
        self.entered = threading.Event()
        self.left = threading.Event()
        self.cancelled = False

    @handler
    async def wait(self, msg: str) -> str:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.left.set()
        return msg


class Parent(Actor):
    """Spawns the classes that it receives."""

    @handler
    def start(self, msg: type) -> object:
        return self.spawn(msg)


def instance(ref):
    """The actor of a local ref."""
    return ref.target.actor
