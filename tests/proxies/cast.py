"""The actors, messages and small helpers that the tests of this folder share."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callboard import Actor, ActorRef, Down, Exit, Node, Promise, Query, handler, message
from tests.polling import eventually

ROOT = Path(__file__).parents[2]


@message("tests.proxies.Parcel")
@dataclass(frozen=True)
class Parcel:
    content: Any = None
    more: dict[str, Any] = field(default_factory=dict)


@message("tests.proxies.Size")
@dataclass(frozen=True)
class Size(Query[int]):
    pass


@message("tests.proxies.Big")
@dataclass(frozen=True)
class Big(Query[bytes]):
    size: int


@message("tests.proxies.Forward")
@dataclass(frozen=True)
class Forward:
    to: ActorRef
    content: Any


@message("tests.proxies.Watch")
@dataclass(frozen=True)
class Watch:
    ref: ActorRef


@message("tests.proxies.LinkTo")
@dataclass(frozen=True)
class LinkTo:
    ref: ActorRef
    undo: bool = False


class Unregistered:
    """A class that no registry knows."""


class Echo(Actor):
    """Answers messages; keeps nothing."""

    @handler
    def text(self, msg: str) -> str:
        return msg

    @handler
    def data(self, msg: bytes) -> int:
        return len(msg)

    @handler
    def big(self, msg: Big) -> bytes:
        return bytes(msg.size)

    @handler
    def parcel(self, msg: Parcel) -> Any:
        return msg.content

    def double(self, number: int, *, plus: int = 0) -> int:
        return 2 * number + plus

    async def slow_double(self, number: int) -> int:
        await self.sleep(0)
        return 2 * number

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def give_lock(self) -> object:
        return Unregistered()


class Sink(Actor):
    """Remembers integers in the order they came."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @handler
    def number(self, msg: int) -> None:
        self.seen.append(msg)

    @handler
    def items(self, msg: list) -> None:
        self.seen.append(msg)

    @handler
    def parcel(self, msg: Parcel) -> None:
        self.seen.append(msg)

    @handler
    def size(self, _: Size) -> int:
        return len(self.seen)

    def everything(self) -> list[Any]:
        return self.seen


class Postman(Actor):
    """Passes contents on to the refs that it is given."""

    @handler
    def forward(self, msg: Forward) -> None:
        msg.to.tell(msg.content)

    @handler
    async def parcel(self, msg: Parcel) -> Any:
        return await msg.more["list"][0]["ref"].ask("by a ref from deep inside")


class Later(Actor):
    """Owes every answer until it is told `float`."""

    def __init__(self) -> None:
        self.owed: list[tuple[Promise, str]] = []

    @handler
    def text(self, msg: str) -> None:
        self.owed.append((self.promise(), msg))

    @handler
    def settle(self, _: float) -> None:
        for promise, text in self.owed:
            promise.set_result(text.upper())
        self.owed.clear()

    def count(self) -> int:
        return len(self.owed)


class Replier(Actor):
    """Answers in Thespian's way: with a message to the sender."""

    def receiveMsg_str(self, msg: str, sender: Any) -> None:
        self.send(sender, f"re: {msg}")

    def receiveMsg_int(self, msg: int, sender: Any) -> None:
        """Never answers."""


class Linking(Actor):
    @handler
    def link_to(self, msg: LinkTo) -> None:
        if msg.undo:
            self.unlink(msg.ref)
        else:
            self.link(msg.ref)


class Guard(Linking):
    """Monitors and links others, and records the notifications."""

    trap_exit = True

    def __init__(self) -> None:
        self.downs: list[tuple[str, str]] = []
        self.exits: list[str] = []

    @handler
    def watch(self, msg: Watch) -> None:
        self.monitor(msg.ref)

    @handler
    def down(self, msg: Down) -> None:
        self.downs.append((str(msg.reason), msg.detail))

    @handler
    def exit(self, msg: Exit) -> None:
        self.exits.append(str(msg.reason))

    def told(self) -> list[list[Any]]:
        return [self.downs, self.exits]


class Fragile(Linking):
    """Ends together with the actors that it is linked to."""

    @handler
    def text(self, msg: str) -> str:
        return msg


class Blocker(Actor):
    """Waits for a gate, forwards a message, and returns when another gate is open."""

    def __init__(self, gate: threading.Event, end: threading.Event | None = None) -> None:
        self.gate = gate
        self.end = end

    @handler
    def forward(self, msg: Forward) -> None:
        self.gate.wait(60)
        msg.to.tell(msg.content)
        if self.end is not None:
            self.end.wait(60)


class Unlucky(Actor):
    def __init__(self, how: str = "") -> None:
        if how == "exit":
            sys.exit(3)
        raise RuntimeError(f"no luck {how}")


class Keyed(Actor):
    def __init__(self, first: int = 0, *, second: int = 0) -> None:
        self.sum = first + second

    def total(self) -> int:
        return self.sum


def line(*nodes: Node) -> None:
    """Link each node with the next; returns when all know all."""
    for left, right in zip(nodes, nodes[1:], strict=False):
        connect(left, right)
    everybody_knows(*nodes)


def connect(left: Node, right: Node) -> None:
    try:
        address = right.address
    except ValueError:
        right.listen()
        address = right.address
    left.connect(address)


def cut(node: Node, other: Node) -> None:
    """Cut the link between two neighbours for as long as a test may take."""
    node.disconnect(other.node_id, 60.0)


def bare(node: Node, ref: ActorRef) -> ActorRef:
    """Return the ref without an address, so that nobody dials it directly."""
    return node.ref(f"basp:///{ref.actor_id}@{ref.node_id.hex()}")


def heal(node: Node, other: Node) -> None:
    """Make two neighbors link again."""
    node._broker.connector._barred.clear()
    other._broker.connector._barred.clear()
    connect(node, other)


def everybody_knows(*nodes: Node) -> None:
    eventually(lambda: all(len(node.nodes()) >= len(nodes) - 1 for node in nodes))


def law_holds(node: Node) -> bool:
    return all(
        account.sent == account.confirmed + account.lost + account.in_flight
        and account.in_flight >= 0
        for account in node.accounts().values()
    )


def settled(*nodes: Node) -> None:
    """Wait until everything sent is confirmed or lost; the law has to hold all the while."""

    def quiet() -> bool:
        for node in nodes:
            node.report_now()
            assert law_holds(node), node.accounts()
        return all(
            account.in_flight == 0 for node in nodes for account in node.accounts().values()
        )

    eventually(quiet)


@contextlib.contextmanager
def recorded(node: Node) -> Iterator[list[Any]]:
    """Collect the events of a node."""
    events: list[Any] = []
    with node.subscribed(events.append):
        yield events


@contextlib.contextmanager
def child_node(*joins: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a node with an Echo registered as `echo` in a separate process."""
    program = (
        "import sys, threading\n"
        "from callboard import Node\n"
        "from tests.proxies.cast import Echo\n"
        "node = Node('child', join=sys.argv[1:])\n"
        "node.listen(); node.register('echo', node.spawn(Echo))\n"
        "print(node.address, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, *joins],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()
