"""Progress of queries, from Spark's reports and from the files in their folder."""

import json
import os
from pathlib import Path

import pytest

from callboard.figures import exposition
from callboard.pipeline import InvalidSetting
from callboard.pipeline.job import Job, find_query
from callboard.pipeline.progress import (
    Progress,
    StatusFile,
    query_metrics,
    read_status,
)
from callboard.pipeline.queries import seconds_of

TOLD = {
    "batchId": 7,
    "numInputRows": 300,
    "processedRowsPerSecond": 1234.56,
    "durationMs": {"triggerExecution": 243},
    "eventTime": {"watermark": "2026-01-31T12:00:00.000Z"},
    "timestamp": "2026-01-31T12:00:10.000Z",
    "sources": [{"endOffset": {"offset": 900}, "latestOffset": '{"offset": 1000}'}],
    "stateOperators": [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 3}],
}


@pytest.fixture
def job(tmp_path):
    return Job("rates", "/log", str(tmp_path / "results"))


def test_progress_is_read_from_the_reports_of_spark():
    progress = Progress.parse("rates", TOLD)

    assert progress == Progress(
        "rates",
        7,
        300,
        1234.6,
        0.243,
        900,
        1000,
        "2026-01-31T12:00:00.000Z",
        TOLD["timestamp"],
        dropped=5,
    )
    assert progress.topic == "$spark/rates/progress"
    assert progress.as_message()["lag"] == 100


def test_a_query_without_input_reports_progress():
    assert Progress.parse("rates", {"batchId": 0}).lag == 0


def test_the_status_of_each_query_stands_beside_its_checkpoint(job, tmp_path):
    file = StatusFile(job.folder, job.title, job.log)
    for _ in range(2):
        file.add(Progress.parse("rates", TOLD))

    (status,) = read_status(tmp_path / "results")

    assert (status.query, status.log, status.pid) == ("rates", "/log", os.getpid())
    assert (status.rows, status.dropped) == (600, 10)
    assert status.last.offset == 900
    assert status.state == "runs"
    file.end("done")
    assert read_status(tmp_path / "results")[0].state == "done"


def test_a_query_whose_process_has_ended_is_shown_as_died(job, tmp_path):
    StatusFile(job.folder, job.title, job.log)
    path = job.folder / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 2**22 + 1}))

    assert read_status(tmp_path / "results")[0].state == "died"


def test_metrics_show_the_lag(job):
    file = StatusFile(job.folder, job.title, job.log)
    file.add(Progress.parse("rates", TOLD))

    text = exposition(query_metrics(file.status))

    assert 'callboard_pipeline_lag_rows{query="rates"} 100' in text
    assert 'callboard_pipeline_late_total{query="rates"} 5' in text
    assert 'callboard_pipeline_rows_total{query="rates"} 300' in text
    assert 'callboard_pipeline_running{query="rates"} 1' in text


def test_the_place_of_a_query_is_known_until_its_next_run_has_a_batch(job):
    StatusFile(job.folder, "rates", job.log).add(Progress.parse("rates", TOLD))

    again = StatusFile(job.folder, "rates", job.log)

    assert again.status.rows == 0
    assert again.status.last.offset == read_status(Path(job.to))[0].last.offset == 900
    (job.folder / "status.json").write_text("no status")
    assert StatusFile(job.folder, "rates", job.log).status.last is None


def test_a_query_is_given_by_name_or_by_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def high(rows, settings):\n    return rows\n")

    assert find_query("rates").build.__name__ == "rates"
    assert find_query(f"{path}:high").build.__name__ == "high"
    assert Job(f"{path}:high", "/log", "/to").title == "mine"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nope", "use one of rates, quantiles"),
        ("none.py:f", "there is no file none.py"),
        (f"{__file__}:nothing", "has no function 'nothing'"),
    ],
)
def test_an_unknown_query_is_refused_with_the_list_of_queries(name, says):
    with pytest.raises(InvalidSetting, match=says):
        find_query(name)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("1.5m", 90), ("1h", 3600), ("1d", 86400)],
)
def test_spans_are_read_in_seconds(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "0s", "-1s", "ten s"])
def test_an_invalid_duration_is_refused_with_an_example(text):
    with pytest.raises(InvalidSetting, match="500ms, 10s, 5m, 1h or 1d"):
        seconds_of(text)
