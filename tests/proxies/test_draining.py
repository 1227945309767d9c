"""What a drain finishes, refuses and reports."""

import asyncio
import threading
import time

import pytest

from callboard import Actor, Node, handler
from callboard.actors.errors import (
    ActorDown,
    NodeClosed,
    NodeUnreachable,
    NotRegistered,
    NotSpawnable,
)
from callboard.proxies.messages import (
    TAKES_NO_MORE,
    Drained,
    Failure,
    NodeDraining,
    error_of,
    failure_of,
)
from tests.proxies.cast import Echo, Later, Sink, connect, eventually, recorded, settled


class Slow(Actor):
    """Takes its time for every answer."""

    @handler
    async def seconds(self, msg: float) -> float:
        await self.sleep(msg)
        return msg


class At(Actor):
    """Awaits what it is told once a time is over."""

    @handler
    async def later(self, msg: tuple) -> None:
        seconds, function = msg
        await self.sleep(seconds)
        await function()


class Caller(Actor):
    """Asks another actor, which may call back, before it answers."""

    @handler
    async def through(self, ref: list) -> object:
        return await ref[0].ask([self.me, "back"])

    @handler
    def text(self, msg: str) -> str:
        return msg


class CallsBack(Actor):
    @handler
    async def back(self, msg: list) -> object:
        await self.sleep(1.0)
        return await msg[0].proxy().greet()


class Greeting(Actor):
    def __init__(self, other: object) -> None:
        self.other = other

    @handler
    async def through(self, _: int) -> object:
        return await self.other.ask([self.helper, ""])

    @property
    def helper(self) -> object:
        return self.node.spawn(Helper)


class Helper(Actor):
    def greet(self) -> str:
        return "hello"


def test_asks_under_way_are_answered_and_the_node_closes(cluster):
    a, b = cluster(2)
    slow = a.ref(str(b.spawn(Slow)))
    asks = [slow.ask(seconds) for seconds in (0.5, 1.0, 2.0)]
    cluster.advance(0.1)

    report = b.drain(timeout=30)

    assert [ask.result(1) for ask in asks] == [0.5, 1.0, 2.0]
    assert (report.left, report.unsent, report.is_clean) == (0, 0, True)
    assert report.finished >= 2
    assert 3.0 <= report.seconds < 4.0
    with pytest.raises(NodeClosed):
        b.connect(a.address)


def test_concurrent_handlers_and_stashed_messages_are_finished_too(cluster):
    class Both(Actor):
        @handler(concurrent=True)
        async def seconds(self, msg: float) -> float:
            await self.sleep(msg)
            return msg

        @handler
        def text(self, msg: str) -> None:
            self.stash()

    a, b = cluster(2)
    both = a.ref(str(b.spawn(Both)))
    asks = [both.ask(seconds) for seconds in (1.0, 2.0)]
    cluster.advance(0.1)
    assert b.drain().is_clean
    assert [ask.result(1) for ask in asks] == [1.0, 2.0]

    c = cluster.node("c")
    c.spawn(Both).tell("put aside")
    assert c.drain(timeout=1).left == 1


@pytest.mark.slow
def test_what_is_left_at_the_deadline_is_reported_and_fails(cluster):
    a, b = cluster(2)
    later = a.ref(str(b.spawn(Later)))
    asks = [later.ask(text) for text in "xyz"]
    cluster.advance(0.1)

    with recorded(b) as events:
        report = b.drain(timeout=2)

    assert (report.left, report.is_clean) == (3, False)
    assert 2.0 <= report.seconds < 2.1
    assert report in events
    for ask in asks:
        with pytest.raises(ActorDown, match="shutdown"):
            ask.result(5)


def test_names_are_withdrawn_and_spawns_refused_while_a_node_drains(cluster):
    a, b = cluster(2, spawnable={"echo": Echo})
    slow = b.spawn(Slow)
    b.register("slow", slow)
    assert a.find("slow").result(5) == slow
    a.ref(str(slow)).ask(5.0)
    cluster.advance(0.1)
    seen = []

    async def look():
        for attempt in (a.find("slow"), a._start(a.aremote_spawn(b.node_id, "echo"))):
            try:
                seen.append(await attempt)
            except (NotRegistered, NotSpawnable) as error:
                seen.append(error)
        seen.append(b.is_draining)

    looked = a.spawn(At).ask((1.0, look))
    assert not b.is_draining
    assert b.drain().is_clean
    looked.result(5)

    assert [type(found) for found in seen] == [NotRegistered, NotSpawnable, bool]
    assert "b is draining" in str(seen[1])
    assert seen[2]


def test_asks_that_come_later_fail_at_once_and_say_why(cluster):
    a, b = cluster(2)
    echo, slow = a.ref(str(b.spawn(Echo))), b.spawn(Slow)
    slow.ask(5.0)
    cluster.advance(0.1)
    outcome = []

    async def ask_late():
        try:
            outcome.append(await echo.ask("late"))
        except NodeClosed as error:
            outcome.append(str(error))

    a.spawn(At).tell((2.0, ask_late))
    assert b.drain().is_clean

    assert outcome == ["b is draining and takes no more asks; ask another node"]


def test_the_refusal_of_a_draining_node_is_told_by_its_class_and_travels_as_node_closed():
    refusal = error_of(Failure("NodeClosed", f"b {TAKES_NO_MORE}"))

    assert type(refusal) is NodeDraining
    assert failure_of(refusal) == Failure("NodeClosed", f"b {TAKES_NO_MORE}")
    assert type(error_of(Failure("NodeClosed", "b was closed"))) is NodeClosed


