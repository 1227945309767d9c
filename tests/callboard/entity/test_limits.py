"""The limits that docs/guarantees.md states for entities, work queues and reminders."""

import inspect
from collections.abc import Iterator
from contextlib import closing

import pytest

from callboard import Entity, handler
from callboard.entity import host, reminders, router
from callboard.entity.machine import job_queue
from callboard.entity.machine.job_queue import JobConsumer, JobQueue
from callboard.entity.machine.table import slot_of
from callboard.errors import EntityUnavailable, QueueFull
from callboard.simulation import Cluster
from tests.callboard.entity.test_reminders import FILE, Clock, Set, hosts, rang


class Slow(Entity):
    name = "limit-tests.Slow"

    @handler
    async def on_number(self, msg: float) -> float:
        await self.sleep(msg)
        return msg


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(7)) as made:
        yield made


def keys_of_one_slot(count: int) -> list[str]:
    slot = slot_of("k")
    keys = (f"k-{number}" for number in range(10**7))
    return [key for key, _ in zip((k for k in keys if slot_of(k) == slot), range(count))]  # noqa: B905


def test_a_queue_lets_ten_thousand_takers_wait_and_refuses_the_next() -> None:
    jobs = JobQueue("q", 3, 10)
    takers = [JobConsumer(f"t-{number}", 5.0, None) for number in range(10_002)]

    assert [jobs.add_taker(taker) for taker in takers] == [True] * 10_000 + [False] * 2
    jobs.withdraw("t-5")
    assert [jobs.add_taker(taker) for taker in takers[10_000:]] == [True, False]


def test_a_taker_beyond_the_limit_gets_queue_full_and_the_others_get_jobs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "WAITING_LIMIT", 5)
    node, other = cluster(2)
    mails = node.queue("mails", state=FILE)
    elsewhere = other.queue("mails", state=FILE)
    mails.put("first").result(5)
    mails.take().result(5).ack().result(5)
    waiting = [queue.take() for queue in (mails, elsewhere, mails, elsewhere, mails)]
    cluster.advance(1.0)

    for queue in (mails, elsewhere):
        assert type(queue.take().exception(5)) is QueueFull
    for number in range(5):
        mails.put(number).result(5)
    assert {taken.result(5).value for taken in waiting} == {*range(5)}


def test_a_queue_takes_a_million_jobs_unless_it_is_told_otherwise(cluster: Cluster) -> None:
    (node,) = cluster(1)
    for method in (node.queue, node.aqueue):
        assert inspect.signature(method).parameters["limit"].default == 1_000_000
    mails = node.queue("mails", state=FILE, limit=2)
    puts = [mails.put(number) for number in range(3)]
    assert [type(put.exception(5)) for put in puts] == [type(None), type(None), QueueFull]


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
def test_no_more_due_reminders_are_held_in_memory_than_the_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, in_order: bool
) -> None:
    assert reminders.ARMED_LIMIT == 10_000
    monkeypatch.setattr(reminders, "ARMED_LIMIT", 6)
    one, other, _ = hosts(cluster, FILE)
    held: list[int] = []
    deliver = reminders.Reminders._deliver
    committed = reminders.Reminders.committed

    def look(self: reminders.Reminders, *args: object) -> None:
        (committed if args else deliver)(self, *args)  # type: ignore[arg-type]
        held.append(len(self._armed))

    monkeypatch.setattr(reminders.Reminders, "_deliver", look)
    monkeypatch.setattr(reminders.Reminders, "committed", look)
    for number in range(60):
        after = 3.0 + (number if in_order else 60 - number) / 30
        one.entity(Clock, f"k-{number}").ask(Set("pay", after)).result(5)
    cluster.advance(20.0)

    assert [rang(one, f"k-{number}") for number in range(60)] == [["pay"]] * 60
    assert 0 < max(held) <= 6


def outcomes(futures: list[object]) -> list[str]:
    """Return what became of asks so far: '' while they wait."""
    found = []
    for future in futures:
        error = future.exception(0) if future.done() else None  # type: ignore[attr-defined]
        found.append("" if error is None else f"{type(error).__name__}: {error}")
    return found


