import math

import pytest

from callboard.demo.story import RESTART_AFTER, Chronicle, Step, Timeline


def test_c_is_killed_half_way_and_started_again_at_three_fifths():
    timeline = Timeline(30.0)

    assert timeline.due(14.9) == []
    assert timeline.due(15.0) == [Step("kill", "C")]
    assert timeline.due(17.9) == []
    assert timeline.due(18.0) == [Step("start", "C")]
    assert not timeline.is_over(29.9)
    assert timeline.is_over(30.0)


def test_the_story_scales_with_its_length():
    timeline = Timeline(10.0)

    assert timeline.due(5.0) == [Step("kill", "C")]
    assert timeline.due(6.0) == [Step("start", "C")]
    assert timeline.is_over(10.0)


def test_steps_that_were_missed_come_in_their_order():
    assert Timeline(10.0).due(99.0) == [Step("kill", "C"), Step("start", "C")]


def test_next_at_tells_how_long_one_may_wait():
    timeline = Timeline(10.0)
    assert timeline.next_at() == 5.0

    timeline.due(6.0)

    assert timeline.next_at() == 10.0


def test_without_end_nothing_is_due_but_restarts():
    timeline = Timeline(None)
    assert timeline.next_at() == math.inf
    assert not timeline.is_over(1e9)

    timeline.restart("B", 100.0)

    assert timeline.due(100.0 + RESTART_AFTER) == [Step("start", "B")]
    assert timeline.next_at() == math.inf


def note(kind, ms, **fields):
    return {"kind": kind, "at": 1_000_000_000 + int(ms * 1e6), **fields}


@pytest.fixture
def chronicle():
    chronicle = Chronicle()
    chronicle.strike("kill", "C", 1_000_000_000, is_scripted=True)
    return chronicle


def test_each_milestone_is_the_first_of_its_kind(chronicle):
    chronicle.note("A", note("sensor_down", 12.5, sensor="D.cpu", reason="unreachable"))
    chronicle.note("A", note("sensor_down", 13.5, sensor="D.disk", reason="unreachable"))

    assert chronicle.headline().ms("down") == 12.5


@pytest.mark.parametrize(
    ("reporter", "kind", "fields", "milestone"),
    [
        ("A", "sensor_down", {"sensor": "D.cpu"}, "down"),
        ("D", "overseer_down", {"sensor": "D.cpu"}, "down_far"),
        ("A", "NodeDown", {"name": "D"}, "unreachable"),
        ("A", "aggregator_down", {"host": "C"}, "lost"),
        ("A", "spawned", {"host": "B"}, "respawned"),
        ("B", "serving", {}, "serving"),
        ("A", "NodeUp", {"name": "D"}, "rejoined"),
        ("A", "sensors_found", {"node": "D"}, "resumed"),
    ],
)
def test_milestones_come_from_the_notes_of_the_right_node(
    chronicle, reporter, kind, fields, milestone
):
    chronicle.note(reporter, note(kind, 5.0, **fields))

    assert chronicle.incidents[0].milestones.keys() == {milestone}
    assert chronicle.incidents[0].ms(milestone) == 5.0


@pytest.mark.parametrize(
    ("reporter", "kind", "fields"),
    [
        ("A", "sensor_down", {"sensor": "A.cpu"}),
        ("B", "NodeDown", {"name": "D"}),
        ("A", "NodeDown", {"name": "C"}),
        ("A", "LinkDown", {"name": "B"}),
    ],
)
def test_other_notes_are_no_milestones(chronicle, reporter, kind, fields):
    chronicle.note(reporter, note(kind, 5.0, **fields))

    assert not chronicle.incidents[0].milestones


def test_what_happened_before_the_blow_does_not_belong_to_it(chronicle):
    chronicle.note("A", note("spawned", -1.0, host="C"))

    assert chronicle.incidents[0].ms("respawned") is None


def test_a_later_blow_takes_over_what_follows(chronicle):
    chronicle.note("A", note("sensor_down", 5.0, sensor="D.cpu"))
    second = chronicle.strike("kill", "B", 2_000_000_000)
    chronicle.note("A", note("sensor_down", 1020.0, sensor="D.cpu"))

    assert second.ms("down") == 20.0
    assert chronicle.headline().is_scripted


def test_without_a_script_the_latest_measured_blow_is_the_headline():
    chronicle = Chronicle()
    assert chronicle.headline() is None

    first = chronicle.strike("kill", "C", 1_000_000_000)
    chronicle.strike("cut", "A─B", 9_000_000_000)
    chronicle.note("A", note("sensor_down", 5.0, sensor="D.cpu"))

    assert chronicle.headline() is first
