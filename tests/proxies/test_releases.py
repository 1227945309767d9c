"""Two releases of a program in two processes, linked: the same names, other classes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import pytest

from callboard import Actor, Node, errors, handler, message
from tests.proxies.cast import ROOT, eventually

EARLIER = """
import sys
from dataclasses import dataclass, field
from enum import Enum
from callboard import Actor, Node, handler, message

@message("tests.releases.Item")
@dataclass(frozen=True)
class Item:
    name: str
    weight: float = 1.0

@message("tests.releases.Order")
@dataclass(frozen=True)
class Order:
    items: list
    notes: list = field(default_factory=list)

@message("tests.releases.Size")
class Size(Enum):
    SMALL = 1

@message("tests.releases.Strict")
@dataclass(frozen=True)
class Strict:
    needed: int

class Shop(Actor):
    @handler
    def order(self, msg: Order) -> Order:
        return Order([*msg.items, Item("gift")], [*msg.notes, repr(msg)])

    @handler
    def size(self, msg: Size) -> Size:
        return msg

    @handler
    def strict(self, msg: Strict) -> Strict:
        return msg

    @handler
    def text(self, msg: str) -> int:
        return self.node.stats().dropped_fields

with Node("earlier") as node:
    node.listen()
    node.register("shop", node.spawn(Shop))
    print(node.address, flush=True)
    sys.stdin.read()
"""


@message("tests.releases.Item")
@dataclass(frozen=True)
class Item:
    name: str
    color: str = "white"


@message("tests.releases.Order")
@dataclass(frozen=True)
class Order:
    items: list[Item]
    customer: str = "nobody"


@message("tests.releases.Size")
class Size(Enum):
    SMALL = 1
    LARGE = 2


@message("tests.releases.Strict")
@dataclass(frozen=True)
class Strict:
    needed: int
    new: int


class Till(Actor):
    def __init__(self, shop) -> None:
        self.shop = shop

    @handler
    async def order(self, msg: Order) -> Order:
        return await self.shop.ask(msg)


@pytest.fixture
def shop_address() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", EARLIER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        yield child.stdout.readline().strip()
        child.stdin.close()
        assert child.wait(120) == 0


@pytest.mark.slow
def test_two_releases_talk(make_node, shop_address):
    node: Node = make_node("later")
    shop = node.remote_actor(shop_address + "/shop")

    answer = node.spawn(Till, shop).ask(Order([Item("tea", "green")], "Ann")).result(5)

    assert answer == Order([Item("tea"), Item("gift")])  # what the other release kept
    assert node.stats().dropped_fields == 3  # two weights and the notes
    assert shop.ask("dropped").result(5) == 2  # the color and the customer

    assert shop.ask(Size.SMALL).result(5) is Size.SMALL
    with pytest.raises(errors.MessageVersion, match="has no member 'LARGE'"):
        shop.ask(Size.LARGE).result(5)
    with pytest.raises(errors.MessageVersion, match="lacks field 'new'"):
        shop.ask(Strict(1, 2)).result(5)  # it is the answer that cannot be read here
    shop.tell(Size.LARGE)

    eventually(lambda: node.accounts()[shop.node_id].in_flight == 0)
    account = node.accounts()[shop.node_id]
    assert (account.dead_letters, account.lost) == (2, 0)
    assert len(node.links()) == 1
