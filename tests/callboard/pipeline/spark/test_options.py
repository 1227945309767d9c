"""Options as users write them; contradictions are refused with the reason."""

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

from pyspark.sql.types import StructType

from callboard.commitlog import CommitLog
from callboard.pipeline import InvalidSetting
from callboard.pipeline.spark.options import SourceOptions, find_offset, nanoseconds
from callboard.pipeline.spark.source import LogStreamReader


def parse(**options):
    return SourceOptions.parse({"path": "/log", **options})


def test_a_path_is_all_that_is_needed():
    assert parse() == SourceOptions("/log")


def test_names_are_read_in_any_case():
    options = parse(startingoffsets="LATEST", TOPICS="/cpu, /mem,", failOnDataLoss="False")

    assert options.start == "latest"
    assert options.topics == ("/cpu", "/mem")
    assert not options.fails_on_loss


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("startingOffsets", "soon", "use earliest, latest, an offset or a time"),
        ("endingOffsets", "-1", "use earliest, latest, an offset or a time"),
        ("maxOffsetsPerTrigger", "0", "a number of at least 1"),
        ("failOnDataLoss", "maybe", "use true or false"),
        ("path", "", "the directory of a log"),
    ],
)
def test_an_invalid_value_is_refused_with_the_valid_ones(name, value, says):
    with pytest.raises(InvalidSetting, match=says):
        parse(**{name: value})


def test_positions_are_given_as_word_offset_or_time():
    with CommitLog() as log:
        log.append_batch(range(5), topic="/n", time=[second * 10**9 for second in range(5)])

        assert find_offset(log, "earliest") == 0
        assert find_offset(log, "latest") == 5
        assert find_offset(log, "3") == 3
        assert find_offset(log, "1970-01-01T00:00:02Z") == 2
        assert find_offset(log, "1970-01-01T01:00:01.5+01:00") == 2


def test_a_time_without_a_zone_is_utc():
    assert nanoseconds("1970-01-01T00:00:01") == 10**9


def test_a_batch_waits_for_enough_records_but_not_for_ever(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("callboard.pipeline.spark.source.time.monotonic", lambda: now[0])
    more = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "1m", "maxOffsetsPerTrigger": "7"}
    with CommitLog(tmp_path / "log", sync="none") as log:
        options = SourceOptions.parse({"path": log.folder, **more})
        reader = LogStreamReader(options, StructType())
        limit, start = reader.getDefaultReadLimit(), reader.initialOffset()
        log.append_batch(range(4), topic="/n")
        assert reader.latestOffset(start, limit) == start

        now[0] += 60.0
        four = reader.latestOffset(start, limit)
        assert four["offset"] == 4
        log.append_batch(range(4), topic="/n")
        assert reader.latestOffset(four, limit) == four

        log.append_batch(range(4), topic="/n")
        assert reader.latestOffset(four, limit)["offset"] == 11
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset({**four, "offset": 11}, limit)["offset"] == 12


def test_enough_records_are_never_more_than_the_most(tmp_path):
    with CommitLog(tmp_path / "log", sync="none") as log:
        log.append_batch(range(9), topic="/n")
        more = {"minOffsetsPerTrigger": "50", "maxOffsetsPerTrigger": "7"}
        reader = LogStreamReader(
            SourceOptions.parse({"path": log.folder, **more}), StructType()
        )

        found = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())

    assert found["offset"] == 7
