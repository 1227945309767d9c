"""Actors that real CAF nodes talk to, and the messages of both sides."""

import contextlib
from dataclasses import dataclass

from callboard import Actor, ActorRef, Future, handler, message
from callboard.caf import CafError
from tests.interop.caf.real_node import real_nodes
from tests.polling import eventually

WAIT = 10


@message("tests.real.Add", caf="'add'+@i32+@i32")
@dataclass
class Add:
    left: int
    right: int


@message("tests.real.Point", caf="point")
@dataclass
class Point:
    x: int
    name: str


class Service(Actor):
    """The service of `node.cpp`, in Python."""

    def __init__(self, base=0):
        self.base, self.seen = base, []

    @handler
    def number(self, value: int) -> int:
        return self.base + value

    @handler
    def add(self, request: Add) -> int:
        return request.left + request.right

    @handler
    def pair(self, pair: tuple) -> int:
        return sum(pair)

    @handler
    def point(self, point: Point) -> Point:
        return Point(point.x * 2, point.name + "!")

    @handler
    def texts(self, _: None) -> list:
        return self.seen

    @handler
    async def gate(self, gate: Future):
        """Wait for a future, so that messages wait in the mailbox."""
        await gate

    @handler
    def text(self, text: str):
        self.seen.append(text)
        if text == "fail":
            return CafError(28, "system", "boom")
        if text == "hang":
            self.kept = self.promise()
            return None
        return text.upper()


class Linked(Actor):
    trap_exit = False

    @handler
    def start(self, values: tuple):
        self.link(values[0])


class Keeper(Actor):
    """Keeps the ref that it was sent."""

    def __init__(self):
        self.kept = None

    @handler
    def keep(self, ref: ActorRef):
        self.kept = ref

    @handler
    def given(self, _: str):
        return self.kept


@contextlib.contextmanager
def behind_hub(node, *options):
    """Yield two CAF nodes, and the ref of an actor of the second one from the first."""
    with real_nodes(2, *options) as (hub, far):
        keeper = node.spawn(Keeper)
        port = node.listen(wire="caf-0.17", publish=keeper)
        assert hub.do(f"remote {far.serve()}") == "remote"
        assert hub.do(f"pass {port}") == "sent"
        eventually(lambda: keeper.ask("given").result(WAIT) is not None)
        yield hub, far, keeper.ask("given").result(WAIT)
