"""Faults that wait for moments, steps of a test, calm, and time that stands still."""

from contextlib import closing

import pytest

from callboard import Actor, Entity, handler
from callboard.simulation import (
    Cluster,
    TimeStandsStill,
    crash,
    full_disk,
    kill,
    partition,
    pause,
    reachable,
    runner,
)
from callboard.simulation.cluster_test import ClusterTest
from callboard.simulation.faults import FaultInjector


class Writer(Actor):
    def __init__(self, disk):
        self.file = disk.open("log", append=True)
        disk.sync_folder("/")

    @handler
    def on_text(self, msg: str) -> str:
        reachable("a text came")
        self.file.write(msg.encode())
        self.file.fsync()
        self.file.write(b"more")
        return msg


class Busy(Actor):
    @handler
    def on_text(self, msg: str) -> None:
        self.me.tell(msg)


def content(disk):
    file = disk.open("log")
    return file.pread(file.size(), 0)


@pytest.mark.parametrize("kind", [crash, kill])
def test_a_fault_stops_a_handler_between_two_changes_of_the_disk(kind):
    with closing(Cluster(3)) as cluster:
        a, b = cluster(2)
        disk = cluster.disk(b)
        writer = a.ref(str(b.spawn(Writer, disk)))
        cluster.advance(0.1)
        FaultInjector(cluster, [kind(1, on="disk", skip=1)])  # after the fsync
        cluster.advance(0.0)

        answer = writer.ask("kept", timeout=10)
        cluster.advance(20)

        assert answer.exception() is not None
        assert content(disk) == b"kept"
        assert not cluster.is_running(b)


def test_what_was_done_is_kept_when_the_answer_is_not_sent():
    with closing(Cluster(3)) as cluster:
        a, b = cluster(2)
        disk = cluster.disk(b)
        writer = a.ref(str(b.spawn(Writer, disk)))
        cluster.advance(0.1)
        answer = writer.ask("kept", timeout=10)
        FaultInjector(cluster, [kill(1, on="send")])
        cluster.advance(20)

        assert answer.exception() is not None
        assert content(disk) == b"keptmore"


def test_a_fault_begins_at_a_mark_or_when_the_test_waits():
    begins = []

    def scenario(cluster):
        a, b = cluster(2)
        writer = a.ref(str(b.spawn(Writer, cluster.disk(b))))
        cluster.advance(1.0)
        writer.tell("one")
        cluster.advance(9.0)
        begins.extend(line for line in cluster.trace.lines() if " test pause" in line)

    faults = [pause(1, at=0.5, lasts=0.1, on="mark"), pause(0, at=0.5, lasts=0.1, on="test")]
    run = ClusterTest(scenario, 1, faults, twice=False).live(5, faults, {})

    assert run.error is None
    (at_test, at_mark) = begins
    assert at_test.endswith("pause a")
    assert at_test.startswith("1.0")
    assert at_mark.endswith("pause b")


