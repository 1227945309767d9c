"""Entities on one node: events, recovery, what leaves when, and what is refused."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from callboard import Actor, ActorRef, Entity, Node, Query, event, handler, message, upcast
from callboard.errors import (
    DuplicateEntityType,
    InvalidHandler,
    NotAnActor,
    NotPersistable,
    NotSpawnable,
    RemoteError,
    ReservedName,
    StateVersion,
    WrongArgument,
    WrongValue,
)
from tests.polling import eventually


@message("entity-tests.Add")
@dataclass(frozen=True)
class Add:
    amount: int
    then: str = ""


@message("entity-tests.Added")
@dataclass(frozen=True)
class Added:
    amount: int
    note: str = ""


@message("entity-tests.Total")
@dataclass(frozen=True)
class Total(Query[int]):
    pass


@message("entity-tests.Unknown")
@dataclass(frozen=True)
class Unknown:
    pass


@message("entity-tests.State")
@dataclass
class Settings:
    values: dict[str, int] = field(default_factory=dict)


class Account(Entity):
    name = "entity-tests.Account"

    def __init__(self, start: int = 0) -> None:
        self.total = start
        self.notes: list[str] = []

    @handler
    async def on_add(self, msg: Add) -> int:
        self.persist(Added(msg.amount, msg.then))
        if msg.then == "raise":
            raise ValueError(msg.then)
        if msg.then == "await":
            await self.sleep(0.01)
            self.persist(Added(msg.amount))
        if msg.then == "await and raise":
            await self.sleep(0.01)
            self.persist(Added(1000))
            raise ValueError(msg.then)
        return self.total

    @event
    def on_added(self, event: Added) -> None:
        self.total += event.amount
        self.notes.append(event.note)

    @handler(read_only=True)
    def on_total(self, msg: Total) -> int:
        return self.total

    @handler(read_only=True)
    def on_wrong(self, msg: str) -> Any:
        if msg == "persist":
            self.persist(Added(1))
        if msg == "fence":
            return self.fence
        return self.notes

    @handler
    def on_unknown(self, msg: Unknown) -> None:
        self.persist(msg)

    def add(self, amount: int) -> int:
        self.persist(Added(amount))
        return self.total


@pytest.fixture
def state(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/state.db"


@pytest.fixture
def node(state: str) -> Iterator[Node]:
    with Node() as made:
        made.host(Account, state=state)
        yield made


def test_state_outlives_the_node(state: str) -> None:
    for total in (1, 2, 3):
        with Node() as node:
            node.host(Account, state=state)
            assert node.entity(Account, "a").ask(Add(1)).result(5) == total
            assert node.entity(Account, "b").ask(Total()).result(5) == 0


def test_arguments_of_host_go_to_init(state: str) -> None:
    with Node() as node:
        node.host(Account, 40, state=state)
        assert node.entity(Account, "a").ask(Add(2)).result(5) == 42


def test_many_asks_of_one_key_are_answered_in_order(node: Node) -> None:
    ref = node.entity(Account, "a")
    answers = [ref.ask(Add(1)) for _ in range(200)]
    assert [each.result(5) for each in answers] == list(range(1, 201))


def test_a_tell_is_stored_before_what_is_asked_behind_it_is_answered(node: Node) -> None:
    ref = node.entity(Account, "a")
    ref.tell(Add(5))
    assert ref.ask(Total()).result(5) == 5


def test_a_handler_that_raises_has_written_nothing(node: Node) -> None:
    ref = node.entity(Account, "a")
    ref.ask(Add(1)).result(5)
    with pytest.raises(RemoteError, match="ValueError: raise"):
        ref.ask(Add(7, "raise")).result(5)
    assert ref.ask(Total()).result(5) == 1
    assert ref.ask(Add(1)).result(5) == 2


def test_an_await_commits_what_was_persisted_before_it(node: Node) -> None:
    ref = node.entity(Account, "a")
    assert ref.ask(Add(3, "await")).result(5) == 6
    with pytest.raises(RemoteError, match="await and raise"):
        ref.ask(Add(10, "await and raise")).result(5)
    assert ref.ask(Total()).result(5) == 16


def test_a_method_can_be_called(node: Node) -> None:
    ref = node.entity(Account, "a")
    assert ref.call(Account.add, 3).result(5) == 3
    assert ref.ask(Total()).result(5) == 3


def test_an_answer_is_a_copy(node: Node) -> None:
    ref = node.entity(Account, "a")
    ref.ask(Add(1)).result(5)
    first = ref.ask("notes").result(5)
    ref.ask(Add(1)).result(5)
    assert first == [""]


def test_what_is_refused_at_its_line(node: Node) -> None:
    ref = node.entity(Account, "a")
    with pytest.raises(RemoteError, match="read-only handler"):
        ref.ask("persist").result(5)
    with pytest.raises(RemoteError, match="has no @event method for"):
        ref.ask(Unknown()).result(5)
    assert ref.ask("fence").result(5) == "entity-tests.Account/a/1"
    assert ref.ask(Add(1)).result(5) == 1


def test_an_entity_has_no_end(node: Node) -> None:
    ref = node.entity(Account, "a")
    for refused in (lambda: node.monitor(ref), ref.kill):
        with pytest.raises(NotAnActor, match="is an entity"):
            refused()


def test_a_ref_is_equal_by_type_and_key(node: Node) -> None:
    ref = node.entity(Account, "ä/ 1")
    assert str(ref) == "basp:///entity-tests.Account/%C3%A4%2F%201"
    assert node.ref(str(ref)) == ref == node.entity("entity-tests.Account", "ä/ 1")
    assert len({ref, node.ref(str(ref)), node.entity(Account, "b")}) == 2
    assert ref.is_local
    assert ref.node_id == node.node_id


@pytest.mark.parametrize("key", ["", "x" * 257, "\udc80", "a\0b"])
def test_a_key_is_a_text_of_some_bytes(node: Node, key: str) -> None:
    with pytest.raises(WrongValue, match="256 bytes"):
        node.entity(Account, key)
    with pytest.raises(WrongArgument):
        node.entity(Account, 17)  # type: ignore[arg-type]


def test_one_type_is_hosted_once(node: Node, state: str) -> None:
    with pytest.raises(DuplicateEntityType, match=r"entity-tests\.Account"):
        node.host(Account, state=state)
    with pytest.raises(NotSpawnable, match=r"node\.host"):
        node.spawn(Account)


def test_classes_that_cannot_be_meant() -> None:
    with pytest.raises(ReservedName):
        type("Bad", (Entity,), {"persist": lambda self, event: None})
    with pytest.raises(WrongValue, match="takeover"):
        type("Bad", (Entity,), {"takeover": "slow"})
    with pytest.raises(WrongValue, match="a part of addresses"):
        type("Bad", (Entity,), {"name": "a/b"})
    with pytest.raises(InvalidHandler, match="read_only"):

        class Plain(Actor):
            @handler(read_only=True)
            def on_text(self, msg: str) -> None:
                pass


def test_stop_puts_away_and_the_next_message_makes_it_again(node: Node) -> None:
    ref = node.entity(Account, "a")
    for _ in range(3):
        ref.tell(Add(1))
        ref.stop()
    assert ref.ask(Total()).result(5) == 3


def test_an_idle_entity_is_put_away(state: str) -> None:
    with Node() as node:
        node.host(Account.with_options(idle=0.05), state=state)
        before = len(node.runtime.contexts)
        ref = node.entity(Account, "a")
        assert ref.ask(Add(1)).result(5) == 1
        eventually(lambda: len(node.runtime.contexts) == before)
        assert ref.ask(Add(1)).result(5) == 2


def test_snapshots_spare_the_replay(tmp_path: Path, state: str) -> None:
    kept = Account.with_options(snapshot_every=10, keep=0)
    with Node() as node:
        node.host(kept, state=state)
        ref = node.entity(Account, "a")
        for total in range(1, 26):
            assert ref.ask(Add(1)).result(5) == total
    with Node() as node:
        node.host(kept, state=state)
        assert node.entity(Account, "a").ask(Add(1)).result(5) == 26


class Chosen(Entity):
    name = "entity-tests.Chosen"

    def __init__(self) -> None:
        self.state = Settings()

    @handler
    def on_set(self, msg: dict) -> dict[str, int]:
        self.state.values.update(msg)
        if "raise" in msg:
            raise ValueError(msg)
        self.save()
        return self.state.values


def test_the_simple_form_keeps_its_state(state: str) -> None:
    with Node() as node:
        node.host(Chosen, state=state)
        ref = node.entity(Chosen, "a")
        ref.ask({"x": 1}).result(5)
        with pytest.raises(RemoteError):
            ref.ask({"raise": 1}).result(5)
        assert ref.ask({"y": 2}).result(5) == {"x": 1, "y": 2}
    with Node() as node:
        node.host(Chosen, state=state)
        assert node.entity(Chosen, "a").ask({}).result(5) == {"x": 1, "y": 2}


def test_without_state_an_entity_lives_as_long_as_its_node() -> None:
    with Node() as node:
        node.host(Account)
        ref = node.entity(Account, "a")
        assert [ref.ask(Add(1)).result(5) for _ in range(3)] == [1, 2, 3]
    with Node() as node:
        node.host(Account)
        assert node.entity(Account, "a").ask(Total()).result(5) == 0


class NewAccount(Account):
    name = "entity-tests.Account"

    @upcast("entity-tests.Added", 1)
    def in_cents(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "amount": 100 * fields["amount"]}


def test_old_events_are_upcast_and_newer_ones_refused(state: str) -> None:
    with Node() as node:
        node.host(Account, state=state)
        node.entity(Account, "a").ask(Add(3)).result(5)
    with Node() as node:
        node.host(NewAccount, state=state)
        assert node.entity(NewAccount, "a").ask(Add(1)).result(5) == 301
    with Node() as node:
        node.host(Account, state=state)
        with pytest.raises(StateVersion, match="version 2"):
            node.entity(Account, "a").ask(Total()).result(5)


class Sink(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @handler
    def on_number(self, msg: int) -> None:
        self.seen.append(msg)

    @handler
    def on_text(self, msg: str) -> list[int]:
        return self.seen


class Telling(Entity):
    name = "entity-tests.Telling"

    def __init__(self, sink: ActorRef[Sink]) -> None:
        self.total = 0
        self.sink = sink

    @handler
    def on_add(self, msg: Add) -> None:
        self.persist(Added(msg.amount))
        self.sink.tell(self.total)
        if msg.then:
            raise ValueError(msg.then)

    @event
    def on_added(self, event: Added) -> None:
        self.total += event.amount


def test_messages_leave_with_the_commit_and_not_at_all_without(state: str) -> None:
    with Node() as node:
        sink = node.spawn(Sink)
        node.host(Telling, sink, state=state)
        ref = node.entity(Telling, "a")
        ref.ask(Add(1)).result(5)
        with pytest.raises(RemoteError):
            ref.ask(Add(5, "raise")).result(5)
        ref.ask(Add(2)).result(5)
        assert sink.ask("seen").result(5) == [1, 3]


def test_what_is_stored_can_be_read_by_sql(tmp_path: Path, node: Node) -> None:
    node.entity(Account, "u-17").ask(Add(3, "tea")).result(5)
    with sqlite3.connect(tmp_path / "state.db") as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
        events = next(name for name in tables if "events" in name)
        rows = [str(row) for row in database.execute(f"SELECT * FROM {events}")]
    assert any('{"amount":3,"note":"tea"}' in row for row in rows)


def test_what_cannot_be_written_is_refused_at_its_line(node: Node) -> None:
    with pytest.raises(RemoteError, match="NotSerializable"):
        node.entity(Account, "a").ask(Add(object())).result(5)  # type: ignore[arg-type]


def test_persist_is_for_handlers(node: Node) -> None:
    ref = node.entity(Account, "a")
    ref.ask(Add(1)).result(5)
    cell = next(c for c in node.runtime.contexts.values() if isinstance(c.actor, Account))
    with pytest.raises(NotPersistable, match="none of its handlers"):
        cell.actor.persist(Added(1))
