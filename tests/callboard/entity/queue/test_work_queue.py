"""Work queues on real nodes and in virtual time."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from callboard import Actor, Entity, Node, handler, message
from callboard.entity.queue.messages import ChangeJobs, TakeJob
from callboard.errors import (
    AskTimeout,
    CallboardError,
    DuplicateEntityType,
    EntityUnavailable,
    InvalidSeconds,
    JobLost,
    NotSerializable,
    OutcomeUnknown,
    QueueFull,
    ResultTimeout,
    WrongArgument,
    WrongValue,
)
from callboard.simulation import Cluster
from tests.callboard.entity.state.postgresql_server import running_server
from tests.polling import eventually

FILE, SERVER = "sqlite:jobs.db", "postgresql://jobs/shop"


@message("queue-tests.Mail")
@dataclass(frozen=True)
class Mail:
    to: str


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(7)) as made:
        yield made


@pytest.fixture
def state(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/jobs.db"


@pytest.fixture
def node(state: str) -> Iterator[Node]:
    with Node("one") as made:
        yield made


def hosts(cluster: Cluster, url: str, **options: int) -> tuple[Node, Node, Node]:
    """Three nodes of which two may own the queue; the third only uses it."""
    one, other, user = cluster(3, topology="mesh")
    for node in (one, other):
        node.queue("mails", state=url, **options)
    return one, other, user


def owner_of(cluster: Cluster) -> Node:
    """The node that owns the queue just now."""
    found = cluster.nodes[2].entity("queue.mails", "mails").node_id
    return next(node for node in cluster.nodes if node.node_id == found)


def test_a_job_is_put_taken_and_acknowledged(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state)
    number = mails.put({"to": "ann"}).result(5)
    job = mails.take(visible_after=30.0).result(5)
    assert (job.value, job.attempt, job.number) == ({"to": "ann"}, 1, number)
    assert mails.stats().result(5).taken == 1
    job.ack().result(5)
    stats = mails.stats().result(5)
    assert (stats.ready, stats.delayed, stats.taken, stats.dead, stats.waiting) == (0,) * 5


def test_jobs_come_in_the_order_in_which_they_were_put(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state)
    numbers = [put.result(5) for put in [mails.put(n) for n in range(300)]]
    assert numbers == sorted(set(numbers))
    assert [mails.take().result(5).value for _ in range(300)] == list(range(300))


def test_a_taker_waits_for_a_job(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state)
    first, second = mails.take(), mails.take()
    mails.put(Mail("ann")).result(5)
    assert first.result(5).value == Mail("ann")
    assert not second.done()
    mails.put(Mail("bob")).result(5)
    assert second.result(5).value == Mail("bob")


def test_jobs_outlive_the_node(state: str) -> None:
    with Node() as node:
        mails = node.queue("mails", state=state)
        for put in [mails.put(n) for n in range(3)]:
            put.result(5)
        mails.take().result(5).ack().result(5)
    with Node() as node:
        mails = node.queue("mails", state=state)
        assert [mails.take().result(5).value for _ in range(2)] == [1, 2]


def test_what_is_given_back_comes_again_with_its_attempt(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state)
    mails.put("a").result(5)
    mails.put("b").result(5)
    mails.take().result(5).nack(reason="no").result(5)
    again = mails.take().result(5)
    assert (again.value, again.attempt) == ("a", 2)
    with pytest.raises(JobLost, match="taken from this taker"):
        [mails.take().result(5), again.ack(), again.ack()][-1].result(5)


def test_texts_that_no_database_takes_reach_none() -> None:
    """PostgreSQL has no NUL, and what a taker says of a failure may be anything."""
    with Node("one") as node:
        mails = node.queue("mails", state=running_server().new_database(), attempts=1)
        owner = node.entity("queue.mails", "mails")
        put = ChangeJobs(put=(('"\x00"', 0.0), ('"a"', 0.0)))
        assert len(owner.ask(put).result(5).put) == 1
        assert owner.ask(TakeJob("\x00", 5.0)).result(5) is None
        job = mails.take().result(5)
        assert job.value == "a"
        job.nack(reason="a\x00b\udc80").result(5)
        (dead,) = mails.dead().result(5)
        assert dead.reason == r"a\x00b\udc80"


def test_a_job_that_fails_too_often_is_dead_and_can_be_looked_at(
    node: Node, state: str
) -> None:
    mails = node.queue("mails", state=state, attempts=2)
    for name in ("a", "b"):
        mails.put(name).result(5)
    for _ in range(4):
        mails.take().result(5).nack(reason="the address is wrong").result(5)
    found = mails.dead().result(5)
    assert [(job.value, job.attempts, job.reason) for job in found] == [
        ("a", 2, "the address is wrong"),
        ("b", 2, "the address is wrong"),
    ]
    assert mails.dead(after=found[0].number).result(5) == found[1:]
    assert mails.dead(1).result(5) == found[:1]
    assert mails.stats().result(5).dead == 2
    assert mails.requeue(found[1].number).result(5) == 1
    job = mails.take().result(5)
    assert (job.value, job.attempt) == ("b", 1)
    assert mails.discard().result(5) == 1
    assert mails.dead().result(5) == []
    assert mails.requeue().result(5) == 0


def test_a_full_queue_refuses(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state, limit=3)
    puts = [mails.put(n) for n in range(5)]
    outcomes = [put.exception(5) for put in puts]
    assert [type(error) for error in outcomes] == [type(None)] * 3 + [QueueFull] * 2
    mails.take().result(5).ack().result(5)
    mails.put(7).result(5)


def test_what_is_awaited_on_a_loop(node: Node, state: str) -> None:
    async def work() -> object:
        mails = await node.aqueue("mails", state=state)
        taking = asyncio.ensure_future(asyncio.wait_for(mails.take(), 5))
        await mails.put("tea")
        job = await taking
        await job.ack()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mails.take(), 0.01)
        await mails.put("milk")
        return (await mails.take()).value

    assert asyncio.run(work()) == "milk"


def test_a_taking_that_was_given_up_takes_nothing(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state)
    cancelled, dropped = mails.take(), mails.take()
    cancelled.cancel()
    del dropped
    with pytest.raises(ResultTimeout):
        mails.take().result(0.01)
    with pytest.raises(AskTimeout, match=r"no job of 'mails' arrived within 0\.01 s"):
        mails.take(timeout=0.01).result(5)
    gc.collect()
    eventually(lambda: mails.stats().result(5).waiting == 0)
    mails.put("a").result(5)
    job = mails.take().result(5)
    assert (job.value, job.attempt) == ("a", 1)


def test_many_producers_and_takers_share_a_queue(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state)
    seen: list[int] = []

    def put(first: int) -> None:
        for done in [mails.put(n) for n in range(first, first + 100)]:
            done.result(20)

    def take() -> None:
        while True:
            job = mails.take().result(20)
            job.ack().result(20)
            if job.value < 0:
                return
            seen.append(job.value)

    takers = [threading.Thread(target=take) for _ in range(4)]
    producers = [threading.Thread(target=put, args=(100 * n,)) for n in range(4)]
    for thread in (*takers, *producers):
        thread.start()
    for thread in producers:
        thread.join()
    for _ in takers:
        mails.put(-1).result(20)
    for thread in takers:
        thread.join()
    assert sorted(seen) == list(range(400))


def test_what_cannot_be_meant_is_refused(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state)
    with pytest.raises(NotSerializable):
        mails.put(object())
    with pytest.raises(NotSerializable):
        mails.put("\ud800")
    with pytest.raises(WrongValue, match="1,048,576 B"):
        mails.put("x" * (1 << 20))
    for wrong in (0.0, -1, "long", float("nan"), None):
        with pytest.raises(InvalidSeconds):
            mails.take(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSeconds):
        mails.put(1, delay="later")  # type: ignore[arg-type]
    for name in ("", "a b", "a/b", "x" * 125):
        with pytest.raises(WrongValue):
            node.queue(name)
    for name in (None, 7, b"mails"):
        with pytest.raises(WrongArgument):
            node.queue(name)  # type: ignore[arg-type]
    with pytest.raises(WrongArgument):
        node.queue("other", leases=state)
    with pytest.raises(WrongValue):
        node.queue("other", state=state, attempts=0)
    with pytest.raises(DuplicateEntityType):
        node.queue("mails", state=state, attempts=9)
    assert node.queue("mails", state=state) is mails is node.queue("mails")
    with pytest.raises(WrongValue):
        mails.dead(0)


class Sender(Entity):
    name = "queue-tests.Sender"

    def __init__(self) -> None:
        self.state = Mail("")

    @handler
    def on_text(self, msg: str) -> None:
        self.state = Mail(msg)
        self.save()
        self.node.queue("mails").put(msg)
        if msg == "wrong":
            raise ValueError(msg)


class Plain(Actor):
    @handler
    async def on_text(self, msg: str) -> str:
        job = await self.node.queue("mails").take()
        await job.ack()
        return f"{msg} {job.value}"


def test_entities_put_with_their_commit_and_actors_take(node: Node, state: str) -> None:
    mails = node.queue("mails", state=state)
    node.host(Sender, state=state)
    sender = node.entity(Sender, "k")
    with pytest.raises(CallboardError):
        sender.ask("wrong").result(5)
    sender.ask("right").result(5)
    assert node.spawn(Plain).ask("got").result(5) == "got right"
    assert mails.stats().result(5).ready == 0


@pytest.mark.parametrize("url", [FILE, SERVER])
def test_a_node_that_owns_none_uses_it(cluster: Cluster, url: str) -> None:
    _, _, user = hosts(cluster, url)
    mails = user.queue("mails")
    taking = mails.take()
    mails.put(Mail("ann")).result(5)
    job = taking.result(5)
    assert job.value == Mail("ann")
    job.ack().result(5)
    assert cluster.database(url).tables.jobs["queue.mails", "mails"] == {}


def test_the_time_of_a_taking_ends_never_early(cluster: Cluster) -> None:
    _, _, user = hosts(cluster, FILE)
    mails = user.queue("mails")
    mails.put("a").result(5)
    first = mails.take(visible_after=4.0).result(5)
    begun = cluster.now
    second = mails.take().result(10)
    assert 3.9 < cluster.now - begun < 4.5
    assert (second.value, second.attempt) == ("a", 2)
    with pytest.raises(JobLost):
        first.ack().result(5)
    with pytest.raises(JobLost):
        first.nack().result(5)
    with pytest.raises(JobLost):
        first.extend(9.0).result(5)
    second.extend(6.0).result(5)
    begun = cluster.now
    second.extend(6.0).result(5)
    third = mails.take()
    cluster.advance(5.5)
    assert not third.done()
    second.ack().result(5)
    cluster.advance(10.0)
    assert not third.done()


def test_delays_are_kept(cluster: Cluster) -> None:
    _, _, user = hosts(cluster, FILE)
    mails = user.queue("mails")
    mails.put("late", delay=70.0).result(5)
    mails.put("soon", delay=2.0).result(5)
    begun = cluster.now
    job = mails.take().result(10)
    assert job.value == "soon"
    assert 1.9 < cluster.now - begun < 2.5
    job.nack(delay=3.0).result(5)
    job = mails.take().result(10)
    assert (job.value, job.attempt) == ("soon", 2)
    assert 4.9 < cluster.now - begun < 6.0
    job.ack().result(5)
    assert mails.take().result(100).value == "late"
    assert 69.9 < cluster.now - begun < 71.0


@pytest.mark.parametrize("url", [FILE, SERVER])
@pytest.mark.parametrize("how", ["kill", "crash", "pause"])
def test_jobs_of_a_lost_owner_are_handed_out_by_the_next(
    cluster: Cluster, url: str, how: str
) -> None:
    _, _, user = hosts(cluster, url)
    mails = user.queue("mails")
    for n in range(20):
        mails.put(n).result(5)
    jobs = [mails.take(visible_after=8.0).result(5) for _ in range(10)]
    jobs[0].ack().result(5)
    waiting = [mails.take() for _ in range(15)]
    owner = owner_of(cluster)
    getattr(cluster, how)(owner)
    begun = cluster.now
    acks = [job.ack() for job in jobs[1:5]]
    cluster.advance(6.0)
    assert [ack.exception() for ack in acks] == [None] * 4
    served = [each for each in waiting if each.done()]
    assert sorted(each.result(1).value for each in served) == list(range(10, 20))
    cluster.advance(15.0)
    if how == "pause":
        cluster.resume(owner)
        cluster.advance(5.0)
    rest = [each.result(1) for each in waiting if each not in served]
    again = sorted((job.value, job.attempt) for job in rest)
    assert again == [(n, 2) for n in range(5, 10)], "what was acknowledged comes never again"
    assert cluster.now - begun >= 8.0


def test_a_taker_whose_node_is_gone_gives_its_jobs_back(cluster: Cluster) -> None:
    one, other, user = hosts(cluster, FILE)
    mails = user.queue("mails")
    mails.put("a").result(5)
    taker = cluster.node("taker")
    for node in (one, other):
        taker.connect(node.address)
    cluster.advance(1.0)
    job = taker.queue("mails").take(visible_after=600.0).result(5)
    assert job.value == "a"
    waiting = taker.queue("mails").take()
    cluster.kill(taker)
    begun = cluster.now
    again = mails.take().result(20)
    assert (again.value, again.attempt) == ("a", 2)
    assert cluster.now - begun < 8.0
    mails.put("b").result(5)
    assert mails.take().result(5).value == "b"
    assert not waiting.done()


def test_a_taker_that_slept_learns_that_its_job_is_anothers(cluster: Cluster) -> None:
    one, other, user = hosts(cluster, SERVER)
    mails = user.queue("mails")
    mails.put("a").result(5)
    taker = cluster.node("taker")
    for node in (one, other):
        taker.connect(node.address)
    cluster.advance(1.0)
    job = taker.queue("mails").take(visible_after=600.0).result(5)
    cluster.pause(taker)
    assert mails.take().result(20).attempt == 2
    cluster.resume(taker)
    cluster.advance(5.0)
    with pytest.raises(JobLost):
        job.ack().result(20)


def test_a_queue_moves_with_all_who_wait(cluster: Cluster) -> None:
    one, other, user = hosts(cluster, FILE)
    mails = user.queue("mails")
    waiting = mails.take()
    mails.put("a", delay=5.0).result(5)
    owner = owner_of(cluster)
    owner.close()
    cluster.advance(1.0)
    assert owner_of(cluster) is not owner
    mails.put("b").result(5)
    assert waiting.result(5).value == "b"
    assert mails.take().result(10).value == "a"


def test_a_database_that_is_away_costs_no_job(cluster: Cluster) -> None:
    _, _, user = hosts(cluster, SERVER)
    mails = user.queue("mails")
    database = cluster.database(SERVER)
    for n in range(10):
        mails.put(n).result(5)
    waiting = [mails.take(visible_after=60.0) for _ in range(5)]
    jobs = [each.result(5) for each in waiting]
    database.lost_answers = 0.3
    database.down()
    acks = [job.ack() for job in jobs]
    put = mails.put("away")
    cluster.advance(4.0)
    database.up()
    cluster.advance(15.0)
    done = {job.value for job, ack in zip(jobs, acks, strict=True) if not ack.exception()}
    assert isinstance(put.exception(), type(None) | OutcomeUnknown | EntityUnavailable)
    rest = [mails.take(timeout=90.0) for _ in range(11)]
    cluster.advance(100.0)
    found = [each.result(1).value for each in rest if not each.exception()]
    assert not done & set(found)
    assert set(range(10)) - done <= set(found) | {job.value for job in jobs}


def test_more_jobs_than_memory_holds_come_in_order(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callboard.entity.machine import job_queue
    from callboard.entity.queue import queue_entity

    monkeypatch.setattr(job_queue, "HELD_LIMIT", 8)
    monkeypatch.setattr(job_queue, "READ_LIMIT", 4)
    monkeypatch.setattr(queue_entity, "READ_LIMIT", 4)
    (node,) = cluster(1)
    mails = node.queue("mails", state=FILE)
    for put in [mails.put(n) for n in range(50)]:
        put.result(5)
    for put in [mails.put(n, delay=1.0 + n / 100) for n in range(50, 80)]:
        put.result(5)
    found = []
    for _ in range(50):
        job = mails.take().result(5)
        found.append(job.value)
        job.ack().result(5)
    assert found == list(range(50))
    assert [mails.take().result(5).value for _ in range(30)] == list(range(50, 80))