def test_steps_that_are_left_out_change_no_other_one():
    def steps(kept):
        with closing(Cluster(9)) as cluster:
            cluster.kept_steps = kept
            return [
                (number, chance.random(), cluster.now) for number, chance in cluster.steps(8)
            ]

    every = steps(None)

    assert [number for number, _, _ in every] == list(range(8))
    assert all(0 <= at <= 20 for _, _, at in every)
    assert steps([2, 5]) == [every[2], every[5]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:here:UserWarning")
def test_steps_are_made_fewer():
    def scenario(cluster):
        cluster(2)
        taken = [number for number, _ in cluster.steps(30)]
        assert not {4, 17} <= set(taken)

    failed = ClusterTest(scenario, [1], [pause(0), pause(1)], twice=False).run("here", {})

    assert (failed.smallest, failed.steps) == ([], [4, 17])
    assert "@cluster_test(seeds=[1], steps=[4, 17], faults=[])" in failed.program(scenario)
    again = ClusterTest(scenario, [1], [], twice=False, steps=[4, 17]).run("here", {})
    assert again is not None
    assert ClusterTest(scenario, [1], [], twice=False, steps=[4]).run("here", {}) is None


def test_after_calm_nothing_goes_wrong():
    with closing(Cluster(3)) as cluster:
        later = [pause(0, at=1, lasts=90), crash(1, at=1, lasts=90), kill(1, at=50)]
        FaultInjector(cluster, later)
        cluster(2)
        cluster.restarted = lambda node: None
        cluster.advance(5.0)

        cluster.calm()
        cluster.advance(60.0)

        a, b = cluster.machines()
        assert cluster.is_running(b)
        assert len(a.nodes()) == 0  # the pause is over, and it knows that the other one is new
        assert "pause" not in cluster.trace.lines()[-1]


def test_what_is_busy_for_ever_at_one_moment_is_told(monkeypatch):
    with closing(Cluster(3)) as cluster:
        (a,) = cluster(1)
        monkeypatch.setattr(runner, "STANDSTILL", 200)
        a.spawn(Busy).tell("go")

        with pytest.raises(
            TimeStandsStill, match=r"does not pass from .*: node a had another turn"
        ):
            cluster.advance(1.0)


def test_a_fault_strikes_whichever_machine_comes_to_a_moment():
    with closing(Cluster(3)) as cluster:
        nodes = cluster(3, topology="mesh")
        writers = [node.spawn(Writer, cluster.disk(node)) for node in nodes]
        struck = FaultInjector(
            cluster, [pause("doer", at=1, on="disk", after=0.25, lasts=9)]
        ).struck
        cluster.advance(2.0)
        writers[2].tell("one")
        cluster.advance(0.2)
        assert not any(map(cluster.is_paused, nodes))
        writers[1].tell("two")
        cluster.advance(0.2)

        assert [cluster.is_paused(node) for node in nodes] == [False, False, True]
        ((at, places),) = struck.values()
        assert (round(at, 3), places) == (round(cluster.now - 0.15, 3), (2,))


def test_a_machine_ends_again_soon_after_its_start():
    with closing(Cluster(3)) as cluster:
        cluster(2)
        starts = []
        cluster.restarted = lambda node: starts.append(cluster.now)
        again = crash("doer", on="start", after=0.5, lasts=2)
        FaultInjector(cluster, [kill(1, at=1, lasts=1), again])
        cluster.advance(10.0)

        first, second = starts
        assert round(second - first, 3) == 2.5


def test_a_fault_begins_when_a_client_has_its_answer():
    with closing(Cluster(3)) as cluster:
        a, b = cluster(2)
        history = cluster.history()
        writer = a.ref(str(b.spawn(Writer, cluster.disk(b))))
        FaultInjector(cluster, [kill(1, on="answer", skip=1)])
        for text in ("one", "two", "three"):
            history.ask(writer, text, timeout=1.0)
            cluster.advance(2.0)

        outcomes = [each.outcome for each in history.operations]
        assert outcomes == ["answered", "answered", "unknown"]


def test_a_shrunk_fault_names_the_time_and_the_machine():
    def scenario(cluster):
        nodes = cluster(3, topology="mesh")
        writer = nodes[1].spawn(Writer, cluster.disk(nodes[1]))
        cluster.advance(1.0)
        writer.tell("one")
        cluster.advance(2.0)
        assert not any(map(cluster.is_paused, nodes))

    faults = [pause("doer", at=0.9, on="mark", after=0.7, lasts=9)]
    run = ClusterTest(scenario, [1], faults, twice=False).run("here", {})

    (small,) = run.smallest
    assert (small.machines, small.on, small.lasts) == ((1,), "", 9)
    assert 1.6 < small.at < 2.0


@pytest.mark.parametrize(
    ("places", "on"), [(("doer",), ""), (("doer",), "test"), (("a",), "send"), ((-1,), "send")]
)
def test_a_machine_is_a_number_or_whoever_does_something(places, on):
    with pytest.raises(ValueError, match=r"not a machine; give its index.* \"doer\""):
        crash(*places, on=on)


def test_a_fault_waits_for_what_is_known():
    with pytest.raises(ValueError, match="cannot wait for 'rain'; it waits for send, disk"):
        crash(0, on="rain")
    fault = crash("doer", at=2, on="disk", skip=3, after=0.5)
    assert eval(str(fault), {"crash": crash}) == fault


class Slow(Actor):
    @handler
    async def on_text(self, msg: str) -> str:
        await self.sleep(3.0)
        return msg


def test_a_node_that_dies_while_it_starts_starts_again():
    with closing(Cluster(3)) as cluster:
        cluster(2)
        started = []

        def start(node):
            started.append(node)
            node.spawn(Slow).ask("ready?", timeout=5.0).result(5.0)

        cluster.restarted = start
        FaultInjector(cluster, [kill(0, at=1, lasts=0.5), kill(0, at=2, lasts=0.5)])
        cluster.advance(30.0)

        assert cluster.is_running(cluster.machines()[0])
        assert len(started) == 2


def test_a_node_that_its_disk_does_not_let_start_starts_again_later():
    with closing(Cluster(3)) as cluster:
        cluster(2)
        rooms = []

        def start(node):
            rooms.append(cluster.disk(node).faults.capacity is None)
            if not rooms[-1]:
                raise OSError("the disk is full")

        cluster.restarted = start
        FaultInjector(cluster, [full_disk(0, at=0.5, lasts=5), kill(0, at=1, lasts=0.5)])
        cluster.advance(30.0)

        assert cluster.is_running(cluster.machines()[0])
        assert rooms[0] is False
        assert rooms[-1] is True
        cluster.disk(cluster.machines()[0]).faults.capacity = 0
        FaultInjector(cluster, [kill(0, at=1, lasts=0.5)])
        with pytest.raises(OSError, match="full"):  # no fault of a swarm is why
            cluster.advance(5.0)


class Listener(Actor):
    """Records texts and the virtual time of their arrival."""

    def __init__(self, cluster, heard):
        self.cluster, self.heard = cluster, heard

    @handler
    def on_text(self, msg: str) -> None:
        self.heard.append((msg, self.cluster.now))


def test_what_a_machine_was_about_to_send_waits_until_a_pause_is_over():
    heard = []
    with closing(Cluster(3)) as cluster:
        a, b = cluster(2)
        there = b.ref(str(a.spawn(Listener, cluster, heard)))
        cluster.advance(1.0)
        began = cluster.now
        FaultInjector(cluster, [pause(1, at=0.0, on="send", lasts=2.0)])
        cluster.advance(0.0)

        there.tell("hello")
        cluster.advance(1.9)
        assert heard == []
        cluster.advance(1.0)

    ((text, time),) = heard
    assert text == "hello"
    assert time > began + 2.0


def test_a_machine_that_is_killed_in_a_pause_says_no_more_what_it_was_about_to_say():
    heard = []
    with closing(Cluster(3)) as cluster:
        a, b = cluster(2)
        there = b.ref(str(a.spawn(Listener, cluster, heard)))
        cluster.advance(1.0)
        FaultInjector(cluster, [pause(1, on="send", lasts=2.0)])
        cluster.advance(0.0)
        there.tell("hello")
        cluster.advance(1.0)

        cluster.kill(b)
        cluster.advance(10.0)

    assert heard == []


def test_nothing_goes_wrong_while_a_test_still_sets_its_nodes_up():
    with closing(Cluster(3)) as cluster:
        begun = []
        cluster.on_fault = lambda fault, nodes, begins: begins and begun.append(cluster.now)
        (a,) = cluster(1)
        FaultInjector(cluster, [crash(0, at=0.01)])
        cluster.restarted = lambda node: None

        a.host(Kept, state="postgresql://db/kept")

        hosted = cluster.now
        assert begun == []
        cluster.advance(1.0)
        assert begun[0] >= hosted


def test_a_node_that_ends_while_it_is_started_keeps_nobody_waiting():
    with closing(Cluster(3)) as cluster:
        FaultInjector(cluster, [crash(0, at=1.0, lasts=1.0), crash(0, at=2.001, lasts=1.0)])
        (a,) = cluster(1)
        a.host(Kept, state="postgresql://db/kept")
        cluster.restarted = lambda node: node.host(Kept, state="postgresql://db/kept")

        cluster.advance(10.0)

        assert cluster.now < 20.0
        (now,) = cluster.machines()
        assert cluster.is_running(now)
        assert now is not a


def test_a_printed_test_names_machines_and_tells_when_a_fault_began():
    def scenario(cluster):
        cluster(2)
        cluster.advance(2.0)
        pytest.fail("always")

    faults = [pause("doer", at=1.0, on="send", lasts=0.1), partition(0, 1, at=1.5, lasts=0.1)]

    run = ClusterTest(scenario, [1], faults, twice=False).only(1, {}, shrinks=False)

    at, (place,) = run.struck[faults[0]]
    program = run.program(scenario)
    assert f"lasts=0.1),  # {'ab'[place]}, at {at:.6g} s\n" in program
    assert "partition(0, 1, at=1.5, lasts=0.1),  # a, b\n" in program


class Kept(Entity):
    """An entity that is only hosted."""
