"""The end of what waits on entities: hooks that hang, drains, promises that nobody keeps."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from callboard import Actor, Entity, Node, event, events, handler, message
from callboard.actors.asking.overdue import ASK_SECONDS, MARGIN_SECONDS, POLL_SECONDS
from callboard.actors.waits.shutdown import GRACE_SECONDS
from callboard.basp.header import INSPECTOR
from callboard.entity.machine.table import SLOTS
from callboard.errors import AskTimeout, EntityUnavailable, NodeClosed
from callboard.proxies.messages import DrainNode
from callboard.simulation import Cluster

FILE = "sqlite:ends.db"

#: Seconds until every promise that is overdue is forgotten.
FORGOTTEN = ASK_SECONDS + MARGIN_SECONDS + 2 * POLL_SECONDS


@message("end-tests.Added")
@dataclass(frozen=True)
class Added:
    number: int


class Counter(Entity):
    name = "end-tests.Counter"

    def __init__(self) -> None:
        self.total = 0

    @handler
    def on_number(self, msg: int) -> int:
        self.persist(Added(msg))
        return self.total

    @event
    def on_added(self, added: Added) -> None:
        self.total += added.number


class HangsAtLast(Counter):
    name = "end-tests.HangsAtLast"
    hook_timeout = 30.0

    async def passivated(self) -> None:
        await asyncio.Event().wait()


class HangsAtFirst(Counter):
    name = "end-tests.HangsAtFirst"
    hook_timeout = 3.0

    async def activated(self) -> None:
        await asyncio.Event().wait()


class Silent(Entity):
    name = "end-tests.Silent"
    idle = 5.0

    def __init__(self) -> None:
        self._kept: list[object] = []

    @handler
    def on_text(self, msg: str) -> None:
        self._kept.append(self.promise())


class SilentActor(Actor):
    def __init__(self) -> None:
        self.promises: list[object] = []

    @handler
    def on_text(self, msg: str) -> None:
        self.promises.append(self.promise())


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(11)) as made:
        yield made


# --- hooks ---


def test_a_key_whose_commit_fails_while_it_is_passivated_is_activated_again(cluster):
    node = cluster.node("a")
    node.host(HangsAtLast, state=FILE)
    ref, database = node.entity(HangsAtLast, "k"), cluster.database(FILE)
    assert ref.ask(1).result(10) == 1
    database.latency = 0.2
    lost = ref.ask(2, 20.0)
    cluster.advance(0.001)

    ref.stop()
    cluster.advance(0.1)
    database.down()
    cluster.advance(0.3)
    database.up()
    database.latency = 0.001

    assert isinstance(lost.exception(10), EntityUnavailable)
    assert ref.ask(3, 20.0).result(30) in (4, 6)


def test_an_activated_hook_that_hangs_fails_what_waits_and_is_tried_again(cluster):
    node = cluster.node("a")
    seen: list[object] = []
    with node.subscribed(seen.append):
        node.host(HangsAtFirst, state=FILE)
        ref = node.entity(HangsAtFirst, "k")
        impatient, patient = ref.ask(1, 1.0), ref.ask(1, 20.0)
        begun = cluster.now
        with pytest.raises(AskTimeout):
            impatient.result(30)
        with pytest.raises(EntityUnavailable, match=r"HangsAtFirst\.activated.*3 s.*repeat"):
            patient.result(30)
        assert 2.9 < cluster.now - begun < 3.5
        with pytest.raises(EntityUnavailable):
            ref.ask(1, 20.0).result(30)
    slow = [event for event in seen if isinstance(event, events.SlowHandler)]
    assert [(event.handler, event.seconds) for event in slow] == [
        ("HangsAtFirst.activated", 3.0)
    ] * 2


def test_a_passivated_hook_that_hangs_holds_its_key_up_for_its_time_only(cluster):
    node = cluster.node("a")
    node.host(HangsAtLast, state=FILE)
    ref = node.entity(HangsAtLast, "k")
    assert ref.ask(1).result(5) == 1
    ref.stop()
    cluster.advance(0.1)
    begun = cluster.now
    with pytest.raises(AskTimeout):
        ref.ask(1, 2.0).result(30)
    assert ref.ask(1, 59.0).result(60) in (2, 3)  # the first one waited as well
    assert 29.0 < cluster.now - begun < 31.0


# --- drains ---


@pytest.mark.parametrize("count", [1, 2])
def test_a_drain_with_hooks_that_hang_keeps_its_deadline_and_says_so(cluster, count):
    nodes = cluster(count)
    for node in nodes:
        node.host(HangsAtLast, state=FILE)
    for number in range(20):
        assert nodes[0].entity(HangsAtLast, f"k{number}").ask(1).result(5) == 1
    begun = cluster.now
    report = nodes[0].drain(3)
    assert cluster.now - begun < 3.0 + GRACE_SECONDS + 0.5
    if count == 2:  # alone it has nobody to give its slots to, and is quiet
        assert report.seconds == pytest.approx(3.0, abs=0.1)
        assert report.left > 0


@pytest.mark.slow
def test_a_type_that_does_not_come_to_rest_does_not_keep_others_from_moving(cluster):
    one, other = cluster(2)
    for node in (one, other):
        node.host(HangsAtLast, state=FILE)
        node.host(Counter, state=FILE)
    for number in range(20):
        for cls in (HangsAtLast, Counter):
            one.entity(cls, f"k{number}").ask(1).result(5)
    one.drain(10)
    stats = {each.type: each for each in other.entity_stats()}
    assert stats[Counter.name].slots == SLOTS
    assert [other.entity(Counter, f"k{n}").ask(1).result(20) for n in range(20)] == [2] * 20


def test_a_drain_from_another_node_moves_entities_as_well(cluster):
    one, other = cluster(2)
    for node in (one, other):
        node.host(Counter, state=FILE)
    for number in range(20):
        one.entity(Counter, f"k{number}").ask(1).result(5)
    moves: list[object] = []
    with one.subscribed(moves.append):
        asked = other.runtime.ref_of(one.node_id, INSPECTOR).ask(DrainNode(20.0), 30.0)
        assert asked.result(30).is_clean
    lost = sum(move.lost for move in moves if isinstance(move, events.SlotsMoved))
    assert lost > 0
    assert other.entity(Counter, "k1").ask(1).result(5) == 2


# --- takers ---


def test_a_job_that_arrives_at_a_cancelled_take_goes_to_the_next_taker_uncounted(tmp_path):
    """asyncio cancels a future after its value has come and before the task has run."""

    async def main():
        async with Node("owner") as owner, Node("taker") as node:
            owner.listen()
            await node.aconnect(owner.address)
            jobs = await owner.aqueue("jobs", state=f"sqlite:{tmp_path}/jobs.db")
            queue = node.queue("jobs")
            for number in range(30):
                take = queue.take(visible_after=60)
                waiter = asyncio.ensure_future(_awaited(take))
                await asyncio.sleep(0)
                await jobs.put(number)
                _hold_up(take)
                waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiter
                job = await asyncio.wait_for(queue.take(visible_after=60), 20)
                assert (job.value, job.attempt) == (number, 1)
                await job.ack()
            stats = await jobs.stats()
            assert (stats.taken, stats.ready, stats.waiting) == (0, 0, 0)

    asyncio.run(main())


async def _awaited(take):
    return await take


def _hold_up(take):
    """Hold the loop up until a take is done: its task does not run in between."""
    come = threading.Event()
    take.on_done(lambda _: come.set())
    assert come.wait(20)


def test_a_worker_that_waits_for_jobs_does_not_hold_a_drain_up(cluster):
    class Worker(Actor):
        @handler(concurrent=True)
        async def work(self, name: str) -> None:
            while True:
                try:
                    job = await self.node.queue(name).take()
                except NodeClosed as error:
                    ends.append(str(error))
                    return
                await self.sleep(1.0)
                await job.ack()
                done.append(job.value)

    ends: list[str] = []
    done: list[object] = []
    owner, node = cluster(2)
    owner.queue("jobs", state=FILE)
    node.spawn(Worker).tell("jobs")
    owner.queue("jobs").put("first").result(5)
    cluster.advance(0.5)
    report = node.drain(20)
    assert report.is_clean
    assert report.seconds < 3
    assert done == ["first"]
    assert ends == ["b is draining and takes no new work"]


# --- promises ---


def promises_of(node: Node, ref) -> int:
    """Return how many promises an actor or an entity of a node keeps in mind."""
    cell = node.runtime.contexts.get(ref.actor_id)
    return 0 if cell is None else len(cell._promises or ())


@pytest.mark.parametrize("timeout", ["default", 5.0])
def test_a_promise_is_forgotten_when_the_deadline_of_its_ask_has_passed(cluster, timeout):
    one, other = cluster(2)
    silent = one.spawn(SilentActor)
    remote = other.ref(str(silent))
    times = () if timeout == "default" else (timeout,)
    asks = [remote.ask("x", *times) for _ in range(50)]
    cluster.advance(1.0)
    assert promises_of(one, silent) == 50
    cluster.advance(FORGOTTEN if timeout == "default" else timeout + 3 * POLL_SECONDS)
    assert promises_of(one, silent) == 0
    assert all(isinstance(ask.exception(), AskTimeout) for ask in asks)


def test_a_promise_is_forgotten_when_the_node_of_its_asker_is_gone(cluster):
    one, other = cluster(2)
    silent = one.spawn(SilentActor)
    other.ref(str(silent)).ask("x", 5_000.0)
    other.ref(str(silent)).ask("x", None)
    cluster.advance(1.0)
    assert promises_of(one, silent) == 2
    cluster.kill(other)
    cluster.advance(60.0)
    assert promises_of(one, silent) == 0


def test_a_promise_to_an_ask_without_a_limit_is_kept(cluster):
    one, other = cluster(2)
    silent = one.spawn(SilentActor)
    ask = other.ref(str(silent)).ask("x", None)
    cluster.advance(10 * FORGOTTEN)
    assert promises_of(one, silent) == 1
    silent.kill()
    assert type(ask.exception(10)).__name__ == "ActorDown"


def test_an_entity_that_owes_an_answer_to_nobody_is_put_away(cluster):
    one, other = cluster(2)
    one.host(Silent, state=FILE)
    ask = other.entity(Silent, "k").ask("x")
    cluster.advance(1.0)
    (stats,) = one.entity_stats()
    assert stats.active == 1
    cluster.advance(FORGOTTEN + 20.0)
    assert isinstance(ask.exception(), AskTimeout)
    (stats,) = one.entity_stats()
    assert stats.active == 0
