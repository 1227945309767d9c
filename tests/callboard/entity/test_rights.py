"""What leaves and programs that are no callboard may do with entities, and refs in messages."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from callboard import Actor, ActorRef, Entity, Node, Rights, event, handler, message
from callboard.basp.header import ENTITIES
from callboard.entity.machine.table import Table, TableMember
from callboard.entity.messages import (
    AskEntityTable,
    EntityMarker,
    EntityMessage,
    EntityTable,
    StopEntity,
)
from callboard.errors import NotPermitted, RemoteError
from callboard.proxies.events import PermissionRefused
from tests.polling import eventually


@message("entities-rights.Add")
@dataclass(frozen=True)
class Add:
    number: int


@message("entities-rights.Meet")
@dataclass(frozen=True)
class Meet:
    others: list[ActorRef]


class Sum(Entity):
    name = "entities-rights.Sum"

    def __init__(self) -> None:
        self.total = 0

    @handler
    def on_add(self, msg: Add) -> int:
        self.persist(msg)
        return self.total

    @event
    def on_added(self, event: Add) -> None:
        self.total += event.number

    @handler
    async def on_meet(self, msg: Meet) -> list[object]:
        return [await other.ask(Add(1)) for other in msg.others]

    @handler(read_only=True)
    def on_text(self, msg: str) -> ActorRef:
        return self.me


class Safe(Sum):
    name = "entities-rights.Safe"


class Meeting(Actor):
    @handler
    async def on_meet(self, msg: Meet) -> list[object]:
        return [await other.ask(Add(1)) for other in msg.others]


class House:
    """Two members that host both types, of which the first has permissions, and a leaf."""

    def __init__(self, stack: ExitStack, state: str) -> None:
        secrets = {"till": "s1", "member": "s2"}
        permissions = {
            "till": Rights(entities=["*.Sum"], names=["meeting"], queues=["mails"]),
            "member": Rights.member(),
        }
        make = stack.enter_context
        self.shop = make(Node("shop", secrets=secrets, permissions=permissions))
        self.office = make(Node("office", secret="s2"))
        self.till = make(Node("till", secret="s1"))
        self.shop.listen("127.0.0.1", 0)
        self.office.connect(self.shop.address)
        self.till.connect(self.shop.address)
        for node in (self.shop, self.office):
            node.host(Sum, state=state)
            node.host(Safe, state=state)
        for name in ("mails", "payments"):
            self.office.queue(name, state=state)
        self.shop.register("meeting", self.shop.spawn(Meeting))
        eventually(lambda: len(self.owners()) == 2)
        self.refused: list[str] = []
        stack.enter_context(self.shop.subscribed(self._note))

    def _note(self, told: object) -> None:
        if isinstance(told, PermissionRefused):
            self.refused.append(told.right)

    def owners(self) -> set[bytes]:
        return {self.shop.entity(Sum, f"k-{number}").node_id for number in range(40)}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(stack, f"sqlite:{tmp_path}/state.db")


@pytest.mark.slow
def test_a_leaf_sends_to_all_entities_of_its_types_wherever_they_are(house: House) -> None:
    refs = [house.till.entity(Sum, f"k-{number}") for number in range(40)]
    assert [ref.ask(Add(2)).result(10) for ref in refs] == [2] * 40
    for ref in refs:
        ref.tell(Add(3))
    assert [ref.ask(Add(1)).result(10) for ref in refs] == [6] * 40


@pytest.mark.slow
def test_a_leaf_sends_to_no_entity_of_other_types(house: House) -> None:
    with pytest.raises(NotPermitted, match="no right 'entities'"):
        house.till.runtime.ref_of(house.shop.node_id, ENTITIES).ask(
            EntityMessage(Safe.name, "k", Add(1))
        ).result(5)
    eventually(lambda: "entities" in house.refused)
    assert house.office.entity(Safe, "k").ask(Add(1)).result(5) == 1


def test_nobody_is_made_to_send_to_entities_that_a_leaf_may_not(house: House) -> None:
    meeting = house.till.remote_actor(house.shop.address + "/meeting")
    assert meeting.ask(Meet([house.till.entity(Sum, "k")])).result(5) == [1]
    with pytest.raises(NotPermitted, match="entities"):
        meeting.ask(Meet([house.till.entity(Safe, "k")])).result(5)
    assert house.shop.entity(Safe, "k").ask(Add(1)).result(5) == 1


@pytest.mark.slow
def test_a_leaf_works_on_the_queues_that_it_may(house: House) -> None:
    mails = house.till.queue("mails")
    mails.put("hello").result(10)
    job = mails.take().result(10)
    assert job.value == "hello"
    job.ack().result(10)
    with pytest.raises(NotPermitted, match="entities"):
        house.till.queue("payments").put(1).result(10)
    with pytest.raises(NotPermitted, match="entities"):
        house.till.entity(Safe, "k").ask(Add(1)).result(10)


def test_what_a_leaf_tells_of_owners_does_not_count(house: House) -> None:
    forged = Table(10**6, members={"x": TableMember(house.till.node_id.hex())}).filled()
    told = EntityTable(Sum.name, forged.version, forged.text())
    with pytest.raises(NotPermitted, match="no right 'host'"):
        house.till.runtime.ref_of(house.shop.node_id, ENTITIES).ask(told).result(5)
    assert house.owners() == {house.shop.node_id, house.office.node_id}


def _odd() -> list[object]:
    table = Table(10**6, members={"x": TableMember("00" * 18)}).filled().text()
    return [
        EntityMessage(Sum.name, "x" * 300, Add(1)),
        EntityMessage(Sum.name, "", Add(1)),
        EntityMessage(Sum.name, 7, Add(1)),  # type: ignore[arg-type]
        EntityMessage(["x"], "k", Add(1)),  # type: ignore[arg-type]
        EntityMessage("a/b", "k", Add(1)),
        EntityMessage("x" * 10_000, "k", Add(1)),
        AskEntityTable({1: 2}),  # type: ignore[arg-type]
        EntityMarker(Sum.name, -1),
        EntityMarker(Sum.name, 10**30),
        EntityMarker(Sum.name, "0"),  # type: ignore[arg-type]
        StopEntity(Sum.name, b"k"),  # type: ignore[arg-type]
        EntityTable(Sum.name, 10**30, table),
        EntityTable(Sum.name, 10**6, table[:100]),
        EntityTable(Sum.name, 10**6, "[" * 100_000),
        EntityTable(Sum.name, 10**6, table.replace("00" * 18, "zz")),
        EntityTable(Sum.name, -1, table),
        EntityTable(Sum.name, 10**6, b"x"),  # type: ignore[arg-type]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(_odd())))
def test_odd_messages_of_a_member_leave_entities_as_they_are(house: House, number: int) -> None:
    part = house.office.runtime.ref_of(house.shop.node_id, ENTITIES)
    try:
        part.ask(_odd()[number]).result(1)
    except (RemoteError, TimeoutError):
        pass
    refs = [house.office.entity(Sum, f"k-{each}") for each in range(10)]
    assert [ref.ask(Add(1)).result(10) for ref in refs] == [1] * 10
    assert len(house.owners()) == 2


@pytest.mark.slow
def test_refs_of_entities_travel_in_messages_answers_and_senders(house: House) -> None:
    here = house.office.entity(Sum, "here")
    assert here.ask("who are you?").result(5) == house.shop.entity(Sum, "here")
    others = [house.office.entity(Sum, f"k-{number}") for number in range(10)]
    assert here.ask(Meet(others)).result(10) == [1] * 10
    meeting = house.office.remote_actor(house.shop.address + "/meeting")
    assert meeting.ask(Meet(others)).result(10) == [2] * 10
