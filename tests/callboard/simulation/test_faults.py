"""What faults of a simulated cluster do, and what nodes notice of them."""

import random
import time
from contextlib import closing

import pytest

from callboard import Actor, Node, handler
from callboard.commitlog import CommitLog
from callboard.errors import NodeUnreachable
from callboard.simulation import (
    Cluster,
    clock_rate,
    clock_step,
    crash,
    cut,
    delay,
    doubling,
    full_disk,
    isolate,
    jitter,
    kill,
    one_way,
    partition,
    slow_disk,
    split,
)
from callboard.simulation.clock import EPOCH
from callboard.simulation.faults import KINDS, FaultInjector
from callboard.simulation.network import FIRST_RETRANSMISSION
from callboard.simulation.runner import runner_of


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


# --- as values ---


class Clerk(Actor):
    """Writes what it gets to the disk of its machine, and tells what the clocks show."""

    def __init__(self, disk):
        self.disk, self.numbers = disk, []

    @handler
    def write(self, msg: bytes) -> float:
        file = self.disk.open("journal", append=True)
        began = self.now()
        file.write(msg)
        file.fsync()
        return self.now() - began

    @handler
    def date(self, msg: None) -> float:
        return time.time_ns() / 1e9

    @handler
    def count(self, msg: int) -> int:
        self.numbers.append(msg)
        return len(self.numbers)

    def now(self):
        return self._cell.runtime.now()


@pytest.fixture
def clerk(cluster, pair):
    a, b, _ = pair
    actor = b.spawn(Clerk, cluster.disk(b))
    return a.ref(str(actor))


def date(cluster, clerk):
    """Return by how much the clerk's date is ahead."""
    return clerk.ask(None).result(5) - EPOCH - cluster.now


def test_a_slow_disk_holds_up_whoever_writes(cluster, pair, clerk):
    FaultInjector(cluster, [slow_disk(1, at=0.0, lasts=10.0, seconds=0.25)])
    cluster.advance(0.1)

    assert took(cluster, lambda: clerk.ask(b"x", 5.0).result(5)) == pytest.approx(0.5, abs=0.01)
    assert clerk.ask(b"x", 5.0).result(5) == pytest.approx(0.5)  # by its own clock as well

    held = clerk.ask(b"x", 5.0)
    assert took(cluster, lambda: pair[2].ask("x").result(5)) > 0.4, "others wait behind it"
    assert held.done()
    cluster.advance(10.0)
    assert took(cluster, lambda: clerk.ask(b"x").result(5)) < 0.01


def test_a_slow_disk_of_a_dead_machine_keeps_nobody(cluster, pair, clerk):
    a, b, _ = pair
    cluster.disk(b).faults.latency = 5.0
    clerk.tell(b"x")
    cluster.advance(1.0)
    cluster.kill(b)
    again = cluster.restart(b)

    assert took(cluster, lambda: again.connect(a.address)) < 0.1


def test_a_step_moves_the_date_and_no_timer(cluster, pair, clerk):
    b = pair[1]
    sleeper = pair[0].ref(str(b.spawn(Sleeper)))
    assert date(cluster, clerk) == pytest.approx(0.0, abs=0.01)
    FaultInjector(cluster, [clock_step(1, at=2.0, lasts=6.0, seconds=-3600.0)])

    assert took(cluster, lambda: sleeper.ask(5.0).result(30)) == pytest.approx(5.0, abs=0.01)
    assert date(cluster, clerk) == pytest.approx(-3600.0, abs=0.01)
    assert len(pair[0].links()) == 1

    cluster.kill(b)
    again = cluster.restart(b)
    then = again.spawn(Clerk, None)
    assert date(cluster, then) == pytest.approx(-3600.0, abs=0.01), "the machine's clock"
    cluster.advance(5.0)
    assert date(cluster, then) == pytest.approx(0.0, abs=0.01), "set right again"
    assert abs(time.time_ns() / 1e9 - EPOCH - cluster.now) > 1.0, "the test has the real one"


