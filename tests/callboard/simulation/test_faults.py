"""What faults of a simulated cluster do, and what nodes notice of them."""

import pytest

from callboard import Actor, Node, handler
from callboard.errors import NodeUnreachable
from callboard.simulation import Cluster
from callboard.simulation.network import FIRST_RETRANSMISSION


class Echo(Actor):
    @handler
    def text(self, msg: str) -> str:
        return msg


class Sleeper(Actor):
    @handler
    async def nap(self, seconds: float) -> float:
        await self.sleep(seconds)
        return seconds


def took(cluster, call):
    """Return how many virtual seconds a call takes."""
    before = cluster.now
    call()
    return cluster.now - before


@pytest.fixture
def pair(cluster):
    a, b = cluster(2)
    return a, b, a.ref(str(b.spawn(Echo)))


def test_a_narrow_way_takes_its_time(cluster, pair):
    a, b, echo = pair
    cluster.bandwidth(a, b, 10_000)

    seconds = took(cluster, lambda: echo.ask("x" * 20_000).result(30))

    assert 4.0 < seconds < 4.5  # there and back


def test_a_slow_way_delays_and_its_link_lives(cluster, pair):
    a, b, echo = pair
    cluster.delay(a, b, 0.4)

    assert 0.8 <= took(cluster, lambda: echo.ask("x").result(5)) < 1.0
    cluster.advance(20.0)
    assert len(a.links()) == 1


def test_lost_packets_come_late_and_in_order(cluster, pair):
    a, b, echo = pair
    cluster.loss(a, b, 0.1)

    answers = [echo.ask(str(number), 60.0) for number in range(200)]
    seconds = took(cluster, lambda: [answer.result(60) for answer in answers])
    one_by_one = [took(cluster, lambda: echo.ask("x", 60.0).result(60)) for _ in range(50)]

    assert [answer.result() for answer in answers] == [str(number) for number in range(200)]
    assert seconds < 10.0
    assert max(one_by_one) >= FIRST_RETRANSMISSION > min(one_by_one)


def test_a_way_that_loses_everything_breaks_the_link(cluster, pair):
    a, b, echo = pair
    cluster.loss(a, b, 1.0)
    cluster.advance(30.0)

    assert a.links() == b.links() == []
    with pytest.raises(NodeUnreachable):
        echo.ask("x").result(60)

    cluster.loss(a, b, 0.0)
    assert cluster.run_until(lambda: len(a.links()) == len(b.links()) == 1, 30.0)
    assert echo.ask("x").result(5) == "x"


@pytest.mark.parametrize("part", [-0.1, 1.1, float("nan")])
def test_a_part_that_is_none_is_refused(cluster, pair, part):
    a, b, _ = pair
    with pytest.raises(ValueError, match="between 0 and 1"):
        cluster.loss(a, b, part)


def test_one_way_partitions_are_noticed_at_both_ends(cluster, pair):
    a, b, _ = pair
    cluster.partition(a, b, both=False)
    cluster.advance(10.0)

    assert a.links() == b.links() == []

    cluster.heal()
    assert cluster.run_until(lambda: len(a.links()) == len(b.links()) == 1, 30.0)


def test_a_frozen_node_is_missed_and_comes_back(cluster, pair):
    a, b, echo = pair
    down = a.monitor(echo)
    cluster.pause(b)
    cluster.advance(2.0)
    assert not down.done()
    cluster.advance(2.0)
    assert down.result(1).reason == "unreachable"

    cluster.resume(b)
    assert cluster.run_until(lambda: bool(a.links() and b.links()), 30.0)
    assert echo.ask("x").result(5) == "x"


def test_a_short_freeze_costs_time_only(cluster, pair):
    _, b, echo = pair
    cluster.pause(b)
    cluster.clock.plan(1.0, cluster.resume, b)

    assert 1.0 <= took(cluster, lambda: echo.ask("x").result(5)) < 1.1


@pytest.mark.parametrize("rate", [0.95, 1.05])
def test_a_node_lives_by_its_own_clock(cluster, pair, rate):
    a, b, _ = pair
    sleeper = a.ref(str(b.spawn(Sleeper)))
    cluster.clock_rate(b, rate)

    seconds = took(cluster, lambda: sleeper.ask(10.0).result(30))

    assert seconds == pytest.approx(10.0 / rate, abs=0.01)
    cluster.advance(60.0)
    assert len(a.links()) == 1


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(cluster, pair, rate):
    with pytest.raises(ValueError, match="positive"):
        cluster.clock_rate(pair[0], rate)


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_node_that_starts_again_is_another_one_at_the_same_address(cluster, end):
    a, b = cluster(2)  # b dialed a
    echo = b.ref(str(a.spawn(Echo)))
    getattr(cluster, end)(a)
    cluster.advance(5.0)

    again = cluster.restart(a)

    assert (again.address, again.name) == (a.address, a.name)
    assert again.node_id != a.node_id
    assert cluster.run_until(lambda: bool(again.links() and b.links()), 30.0), (
        "not dialed again"
    )
    assert [link.peer for link in b.links()] == [again.node_id]
    with pytest.raises(NodeUnreachable):
        echo.ask("x").result(30)


@pytest.mark.parametrize(("end", "seconds"), [("kill", 0.01), ("crash", 3.5)])
def test_a_killed_node_is_missed_at_once_and_a_crashed_one_after_three_heartbeats(
    cluster, pair, end, seconds
):
    a, b, _ = pair
    lost = a.monitor_node(b.node_id)

    getattr(cluster, end)(b)

    assert took(cluster, lambda: lost.result(30)) <= seconds
    assert end == "kill" or cluster.now > 2.0


def test_nodes_made_after_a_kill_have_hosts_of_their_own(cluster):
    a, b = cluster(2)
    cluster.kill(a)

    c = cluster.node("c")

    assert len({a.address, b.address, c.address}) == 3
    assert c.connect(b.address) == b.node_id


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_the_end_of_a_simulation_leaves_nodes_that_are_dead_alone(end, monkeypatch):
    cluster = Cluster(1)
    dead, alive = cluster(2)
    getattr(cluster, end)(dead)
    closed = []
    close = Node.close
    monkeypatch.setattr(Node, "close", lambda node: (closed.append(node), close(node)))

    cluster.close()  # else it would wait, in real time, for what never comes

    assert closed == [alive]
