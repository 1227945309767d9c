from types import SimpleNamespace

import pytest

from callboard.demo import sensor
from callboard.demo.sensor import (
    SLICES,
    SUBJECTS,
    BusiestProcesses,
    Differences,
    Sample,
    SampleDue,
    Sensor,
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


class Gone(Exception):
    """A process has ended."""


class Job:
    """What psutil tells of a process."""

    def __init__(self, pid, name="job", share=0.0):
        self.pid, self._name, self._share = pid, name, share
        self.looks = 0

    def name(self):
        return self._name

    def cpu_percent(self):
        self.looks += 1
        if self._share is None:
            raise Gone
        return self._share


def test_every_process_is_looked_at_once_in_a_round_of_slices():
    jobs = [Job(pid) for pid in range(25)]

    processes = BusiestProcesses(lambda: jobs, Gone)
    for _ in range(SLICES):
        processes.sample()

    assert [job.looks for job in jobs] == [1] * 25


def test_the_busiest_processes_come_first_and_those_that_ended_go():
    alive = [Job(10, "idle", 0.0), Job(20, "busy", 200.0)]
    processes = BusiestProcesses(lambda: alive, Gone)
    for _ in range(SLICES):
        sample = processes.sample()

    assert sample == Sample(200.0, {"busy 20": 200.0, "idle 10": 0.0})

    del alive[1]
    assert processes.sample().parts == {"idle 10": 0.0}


def test_a_process_that_is_gone_before_the_look_is_no_error():
    processes = BusiestProcesses(lambda: [Job(pid, share=None) for pid in (1, 2, 3)], Gone)

    for _ in range(SLICES):
        assert processes.sample() == Sample(0.0, {})


@pytest.mark.parametrize("subject", SUBJECTS)
def test_this_machine_can_be_sampled(subject):
    sampler = machine_samplers()[subject]
    sampler()

    sample = sampler()

    assert sample.level >= 0.0
    assert all(value >= 0.0 for value in sample.parts.values())


def test_a_sensor_samples_every_tenth_of_a_second_and_leaves_out_missed_ticks(monkeypatch):
    clock, pauses, levels = SimpleNamespace(now=100.0), [], []
    monkeypatch.setattr(sensor, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(Sensor, "after", lambda _, pause, __: pauses.append(round(pause, 6)))
    paced = Sensor(
        "cpu", lambda: Sample(1.0, {}), print, lambda *level: levels.append(level), print
    )

    for clock.now in (100.13, 100.6, 100.6):  # 30 ms late, three ticks late, in time
        paced.on_tick(SampleDue())

    assert pauses == [0.1, 0.07, 0.0, 0.1]
    assert levels == [("cpu", 1.0)] * 4