class Journal(Actor):
    """Appends to a log on its machine's disk, and answers with the date of the record."""

    def __init__(self, disk):
        self.log = CommitLog("/log", disk=disk, sync="each")

    @handler
    def text(self, msg: str) -> float:
        offset = self.log.append("", msg.encode())
        (record,) = self.log.read(offset)
        return record.time / 1e9 - EPOCH


def test_records_of_a_log_have_the_date_of_their_machine(cluster, pair):
    b = pair[1]
    journal = pair[0].ref(str(b.spawn(Journal, cluster.disk(b))))
    cluster.advance(2.0)
    assert journal.ask("right").result(5) == pytest.approx(cluster.now, abs=0.01)

    cluster.clock_step(b, 3600.0)
    assert journal.ask("ahead").result(5) == pytest.approx(3600.0 + cluster.now, abs=0.01)


class Scribe(Actor):
    """Appends to a log of its own, and tells the record's date."""

    def __init__(self, log):
        self.log = log

    @handler
    def append(self, msg: str) -> float:
        offset = self.log.append("/said", msg)
        return next(iter(self.log.read(offset))).time / 1e9


def test_a_log_dates_its_records_by_the_clock_of_its_machine(cluster, pair):
    a, b, _ = pair
    with CommitLog() as log:
        scribe = a.ref(str(b.spawn(Scribe, log)))
        assert scribe.ask("one").result(5) == pytest.approx(EPOCH + cluster.now, abs=0.1)
        cluster.clock_step(b, -3600.0)
        then = scribe.ask("two").result(5)
        assert then == pytest.approx(EPOCH + cluster.now - 3600.0, abs=0.1)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
def test_a_step_that_is_none_is_refused(cluster, pair, seconds):
    with pytest.raises(ValueError, match="number of seconds"):
        cluster.clock_step(pair[0], seconds)


def test_what_got_no_answer_arrived_and_is_said_twice(cluster, pair, clerk):
    a = pair[0]
    cluster.advance(0.5)  # all is said and known
    FaultInjector(cluster, [doubling(0, 1, at=0.0, lasts=5.0, part=1.0)])
    cluster.advance(0.001)

    with pytest.raises(NodeUnreachable):
        clerk.ask(1).result(30)
    assert a.links() == []
    cluster.advance(30.0)
    assert clerk.ask(1).result(30) == 2, "it came before as well"


@pytest.mark.parametrize("part", [-0.1, 1.1])
def test_a_part_without_an_answer_that_is_none_is_refused(cluster, pair, part):
    with pytest.raises(ValueError, match="between 0 and 1"):
        cluster.doubling(*pair[:2], part)


def test_a_machine_keeps_its_faults_when_its_node_starts_again(cluster, pair):
    b = pair[1]
    faults = [
        full_disk(1, at=0.0, lasts=10.0),
        clock_rate(1, at=0.0, lasts=10.0, rate=1.25),
        kill(1, at=1.0, lasts=1.0),
    ]
    cluster.restarted = lambda node: None
    FaultInjector(cluster, faults)
    cluster.advance(3.0)

    again = cluster.machines()[1]
    assert again is not b
    assert cluster.disk(again).room() == 0
    assert runner_of(again).node_clock.rate == 1.25
    cluster.advance(10.0)
    assert cluster.disk(again).room() is None
    assert runner_of(again).node_clock.rate == 1.0


def test_nothing_passes_one_way_only(cluster, pair):
    a, b, echo = pair
    there, back = a.ref(str(b.spawn(Echo))), b.ref(str(a.spawn(Echo)))
    FaultInjector(cluster, [one_way(0, 1, at=0.0, lasts=1.0)])
    cluster.advance(0.1)
    ways = (
        cluster.network.way("10.0.0.0", "10.0.0.1"),
        cluster.network.way("10.0.0.1", "10.0.0.0"),
    )
    assert [way.is_cut for way in ways] == [True, False]

    asked = [there.ask("x"), back.ask("x")]
    cluster.advance(0.5)
    assert not any(each.done() for each in asked)  # the answer of the second is stopped
    cluster.advance(1.0)
    assert all(each.done() for each in asked)


