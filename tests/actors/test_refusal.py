"""Refusals: exceptions that are answers."""

import asyncio
import contextlib
import copy
import logging
import pickle  # noqa: TID251 - users' tools copy exceptions with it
from dataclasses import dataclass, field

import pytest

from callboard import (
    Actor,
    Entity,
    Node,
    Query,
    Refusal,
    errors,
    event,
    gather,
    handler,
    message,
)
from callboard.basp.registry import DEFAULT_REGISTRY
from tests.polling import eventually

pytestmark = pytest.mark.timeout(60)


@message("tests.refusal.NoMoney")
@dataclass
class NoMoney(Refusal):
    has: int
    needs: int


@message("tests.refusal.Closed")
@dataclass(frozen=True)
class Closed(Refusal):
    why: str
    since: list[int] = field(default_factory=list)


@dataclass
class Unregistered(Refusal):
    why: str


@message("tests.refusal.Withdraw")
@dataclass(frozen=True)
class Withdraw(Query[int]):
    cents: int


@message("tests.refusal.Taken")
@dataclass(frozen=True)
class Taken:
    cents: int


class Account(Actor):
    def __init__(self) -> None:
        self.cents = 100

    @handler
    def withdraw(self, msg: Withdraw) -> int:
        if msg.cents > self.cents:
            raise NoMoney(has=self.cents, needs=msg.cents)
        self.cents -= msg.cents
        return self.cents

    @handler
    async def later(self, why: str) -> None:
        await self.sleep(0)
        raise Closed(why, [1])

    @handler(concurrent=True)
    async def together(self, number: float) -> None:
        await self.sleep(0)
        with contextlib.ExitStack() as stack:
            stack.callback(int)
            raise Closed(str(number))

    def close(self, why: str) -> None:
        raise Closed(why)

    @handler
    def strange(self, _: bytes) -> None:
        raise Unregistered("nobody knows")


@pytest.fixture(params=["local", "remote"])
def account(request):
    with Node("bank") as bank, Node("till") as till:
        ref = bank.spawn(Account)
        if request.param == "remote":
            bank.listen("127.0.0.1", 0)
            till.connect(bank.address)
            ref = till.ref(str(ref))
        yield ref


def test_a_refusal_is_an_answer_and_the_actor_lives_on(account, caplog):
    with pytest.raises(NoMoney) as caught:
        account.ask(Withdraw(200)).result(5)

    assert (caught.value.has, caught.value.needs) == (100, 200)
    assert str(caught.value) == "has=100, needs=200"
    assert account.ask(Withdraw(30)).result(5) == 70
    account.tell(Withdraw(200))
    assert account.ask(Withdraw(0)).result(5) == 70
    assert caplog.records == []


def test_coroutines_concurrent_handlers_and_methods_refuse_as_well(account):
    with pytest.raises(Closed) as caught:
        account.ask("sunday").result(5)
    assert caught.value == Closed("sunday", [1])
    with pytest.raises(Closed, match="why='2.5'"):
        account.ask(2.5).result(5)
    with pytest.raises(Closed, match="holiday"):
        account.call(Account.close, "holiday").result(5)
    with pytest.raises(Closed, match="holiday"):
        account.proxy().close("holiday").result(5)
    assert account.ask(Withdraw(0)).result(5) == 100


def test_many_asks_at_once_are_answered_or_refused_in_their_order(account):
    asks = [account.ask(Withdraw(0 if number % 2 else 1000)) for number in range(500)]

    outcomes = [ask.exception(20) or ask.result(0) for ask in asks]

    assert outcomes[1::2] == [100] * 250
    assert {str(each) for each in outcomes[::2]} == {"has=100, needs=1000"}


def test_a_refusal_can_be_gathered_and_awaited(account):
    async def both() -> list[object]:
        asks = [account.ask(Withdraw(200)), account.ask(Withdraw(1))]
        return await asyncio.gather(*asks, return_exceptions=True)

    assert asyncio.run(both()) == [NoMoney(100, 200), 99]
    with pytest.raises(NoMoney):
        gather(account.ask(Withdraw(200))).result(5)


