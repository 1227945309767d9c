"""Asks that come back to an entity which waits for their answer fail at once."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callboard import Actor, ActorRef, Entity, Node, event, handler, message
from callboard.basp.options import CHAIN_LIMIT
from callboard.errors import RemoteError, WouldDeadlock
from tests.polling import eventually


@message("entities-cycles.Pass")
@dataclass(frozen=True)
class Pass:
    """Ask the first of them to pass on the rest."""

    way: list[ActorRef]
    retries: int = 0
    has_sender: bool = False


@message("entities-cycles.Passed")
@dataclass(frozen=True)
class Passed:
    pass


async def pass_on(msg: Pass) -> int:
    if not msg.way:
        return 0
    rest = Pass(msg.way[1:], msg.retries, msg.has_sender)
    if msg.has_sender:
        msg.way[0].tell(rest)
        return 0
    answer: int = await msg.way[0].ask(rest, retries=msg.retries)
    return 1 + answer


class Stop(Entity):
    name = "entities-cycles.Stop"

    def __init__(self) -> None:
        self.passed = 0

    @handler
    async def on_pass(self, msg: Pass) -> int:
        self.persist(Passed())
        return await pass_on(msg)

    @event
    def on_passed(self, _: Passed) -> None:
        self.passed += 1

    @handler(read_only=True)
    def on_text(self, msg: str) -> int:
        return self.passed


class Between(Actor):
    @handler(concurrent=True)
    async def on_pass(self, msg: Pass) -> int:
        return await pass_on(msg)


class Line:
    """Two nodes that host stops, and a third one that only has actors."""

    def __init__(self, stack: ExitStack, state: str) -> None:
        self.state = state
        self.nodes = [
            stack.enter_context(Node(name, spawnable={"between": Between})) for name in "abc"
        ]
        self.nodes[0].listen("127.0.0.1", 0)
        for node in self.nodes[1:]:
            node.connect(self.nodes[0].address)
        for node in self.nodes:
            eventually(lambda node=node: len(node.nodes()) == 2)
        for node in self.nodes[:2]:
            node.host(Stop, state=state)
        self.between = self.nodes[2].spawn(Between)

    def stop(self, key: str) -> ActorRef:
        return self.nodes[0].entity(Stop, key)

    def keys_of(self, node: Node) -> Iterator[str]:
        for number in range(100):
            key = f"k-{number}"
            if self.stop(key).node_id == node.node_id:
                yield key


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with ExitStack() as stack:
        made = Line(stack, f"sqlite:{tmp_path}/state.db")
        eventually(lambda: len({made.stop(f"k-{each}").node_id for each in range(40)}) == 2)
        yield made


@pytest.mark.parametrize("retries", [0, 1])
def test_a_circle_of_asks_fails_at_once_and_says_its_way(line: Line, retries: int) -> None:
    one, two = next(line.keys_of(line.nodes[0])), next(line.keys_of(line.nodes[1]))
    between = line.nodes[0].ref(str(line.between))
    way = [line.stop(two), between, line.stop(one)]
    with pytest.raises(
        RemoteError, match=f"WouldDeadlock.*/{one} asks .*/{two} asks .*/{one}$"
    ):
        line.stop(one).ask(Pass(way, retries)).result(10)


def test_an_entity_that_asks_itself_fails_at_once(line: Line) -> None:
    with pytest.raises(RemoteError, match="WouldDeadlock"):
        line.stop("k-1").ask(Pass([line.stop("k-1")])).result(10)


def test_ways_that_meet_nobody_twice_are_answered(line: Line) -> None:
    stops = [line.stop(f"k-{number}") for number in range(8)]
    between = line.nodes[0].ref(str(line.between))
    way = [stops[1], between, stops[2], between, *stops[3:]]
    assert stops[0].ask(Pass(way)).result(10) == len(way)
    assert stops[0].ask(Pass([stops[1]])).result(10) == 1  # and no chain stays behind


@message("entities-cycles.AskBack")
@dataclass(frozen=True)
class AskBack:
    """Ask the last of them for its number, by way of the others."""

    way: list[ActorRef]
    what: Any = "?"


class Back(Stop):
    name = "entities-cycles.Back"

    @handler
    async def on_back(self, msg: AskBack) -> Any:
        self.persist(Passed())
        rest = AskBack(msg.way[1:], msg.what) if len(msg.way) > 1 else msg.what
        try:
            return await msg.way[0].ask(rest)
        except WouldDeadlock:
            if msg.what == "catch":
                return "caught"
            raise

    @handler(read_only=True)
    def on_number(self, msg: int) -> float:
        return self.passed / msg


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 1])
def test_what_only_reads_is_answered_while_the_entity_waits(line: Line, retries: int) -> None:
    for node in line.nodes[:2]:
        node.host(Back, state=line.state)
    keys = [f"k-{number}" for number in range(40)]
    one, two = line.nodes[0], line.nodes[1]
    refs = {key: one.entity(Back, key) for key in keys}
    eventually(lambda: len({ref.node_id for ref in refs.values()}) == 2)
    here = [ref for ref in refs.values() if ref.node_id == one.node_id]
    there = [ref for ref in refs.values() if ref.node_id == two.node_id]
    for way in ([there[0], here[0]], [here[1], here[0]], [here[1], there[0], here[0]]):
        before = here[0].ask("?").result(10)
        ask = here[0].ask(AskBack(way), retries=retries)
        assert ask.result(10) == before + 1  # what was persisted before is seen
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            here[0].ask(AskBack(way, 0)).result(10)
        with pytest.raises(RemoteError, match="WouldDeadlock"):
            here[0].ask(AskBack([*way, way[0]])).result(10)
        assert here[0].ask(AskBack([*way, way[0]], "catch")).result(10) == "caught"


def test_nobody_waits_for_what_is_told(line: Line) -> None:
    one, two = line.stop("k-1"), line.stop("k-2")
    one.ask(Pass([two, one, two, one], has_sender=True)).result(10)
    eventually(lambda: one.ask("?").result(5) == 3 and two.ask("?").result(5) == 2)


@pytest.mark.slow
def test_a_chain_without_end_fails(line: Line) -> None:
    stops = [line.stop(f"many-{number}") for number in range(CHAIN_LIMIT + 10)]
    with pytest.raises(RemoteError, match="WouldDeadlock: 100 entities wait"):
        stops[0].ask(Pass(stops[1:])).result(60)
