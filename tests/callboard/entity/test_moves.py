"""Slots that move by hand, to and fro, under messages of all nodes."""

import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from callboard import Entity, Node, event, handler, message
from callboard.actors.events import DeadLetter
from callboard.basp.header import ENTITIES
from callboard.entity import host as entity_host
from callboard.entity.host import EVENTS_TO_MOVE, EntityHost
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import MoveSlots
from callboard.entity.ownership import MoveTurns
from callboard.entity.router import PendingMessage, TypeRouter
from callboard.entity.state.interface import PastEvent
from callboard.simulation import Cluster

STATE = "postgresql://moves/shop"


@message("entities-moves.Put")
@dataclass(frozen=True)
class Put:
    sender: str
    number: int
    #: The key that is asked the same before the handler returns; empty for none.
    next: str = ""


class Kept(Entity):
    name = "entities-moves.Kept"

    def __init__(self) -> None:
        self.numbers: list[tuple[str, int]] = []

    @handler
    async def on_put(self, msg: Put) -> None:
        self.persist(msg)
        if msg.next:
            await self.node.entity(Kept, msg.next).ask(Put(f"from {self.key}", msg.number))

    @event
    def on_put_down(self, event: Put) -> None:
        self.numbers.append((event.sender, event.number))

    @handler(read_only=True)
    def on_text(self, msg: str) -> list[tuple[str, int]]:
        return list(self.numbers)


def move(node: Node, member: Node, slots: list[int], to: Node) -> None:
    """Let slots move from any member to another one."""
    order = MoveSlots(Kept.name, slots, to.node_id.hex())
    target: Any = node.runtime.ref_of(member.node_id, ENTITIES)
    target.tell(order)


def sent_while_moving(cluster: Cluster, chance: random.Random) -> dict[tuple[str, str], int]:
    """Send keys numbers from all nodes while their slots move; returns the last ones."""
    nodes, keys = cluster.nodes, [f"k-{number}" for number in range(4)]
    last: dict[tuple[str, str], int] = defaultdict(int)
    asks = []
    for _ in range(400):
        node, key = chance.choice(nodes), chance.choice(keys)
        last[node.name, key] += 1
        put, ref = Put(node.name, last[node.name, key]), node.entity(Kept, key)
        if chance.random() < 0.5:
            ref.tell(put)
        else:
            asks.append(ref.ask(put, timeout=20.0))
        if chance.random() < 0.15:
            slots = [slot_of(chance.choice(keys))]
            move(nodes[0], chance.choice(nodes[:3]), slots, chance.choice(nodes[:3]))
        if chance.random() < 0.5:
            cluster.advance(chance.choice((0.001, 0.005, 0.03)))
    assert [each.result(20.0) for each in asks] == [None] * len(asks)
    return last


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_what_each_node_sends_keeps_its_order_while_slots_go_to_and_fro(seed: int) -> None:
    chance = random.Random(seed)
    with closing(Cluster(seed)) as cluster:
        nodes = cluster(4, topology="mesh")
        lost: list[object] = []
        for node in nodes:
            node.subscribed(lambda it: lost.append(it) if isinstance(it, DeadLetter) else None)
        for node in nodes[:3]:
            node.host(Kept, state=STATE)
        cluster.database(STATE).latency = 0.002
        for one, other in itertools.permutations(nodes, 2):
            cluster.delay(one, other, chance.choice((0.0002, 0.003, 0.02)))
        last = sent_while_moving(cluster, chance)
        cluster.advance(12.0)
        assert lost == []
        came: dict[tuple[str, str], list[int]] = defaultdict(list)
        for key in {key for _, key in last}:
            for sender, number in nodes[3].entity(Kept, key).ask("all").result(5):
                came[sender, key].append(number)
        assert came == {way: list(range(1, number + 1)) for way, number in last.items()}


@pytest.mark.slow
def test_entities_that_ask_each_other_move_in_a_moment() -> None:
    with closing(Cluster(1)) as cluster:
        one, other, asker = cluster(3, topology="mesh")
        for node in (one, other):
            node.host(Kept, state=STATE)
        cluster.database(STATE).latency = 0.002
        owned = lambda key: asker.entity(Kept, key).node_id == one.node_id  # noqa: E731
        asker.entity(Kept, "k-0").ask("all").result(5)
        cluster.advance(5.0)  # each has its share
        keys = [key for number in range(60) if owned(key := f"k-{number}")][:8]
        slots = [slot_of(key) for key in keys]
        worst = 0.0
        asked = []
        for number in range(200):
            key, then = keys[number % 4], keys[4 + number % 3]
            begun = cluster.now
            ask = asker.entity(Kept, key).ask(Put("asker", number, next=then), timeout=20.0)

            def done(_: object, begun: float = begun) -> None:
                nonlocal worst
                worst = max(worst, cluster.now - begun)

            ask.on_done(done)
            asked.append(ask)
            if number == 100:
                move(asker, one, slots, other)
            cluster.advance(0.015 if number % 10 else 0.0)  # now and then, two wait
        assert [each.result(20.0) for each in asked] == [None] * len(asked)
        assert {asker.entity(Kept, key).node_id for key in keys} == {other.node_id}
        assert worst < 0.15  # without what is let in, 0.25 s and more