def test_a_break_happens_once(cluster, pair):
    a, b, _ = pair
    faults = [delay(0, 1, at=0.5, lasts=5.0, seconds=0.01), cut(0, 1, at=1.0, lasts=8.0)]
    FaultInjector(cluster, faults)
    cluster.advance(4.0)
    before = a.links()[0].frames_sent
    cluster.advance(5.0)

    assert a.links()[0].frames_sent > before, "another link"


def test_a_crash_loses_what_was_not_synced(cluster):
    lost = 0
    for seed in range(10):
        with closing(Cluster(seed)) as each:
            node, _ = each(2)
            disk = each.disk(node)
            file = disk.open("a", append=True)
            disk.sync_folder("/")
            file.write(b"kept")
            file.fsync()
            file.write(b" or not")
            FaultInjector(each, [crash(0, at=0.0)])
            each.advance(0.1)
            assert disk.open("a").pread(4, 0) == b"kept"
            lost += disk.open("a").size() < 11
    assert lost > 2


def test_each_kind_is_drawn_whole():
    for kind in KINDS:
        drawn = [kind.draw(random.Random(seed), 3, 20.0) for seed in range(50)]
        assert all(len(set(each.machines)) == kind.machines for each in drawn)
        assert bool(kind.unit) == any(each.amount for each in drawn)
    steps = [clock_step.draw(random.Random(seed), 3, 20.0).amount for seed in range(50)]
    assert min(steps) < -1 < 1 < max(steps)


def test_a_test_may_end_all_faults_and_is_told_of_each(cluster):
    nodes = cluster(3, topology="mesh")
    told, started = [], []
    cluster.restarted = started.append
    cluster.on_fault = lambda fault, nodes, begins: told.append(
        (fault.kind, [node.name for node in nodes], begins)
    )
    faults = [isolate(0, at=1.0, lasts=90.0), kill(2, at=2.0, lasts=90.0), cut(0, 1, at=50.0)]
    FaultInjector(cluster, faults)
    cluster.advance(3.0)
    assert cluster.run_until(lambda: not nodes[1].nodes(), 10.0), "it is not alone"

    cluster.calm()

    assert len(started) == 1
    assert cluster.run_until(lambda: len(nodes[0].links()) == 1, 30.0)
    cluster.advance(100.0)
    assert len(started) == 1
    assert told == [
        (isolate, ["a"], True),
        (kill, ["c"], True),
        (isolate, ["a"], False),
        (kill, ["c"], False),
    ]


def test_a_partition_outlives_the_isolation_of_one_of_its_machines(cluster, pair):
    a, _, echo = pair
    faults = [partition(0, 1, at=0.0, lasts=20.0), isolate(1, at=1.0, lasts=5.0)]
    FaultInjector(cluster, faults)
    cluster.advance(12.0)
    assert a.links() == []
    assert cluster.run_until(lambda: bool(a.links()), 30.0)
    assert echo.ask("x").result(5) == "x"


def test_jitter_lets_one_connection_overtake_another(cluster):
    a, b, c = cluster(3, topology="star")
    got = []
    refs = [node.ref(str(a.spawn(Echo))) for node in (b, c)]
    FaultInjector(cluster, [jitter(at=0.0, lasts=20.0, seconds=0.5)])
    cluster.advance(0.1)
    for _ in range(20):
        for place, ref in enumerate(refs):
            ref.ask("x").on_done(lambda _, place=place: got.append(place))
        cluster.advance(3.0 if cluster.now < 20.0 else 0.1)
    late, soon = got[:10], got[-10:]
    assert late != [0, 1] * 5
    assert soon == [0, 1] * 5 or set(soon) == {0, 1}
    assert took(cluster, lambda: refs[0].ask("x").result(5)) < 0.1

    with pytest.raises(ValueError, match="a number of seconds of at least 0"):
        cluster.jitter(-1.0)


