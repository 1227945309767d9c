"""What a swarm draws, and where it aims."""

from contextlib import closing

import pytest

from callboard import Actor, handler
from callboard.simulation import Cluster, crash, cut, delay, partition, pause, swarm
from callboard.simulation.cluster_test import ClusterTest
from callboard.simulation.faults import DOER, KINDS, MOMENTS, OWN_MOMENTS, FaultInjector
from callboard.simulation.runs.swarm import ActivityProfile, MomentRecorder, Swarm

NAMES = {kind.name: kind for kind in KINDS}


class Writer(Actor):
    def __init__(self, disk):
        self.file = disk.open("log", append=True)

    @handler
    def on_text(self, msg: str) -> str:
        self.file.write(msg.encode())
        return msg


def writes(cluster):
    (a,) = cluster(1)
    writer = a.spawn(Writer, cluster.disk(a))
    for number, _ in cluster.steps(5, within=1.0):
        writer.tell(f"{number}")
    cluster.advance(0.01)
    cluster.calm()
    writer.tell("after all")
    cluster.advance(60.0)


def test_a_fault_that_is_drawn_is_printed_as_the_call_that_makes_it():
    for seed in range(300):
        for fault in swarm().draw(seed):
            assert eval(str(fault), dict(NAMES)) == fault


def test_only_a_fault_that_waits_for_a_moment_begins_some_time_after_it():
    rhythm = ActivityProfile(2.0, {"disk": 16, "answer": 8, "test": 8})
    faults = [
        fault
        for seed in range(300)
        for profile in (None, rhythm)
        for fault in Swarm((crash,), 20.0, 12).draw(seed, profile)
    ]

    late = [fault for fault in faults if fault.after]
    assert late
    assert all(fault.on for fault in late)


def test_the_same_seed_draws_the_same():
    rhythm = ActivityProfile(4.0, {"send": 8})
    draws = [Swarm((), 20.0, 12).draw(77, rhythm) for _ in range(2)]
    assert draws[0] == draws[1] != swarm().draw(78, rhythm)


def test_only_machines_that_do_something_are_whoever_does_it():
    faults = [fault for seed in range(300) for fault in swarm().draw(seed)]
    doers = [fault for fault in faults if DOER in fault.machines]
    assert doers
    assert all(fault.machines[0] == DOER and fault.on in OWN_MOMENTS for fault in doers)
    assert {fault.on for fault in faults} == {"", *MOMENTS}


def test_faults_wait_for_what_a_test_has_and_begin_while_it_is_busy():
    rhythm = ActivityProfile(2.0, {"disk": 16})
    draws = [swarm(crash, cut).draw(seed, rhythm) for seed in range(300)]
    faults = [fault for drawn in draws for fault in drawn]
    assert {fault.on for fault in faults} == {"", "disk", "start"}
    assert sum(fault.at <= 4.0 for fault in faults) > 0.6 * len(faults)
    aimed = [fault for fault in faults if fault.on == "disk" and not fault.at]
    assert {fault.skip for fault in aimed} >= set(range(16))


def test_nothing_waits_for_a_start_where_nothing_ends():
    faults = [fault for seed in range(200) for fault in swarm(cut, delay).draw(seed)]
    assert "start" not in {fault.on for fault in faults}


def test_a_test_is_listened_to_until_it_is_calm():
    with closing(Cluster(1)) as cluster:
        FaultInjector(cluster, [])
        listener = MomentRecorder(cluster)
        writes(cluster)

    rhythm = ActivityProfile.of(listener.times)
    assert len(listener.times["disk"]) == 5
    assert rhythm.moments["disk"] == 6
    assert 1.0 <= rhythm.busy <= 2.0
    assert "mark" not in rhythm.moments
    assert ActivityProfile.of({"send": []}) == ActivityProfile()


def test_a_small_change_of_a_test_leaves_its_rhythm():
    times = [0.1 * number for number in range(110)]
    assert (
        ActivityProfile.of({"send": times})
        == ActivityProfile.of({"send": times[:-5]})
        == ActivityProfile(16.0, {"send": 128})
    )


@pytest.mark.slow
def test_a_replay_draws_what_the_run_drew():
    def scenario(cluster):
        cluster.restarted = lambda node: None
        writes(cluster)
        assert cluster.disk(cluster.machines()[0]).crashes == 0

    cluster_test = ClusterTest(scenario, 50, swarm(crash), twice=False)
    found = cluster_test.run("a name", {})
    again = ClusterTest(scenario, 50, swarm(crash), twice=False).run(
        "other", {}, only=found.seed
    )
    assert (again.faults, again.smallest) == (found.faults, found.smallest)
    assert (
        ClusterTest(scenario, 50, swarm(crash), twice=False).only(found.seed, {}).faults
        == found.faults
    )


# --- what strikes a whole cluster ---


def test_all_machines_lose_their_power_at_one_moment():
    rhythm = ActivityProfile(4.0, {"answer": 12}, machines=3)
    draws = [swarm(crash).draw(seed, rhythm) for seed in range(300)]
    moments = [
        {(fault.at, fault.on, fault.skip, fault.after) for fault in one} for one in draws
    ]
    dark = [
        faults
        for faults, when in zip(draws, moments, strict=True)
        if len(when) == 1 and {fault.machines for fault in faults} == {(0,), (1,), (2,)}
    ]
    assert len(dark) >= 3
    assert any(faults[0].on == "answer" for faults in dark)


def test_partitions_divide_a_whole_cluster():
    rhythm = ActivityProfile(4.0, {"answer": 12}, machines=4)
    whole = [
        faults
        for faults in (swarm(partition).draw(seed, rhythm) for seed in range(300))
        if len({(fault.at, fault.skip) for fault in faults}) == 1
        and {place for fault in faults for place in fault.machines} == {0, 1, 2, 3}
        and len({fault.lasts for fault in faults}) == 1
    ]
    assert {len(faults) for faults in whole} >= {3, 4}  # one and three, or two and two


def test_one_machine_after_the_other_is_away():
    draws = [swarm(pause).draw(seed, ActivityProfile(16.0)) for seed in range(300)]
    relays = [
        faults
        for faults in draws
        if len(faults) > 2
        and all(
            later.at >= fault.at and later.machines != fault.machines and not later.on
            for fault, later in zip(faults, faults[1:], strict=False)
        )
    ]
    assert relays