@pytest.mark.slow
def test_entities_of_two_nodes_that_ask_each_other_move_in_a_moment() -> None:
    with closing(Cluster(1)) as cluster:
        one, other, asker = cluster(3, topology="mesh")
        for node in (one, other):
            node.host(Kept, state=STATE)
        cluster.database(STATE).latency = 0.002
        asker.entity(Kept, "k-0").ask("all").result(5)
        cluster.advance(5.0)  # each has its share
        keys: dict[bytes, list[str]] = defaultdict(list)
        for key in (f"k-{number}" for number in range(60)):
            keys[asker.entity(Kept, key).node_id].append(key)
        here, there = (keys[node.node_id][:4] for node in (one, other))
        asks = []
        for _ in range(20):
            for a, b in itertools.permutations((here, there)):
                for key, then in zip(a[:2], b[2:], strict=True):
                    asks.append(asker.entity(Kept, key).ask(Put("asker", 1, then), timeout=20))
            begun = cluster.now
            move(asker, one, [slot_of(key) for key in here], other)
            move(asker, one, [slot_of(key) for key in there], one)
            here, there = there, here
            assert [each.result(20.0) for each in asks] == [None] * len(asks)
            assert cluster.now - begun < 0.2
            cluster.advance(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "most"), [(500, 8), (4, 1)])
def test_fewer_slots_move_at_once_where_many_entities_live(
    monkeypatch: pytest.MonkeyPatch, at_once: int, most: int
) -> None:
    monkeypatch.setattr(entity_host, "PASSIVATED_AT_ONCE", at_once)
    sizes: list[int] = []
    stop_slots = entity_host.EntityHost.stop_slots

    def stop(host: Any, slots: list[int], done: Any) -> None:
        sizes.append(len(slots))
        stop_slots(host, slots, done)

    monkeypatch.setattr(entity_host.EntityHost, "stop_slots", stop)
    with closing(Cluster(1)) as cluster:
        one, other, asker = cluster(3, topology="mesh")
        for node in (one, other):
            node.host(Kept, state=STATE)
        keys = [f"k-{number}" for number in range(1000)]  # about four in each slot
        asks = [asker.entity(Kept, key).ask("all", timeout=20.0) for key in keys]
        assert [ask.result(20.0) for ask in asks] == [[]] * len(keys)
        cluster.advance(5.0)
        sizes.clear()
        mine = [key for key in keys if asker.entity(Kept, key).node_id == one.node_id]
        slots = sorted({slot_of(key) for key in mine})[:8]
        move(asker, one, slots, other)
        cluster.advance(2.0)
        moved = [asker.entity(Kept, key) for key in mine if slot_of(key) in slots]
        assert {ref.node_id for ref in moved} == {other.node_id}
        assert sum(sizes) == 8
        assert max(sizes) == most
        assert all(ref.ask("all").result(5.0) == [] for ref in moved)


