"""Options as users write them; contradictions are refused with the reason."""

import pytest

from callboard.commitlog import CommitLog
from callboard.pipeline import InvalidSetting
from callboard.pipeline.spark.options import SourceOptions, find_offset, nanoseconds


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
