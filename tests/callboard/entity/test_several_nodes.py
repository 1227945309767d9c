"""Entities over several nodes: who owns what, moves, and messages that find their way."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callboard import Actor, ActorRef, Entity, Node, event, handler, message
from callboard.actors.future import Future
from callboard.basp.header import ENTITIES
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import MoveSlots
from callboard.entity.router import PendingMessage
from callboard.errors import (
    EntityUnavailable,
    MessageTooLarge,
    NeedsLeases,
    NodeClosed,
    OutcomeUnknown,
    RemoteError,
    WrongState,
)
from tests.polling import eventually


@message("entities-tests.Put")
@dataclass(frozen=True)
class Put:
    number: int


@message("entities-tests.Noted")
@dataclass(frozen=True)
class Noted:
    text: str


class Kept(Entity):
    name = "entities-tests.Kept"

    def __init__(self) -> None:
        self.numbers: list[int] = []

    @handler
    def on_put(self, msg: Put) -> int:
        self.persist(msg)
        if msg.number < 0:
            raise ValueError(msg.number)
        return len(self.numbers)

    @event
    def on_number(self, event: Put) -> None:
        self.numbers.append(event.number)

    @handler(read_only=True)
    def on_text(self, msg: str) -> list[int]:
        return self.numbers

    @handler
    def on_float(self, msg: float) -> object:
        return object() if msg < 2 else bytes(20_000)

    @handler
    async def on_refs(self, msg: list) -> object:
        other = self.node.entity(Kept, msg[0])
        return await other.ask(Put(1))


class Asks(Kept):
    """Tells an actor that it wants to be told something."""

    name = "entities-tests.Asks"

    @handler
    def on_ref(self, msg: ActorRef) -> None:
        msg.tell("please")


class Answers(Actor):
    """Answers who told it something when that is asked for, by whatever ref it has."""

    @handler
    def on_wish(self, msg: str) -> None:
        self.asked = self.sender

    @handler
    def on_number(self, msg: int) -> None:
        self.asked.tell(Put(msg))


class Passive(Kept):
    name = "entities-tests.Passive"


@pytest.fixture
def make() -> Iterator[Callable[..., list[Node]]]:
    """Make so many nodes, all linked with the first."""
    with ExitStack() as stack:

        def nodes(count: int) -> list[Node]:
            made = [stack.enter_context(Node(name)) for name in "abcdef"[:count]]
            made[0].listen("127.0.0.1", 0)
            for node in made[1:]:
                node.connect(made[0].address)
            for node in made:
                eventually(lambda node=node: len(node.nodes()) == count - 1)
            return made

        yield nodes


@pytest.fixture
def state(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/state.db"


def owners(node: Node, count: int = 60) -> set[bytes]:
    return {node.entity(Kept, f"k-{i}").node_id for i in range(count)}


def test_a_second_host_gets_its_share_and_gives_it_back(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b, c = make(3)
    a.host(Kept, state=state)
    refs = [c.entity(Kept, f"k-{i}") for i in range(60)]
    assert [ref.ask(Put(i)).result(10) for i, ref in enumerate(refs)] == [1] * 60
    b.host(Kept, state=state)
    eventually(lambda: owners(c) == {a.node_id, b.node_id})
    assert [ref.ask(Put(0)).result(10) for ref in refs] == [2] * 60
    b.close()
    assert [ref.ask("all").result(10) for ref in refs] == [[i, 0] for i in range(60)]
    assert owners(c) == {a.node_id}


def test_messages_keep_their_order_while_slots_move(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b, c = make(3)
    a.host(Kept, state=state)
    refs = [c.entity(Kept, f"k-{i}") for i in range(20)]
    for number in range(100):
        if number == 30:
            hosting = b._start(b.ahost(Kept, state=state))
        for ref in refs:
            ref.tell(Put(number))
        refs[0].ask("all").result(10)  # so that the moves happen among the messages
    hosting.result(10)
    eventually(lambda: owners(c) == {a.node_id, b.node_id})
    for ref in refs:
        assert ref.ask("all").result(10) == list(range(100))


def test_entities_ask_each_other_wherever_they_are(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b = make(2)
    for node in (a, b):
        node.host(Kept, state=state)
    eventually(lambda: owners(a) == {a.node_id, b.node_id})
    for i in range(20):
        assert a.entity(Kept, f"from-{i}").ask([f"to-{i}"]).result(10) == 1
    with pytest.raises(RemoteError, match="WouldDeadlock"):
        a.entity(Kept, "self").ask(["self"]).result(10)


def test_errors_cross_nodes(make: Callable[..., list[Node]], state: str) -> None:
    a, b = make(2)
    a.host(Kept, state=state)
    with pytest.raises(RemoteError, match="ValueError"):
        b.entity(Kept, "x").ask(Put(-1)).result(10)
    assert b.entity(Kept, "x").ask("all").result(10) == []


def test_what_answers_a_message_of_an_entity_finds_its_next_activation(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b, c = make(3)
    a.host(Asks, state=state)
    entity, answers = c.entity(Asks, "x"), b.spawn(Answers)
    assert entity.ask(answers).result(10) is None
    # The entity's message comes from another node than what is told here.
    eventually(lambda: hasattr(b.runtime.contexts[answers.actor_id].actor, "asked"))
    entity.stop()
    eventually(lambda: not a._entities._hosts[Asks.name].cells)
    answers.tell(1)
    eventually(lambda: entity.ask("all").result(10) == [1])
    b.host(Asks, state=state)
    order = MoveSlots(Asks.name, [slot_of("x")], b.node_id.hex())
    eventually(lambda: len(a._entities.memberships.get(Asks.name).table.members) == 2)
    c.runtime.ref_of(a.node_id, ENTITIES).ask(order).result(10)
    eventually(lambda: entity.node_id == b.node_id)
    answers.tell(2)
    eventually(lambda: entity.ask("all").result(10) == [1, 2])
    assert a.runtime.counters.dead_letters == 0


def test_a_node_with_another_state_is_refused(
    make: Callable[..., list[Node]], state: str, tmp_path: Path
) -> None:
    a, b = make(2)
    a.host(Kept, state=state)
    with pytest.raises(WrongState, match="another state"):
        b.host(Kept, state=f"sqlite:{tmp_path}/other.db", leases=state)
    b.host(Kept, state=state)


def test_without_leases_one_node_hosts(make: Callable[..., list[Node]]) -> None:
    a, b = make(2)
    a.host(Passive)
    with pytest.raises(NeedsLeases, match="another node"):
        b.host(Passive)
    assert b.entity(Passive, "x").ask(Put(1)).result(10) == 1


@pytest.mark.parametrize("timeout", [0.1, 0.5])
def test_an_ask_that_found_no_host_says_that_nothing_happened(
    make: Callable[..., list[Node]], timeout: float
) -> None:
    _, b = make(2)
    began = b.runtime.now()
    with pytest.raises(EntityUnavailable, match="nothing happened"):
        b.entity(Kept, "x").ask(Put(1), timeout=timeout).result(10)
    assert b.runtime.now() - began > timeout / 2


def test_a_message_waits_for_its_first_host(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b = make(2)
    waiting = b.entity(Kept, "x").ask(Put(1))
    b.entity(Kept, "x").tell(Put(2))
    a.host(Kept, state=state)
    assert waiting.result(10) == 1
    assert b.entity(Kept, "x").ask("all").result(10) == [1, 2]


def test_who_was_not_told_of_a_new_owner_looks_for_it(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b, c = make(3)
    a.host(Kept, state=state)
    ref = c.entity(Kept, "x")
    assert ref.ask(Put(1)).result(10) == 1
    a._entities.memberships._askers.clear()
    b.host(Kept, state=state)
    c.listen("127.0.0.1", 0)
    b.connect(c.address)
    a._entities.memberships._askers.clear()
    a.close()
    eventually(lambda: not c.runtime.remote.is_reachable(a.node_id))
    assert ref.ask(Put(2)).result(10) == 2


def test_stop_puts_away_on_its_owner(make: Callable[..., list[Node]], state: str) -> None:
    a, b = make(2)
    a.host(Kept, state=state)
    ref = b.entity(Kept, "x")
    assert ref.ask(Put(1)).result(10) == 1
    before = len(a.runtime.contexts)
    ref.stop()
    eventually(lambda: len(a.runtime.contexts) == before - 1)
    assert ref.ask(Put(1)).result(10) == 2


def test_a_node_with_a_file_of_its_own_is_refused_and_told_of_both(
    make: Callable[..., list[Node]], state: str, tmp_path: Path
) -> None:
    a, b = make(2)
    a.host(Kept, state=state)
    other = f"sqlite:{tmp_path}/elsewhere.db"
    both = r"state\.db on .*elsewhere\.db on "
    with pytest.raises(WrongState, match=both):
        b.host(Kept, state=other)
    b.host(Kept, state=state)
    assert b.entity(Kept, "x").ask(Put(1)).result(10) == 1


def test_a_node_that_drains_has_given_its_slots_away_before_it_closes(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b, c = make(3)
    a.host(Kept, state=state)
    b.host(Kept, state=state)
    refs = [c.entity(Kept, f"k-{i}") for i in range(20)]
    for number in range(3):
        for ref in refs:
            ref.tell(Put(number))
    b.drain(20)
    for ref in refs:
        ref.tell(Put(3))
    assert [ref.ask("all").result(10) for ref in refs] == [[0, 1, 2, 3]] * 20
    assert owners(c) == {a.node_id}


def test_the_only_host_drains_at_once(make: Callable[..., list[Node]], state: str) -> None:
    (a,) = make(1)
    a.host(Kept, state=state)
    assert a.entity(Kept, "x").ask(Put(1)).result(10) == 1
    report = a.drain(20)
    assert report.left == 0


@pytest.mark.parametrize("asks_from_afar", [False, True])
def test_an_answer_is_what_it_was_when_the_handler_returned(
    make: Callable[..., list[Node]],
    state: str,
    asks_from_afar: bool,
) -> None:
    a, b = make(2)
    a.host(Kept, state=state)
    ref = (b if asks_from_afar else a).entity(Kept, "x")
    ref.ask(Put(0)).result(10)
    found = []
    for number in range(1, 20):
        ref.tell(Put(number))
        found.append(ref.ask("show"))
    assert [each.result(10) for each in found] == [list(range(n + 1)) for n in range(1, 20)]


def test_an_answer_that_cannot_travel_fails_the_ask_alone(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b = make(2)
    a.host(Kept, state=state)
    ref = b.entity(Kept, "x")
    with pytest.raises(RemoteError, match="NotSerializable"):
        ref.ask(1.5).result(10)
    outgoing = a._broker.outgoing
    outgoing._payload_limit = outgoing.checked_from = 10_000
    with pytest.raises(MessageTooLarge):
        ref.ask(2.5).result(10)
    assert ref.ask(Put(1)).result(10) == 1


def test_what_a_drained_node_did_not_answer_may_have_happened(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b = make(2)
    a.host(Kept, state=state)
    assert b.entity(Kept, "x").ask(Put(1)).result(10) == 1
    router = b._entities._routers["entities-tests.Kept"]
    asked: Future[Any] = Future()
    pending = PendingMessage(1, "x", slot_of("x"), Put(2), asked, is_urgent=False, since=0.0)
    error = NodeClosed("no path leads to node a any longer (closing)")
    router.handle_outcome(pending, a.node_id, None, error, has_left=True)
    assert isinstance(asked.exception(), OutcomeUnknown)


class Older(Kept):
    """The same type in a program that does not know `Noted` yet."""


class Newer(Kept):
    @handler
    def on_note(self, msg: bytes) -> None:
        self.persist(Noted(msg.decode()))

    @event
    def on_noted(self, event: Noted) -> None:
        self.numbers.append(-1)


Older.name = Newer.name = "entities-tests.Rolling"


def test_slots_move_only_to_members_that_read_what_was_written(
    make: Callable[..., list[Node]], state: str
) -> None:
    a, b, c = make(3)
    a.host(Older, state=state)
    b.host(Newer, state=state)
    refs = [c.entity(Newer, f"k-{i}") for i in range(20)]
    assert [ref.ask(Put(1)).result(10) for ref in refs] == [1] * 20
    newer = next(ref for ref in refs if ref.node_id == b.node_id)
    newer.ask(b"x").result(10)
    eventually(lambda: {ref.node_id for ref in refs} == {b.node_id})
    assert [ref.ask(Put(2)).result(10) for ref in refs] == [
        3 if ref == newer else 2 for ref in refs
    ]