@pytest.mark.slow
def test_reads_are_answered_while_their_slots_move() -> None:
    with closing(Cluster(1)) as cluster:
        one, other, asker = cluster(3, topology="mesh")
        for node in (one, other):
            node.host(Kept, state=STATE)
        keys = [f"k-{number}" for number in range(40)]
        slots = sorted(set(map(slot_of, keys)))
        asks = []
        for number in range(400):
            asks.append(asker.entity(Kept, keys[number % 40]).ask("all", timeout=20.0))
            if number % 40 == 0:
                move(asker, one, slots, (one, other)[number // 40 % 2])
            cluster.advance(0.001)
        assert [ask.result(20.0) for ask in asks] == [[]] * len(asks)


def keys_of(node: Node, asker: Node, count: int) -> list[str]:
    """Return keys that a node owns, in slots of their own, and that are awake."""
    keys: dict[int, str] = {}
    for key in (f"k-{number}" for number in range(400)):
        asker.entity(Kept, key).ask("all").result(5)
        if asker.entity(Kept, key).node_id == node.node_id and len(keys) < count:
            keys.setdefault(slot_of(key), key)
    return list(keys.values())


@pytest.mark.slow
@pytest.mark.parametrize("apart", [0.0005, 0.0007, 0.003])
def test_a_move_waits_for_no_timer(apart: float) -> None:
    """It takes some ways between nodes and to the database, each half a millisecond or less."""
    with closing(Cluster(1)) as cluster:
        one, other, asker = cluster(3, topology="mesh")
        for node in (one, other):
            node.host(Kept, state=STATE)
        cluster.advance(5.0)  # each has its share
        keys = keys_of(one, asker, 4)
        cluster.database(STATE).latency = 0.0001
        for here, there in itertools.permutations((one, other, asker), 2):
            cluster.delay(here, there, 0.0005)
        taken: list[float] = []
        asks = []
        for number in range(round(0.05 / apart)):
            for key in keys:
                begun = cluster.now
                ask = asker.entity(Kept, key).ask(Put("asker", number), timeout=20.0)
                ask.on_done(lambda _, begun=begun: taken.append(cluster.now - begun))
                asks.append(ask)
            if number == round(0.01 / apart):
                move(asker, one, [slot_of(key) for key in keys], other)
            cluster.advance(apart)
        assert [each.result(20.0) for each in asks] == [None] * len(asks)
        assert {asker.entity(Kept, key).node_id for key in keys} == {other.node_id}
        assert max(taken) < 0.008


@pytest.mark.slow
def test_messages_wait_at_a_node_that_is_about_to_own_their_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: list[bytes] = []
    take = TypeRouter._refused

    def take_refusal(router: TypeRouter, pending: PendingMessage, node: bytes) -> None:
        refused.append(node)
        take(router, pending, node)

    monkeypatch.setattr(TypeRouter, "_refused", take_refusal)
    with closing(Cluster(1)) as cluster:
        one, other, asker = cluster(3, topology="mesh")
        for node in (one, other):
            node.host(Kept, state=STATE)
        cluster.advance(5.0)
        keys = keys_of(one, asker, 4)
        cluster.database(STATE).latency = 0.005  # the claim takes much longer than messages
        asks = []
        for number in range(100):
            asks += [
                asker.entity(Kept, key).ask(Put("asker", number), timeout=20.0) for key in keys
            ]
            if number == 10:
                move(asker, one, [slot_of(key) for key in keys], other)
            cluster.advance(0.002)
        assert [each.result(20.0) for each in asks] == [None] * len(asks)
        assert {asker.entity(Kept, key).node_id for key in keys} == {other.node_id}
        assert other.node_id not in refused
        came = asker.entity(Kept, keys[0]).ask("all").result(5)
        assert came == [("asker", number) for number in range(100)]


@pytest.mark.slow
def test_entities_with_many_events_move_with_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replayed: list[int] = []
    apply = EntityHost.apply

    def note(host: EntityHost, cell: Any, actor: Any, events: Sequence[PastEvent]) -> None:
        replayed.extend(each.number for each in events)
        apply(host, cell, actor, events)

    monkeypatch.setattr(EntityHost, "apply", note)
    with closing(Cluster(1)) as cluster:
        one, other, asker = cluster(3, topology="mesh")
        for node in (one, other):
            node.host(Kept, state=STATE)
        cluster.advance(5.0)
        many, few = keys_of(one, asker, 2)
        for key, events in ((many, EVENTS_TO_MOVE), (few, EVENTS_TO_MOVE - 1)):
            ref = asker.entity(Kept, key)
            asks = [ref.ask(Put("asker", number)) for number in range(events)]
            assert [ask.result(5) for ask in asks] == [None] * events
        move(asker, one, [slot_of(many), slot_of(few)], other)
        cluster.advance(1.0)
        for key, events in ((many, EVENTS_TO_MOVE), (few, EVENTS_TO_MOVE - 1)):
            ref = asker.entity(Kept, key)
            assert len(ref.ask("all").result(5)) == events
            assert ref.node_id == other.node_id
        assert replayed == list(range(1, EVENTS_TO_MOVE))  # those of `few`


def test_types_of_a_node_move_one_after_the_other() -> None:
    turns, begun = MoveTurns(), []
    for name in "abc":
        turns.take(name, partial(begun.append, name))
    assert begun == ["a"]
    turns.give_back("b")  # it does not want to any more
    assert begun == ["a"]
    turns.give_back("a")
    assert begun == ["a", "c"]
    turns.give_back("a")  # it had none
    turns.take("b", partial(begun.append, "b"))
    turns.give_back("c")
    assert begun == ["a", "c", "b"]
    turns.give_back("b")
    turns.take("a", partial(begun.append, "a"))
    assert begun[3:] == ["a"]
