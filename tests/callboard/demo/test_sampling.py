import pytest

from callboard.demo.sampling import (
    SLICES,
    SUBJECTS,
    BusiestProcesses,
    BusyShare,
    Differences,
    Sample,
    machine_samplers,
)


def test_differences_are_per_second_and_zero_at_first():
    differences = Differences()

    assert differences.update(1.0, {"read": 100.0}) == {"read": 0.0}
    assert differences.update(1.5, {"read": 150.0}) == {"read": 100.0}


def test_a_counter_that_wrapped_counts_as_no_rise():
    differences = Differences()
    differences.update(1.0, {"sent": 100.0})

    assert differences.update(2.0, {"sent": 5.0}) == {"sent": 0.0}


def test_busy_share_is_in_percent_of_each_core_and_their_mean():
    share = BusyShare()
    share.update([(10.0, 100.0), (20.0, 100.0)])

    assert share.update([(10.5, 101.0), (21.0, 101.0)]) == Sample(
        75.0, {"core 0": 50.0, "core 1": 100.0}
    )


def test_busy_share_is_zero_when_no_time_went_by():
    share = BusyShare()
    share.update([(10.0, 100.0)])

    assert share.update([(10.0, 100.0)]).level == 0.0


def test_every_process_is_looked_at_once_in_a_round_of_slices():
    looked = []

    def look(pid):
        looked.append(pid)
        return "job", 0.0

    processes = BusiestProcesses(lambda: list(range(25)), look)
    for turn in range(SLICES):
        processes.update(float(turn))

    assert sorted(looked) == list(range(25))


def test_the_busiest_processes_come_first_and_those_that_ended_go():
    alive = {10: ("idle", 0.0), 20: ("busy", 2.0)}
    processes = BusiestProcesses(
        lambda: list(alive), lambda pid: (alive[pid][0], alive[pid][1] * now)
    )
    for now in range(2 * SLICES):  # noqa: B007  # the look reads it
        sample = processes.update(float(now))

    assert sample == Sample(200.0, {"busy 20": 200.0, "idle 10": 0.0})

    del alive[20]
    assert processes.update(100.0).parts == {"idle 10": 0.0}


def test_a_process_that_is_gone_before_the_look_is_no_error():
    processes = BusiestProcesses(lambda: [1, 2, 3], lambda _: None)

    for turn in range(SLICES):
        assert processes.update(float(turn)) == Sample(0.0, {})


@pytest.mark.parametrize("subject", SUBJECTS)
def test_this_machine_can_be_sampled(subject):
    sampler = machine_samplers()[subject]
    sampler()

    sample = sampler()

    assert sample.level >= 0.0
    assert all(value >= 0.0 for value in sample.parts.values())