def test_a_thousand_messages_wait_for_a_slot_without_an_owner_and_the_next_are_refused(
    cluster: Cluster,
) -> None:
    asker, owner = cluster(2)
    owner.host(Slow, state=FILE)
    asker.entity(Slow, "k").ask(0.0).result(5)
    cluster.pause(owner)
    cluster.cut(asker, owner)
    cluster.partition(asker, owner)
    cluster.advance(10.0)
    first, second = keys_of_one_slot(2)
    other = next(f"o-{n}" for n in range(10**6) if slot_of(f"o-{n}") != slot_of("k"))
    asks = [
        asker.entity(Slow, (first, second)[number % 2]).ask(0.0, timeout=50)
        for number in range(1_003)
    ]
    elsewhere = asker.entity(Slow, other).ask(0.0, timeout=50)
    cluster.advance(0.0)

    ended = outcomes([*asks])
    assert ended[:1_000] == [""] * 1_000
    assert all("1,000 messages wait for its owner" in error for error in ended[1_000:])
    assert all(error.startswith(EntityUnavailable.__name__) for error in ended[1_000:])
    assert not elsewhere.done()


def test_no_more_messages_wait_for_an_entity_that_is_put_away_than_the_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.WAITING_LIMIT == router.WAITING_LIMIT == 1_000
    monkeypatch.setattr(host, "WAITING_LIMIT", 5)
    asker, owner = cluster(2)
    owner.host(Slow, state=FILE)
    ref = asker.entity(Slow, "k")
    ref.ask(0.0).result(5)
    ref.tell(2.0)
    cluster.advance(0.1)
    (type_host,) = [
        each for each in owner._entities._hosts.values() if each.type.name == Slow.name
    ]
    type_host.passivate(type_host.cells["k"])
    asks = [ref.ask(0.0, timeout=20) for _ in range(9)]
    cluster.advance(0.5)
    ended = outcomes([*asks])
    assert ended[:5] == [""] * 5
    assert all(error.startswith(EntityUnavailable.__name__) for error in ended[5:])
    cluster.advance(5.0)
    assert [ask.result(0) for ask in asks[:5]] == [0.0] * 5


def test_a_thousand_messages_wait_for_a_slot_that_moves_and_the_next_are_refused(
    cluster: Cluster,
) -> None:
    asker, owner, heir = cluster(3, topology="mesh")
    owner.host(Slow, state=FILE)
    keys = [f"q-{number}" for number in range(200)]
    for key in keys:  # a move waits for their handlers
        asker.entity(Slow, key).tell(4.0)
    cluster.advance(0.1)
    heir.host(Slow, state=FILE)
    (type_host,) = [
        one for one in owner._entities._hosts.values() if one.type.name == Slow.name
    ]
    assert cluster.run_until(lambda: bool(type_host._stopped), 5.0)
    key = next(key for key in keys if slot_of(key) in type_host._stopped)
    asks = [asker.entity(Slow, key).ask(0.0, timeout=30) for _ in range(1_003)]
    cluster.advance(0.01)

    ended = outcomes([*asks])
    assert slot_of(key) in type_host._stopped, "it moves still"
    assert ended[:1_000] == [""] * 1_000
    assert all(error.startswith(EntityUnavailable.__name__) for error in ended[1_000:])
    cluster.advance(20.0)
    assert [ask.result(0) for ask in asks[:1_000]] == [0.0] * 1_000
    assert not type_host._held
    assert not type_host._held_in.total()


def test_the_page_states_these_limits(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "guarantees.md").read_text(encoding="utf-8")
    for text in (
        f"1,000,000 jobs (`limit=`) or {job_queue.WAITING_LIMIT:,} waiting consumers",
        f"{reminders.ARMED_LIMIT:,} due reminders are held in memory",
        f"{router.WAITING_LIMIT:,} messages wait for each slot; further ones are refused",
    ):
        assert text in page
