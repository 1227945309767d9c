"""Reminders of entities, in virtual time and on files."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from callboard import Entity, Node, event, handler, message
from callboard.errors import (
    CallboardError,
    InvalidSeconds,
    NotPersistable,
    NotSerializable,
    RemoteError,
    WrongArgument,
    WrongValue,
)
from callboard.simulation import Cluster

FILE, SERVER = "sqlite:reminders.db", "postgresql://reminders/shop"


@message("reminder-tests.Set")
@dataclass(frozen=True)
class Set:
    name: str
    after: float | None = None
    every: float | None = None
    then: str = ""


@message("reminder-tests.Forget")
@dataclass(frozen=True)
class Forget:
    name: str


@message("reminder-tests.Rang")
@dataclass(frozen=True)
class Rang:
    name: str
    at: float = 0.0
    then: str = ""


@message("reminder-tests.Failing")
@dataclass(frozen=True)
class Failing:
    times: int


class Clock(Entity):
    name = "reminder-tests.Clock"
    idle = 5.0

    #: Of all of the process: how often a handler failed.
    failed = 0

    def __init__(self) -> None:
        self.rang: list[tuple[str, float]] = []

    @handler
    async def on_set(self, msg: Set) -> None:
        self.remind(msg.name, Rang(msg.name, then=msg.then), after=msg.after, every=msg.every)
        if msg.then == "raise":
            raise ValueError(msg.then)
        if msg.then == "wait":
            await self.sleep(3.0)

    @handler
    def on_forget(self, msg: Forget) -> None:
        self.forget(msg.name)

    @handler
    async def on_rang(self, msg: Rang) -> None:
        if msg.then == "again":
            self.remind(msg.name, Rang(msg.name), after=5.0)
        if msg.then.startswith("fails"):
            Clock.failed += 1
            if Clock.failed <= int(msg.then.split()[1]):
                raise ValueError(msg.then)
        self.persist(Rang(msg.name, self.context.runner.now()))

    @event
    def on_kept(self, event: Rang) -> None:
        self.rang.append((event.name, event.at))

    @handler(read_only=True)
    def on_text(self, msg: str) -> list[str]:
        return [name for name, _ in self.rang]

    @handler(read_only=True)
    def on_number(self, msg: int) -> list[float]:
        return [at for _, at in self.rang]

    @handler(read_only=True)
    def on_bytes(self, msg: bytes) -> None:
        self.remind("read", msg, after=1.0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    Clock.failed = 0
    with closing(Cluster(7)) as made:
        yield made


def hosts(cluster: Cluster, url: str) -> tuple[Node, Node, Node]:
    """Three nodes of which two host clocks; the third only asks."""
    one, other, asker = cluster(3, topology="mesh")
    for node in (one, other):
        node.host(Clock, state=url)
    return one, other, asker


def rang(node: Node, key: str = "k") -> list[str]:
    found: list[str] = node.entity(Clock, key).ask("names").result(10)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("url", [FILE, SERVER])
def test_it_comes_at_its_time_once_and_in_order(cluster: Cluster, url: str) -> None:
    one, _, asker = hosts(cluster, url)
    clock = asker.entity(Clock, "k")
    began = cluster.now
    for name, after in (("last", 70.0), ("second", 4.0), ("first", 2.0)):
        clock.ask(Set(name, after)).result(5)
    cluster.advance(1.5)
    assert rang(asker) == []
    cluster.advance(3.0)
    assert rang(asker) == ["first", "second"]
    cluster.advance(67.0)
    assert rang(asker) == ["first", "second", "last"]
    at = [when - began for when in clock.ask(1).result(5)]
    assert all(0 <= when - due < 0.5 for when, due in zip(at, (2, 4, 70), strict=True)), at
    assert cluster.database(url).tables.reminders == {}


@pytest.mark.slow
def test_it_comes_to_an_entity_that_was_put_away(cluster: Cluster) -> None:
    one, _, _ = hosts(cluster, FILE)
    for number in range(50):
        one.entity(Clock, f"k-{number}").ask(Set("one", 15.0)).result(5)
    cluster.advance(10.0)
    assert not any(node._all_entities._hosts[Clock.name].cells for node in cluster.nodes[:2])
    cluster.advance(6.0)
    assert [rang(one, f"k-{number}") for number in range(50)] == [["one"]] * 50


def test_one_of_the_same_name_is_replaced_and_one_that_is_forgotten_never_comes(
    cluster: Cluster,
) -> None:
    one, _, _ = hosts(cluster, FILE)
    clock = one.entity(Clock, "k")
    clock.ask(Set("pay", 1.0)).result(5)
    clock.ask(Set("pay", 10.0)).result(5)
    clock.ask(Set("other", 1.0)).result(5)
    clock.ask(Forget("other")).result(5)
    clock.ask(Forget("never was")).result(5)
    cluster.advance(9.0)
    assert rang(one) == []
    cluster.advance(2.0)
    assert rang(one) == ["pay"]


def test_one_that_waits_in_the_mailbox_can_still_be_forgotten_or_replaced(
    cluster: Cluster,
) -> None:
    one, _, _ = hosts(cluster, FILE)
    clock = one.entity(Clock, "k")
    clock.ask(Set("gone", 1.0)).result(5)
    clock.ask(Set("late", 1.0)).result(5)
    asks = [clock.ask(Set("x", 1000.0, then="wait")), clock.ask(Forget("gone"))]
    asks.append(clock.ask(Set("late", 6.0)))
    cluster.advance(4.0)
    assert [ask.result(1) for ask in asks] == [None] * 3
    assert rang(one) == []
    cluster.advance(7.0)
    assert rang(one) == ["late"]


def test_a_handler_that_raises_sets_nothing(cluster: Cluster) -> None:
    one, _, _ = hosts(cluster, FILE)
    with pytest.raises(RemoteError):
        one.entity(Clock, "k").ask(Set("pay", 1.0, then="raise")).result(5)
    cluster.advance(3.0)
    assert rang(one) == []
    assert cluster.database(FILE).tables.reminders == {}


@pytest.mark.slow
def test_one_whose_handler_fails_comes_again_later_each_time(cluster: Cluster) -> None:
    one, _, _ = hosts(cluster, FILE)
    clock = one.entity(Clock, "k")
    clock.ask(Set("pay", 1.0, then="fails 4")).result(5)
    clock.ask(Set("other", 2.0)).result(5)
    cluster.advance(5.0)
    assert rang(one) == ["other"]
    assert 2 <= Clock.failed <= 4
    cluster.advance(10.0)
    assert rang(one) == ["other", "pay"]
    assert Clock.failed == 5
    cluster.advance(20.0)
    assert rang(one) == ["other", "pay"]


@pytest.mark.slow
def test_a_handler_may_set_its_own_reminder_anew(cluster: Cluster) -> None:
    one, _, _ = hosts(cluster, FILE)
    clock = one.entity(Clock, "k")
    clock.ask(Set("tick", 1.0, then="again")).result(5)
    cluster.advance(3.0)
    assert rang(one) == ["tick"]
    cluster.advance(5.0)
    assert rang(one) == ["tick", "tick"]
    cluster.advance(10.0)
    assert rang(one) == ["tick", "tick"]


def test_a_repeated_one_keeps_its_rhythm_until_it_is_forgotten(cluster: Cluster) -> None:
    one, _, _ = hosts(cluster, FILE)
    clock = one.entity(Clock, "k")
    began = cluster.now
    clock.ask(Set("tick", every=4.0)).result(5)
    cluster.advance(14.0)
    at = [when - began for when in clock.ask(1).result(5)]
    assert [round(when) for when in at] == [4, 8, 12]
    clock.ask(Forget("tick")).result(5)
    cluster.advance(10.0)
    assert len(rang(one)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("url", [FILE, SERVER])
@pytest.mark.parametrize("how", ["kill", "crash", "pause"])
def test_reminders_of_a_lost_node_come_on_another(cluster: Cluster, url: str, how: str) -> None:
    one, other, asker = hosts(cluster, url)
    keys = [f"k-{number}" for number in range(40)]
    for key in keys:
        asker.entity(Clock, key).ask(Set("soon", 8.0)).result(5)
        asker.entity(Clock, key).ask(Set("late", 30.0)).result(5)
    cluster.advance(7.0)
    getattr(cluster, how)(one)
    cluster.advance(7.0)
    assert [rang(asker, key) for key in keys] == [["soon"]] * 40
    if how == "pause":
        cluster.resume(one)
    cluster.advance(25.0)
    assert [rang(asker, key) for key in keys] == [["soon", "late"]] * 40


@pytest.mark.slow
def test_they_come_where_their_entities_move_to(cluster: Cluster) -> None:
    one, other, asker = cluster(3, topology="mesh")
    one.host(Clock, state=FILE)
    keys = [f"k-{number}" for number in range(40)]
    for number, key in enumerate(keys):
        asker.entity(Clock, key).ask(Set("soon", 5.0 + number / 10)).result(5)
    cluster.advance(4.0)
    other.host(Clock, state=FILE)
    cluster.advance(10.0)
    assert [rang(asker, key) for key in keys] == [["soon"]] * 40
    assert {asker.entity(Clock, key).node_id for key in keys} == {one.node_id, other.node_id}


def test_all_hosts_may_be_gone_when_they_are_due(cluster: Cluster) -> None:
    one, other, asker = hosts(cluster, FILE)
    for number in range(40):
        asker.entity(Clock, f"k-{number}").ask(Set("pay", 3.0)).result(5)
    for node in (one, other):
        cluster.kill(node)
    cluster.advance(6.0)
    again = cluster.restart(one)
    asker.connect(again.address)
    again.host(Clock, state=FILE)
    cluster.advance(5.0)
    assert [rang(again, f"k-{number}") for number in range(40)] == [["pay"]] * 40


@pytest.mark.slow
def test_a_database_that_is_away_loses_none(cluster: Cluster) -> None:
    one, _, _ = hosts(cluster, SERVER)
    database = cluster.database(SERVER)
    database.lost_answers = 0.3
    for number in range(20):
        one.entity(Clock, f"k-{number}").ask(Set("pay", 20.0)).result(30)
    cluster.advance(10.0)
    database.down()
    cluster.advance(15.0)
    database.up()
    cluster.advance(20.0)
    assert [rang(one, f"k-{number}") for number in range(20)] == [["pay"]] * 20


@pytest.mark.slow
def test_more_are_due_at_once_than_are_held_in_memory(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callboard.entity import reminders

    monkeypatch.setattr(reminders, "ARMED_LIMIT", 5)
    one, _, _ = hosts(cluster, FILE)
    for number in range(40):
        one.entity(Clock, f"k-{number}").ask(Set("pay", 3.0 + number % 3)).result(5)
    cluster.advance(15.0)
    assert [rang(one, f"k-{number}") for number in range(40)] == [["pay"]] * 40


class Refused(Entity):
    name = "reminder-tests.Refused"

    @handler
    def on_name(self, msg: str) -> None:
        wrong = {
            "nothing": lambda: self.remind("pay", msg),
            "time": lambda: self.remind("pay", msg, after="soon"),  # type: ignore[arg-type]
            "period": lambda: self.remind("pay", msg, every=0.0),
            "nan": lambda: self.remind("pay", msg, after=float("nan")),
            "empty": lambda: self.remind("", msg, after=1.0),
            "number": lambda: self.remind(7, msg, after=1.0),  # type: ignore[arg-type]
            "long": lambda: self.forget("x" * 257),
            "thing": lambda: self.remind("pay", object(), after=1.0),
            "surrogate": lambda: self.remind("pay", "\ud800", after=1.0),
        }
        wrong[msg]()


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("nothing", WrongArgument),
        ("time", InvalidSeconds),
        ("period", InvalidSeconds),
        ("nan", InvalidSeconds),
        ("empty", WrongValue),
        ("number", WrongArgument),
        ("long", WrongValue),
        ("thing", NotSerializable),
        ("surrogate", NotSerializable),
    ],
)
def test_what_cannot_be_meant_is_refused(
    cluster: Cluster, what: str, error: type[CallboardError]
) -> None:
    (node,) = cluster(1)
    node.host(Refused, state=FILE)
    with pytest.raises(RemoteError) as caught:
        node.entity(Refused, "k").ask(what).result(5)
    assert caught.value.type_name.endswith(error.__name__)


def test_an_entity_without_state_has_none_and_is_told_what_to_use(cluster: Cluster) -> None:
    (node,) = cluster(1)
    node.host(Clock)
    with pytest.raises(RemoteError, match=r"without state.*self\.after"):
        node.entity(Clock, "k").ask(Set("pay", 1.0)).result(5)


def test_a_read_only_handler_sets_none(cluster: Cluster) -> None:
    one, _, _ = hosts(cluster, FILE)
    with pytest.raises(RemoteError, match=r"called remind\(\)"):
        one.entity(Clock, "k").ask(b"x").result(5)
    assert NotPersistable.__name__
