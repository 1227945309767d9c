"""`callboard pipeline …` as far as it needs no Spark; the rest stands with the pipeline."""

import json
import os
import re

import pytest

from callboard.cli import main
from callboard.commitlog import CommitLog
from callboard.pipeline.errors import PipelineError, SparkMissing
from callboard.pipeline.job import Job
from callboard.pipeline.progress import Progress, StatusFile


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nope"], "there is no query 'nope'; take one of rates,"),
        (["run", "rates"], "there is no log in .*nothing; record one with"),
        (["run", "join", "--left", "/in"], "a join needs two topics; give --left and --right"),
        (["run", "rates", "--window", "10"], "'10' is no span of time; give one like"),
        (["run", "anomalies", "--season", "1d"], "'1d' is no season; give one like 1d:24"),
        (["run", "rates", "--retain", "much"], "--retain 'much' cannot be read"),
        (["replay", "rates", "--from", "0", "--batch"], "--help"),
    ],
)
def test_wrong_use_is_told_before_java_starts(arguments, says, capsys, tmp_path):
    folders = ["--log", str(tmp_path / "nothing"), "--to", str(tmp_path / "results")]

    assert main(["pipeline", *arguments, *folders]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("callboard: ")
    assert re.search(says, line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_results", [False, True])
def test_a_run_without_java_leaves_nothing_behind(capsys, tmp_path, monkeypatch, has_results):
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


def test_a_run_whose_java_ends_names_the_file_with_what_it_said(capsys, tmp_path, monkeypatch):
    def fail(*_, **__):
        os.write(2, b"no memory")
        raise PipelineError("the Java in /java ended before Spark was there; see what it said")

    monkeypatch.setattr("callboard.pipeline.spark_session.session", fail)
    CommitLog(tmp_path / "metrics").close()
    results = tmp_path / "results"
    run = ["pipeline", "run", "rates", "--log", str(tmp_path / "metrics")]

    assert main([*run, "--to", str(results)]) == 1

    said = results / "queries" / "rates" / "spark.log"
    assert capsys.readouterr().err.endswith(f"; see what it said in {said}\n")
    assert said.read_text() == "no memory"


def test_status_tells_how_far_each_query_is(capsys, tmp_path):
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

    assert text == "rates: stopped, batch 3, 4 records, 100/s, 10 wait\n"
    assert (row["query"], row["state"], row["lag"]) == ("rates", "stopped", 10)


def test_status_of_what_is_no_log_of_results_says_how_to_start_one(capsys, tmp_path):
    assert main(["pipeline", "status", str(tmp_path)]) == 1

    assert "start one with: callboard pipeline run" in capsys.readouterr().err
