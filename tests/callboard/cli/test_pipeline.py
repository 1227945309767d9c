"""`callboard pipeline …` without Spark; the other tests are in `tests/callboard/pipeline`."""

import json
import os
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from callboard import Endpoint, Node
from callboard.cli import main, pipeline
from callboard.cli.cli_error import CliError
from callboard.cli.work import query_watch
from callboard.cli.work.query_watch import QueryWatch, rows_from
from callboard.commitlog import CommitLog, Record
from callboard.figures import exposition
from callboard.pipeline.errors import PipelineError, SparkMissing
from callboard.pipeline.job import Job
from callboard.pipeline.progress import DeliveryStats, Progress, StatusFile, query_metrics
from callboard.pipeline.spark.dead_letters import DeadLetter, Origin, bury
from callboard.topics.hub import Hub
from tests.polling import eventually


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nope"], "there is no query 'nope'; use one of rates,"),
        (["run", "rates"], "there is no log in .*nothing; record one with"),
        (["run", "join", "--left", "/in"], "a join needs two topics; pass --left and --right"),
        (["run", "rates", "--window", "10"], "'10' is not a time span; use one like"),
        (["run", "anomalies", "--season", "1d"], "'1d' is not a season; use one like 1d:24"),
        (["run", "rates", "--retain", "much"], "--retain 'much' cannot be read"),
        (["replay", "rates", "--from", "0", "--batch"], "--help"),
        (
            ["run", "late", "--window", "1m"],
            "--window has no effect on this query; it is for r",
        ),
        (
            ["run", "rates", "--season", "1d:24"],
            "--season has no effect .*; it is for anomalies",
        ),
        (
            ["run", "rates", "--left", "/in"],
            "--left has no effect on this query; it is for join",
        ),
        (
            ["run", "rates", "--batch", "--interval", "1s"],
            "--interval has no effect with --batch",
        ),
        (
            ["run", "rates", "--batch", "--checkpoint", "x"],
            "--checkpoint has no effect with --b",
        ),
        (
            ["run", "rates", "--batch", "--max-rows", "9"],
            "--max-rows has no effect with --batch",
        ),
        (
            ["run", "rates", "--once", "--interval", "1s"],
            "--interval has no effect with --once",
        ),
        (
            ["run", "rates", "--where", "load > 5"],
            "where='load > 5' cannot be parsed at 'load > 5'",
        ),
        (["run", "rates", "--interval", "often"], "'often' is not a time span; use one like"),
        (
            ["run", "rates", "--store", "x"],
            "--store needs a cluster with that store; pass --peer",
        ),
        (
            ["run", "rates", "--schema", "flights.ddl"],
            "there is no file flights.ddl; pass one,",
        ),
        (["run", "quantiles", "--time", "value"], "--field and --time are both 'value'"),
        (["run", "nope.py:high"], "there is no file nope.py; pass FILE.py:FUNCTION"),
    ],
)
def test_a_usage_error_is_reported_before_java_starts(arguments, says, capsys, tmp_path):
    folders = ["--log", str(tmp_path / "nothing"), "--to", str(tmp_path / "results")]

    assert main(["pipeline", *arguments, *folders]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("callboard: ")
    assert re.search(says, line)
    assert list(tmp_path.iterdir()) == []


def test_a_setting_of_spark_has_a_name_and_a_value(capsys, tmp_path):
    CommitLog(tmp_path / "metrics").close()
    run = [
        "run",
        "rates",
        "--log",
        str(tmp_path / "metrics"),
        "--to",
        str(tmp_path / "results"),
    ]

    assert main(["pipeline", *run, "--conf", "spark.executor.memory"]) == 2

    assert capsys.readouterr().err == (
        "callboard: --conf 'spark.executor.memory' is not a setting; use one like"
        " spark.executor.memory=2g\n"
    )


@pytest.mark.parametrize(
    ("program", "query", "says"),
    [
        ("def high(rows): ...", "hihg", "has no function 'hihg'; it has high"),
        ("def high(rows:", "high", r"does not load: SyntaxError: .* \(line 1\); correct it"),
        (
            "\nimport nothing_here",
            "high",
            r"ModuleNotFoundError: No module .* \(line 2\); correct",
        ),
        (
            "import sys\nsys.exit(3)",
            "high",
            r"does not load: SystemExit: 3 \(line 2\); correct it",
        ),
        (
            "from callboard.pipeline import pipeline\n@pipeline\ndef high(rows): ...",
            "high",
            r"@pipeline needs brackets: write @pipeline\(schema=…\)",
        ),
    ],
)
def test_a_file_that_does_not_load_is_reported_in_one_line(
    program, query, says, capsys, tmp_path
):
    path = tmp_path / "mine.py"
    path.write_text(program)
    folders = ["--log", str(tmp_path / "nothing"), "--to", str(tmp_path / "results")]

    assert main(["pipeline", "run", f"{path}:{query}", *folders]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(says, line), line


def test_help_lists_options_in_sections_with_the_required_ones_first(capsys):
    assert main(["pipeline", "run", "--help"]) == 0

    said = capsys.readouterr().out
    titles = [
        "What is read:",
        "What is asked:",
        "Where results go:",
        "How it runs:",
        "Options:",
    ]
    assert [line for line in said.splitlines() if line in titles] == titles
    assert said.partition("What is read:\n")[2].lstrip().startswith("--log")


@pytest.mark.parametrize("has_results", [False, True])
def test_a_run_without_java_creates_no_files(capsys, tmp_path, monkeypatch, has_results):
    def refuse(*_, **__):
        raise SparkMissing("Spark needs Java 17 or newer; install one")

    monkeypatch.setattr("callboard.pipeline.spark_session.session", refuse)
    metrics, results = tmp_path / "metrics", tmp_path / "of" / "results"
    CommitLog(metrics).close()
    if has_results:
        CommitLog(results).close()
    before = sorted(tmp_path.rglob("*"))

    assert main(["pipeline", "run", "rates", "--log", str(metrics), "--to", str(results)]) == 1

    assert capsys.readouterr().err == ("callboard: Spark needs Java 17 or newer; install one\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_whose_java_ends_names_the_file_with_its_output(capsys, tmp_path, monkeypatch):
    def fail(*_, **__):
        os.write(2, b"no memory")
        raise PipelineError("the Java in /java ended before Spark was ready; see its output")

    monkeypatch.setattr("callboard.pipeline.spark_session.session", fail)
    CommitLog(tmp_path / "metrics").close()
    results = tmp_path / "results"
    run = ["pipeline", "run", "rates", "--log", str(tmp_path / "metrics")]

    assert main([*run, "--to", str(results)]) == 1

    said = results / "queries" / "rates" / "spark.log"
    assert capsys.readouterr().err.endswith(f"; see its output in {said}\n")
    assert said.read_text() == "no memory"


def test_status_prints_the_progress_of_each_query(capsys, tmp_path):
    with CommitLog(tmp_path / "metrics") as log:
        log.append_batch(range(10), topic="/n")
    job = Job("rates", str(tmp_path / "metrics"), str(tmp_path / "results"))
    file = StatusFile(job.folder, job.title, job.log)
    file.add(Progress("rates", 3, 4, 100.0, 0.04, 4, 4, "", ""))
    file.end("stopped")

    assert main(["pipeline", "status", str(tmp_path / "results")]) == 0
    text = capsys.readouterr().out
    assert main(["pipeline", "status", str(tmp_path / "results"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)

    assert text == "rates: stopped, batch 3, 4 records, 100/s, 6 wait\n"
    assert (row["query"], row["state"], row["lag"]) == ("rates", "stopped", 6)


def test_status_of_another_log_explains_how_to_start_a_query(capsys, tmp_path):
    assert main(["pipeline", "status", str(tmp_path)]) == 1

    assert "start one with: callboard pipeline run" in capsys.readouterr().err


SECOND = 10**9


@pytest.fixture
def query(tmp_path):
    """A query that has read 4 of 10 records, two of them undecodable."""
    with CommitLog(tmp_path / "metrics") as log:
        log.append_batch(range(10), topic="/n", time=[at * 60 * SECOND for at in range(1, 11)])
    job = Job("rates", str(tmp_path / "metrics"), str(tmp_path / "results"))
    file = StatusFile(job.folder, job.title, job.log)
    mark = "1970-01-01T00:03:00.000Z"
    file.add(Progress("rates", 3, 4, 100.0, 0.04, 4, 4, mark, "", dropped=7))
    return file


@pytest.fixture
def watch(query, tmp_path):
    made = []

    def make(**more):
        letters = str(tmp_path / "dead")
        record = Record(1, 0, "/n", None, {}, "", b"x")
        bury(letters, [DeadLetter.of(record, Origin("/log", "before"), "bad")])
        watch = QueryWatch(
            query,
            str(tmp_path / "metrics"),
            letters=letters,
            handed=lambda: DeliveryStats(1, 2, 3, 4),
            **more,
        )
        watch.query = "id"
        for who in ("id", "other"):
            letter = DeadLetter.of(record, Origin("/log", who), "bad")
            bury(letters, [letter, letter._replace(offset=2)])
        made.append(watch)
        return watch

    yield make
    for each in made:
        each.close()


TOLD = (
    "rates: {state}, batch 3, 4 records, 100/s, 6 wait, 300.0 s behind, watermark 420.0 s"
    " behind, 7 too late, 2 undecodable, results: 1 handed, 2 unheard, 3 lost, 4 waiting\n"
)


def test_status_prints_delays_and_skipped_records_of_another_process(watch, capsys, tmp_path):
    watch().close("done")

    assert main(["pipeline", "status", str(tmp_path / "results")]) == 0
    assert capsys.readouterr().out == TOLD.format(state="done")
    assert main(["pipeline", "status", str(tmp_path / "results"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["lag"], row["delay"], row["event_delay"]) == (6, 300.0, 420.0)
    assert (row["dropped"], row["undecodable"], row["results"]) == (7, 2, 10)


@pytest.mark.slow
def test_status_of_a_node_lists_queries_of_the_whole_cluster(watch, capsys):
    with Endpoint() as there, Endpoint() as middle:
        assert there.peer("127.0.0.1", port := middle.listen("127.0.0.1", 0))
        running = watch(hub=there.hub)
        eventually(lambda: running._letters.of("id") == 2)

        code = main(["pipeline", "status", f"basp://127.0.0.1:{port}", "--wait", "30"])

        assert code == 0
        assert capsys.readouterr().out == TOLD.format(state="runs")


def test_a_node_without_queries_is_reported(capsys):
    with Endpoint() as there:
        port = there.listen("127.0.0.1", 0)

        assert main(["pipeline", "status", f"basp://127.0.0.1:{port}", "--wait", "0.2"]) == 1

    assert "no query reported at basp://" in capsys.readouterr().err


def test_figures_of_results_and_delays_are_metrics(watch, query):
    watch().close("done")

    text = exposition(query_metrics(query.status))

    for line in (
        'lag_rows{query="rates"} 6',
        'delay_seconds{query="rates"} 300',
        'event_delay_seconds{query="rates"} 420',
        'undecodable_total{query="rates"} 2',
        'results_total{query="rates",outcome="handed"} 1',
        'results_total{query="rates",outcome="unheard"} 2',
        'results_total{query="rates",outcome="lost"} 3',
        'results_waiting{query="rates"} 4',
        'late_total{query="rates"} 7',
    ):
        assert f"callboard_pipeline_{line}\n" in text


def test_a_run_on_another_machine_that_is_not_seen_is_silent(query):
    query.record()
    elsewhere = replace(query.status, host="other")

    assert elsewhere.state == "runs"
    assert replace(elsewhere, updated="2026-01-31T12:00:00+00:00").state == "silent"
    assert replace(elsewhere, updated="").state == "runs"


class Ended:
    """A query of Spark that has ended."""

    id, isActive, recentProgress = "q", False, ()  # noqa: N815  # Spark's names

    def __init__(self, error=None):
        self.error = error

    def start_stream(self, _):
        return self

    def exception(self):
        return self.error


@pytest.mark.parametrize(("error", "how"), [(None, "done"), (ValueError("x"), "failed")])
def test_a_query_that_ends_by_itself_is_done_unless_it_has_an_error(error, how):
    watch = SimpleNamespace(query="")

    ended = pipeline._follow(Ended(error), None, threading.Event(), print, watch)

    assert (ended, watch.query) == ((how, error), "q")


def test_a_stream_dials_its_peers_before_the_slow_start_of_java(monkeypatch, tmp_path):
    steps = []

    def start_no_spark(*_):
        steps.append("spark")
        msg = "there is no Java"
        raise SparkMissing(msg)

    monkeypatch.setattr(pipeline, "_spark", start_no_spark)
    monkeypatch.setattr(pipeline.StreamOptions, "link", lambda *_: steps.append("link"))
    with CommitLog(tmp_path / "in", sync="none") as log:
        log.append("/cpu/a", b"\x01")
    places = [f"--log={tmp_path / 'in'}", f"--to={tmp_path / 'out'}"]
    command = ["pipeline", "run", "rates", *places]

    assert main(command) != 0
    assert main([*command, "--listen", "127.0.0.1:0"]) != 0

    assert steps == ["spark", "link", "spark"]


def test_the_rows_of_a_cluster_are_those_of_every_query_that_reports(monkeypatch):
    monkeypatch.setattr(query_watch, "_POLL_SECONDS", 0.2)
    options = SimpleNamespace(open_node=lambda _: Node("watch"))
    with Node("there") as there:
        port, over, hub = there.listen("127.0.0.1", 0), threading.Event(), Hub.of(there)

        def report():
            while not over.wait(0.02):
                for name in ("rates", "late"):
                    hub.publish(f"$spark/{name}/status", {"query": name})
                    hub.publish(f"$spark/{name}/progress", {"batch": 1})

        reports = threading.Thread(target=report)
        reports.start()
        rows = rows_from(f"127.0.0.1:{port}", options, 30.0)
        over.set()
        reports.join()
        with pytest.raises(CliError, match="no query reported"):
            rows_from(f"127.0.0.1:{port}", options, 0.1)

    assert [row["query"] for row in rows] == ["late", "rates"]