def test_a_refusal_that_cannot_travel_arrives_as_its_text():
    with Node("bank") as bank, Node("till") as till:
        ref = bank.spawn(Account)
        with pytest.raises(Unregistered):
            ref.ask(b"").result(5)
        bank.listen("127.0.0.1", 0)
        till.connect(bank.address)

        with pytest.raises(errors.RemoteError) as caught:
            till.ref(str(ref)).ask(b"").result(5)

    assert caught.value.type_name == "Unregistered"
    assert caught.value.text == "why='nobody knows'"


def test_a_node_that_does_not_know_the_class_gets_its_name_and_text(account, monkeypatch):
    tables = DEFAULT_REGISTRY.by_name, DEFAULT_REGISTRY.flat, DEFAULT_REGISTRY.plain_flat
    for table in tables:
        for key in [key for key, kind in table.items() if kind.cls is NoMoney]:
            monkeypatch.delitem(table, key)
    if account.is_local:
        pytest.skip("nothing travels")

    with pytest.raises(errors.RemoteError, match="NoMoney: has=100, needs=200"):
        account.ask(Withdraw(200)).result(5)


@pytest.mark.parametrize("refusal", [NoMoney(1, 2), Closed("why", [3]), Unregistered("x")])
def test_a_refusal_is_an_exception_like_any_other(refusal):
    def leave() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(int)
            raise refusal

    async def fail() -> None:
        raise refusal from ValueError("cause")

    async def together() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    with pytest.raises(type(refusal)) as caught:
        leave()
    assert caught.value is refusal
    with pytest.raises(ExceptionGroup) as group:
        asyncio.run(together())
    assert group.value.exceptions == (refusal,)

    refusal.add_note("noted")
    pickled = pickle.loads(pickle.dumps(refusal))
    for twin in (
        copy.copy(refusal),
        copy.deepcopy(refusal),
        pickled,
    ):
        assert (type(twin), twin, str(twin)) == (type(refusal), refusal, str(refusal))
        assert twin.__notes__ == ["noted"]


def test_a_refusal_that_is_a_message_is_hashable():
    assert hash(NoMoney(1, 2)) == hash(NoMoney(1, 2))


def test_a_frozen_refusal_stays_frozen():
    refusal = Closed("why")
    with pytest.raises(AttributeError):
        refusal.why = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del refusal.why


class Purse(Entity):
    name = "tests.RefusingPurse"
    activations = 0

    def __init__(self) -> None:
        self.cents = 100

    async def activated(self) -> None:
        type(self).activations += 1

    @handler
    def withdraw(self, msg: Withdraw) -> int:
        if msg.cents > 1000:
            raise NoMoney(self.cents, msg.cents)
        self.persist(Taken(msg.cents))
        if self.cents < 0:
            raise NoMoney(self.cents + msg.cents, msg.cents)
        return self.cents

    @event
    def taken(self, event: Taken) -> None:
        self.cents -= event.cents


def test_an_entity_that_refuses_persists_nothing_and_stays_active(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    Purse.activations = 0
    with Node() as node:
        node.host(Purse, state=f"sqlite:{tmp_path}/it.db")
        purse = node.entity(Purse, "ann")
        assert purse.ask(Withdraw(10)).result(5) == 90
        with pytest.raises(NoMoney, match="has=90, needs=2000"):
            purse.ask(Withdraw(2000)).result(5)
        assert purse.ask(Withdraw(10)).result(5) == 80
        assert Purse.activations == 1

        with pytest.raises(NoMoney, match="has=80, needs=200"):
            purse.ask(Withdraw(200)).result(5)

        assert purse.ask(Withdraw(10)).result(5) == 70
        eventually(lambda: len(list(node.journal(Purse))) == 3)
    assert caplog.records == []