def test_a_node_that_has_to_be_called_back_takes_asks_until_it_was(cluster):
    a, b = cluster(2)
    other = b.ref(str(a.spawn(CallsBack)))
    answer = b.spawn(Greeting, other).ask(1)
    cluster.advance(0.1)

    report = b.drain()

    assert report.is_clean
    assert answer.result(1) == "hello"


def test_everything_told_before_is_handled_and_confirmed(cluster):
    a, b = cluster(2)
    sink = a.ref(str(b.spawn(Sink)))
    for number in range(5_000):
        sink.tell(number)

    report = b.drain()
    cluster.advance(10.0)

    account = a.accounts()[b.node_id]
    assert report.is_clean
    assert report.finished >= 4_000
    assert (account.sent, account.confirmed, account.lost) == (5_000, 5_000, 0)


@pytest.mark.parametrize("seed", range(5))
def test_under_load_every_ask_is_answered_or_refused(seed):
    from callboard.simulation.cluster import Cluster

    cluster = Cluster(seed)
    try:
        a, b, c = cluster(3)
        echo, outcomes = c.ref(str(a.spawn(Echo))), []
        asked = 0

        class Asking(Actor):
            @handler
            async def go_on(self, msg: str) -> None:
                nonlocal asked
                while not c.runtime.is_closed:
                    await self.sleep(0.01)
                    asked += 1
                    try:
                        outcomes.append(await echo.ask(msg))
                    except (ActorDown, NodeClosed, NodeUnreachable) as error:
                        outcomes.append(error)
                        return

        for _ in range(20):
            c.spawn(Asking).tell("x")
        cluster.advance(1.0)
        answered = len(outcomes)
        report = a.drain(timeout=10)
        cluster.advance(10.0)

        assert answered > 20
        assert report.is_clean
        assert report.seconds < 5
        assert len(outcomes) == asked
        assert sum(outcome != "x" for outcome in outcomes) == 20
    finally:
        cluster.close()


def test_a_real_node_drains_under_load_without_losing_an_ask(make_node):
    a, b = make_node("a"), make_node("b")
    connect(a, b)
    echo = a.ref(str(b.spawn(Echo)))
    outcomes, asked = [], []

    def go_on():
        while True:
            asked.append(1)
            try:
                outcomes.append(echo.ask("x").result(20))
            except (ActorDown, NodeClosed, NodeUnreachable) as error:
                outcomes.append(error)
                return

    threads = [threading.Thread(target=go_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(outcomes) > 100)
    report = b.drain(timeout=20)
    for thread in threads:
        thread.join(20)

    assert report.is_clean
    assert len(outcomes) == len(asked)
    assert sum(outcome != "x" for outcome in outcomes) == 4


def _ask_on(ref, gone, outcomes):
    """Ask until a node is gone, whatever comes of it."""
    while not gone.done():
        try:
            ref.ask("x").result(20)
        except ActorDown:
            continue  # the node has told that it ended
        except (NodeClosed, NodeUnreachable) as error:
            outcomes += [error] * (not gone.done())


@pytest.mark.slow
def test_asks_under_way_at_the_end_of_a_drain_are_refused_and_all_is_confirmed(make_node):
    """Callers go on with the next ask whatever comes, until the node is gone."""
    for _ in range(3):
        a, b, c = make_node("a"), make_node("b"), make_node("c")
        connect(a, b)
        connect(c, a)
        eventually(lambda c=c, b=b: b.node_id in [node.node_id for node in c.nodes()])
        outcomes: list[Exception] = []

        sink = b.spawn(Echo)
        threads = []
        for node in (a, a, a, c, c):
            ref = node.ref(f"basp:///{sink.actor_id}@{b.node_id.hex()}")
            gone = node.monitor_node(b.node_id)
            threads.append(threading.Thread(target=_ask_on, args=(ref, gone, outcomes)))
        for thread in threads:
            thread.start()
        eventually(lambda b=b: b.stats().handled > 100)
        assert b.drain(timeout=20).is_clean
        for thread in threads:
            thread.join(20)

        assert outcomes
        assert [error for error in outcomes if not isinstance(error, NodeClosed)] == []
        assert a.accounts()[b.node_id].in_flight == 0


def test_a_drain_can_be_awaited_also_in_a_handler_of_the_node(make_node):
    class Closer(Actor):
        @handler
        async def close(self, timeout: float) -> None:
            reports.append(await self.node._drain.adrain(timeout))

    reports: list[Drained] = []
    node = make_node()
    node.spawn(Closer).ask(5.0).result(10)
    assert reports[0].is_clean
    other = Node()
    other.spawn(Echo).tell("x")
    assert asyncio.run(other.adrain(5)).is_clean
    with pytest.raises(NodeClosed):
        other.drain()


def test_an_idle_node_without_links_drains_at_once():
    node = Node()
    begun = time.monotonic()

    assert node.drain() == Drained(0, 0, pytest.approx(0, abs=5))
    assert time.monotonic() - begun < 5


def test_a_message_that_nobody_reads_is_not_called_clean(make_node):
    class Stuck(Actor):
        @handler
        def wait(self, _: int) -> None:
            release.wait(20)

    release = threading.Event()
    a, b = make_node(), make_node()
    connect(a, b)
    stuck = a.ref(str(b.spawn(Stuck)))
    stuck.tell(1)
    stuck.tell(2)
    eventually(lambda: b.runtime.runner.turns > 0 and b.stats().actors)
    settled_before = a.accounts()[b.node_id].confirmed
    threading.Timer(1.0, release.set).start()

    report = b.drain(timeout=0.3)

    assert report.left >= 1
    assert settled_before == 0
    eventually(lambda: not a.nodes())
    settled(a)