def test_a_split_machine_is_isolated_and_returns(cluster):
    a, b, c = cluster(3, topology="mesh")
    FaultInjector(cluster, [split(0, at=0.0, lasts=20.0)])

    cluster.advance(10.0)
    assert not a.links()
    assert [node.name for node in (b, c) if node.links()] == ["b", "c"]
    cluster.advance(60.0)
    assert len(a.links()) == 2


def test_a_node_that_the_test_starts_again_is_not_started_twice(cluster, pair):
    b = pair[1]
    cluster.restarted = lambda node: None
    FaultInjector(cluster, [kill(1, at=0.0, lasts=5.0)])
    cluster.advance(1.0)
    again = cluster.restart(b)
    cluster.advance(10.0)
    assert cluster.machines()[1] is again


def test_a_kind_may_have_other_bounds():
    kind = clock_rate.between(0.95, 1.05)
    drawn = [kind.draw(random.Random(seed), 3, 20.0).amount for seed in range(50)]
    assert 0.95 <= min(drawn) < max(drawn) <= 1.05
    assert str(kind(0, rate=1.0)).startswith("clock_rate(0")


# --- links ---


def test_links_are_a_topology_as_well(cluster):
    nodes = cluster(5, [(1, 0), (2, 1), (4, 3)])

    known = [{about.name for about in node.nodes()} for node in nodes]
    assert known == [{"b", "c"}, {"a", "c"}, {"a", "b"}, {"e"}, {"d"}]
    assert [len(node.links()) for node in nodes] == [1, 2, 1, 1, 1]


@pytest.mark.parametrize("link", [(0, 2), (1, 1), (0,), (-1, 0)])
def test_a_link_is_one_of_two_nodes(cluster, link):
    with pytest.raises(ValueError, match="not a link; give two indices from 0 to 1"):
        cluster(2, [link])


def test_a_link_is_dialed_until_it_is_there(cluster):
    a, b = cluster(2, topology="none")
    cluster.partition(a, b)

    cluster.link(a, b)

    cluster.advance(60.0)
    assert not a.links()
    cluster.heal()
    assert cluster.run_until(a.links, 30.0)
    cluster.kill(b)
    cluster.advance(5.0)
    again = cluster.restart(b)
    assert cluster.run_until(again.links, 30.0)


def test_a_kind_of_fault_lasts_as_long_as_it_is_told():
    kind = clock_rate.between(0.95, 1.05).lasting(5.0, 24.0)
    drawn = [kind.draw(random.Random(seed), 3, 20.0) for seed in range(200)]

    assert all(5.0 <= fault.lasts <= 24.0 and 0.95 <= fault.amount <= 1.05 for fault in drawn)
    assert min(fault.lasts for fault in drawn) < 7.0
    assert max(fault.lasts for fault in drawn) > 18.0
    with pytest.raises(ValueError, match="give the shortest and the longest time"):
        kind.lasting(3.0, 1.0)


def test_a_kind_with_other_bounds_is_the_same_kind(cluster):
    kind = kill.lasting(1.0, 2.0)
    assert kind == kill != crash
    assert len({kind, kill}) == 1
    nodes, told = cluster(2), []
    cluster.restarted = told.append
    FaultInjector(cluster, [kind(1, at=1.0, lasts=2.0)])

    cluster.advance(cluster.now + 4.0)

    assert not cluster.is_running(nodes[1])
    assert cluster.machines()[1:] == told


def test_what_was_lost_comes_late_and_the_network_knows_when() -> None:
    with closing(Cluster(7)) as cluster:
        a, b = cluster(2)
        cluster.loss(a, b, 0.5)
        for number in range(50):
            a.find(f"nobody-{number}")
            cluster.advance(0.01)
        cluster.loss(a, b, 0.0)
        late = cluster.network.late_until
        assert late > cluster.now + 2 * FIRST_RETRANSMISSION, "though nothing is lost any more"
        cluster.advance(late - cluster.now + 0.1)
        assert cluster.network.late_until < cluster.now
