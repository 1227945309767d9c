"""Logs of filters: segments, cursors, and readers that are too slow."""

import pytest

from callboard.mqtt.router.datalog import CursorJump, DataLog
from callboard.mqtt.router.limits import CustomSegment, Limits
from callboard.mqtt.router.message import MessageRun
from tests.callboard.mqtt.stage import Stage


def run(payloads: list[bytes]) -> MessageRun:
    return MessageRun.of_payloads(b"t", payloads, qos=1, publisher="p")


def test_readv_finds_messages_by_their_offset_over_segment_borders() -> None:
    log = DataLog("t", segment_bytes=1500, segment_count=100)
    log.readers = 1
    for first in range(0, 60, 3):
        log.append(run([bytes([first + number]) for number in range(3)]))

    found = []
    for offset in range(60):
        at, segment, number = log.find(offset)
        payload = segment.runs[number].payloads[at - segment.starts[number]]
        found.append((at, payload[0]))

    assert found == [(offset, offset) for offset in range(60)]
    assert len(log.segments) > 5
    assert log.weight > 60 * 120


def test_commit_log_read_below_the_head_jumps_to_it() -> None:
    log = DataLog("t", segment_bytes=1, segment_count=3)
    log.readers = 1
    for number in range(10):
        log.append(run([bytes([number])]))

    at, segment, number = log.find(2)

    assert (log.start, log.end, at) == (7, 10, 7)
    assert segment.runs[number].payloads == [b"\7"]


def test_cursor_jump_alert_reports_the_messages_lost_to_retention() -> None:
    limits = Limits(segment_bytes=2000, segment_count=2, inflight=1, acknowledge_patience=0)
    stage = Stage(limits)
    publisher = stage.client("p")
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=1)
    for number in range(100):
        publisher.publish("t", bytes([number]), 1)
    reader.answers = True
    for message in reader.messages():
        reader._answer(message)
    stage.run()

    got = [payload[0] for payload in reader.payloads()]

    alerts = [alert for turn in stage.turns for alert in turn.alerts]
    assert got == list(range(got[0], 100))
    assert alerts == [CursorJump("r", "t", got[0] - 1)]
    assert stage.machine.meters.lost == got[0] - 1


def test_a_log_that_all_have_read_is_empty(stage) -> None:
    publisher = stage.client("p")
    readers = [stage.client("1"), stage.client("2")]
    for reader in readers:
        reader.subscribe("t")

    publisher.send(*(publisher.message("t", bytes(100)) for _ in range(50)))

    log = stage.machine.logs.get("t")
    assert (log.start, log.end, log.weight) == (50, 50, 0)


def test_datalog_appends_a_publish_to_the_log_of_each_filter_that_matches(stage) -> None:
    publisher = stage.client("p")
    for number, topic_filter in enumerate(("a/b", "a/+", "#", "c")):
        stage.client(str(number)).subscribe(topic_filter)

    publisher.publish("a/b")

    ends = {log.topic_filter: log.end for log in stage.machine.logs}
    assert ends == {"a/b": 1, "a/+": 1, "#": 1, "c": 0}


@pytest.mark.parametrize("topic_filter", ["t/1", "t/+", "#"])
def test_datalog_topic_cache_is_extended_when_a_new_filter_appears(stage, topic_filter) -> None:
    publisher, late = stage.client("p"), stage.client("late")
    publisher.publish("t/1")

    late.subscribe(topic_filter)
    publisher.publish("t/1", b"seen")
    late.unsubscribe(topic_filter)
    publisher.publish("t/1", b"unseen")

    assert late.payloads() == [b"seen"]


def test_offsets_continue_when_a_log_is_emptied() -> None:
    log = DataLog("t")
    log.append(run([b"1", b"2"]))

    log.release()

    assert (log.start, log.end) == (2, 2)
    log.append(run([b"3"]))
    assert log.find(2)[0] == 2


def test_commit_log_segments_above_the_count_are_dropped_oldest_first() -> None:
    log = DataLog("t", segment_bytes=1, segment_count=2)
    log.readers = 1
    starts = []
    for number in range(5):
        log.append(run([bytes([number])]))
        starts.append(log.start)
    assert starts == [0, 0, 1, 2, 3]


def test_commit_log_custom_segments_hold_for_the_filters_that_they_cover() -> None:
    custom = (CustomSegment("big/#", 5_000, 3), CustomSegment("#", 2_000, 2))
    stage = Stage(Limits(custom_segments=custom))
    stage.client("c").subscribe("big/+", "big", "small")

    sizes = {
        log.topic_filter: (log.segment_bytes, log.segment_count) for log in stage.machine.logs
    }

    assert sizes == {"big/+": (5_000, 3), "big": (5_000, 3), "small": (2_000, 2)}


def test_commit_log_starts_a_new_segment_when_the_active_one_reaches_the_maximum() -> None:
    one = run([b"x"])
    log = DataLog("t", segment_bytes=2 * one.weight, segment_count=100)
    log.readers = 1
    counts = []
    for _ in range(5):
        log.append(run([b"x"]))
        counts.append(len(log.segments))

    assert counts == [1, 1, 2, 2, 3]
    assert [segment.base for segment in log.segments] == [0, 2, 4]
