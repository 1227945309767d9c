"""What the demo shows of Spark, from the logs that it left."""

import json
from collections import Counter
from datetime import UTC, datetime
from io import BytesIO
from types import SimpleNamespace
from xml.etree import ElementTree

from callboard.commitlog import CommitLog, LogReader
from callboard.demo import analysis_process
from callboard.demo.analysis import (
    METRIC,
    WIDTH,
    Analysis,
    AnalysisResult,
    _evaluate,
)
from callboard.demo.outcome import Findings
from callboard.demo.story import DemoOptions
from callboard.pipeline import SparkMissing

SECOND = 10**9
LEVELS = [(float(second), second % 10.0) for second in range(20)]
QUANTILES = [(0.0, 4.0, 9.0), (10.0, 5.0, 9.0)]


def chart_of(title, strange):
    return AnalysisResult(levels=LEVELS, quantiles=QUANTILES, strange=strange, title=title)


def test_a_short_story_or_one_without_end_has_no_analysis():
    for options in (DemoOptions(seconds=8.0), DemoOptions(forever=True)):
        with Analysis(options) as analysis:
            found = analysis.finish()

            assert analysis.state() == {}
            assert found.missing
            assert found.summary()["windows"] == 0


def test_without_spark_the_demo_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("callboard.demo.analysis.find_spec", lambda _: None)

    with Analysis(DemoOptions()) as analysis:
        analysis.finish().print()

    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        "no analysis with Spark: it is not installed: pip install 'callboard[spark]'"
    )


def test_what_spark_misses_is_told_in_one_line(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise SparkMissing("Spark needs Java 17")

    monkeypatch.setattr("callboard.pipeline.spark_session.session", refuse)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO()))

    assert analysis_process.main(tmp_path) == 1

    told = json.loads((tmp_path / "state.json").read_text())
    assert told == {"state": "missing", "why": "Spark needs Java 17"}


def test_the_lines_of_the_chart_are_those_of_one_metric(tmp_path):
    with CommitLog(tmp_path / "results") as log:
        log.append("/anomalies/metrics/B/cpu", {}, time=6 * SECOND)
        log.append(f"/anomalies{METRIC}", {}, time=7 * SECOND)
        start = datetime.fromtimestamp(5, UTC)
        for median in (1.0, 2.0):
            payload = {"start": start, "p50": median, "p99": 9.0}
            log.append(f"/quantiles{METRIC}", payload)
    with CommitLog(tmp_path / "metrics") as log:
        log.append(METRIC, [1, 50.0, {}], time=5 * SECOND)

    found = _evaluate(
        list(LogReader(tmp_path / "results")), list(LogReader(tmp_path / "metrics"))
    )

    assert found.quantiles == [(5.0, 2.0, 9.0)]
    assert (found.levels, found.strange) == ([(5.0, 50.0)], [7.0])


def test_the_chart_of_a_terminal_has_a_row_for_each_thing():
    title, *rows = chart_of("/cpu", [0.0, 19.0]).lines()

    assert title == "/cpu: 0 to 9, 19 s"
    assert [row.split()[0] for row in rows] == ["level", "p50", "p99", "anomalies"]
    assert rows[2] == "      p99 " + "█" * WIDTH
    assert rows[3] == "anomalies !" + " " * (WIDTH - 2) + "! 2"


def test_the_picture_is_a_page_with_a_line_for_each_thing_and_a_dot_for_each_anomaly():
    page = chart_of("/cpu <1>", [3.0, 4.0]).page()

    assert page.startswith('<!doctype html><meta charset="utf-8"><title>/cpu &lt;1&gt;</title>')
    root = ElementTree.fromstring(page[page.index("<svg") :])
    shapes = Counter(each.tag.rpartition("}")[2] for each in root)
    assert shapes == {"polyline": 1 + 2 * len(QUANTILES), "circle": 2}
    _, _, width, height = map(int, root.attrib["viewBox"].split())
    for each in root:
        for point in each.attrib.get("points", "").split():
            x, y = map(int, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_a_chart_of_nothing_says_so():
    assert AnalysisResult(title="/cpu").lines() == ["/cpu: no records"]
    assert AnalysisResult(missing="x").summary()["missing"] == "x"


def test_the_line_of_the_analysis_tells_what_came_back():
    findings = Findings()
    assert findings.status() == ""
    findings.state = {"state": "runs", "rows": 1200}
    findings.take({"results": {"/rates": 2, "/anomalies": 1}, "store": None}, is_witness=False)
    store = {"results": {"/quantiles/metrics/A/cpu": 31.4, "/rates/x": None}}
    findings.take({"store": store}, is_witness=True)

    assert findings.status() == (
        "spark: 1,200 records read · 2 rates, 1 anomalies as messages on D"
        " · 2 entries in the store · cpu median 31 %"
    )
    assert findings.line() == (
        "results of Spark: 2 rates, 1 anomalies reached D as messages, 2 are in the store"
    )


def test_a_kind_of_results_is_missing_until_it_is_a_message_and_an_entry():
    findings = Findings()
    assert findings.missing() == ["/rates", "/quantiles", "/anomalies"]

    findings.take(
        {"results": {"/rates": 2, "/quantiles": 1, "/anomalies": 0}, "store": None},
        is_witness=False,
    )
    entries = {"/quantiles/metrics/A/cpu": 31.4, "/anomalies/x": None}
    findings.take({"store": {"results": entries}}, is_witness=True)

    assert findings.missing() == ["/rates", "/anomalies"]
    assert findings.summary()["entries"] == {"/rates": 0, "/quantiles": 1, "/anomalies": 1}
