"""Logs in a real Spark.

All tests that need a session stand in this file, so that one process of the test run starts a
Java machine and not each.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

import pandas
from cbor2 import loads
from typer.main import get_command

from callboard.cli import main, pipeline
from callboard.commitlog import CommitLog, LogReader, sealed_segments, write_columns
from callboard.pipeline import table
from callboard.pipeline.bridge import Bridge
from callboard.pipeline.queries import QUERIES, Settings, schema_of, values
from callboard.pipeline.state import Baseline, Detection, learn_all
from examples.temperatures import load_temperatures
from tests.callboard.entity.state.postgresql_server import running_server
from tests.polling import eventually

PAGE = Path(__file__).parents[3] / "docs" / "pipeline.md"
TUTORIAL = PAGE.with_name("tutorial-spark.md")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture
def read(spark, folder):
    def load(schema=None, **options):
        reader = spark.read.format("callboard").options(**options)
        return (reader.schema(schema) if schema else reader).load(folder)

    return load


def offsets(rows):
    return sorted(row.offset for row in rows.select("offset").collect())


# --- batches ---


def test_a_log_is_a_table_of_its_records(fill, read):
    fill(
        [b"x", {"load": 1}],
        topic=["/cpu", "/mem"],
        key=["a", b"\xff"],
        headers=[{"unit": "s"}, None],
        sender="here",
        time=[0, 1_500_000],
    )

    first, second = read().orderBy("offset").collect()

    assert (first.offset, first.topic, first.key, first.headers) == (
        0,
        "/cpu",
        "a",
        {"unit": "s"},
    )
    assert (bytes(first.payload), first.is_bytes) == (b"x", True)
    assert (first.sender, second.key) == ("here", "\\xff")
    assert (second.time.microsecond, second.is_bytes) == (1500, False)


def test_parts_of_a_log_are_read_by_several_tasks_and_hold_each_record_once(fill, read):
    fill(range(5000))
    for number in range(50):
        fill([number], topic="/single")

    rows = read(numPartitions="4")

    assert rows.rdd.getNumPartitions() == 4
    assert offsets(rows) == list(range(5050))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", range(10)),
        ("3", "7", range(3, 7)),
        ("latest", "latest", range(0)),
        ("1970-01-01T00:00:04Z", "1970-01-01T00:00:06Z", range(4, 6)),
        ("8", "99", range(8, 10)),
    ],
)
def test_a_range_is_given_by_offsets_or_times(fill, read, start, end, expected):
    fill(range(10), time=[second * 10**9 for second in range(10)])

    assert offsets(read(startingOffsets=start, endingOffsets=end)) == list(expected)


def test_only_the_topics_asked_for_are_decoded(fill, read):
    fill([{"load": 1.0}, b"\xff", {"load": 2.0}] * 30, topic=["/cpu/0", "/raw", "/cpu/1"] * 30)
    fill([{"load": 3.0}], topic="/cpu/2")

    rows = read("offset BIGINT, load DOUBLE", topics="/cpu")

    assert rows.count() == 61
    assert rows.groupBy().sum("load").first()[0] == 93.0


def test_one_table_serves_queries_with_different_conditions(fill, read):
    fill(range(10), topic=[f"/n/{number % 2}" for number in range(10)])
    rows = read()

    assert rows.where("topic = '/n/1' and offset > 4").count() == 3
    assert rows.count() == 10


def test_conditions_of_a_table_for_one_query_are_pushed_down(fill, read, spark):
    """Records that are not read need not decode."""
    fill([{"n": 1}, {"n": "x"}, {"n": 3}], topic=["/a", "/b", "/a"], key=["k", "k", None])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = read("topic STRING, key STRING, n BIGINT", pushFilters="true")
        assert [
            row.n for row in rows.where("topic = '/a' AND key = 'k' AND n < 9").collect()
        ] == [1]
        assert rows.where("topic LIKE '/a%' AND key IS NULL").collect()[0].n == 3
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    asked = read("topic STRING, n BIGINT", where="topic = '/a'")
    assert asked.where("n > 1").count() == 1
    assert asked.count() == 2


def test_a_schema_is_inferred_from_a_sample(fill, read):
    fill([{"load": 0.5, "host": "a"}, {"load": 1}])

    rows = read(inferSchema="true")

    assert rows.dtypes[-2:] == [("load", "double"), ("host", "string")]
    assert sorted(row.load for row in rows.collect()) == [0.5, 1.0]


def test_an_undecodable_record_is_stored_as_a_dead_letter_once(fill, read, tmp_path):
    fill([{"load": 1.0}, {"load": "much"}, {"load": 2.0}], key=["a", "b", "c"])
    dead = str(tmp_path / "dead")
    rows = read("load DOUBLE", deadLetters=dead)

    counts = [rows.count(), rows.count()]

    assert counts == [2, 2]
    (letter,) = LogReader(dead)
    assert (letter.topic, letter.key) == ("/dead-letters/cpu", "b")
    assert loads(letter.payload) == {"load": "much"}
    assert letter.headers["offset"] == "1"
    assert (
        letter.headers["reason"] == "field load is 'much', which does not fit the type double"
    )


def test_streams_that_share_a_log_of_dead_letters_have_each_its_own(
    fill, spark, folder, tmp_path
):
    fill([{"load": 1.0}, {"load": "much"}, {"load": 2.5}])
    dead = str(tmp_path / "dead")
    for name, kind in (("real", "DOUBLE"), ("whole", "BIGINT"), ("real", "DOUBLE")):
        rows = spark.readStream.format("callboard").schema(f"topic STRING, load {kind}")
        query = rows.option("deadLetters", dead).load(folder).writeStream.queryName(name)
        query = query.format("callboard").option("checkpointLocation", tmp_path / name)
        query = query.trigger(availableNow=True).start(str(tmp_path / f"of-{name}"))
        query.awaitTermination()

    told = [(each.headers["name"], each.headers["offset"]) for each in LogReader(dead)]
    assert told == [("real", "1"), ("whole", "0"), ("whole", "1"), ("whole", "2")]
    assert len({each.headers["query"] for each in LogReader(dead)}) == 2


def test_dead_letters_are_kept_for_the_configured_time(fill, read, tmp_path):
    dead = str(tmp_path / "dead")
    for _ in range(3):
        fill([{"load": "much" * 100}] * 50)
        read("load DOUBLE", deadLetters=dead, deadLettersRetain="records=60").count()

    log = LogReader(dead)
    assert 60 <= log.end - log.start < log.end


def test_an_undecodable_record_is_reported_in_a_column_or_fails_the_query(fill, read):
    fill([{"load": 1.0}, {"load": "much"}])

    told = read("offset BIGINT, load DOUBLE, error STRING").orderBy("offset").collect()

    assert [(row.load, bool(row.error)) for row in told] == [(1.0, False), (None, True)]
    with pytest.raises(Exception, match="record 1 of .* does not decode: field load is 'much'"):
        read("load DOUBLE").collect()


def test_a_table_of_sealed_columns_and_the_rest_has_the_same_rows(spark, folder, read):
    with CommitLog(folder, sync="none", segment_bytes=1000, columns=True) as log:
        for number in range(60):
            log.append_batch(
                [{"n": number}, b"x"],
                topic=["/a", "/b"],
                key=["k", b"a\xff"],
                headers=[{"unit": "s"}, None],
                time=[number * 1500, -number * 1500],
                sender="here",
            )
    write_columns(folder)
    sealed = sealed_segments(folder)
    Path(sealed[1].columns).unlink()

    quick, plain = table(spark, folder), read()

    assert quick.columns == plain.columns
    assert quick.orderBy("offset").collect() == plain.orderBy("offset").collect()
    assert len(quick.inputFiles()) == len(sealed) - 1 > 3


def test_removed_records_fail_the_query_unless_data_loss_is_allowed(folder, read):
    with CommitLog(folder, sync="none", segment_bytes=1000) as log:
        for number in range(100):
            log.append("/n", number)
        log.trim(before=50)
        kept = log.start

    assert offsets(read(startingOffsets="0", failOnDataLoss="false")) == list(range(kept, 100))
    with pytest.raises(Exception, match=f"records 0 to {kept - 1} of .* are gone"):
        read(startingOffsets="0").count()


def test_a_missing_log_is_reported_in_one_line(read):
    with pytest.raises(Exception, match="there is no log in .*metrics"):
        read().count()


# --- streams ---


@pytest.fixture
def follow(spark, folder, tmp_path):
    """Run a stream over the log into another one until all is read; returns the batches."""

    def run(query=lambda rows: rows, name="out", schema=None, checkpoint="", **options):
        reader = spark.readStream.format("callboard").options(**options)
        rows = (reader.schema(schema) if schema else reader).load(folder)
        running = (
            query(rows)
            .writeStream.format("callboard")
            .option("checkpointLocation", checkpoint or str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        running.awaitTermination()
        return [progress.numInputRows for progress in running.recentProgress]

    return run


@pytest.fixture
def out(tmp_path):
    return lambda: list(LogReader(tmp_path / "out"))


def contents(records):
    return [record[2:] for record in records]


@pytest.mark.quick
def test_a_restarted_stream_copies_each_record_once_and_unchanged(fill, follow, folder, out):
    fill([b"x", {"load": 1}], topic=["/cpu", "/mem"], key=["a", "b"], headers={"unit": "s"})
    first = follow(maxOffsetsPerTrigger="1")
    fill([["late", 2]], sender="here")

    second = follow(maxOffsetsPerTrigger="1")

    assert [count for count in first if count] == [1, 1]
    assert [count for count in second if count] == [1]
    assert contents(out()) == contents(LogReader(folder))
    assert [record.offset for record in out()] == [0, 1, 2]


def test_results_that_were_published_before_a_crash_are_not_published_again(
    fill, follow, out, tmp_path
):
    """Spark had not written down that the batch was done: it runs it again."""
    fill(range(20))
    follow()
    (tmp_path / "out-checkpoint" / "commits" / "0").unlink()

    again = follow()

    assert again[0] == 20
    assert [record.payload for record in out()] == list(range(20))


def test_a_checkpoint_is_in_any_file_system_of_spark(fill, spark, follow, out, tmp_path):
    """And written by Spark alone: the tests' shortcuts are off."""
    settings, files = Settings(field="load", delay=1.0), "spark.sql.streaming.checkpointFile"
    place = f"viewfs://cluster/files{tmp_path}/checkpoint"
    shortcut = spark.conf.get(f"{files}ManagerClass")
    spark.conf.unset(f"{files}ManagerClass")

    def rates(rows):
        return QUERIES["rates"].build(values(rows, settings, needs_values=False), settings)

    try:
        for start in (0, 12):
            fill([{"load": 1.0}] * 12, time=[(start + each) * SECOND for each in range(12)])
            follow(rates, schema=schema_of(settings), checkpoint=place)
    finally:
        spark.conf.set(f"{files}ManagerClass", shortcut)

    assert [record.payload["records"] for record in out()] == [10, 10]
    assert len(list(tmp_path.glob("checkpoint/commits/[0-9]*"))) == 4


def test_queries_share_a_log_of_results(fill, follow, out):
    fill(range(3))

    follow(lambda rows: rows.selectExpr("'/one' topic", "key", "time"), name="one")
    follow(lambda rows: rows.selectExpr("'/two' topic", "key", "time"), name="two")

    assert [record.topic for record in out()] == ["/one"] * 3 + ["/two"] * 3


def test_a_growing_log_is_followed_and_its_results_can_be_read_at_once(
    fill, spark, folder, tmp_path
):
    fill([{"n": 0}])
    running = (
        spark.readStream.format("callboard")
        .schema("n BIGINT")
        .option("startingOffsets", "latest")
        .load(folder)
        .selectExpr("'/double' topic", "n * 2 AS n")
        .writeStream.format("callboard")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "out"))
    )
    try:
        eventually(lambda: running.recentProgress or not running.isActive, 60, interval=0.05)
        assert running.isActive, running.exception()
        for number in (1, 2):
            fill([{"n": number}])
            eventually(lambda: list(tmp_path.glob("out/*.log")), 60, interval=0.01)
            found = next(iter(LogReader(tmp_path / "out").follow(number - 1, timeout=30)))
            assert (found.topic, found.payload) == ("/double", {"n": 2 * number})
    finally:
        running.stop()


def test_a_stream_that_lost_records_fails_unless_that_is_accepted(folder, follow, out):
    with CommitLog(folder, sync="none", segment_bytes=1000) as log:
        for number in range(100):
            log.append("/n", number)
        log.trim(before=50)
        kept = log.start

    with pytest.raises(Exception, match=f"records 0 to {kept - 1} of .* are gone"):
        follow(startingOffsets="0")
    follow(startingOffsets="0", failOnDataLoss="false", name="other")

    assert [record.payload for record in out()] == list(range(kept, 100))


def test_a_log_that_ends_before_the_place_of_a_stream_fails_it(fill, follow, folder):
    fill(range(5))
    follow()
    shutil.rmtree(folder)
    fill(range(3))

    with pytest.raises(Exception, match="the checkpoint is at 5 of the log .* is another log"):
        follow()


# --- results of batches ---


def test_a_table_is_appended_to_a_log(fill, read, tmp_path, out):
    fill([{"load": 1.0}, {"load": 3.0}], key="a")
    rows = read("key STRING, load DOUBLE").groupBy("key").avg("load")

    for _ in range(2):
        writer = rows.withColumnRenamed("avg(load)", "mean").write.format("callboard")
        writer.mode("append").option("topic", "/means").save(str(tmp_path / "out"))

    assert [(record.topic, record.key, record.payload) for record in out()] == [
        ("/means", "a", {"mean": 2.0})
    ] * 2


def test_a_log_is_never_overwritten(fill, read, tmp_path):
    fill([1])

    with pytest.raises(Exception, match="a log cannot be overwritten"):
        read().write.format("callboard").mode("overwrite").save(str(tmp_path / "out"))


# --- queries ---

SECOND = 10**9


def pick(results, *names):
    return sorted(tuple(row[name] for name in names) for row in results)


@pytest.fixture
def ask(spark, folder):
    """Run one of the ready queries over the whole log; returns its results."""

    def run(name, **settings):
        chosen = Settings(**settings)
        reader = spark.read.format("callboard").schema(schema_of(chosen))
        query = QUERIES[name]
        rows = values(reader.load(folder), chosen, needs_values=query.needs_values)
        return query.build(rows, chosen).collect()

    return run


def test_rates_and_quantiles_are_computed_for_each_window_and_topic(fill, ask):
    times = [second * SECOND for second in range(20)]
    fill([{"load": float(n)} for n in range(20)], topic=["/a", "/b"] * 10, time=times)
    fill([b"no number"], topic="/a", time=[5 * SECOND])

    rates = ask("rates", field="load")
    quantiles = ask("quantiles", field="load")

    assert pick(rates, "topic", "records", "rate") == [
        ("/rates/a", 5, 0.5),
        ("/rates/a", 6, 0.6),
        ("/rates/b", 5, 0.5),
        ("/rates/b", 5, 0.5),
    ]
    assert pick(quantiles, "topic", "min", "p50", "p99", "max", "mean") == [
        ("/quantiles/a", 0.0, 4.0, 8.0, 8.0, 4.0),
        ("/quantiles/a", 10.0, 14.0, 18.0, 18.0, 14.0),
        ("/quantiles/b", 1.0, 5.0, 9.0, 9.0, 5.0),
        ("/quantiles/b", 11.0, 15.0, 19.0, 19.0, 15.0),
    ]


def test_windows_gives_the_same_rates_and_quantiles_as_the_separate_queries(fill, ask):
    times = [second * SECOND for second in range(20)]
    fill([{"load": float(n)} for n in range(20)], topic=["/a", "/b"] * 10, time=times)
    fill([b"no number"] * 2, topic=["/a", "/c"], time=[5 * SECOND] * 2)

    told = ask("windows", field="load")

    for name in ("rates", "quantiles"):
        (expected, columns) = (rows := ask(name, field="load")), rows[0].asDict()
        mine = [row for row in told if row.topic.startswith(f"/{name}/")]
        assert pick(mine, *columns) == pick(expected, *columns)
    assert {row.topic for row in told if row.rate is None} == {"/quantiles/a", "/quantiles/b"}


def test_sessions_end_with_a_gap_and_late_records_are_counted(fill, ask):
    seconds = [0, 4, 8, 30, 33, 1]
    fill([{}] * 6, topic="/a", time=[second * SECOND for second in seconds])

    sessions = ask("sessions", window=10.0)
    late = ask("late", delay=5.0)

    assert pick(sessions, "records", "seconds") == [(2, 3.0), (4, 8.0)]
    assert pick(late, "topic", "records", "late", "worst") == [("/late/a", 6, 1, 32.0)]


def test_records_of_two_topics_are_joined_where_they_are_near_in_time(fill, ask):
    fill(
        [{"value": 1.0}, {"value": 2.0}, {"value": 3.0}],
        topic=["/in/1", "/out/1", "/out/1"],
        time=[0, 2 * SECOND, 60 * SECOND],
    )

    joined = ask("join", left="/in", right="/out", within=5.0)

    assert pick(joined, "topic", "left_value", "right_value", "apart") == [
        ("/join/in/1", 1.0, 2.0, 2.0)
    ]


def test_streams_are_joined_as_tables_are(fill, follow, out, ask):
    settings = Settings(left="/in", right="/out", within=5.0)
    seconds = [0, 4, 5, 9, 10, 11, 31, 26]

    def joined(rows):
        return QUERIES["join"].build(values(rows, settings, needs_values=False), settings)

    for side in ("/in/1", "/out/1"):
        times = [(100 + second) * SECOND for second in seconds]
        fill([{"value": float(second)} for second in seconds], topic=side, time=times)
    follow(joined, schema=schema_of(settings))

    found = {(each.payload["left_value"], each.payload["right_value"]) for each in out()}
    assert found == {(a, b) for a in seconds for b in seconds if abs(a - b) <= 5}
    assert len(out()) == len(found) == len(ask("join", left="/in", right="/out", within=5.0))


def test_a_window_of_a_stream_is_emitted_once_when_it_is_final(fill, follow, out):
    settings = Settings(field="load", delay=1.0)

    def rates(rows):
        return QUERIES["rates"].build(values(rows, settings, needs_values=False), settings)

    for start in (0, 12):
        times = [(start + second) * SECOND for second in range(12)]
        fill([{"load": 1.0}] * 12, time=times)
        follow(rates, schema=schema_of(settings))

    assert [(record.topic, record.payload["records"]) for record in out()] == [
        ("/rates/cpu", 10),
        ("/rates/cpu", 10),
    ]


def test_a_stream_finds_the_anomalies_that_the_function_finds(fill, follow, out):
    readings = load_temperatures()[:1600]
    settings = Settings(field="value", detection=Detection(warmup=72, slots=24))
    measured = [(each.time / SECOND, each.temperature) for each in readings]
    _, expected = learn_all(Baseline(), measured, settings.detection)

    def anomalies(rows):
        return QUERIES["anomalies"].build(values(rows, settings), settings)

    for part in (readings[:900], readings[900:]):
        fill(
            [{"value": each.temperature} for each in part],
            topic="/noaa",
            time=[each.time for each in part],
        )
        follow(anomalies, schema=schema_of(settings))

    assert [(record.time / SECOND, record.payload["score"]) for record in out()] == [
        (each.time, each.score) for each in expected
    ]
    assert {record.topic for record in out()} == {"/anomalies/noaa"}


# --- the command ---


def test_a_run_continues_where_the_last_one_ended_and_a_replay_starts_again(
    fill, spark, folder, tmp_path, capsys, monkeypatch
):
    """The commands share the session of the tests, which they must not stop."""
    monkeypatch.setattr("callboard.pipeline.spark_session.session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    results, again = str(tmp_path / "results"), str(tmp_path / "again")
    run = ["pipeline", "run", "rates", "--log", folder, "--to", results, "--once", "--json"]
    replay = ["pipeline", "replay", "rates", "--log", folder, "--to", again, "--json"]

    for start in (0, 12):
        fill([1] * 12, time=[(start + second) * SECOND for second in range(12)])
        assert main([*run, "--delay", "1s"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main([*replay, "--from", "12", "--until", "20"]) == 0

    assert sum(each["rows"] for each in told) == 24
    assert [record.payload["records"] for record in LogReader(results)] == [10, 10]
    assert json.loads(capsys.readouterr().out)["results"] == 1
    assert [record.payload["records"] for record in LogReader(again)] == [8]
    assert main(["pipeline", "status", results]) == 0
    assert "/s, 0 wait" in capsys.readouterr().out


def submitted(text):
    """Return the lines of a page that submit, each as its words."""
    blocks = re.findall(r"^\$ (spark-submit (?:.*\\\n)*.*)", text, re.MULTILINE)
    return [shlex.split(block.replace("\\\n", " ")) for block in blocks]


@pytest.mark.parametrize("which", ["yarn", "k8s"])
def test_the_submit_commands_of_the_page_are_accepted_by_spark_and_the_command(spark, which):
    jvm, lines = spark._jvm, submitted(PAGE.read_text())
    (line,) = (each for each in lines if which in each[2])
    line = [each for each in line if each not in PACKAGES]  # they would be fetched
    utils, deploy = jvm.org.apache.spark.api.python.PythonUtils, jvm.org.apache.spark.deploy
    variables = utils.toScalaMap({"HADOOP_CONF_DIR": "/etc"})
    given = deploy.SparkSubmitArguments(utils.toSeq(line[1:]), variables)
    nothing = getattr(getattr(jvm.scala, "None$"), "MODULE$")

    resolved = deploy.SparkSubmit().prepareSubmitEnvironment(given, nothing)

    program = resolved._4().rpartition(".")[2]
    words = resolved._1().mkString("\n").split("\n")
    conf = {each._1(): each._2() for each in resolved._3().getAll()}
    if which == "yarn":
        assert program == "PythonRunner"
        assert words[0].endswith("/deploy/pipeline.py")
        mine = words[2:]
        assert conf["spark.yarn.dist.archives"].endswith("/environment.tar.gz#environment")
        assert conf["spark.executorEnv.PATH"].startswith("./environment/bin:")
    else:
        assert program == "KubernetesClientApplication"
        assert words[:2] == ["--primary-py-file", "local:///opt/callboard/pipeline.py"]
        mine = [
            word for flag, word in zip(words[::2], words[1::2], strict=True) if flag == "--arg"
        ]
        assert conf["spark.kubernetes.container.image"] == "registry.example/callboard-spark"
    assert mine == line[-len(mine) :]
    assert mine[:2] == ["run", "rates"]
    command = get_command(pipeline.app).commands["run"]
    assert command.make_context("run", mine[1:]).params["staging"] == "driver"


PACKAGES = ("--packages", "org.apache.hadoop:hadoop-aws:3.5.0")


@pytest.fixture
def command(spark, folder, tmp_path, capsys, monkeypatch):
    """Run a query by command, in the session of the tests; returns its results."""
    monkeypatch.setattr("callboard.pipeline.spark_session.session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def run(query, *options, code=0):
        out = tmp_path / "results"
        shutil.rmtree(out, ignore_errors=True)
        arguments = ["pipeline", "run", query, "--log", folder, "--to", str(out), "--batch"]
        found = main([*arguments, *map(str, options)])
        told = capsys.readouterr()
        run.said, said = told.out, told.err
        assert found == code, said
        if code:
            return said
        return list(LogReader(out)) if any(out.glob("*.log")) else []

    return run


def flights(count=400):
    """Return flights as in JSON: good, malformed and late ones."""
    origins = ["JFK", "LGA", "Zürich", "", None, "null"]
    rows = []
    for number in range(count):
        minutes = number * 7 - (number % 5) * 40
        at = pandas.Timestamp("2013-03-10T04:00", tz="UTC") + pandas.Timedelta(minutes=minutes)
        row = {"origin": origins[number % 6], "delay": number % 90 - 30, "at": at.isoformat()}
        if number % 10 == 0:  # through a change to summer time
            row["at"] = at.tz_convert("America/New_York").isoformat()
        if number % 23 == 0:
            row["delay"] = [None, float("nan"), 2**60 + 1][number % 3]
        if number % 29 == 0:
            row["at"] = ["soon", True, None][number % 3]
        if number % 31 == 0:
            del row["origin"]
        rows.append(row)
    return rows


FLIGHTS = ["--schema", "origin string, delay double, at timestamp", "--time", "at"]


def test_fields_of_payloads_are_times_groups_and_values_as_pandas_has_them(
    fill, command, tmp_path
):
    rows, bad = flights(), tmp_path / "bad"
    fill([*rows, b"no flight"], topic="/flights")

    found = command(
        *("quantiles", *FLIGHTS, "--by", "origin", "--field", "delay", "--window", "1h"),
        *("--dead-letters", bad),
    )

    good = pandas.DataFrame([row for row in rows if row["at"] not in ("soon", True, None)])
    good["hour"] = pandas.to_datetime(good["at"], format="ISO8601", utc=True).dt.floor("1h")
    good["group"] = good["origin"].map(lambda name: (name,) if isinstance(name, str) else ())
    hours = good[good["delay"].notna()].groupby(["hour", "group"])["delay"]
    expected = {
        (hour.to_pydatetime(), *(group or [None])): (size, least, most, pytest.approx(mean))
        for (hour, group), (size, least, most, mean) in (
            hours.agg(["size", "min", "max", "mean"]).iterrows()
        )
    }
    assert {
        (told["start"], told["origin"]): tuple(
            told[name] for name in ("records", "min", "max", "mean")
        )
        for told in (each.payload for each in found)
    } == expected
    assert len(found) == len(expected)
    groups = ["/JFK", "/LGA", "/Zürich", "/", "", "/null"]
    assert {each.topic for each in found} == {f"/quantiles{each}" for each in groups}
    letters = [json.loads(each.headers["offset"]) for each in LogReader(bad)]
    assert letters == [*(n for n in range(len(rows)) if n % 29 == 0), len(rows)]


def test_undecodable_records_are_skipped_without_a_log_of_dead_letters(fill, command):
    good = {"origin": {"code": 7}, "at": 1_000_000_000}
    fill([good, {"origin": {"code": 7}, "at": "soon"}, b"\xff", {"at": 1_000_000_001_000}])

    found = command("rates", "--by", "origin.code", "--time", "at")

    assert pick_payloads(found, "origin.code", "records") == [(None, 1), ("7", 1)]
    assert command.said.endswith("; skipped 2 records that do not decode\n")


def test_a_join_matches_records_that_are_near_in_time_and_equal_in_a_field(fill, command):
    weather = {"origin": "JFK", "time": "2013-01-01T05:00:00Z", "value": 39.0}
    flight = {"origin": "JFK", "time": "2013-01-01T05:15:00Z", "value": 2}
    fill([weather, weather | {"origin": "LGA"}], topic="/weather")
    fill([flight, flight | {"time": "2013-01-01T07:15:00Z"}], topic="/flights")

    found = command(
        *("join", "--left", "/flights", "--right", "/weather", "--within", "30m"),
        *("--time", "time", "--by", "origin"),
    )

    (record,) = found
    assert record.topic == "/join/flights"
    assert record.payload == {
        "left_topic": "/flights",
        "left_value": 2.0,
        "right_topic": "/weather",
        "right_value": 39.0,
        "apart": -900.0,
        "origin": "JFK",
    }


MINE = """
from callboard.pipeline import pipeline

@pipeline(schema="origin string, delay double, at timestamp", time="at", topics=["/flights"])
def delayed(rows, settings):
    return rows.where(f"delay > {settings.threshold}").selectExpr(
        "concat('/delayed/', origin) AS topic", "time", "key", "headers", "delay"
    )

@pipeline("origin string, delay double")
def counted(rows):
    assert {"offset", "sender", "payload", "is_bytes", "origin"} <= set(rows.columns)
    return rows.groupBy("topic").count()

def valued(rows, settings):
    return rows.where("value > 1").select("topic", "key", "value")

def misspelt(rows):
    return rows.where("dely > 60")

def broken(rows):
    return rows.select({}["nothing"])

def empty(rows):
    rows.count

def homeless(rows):
    return rows.select("time")

@pipeline("origin strng")
def untyped(rows):
    return rows

def late(rows):
    from pyspark.sql.functions import udf
    return rows.withColumn("n", udf(lambda topic: 1 // 0)("topic")).drop("payload", "is_bytes")
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE.replace("{settings.threshold}", "60"))
    return path


def test_a_function_gets_all_columns_and_the_fields_that_it_states(fill, command, mine):
    at = "2013-01-01T05:15:00Z"
    payloads = [{"origin": "JFK", "delay": delay, "at": at} for delay in (61.0, 7)]
    fill(payloads, topic="/flights", key="UA1", headers={"unit": "min"})
    fill([{"origin": "JFK", "delay": 99, "at": at}], topic="/other")

    (record,) = command(f"{mine}:delayed")
    counted = command(f"{mine}:counted")
    valued = command(f"{mine}:valued", "--field", "delay", "--topic", "/flights")

    assert record[1:5] == (1357017300 * 10**9, "/delayed/JFK", "UA1", {"unit": "min"})
    assert record.payload == {"delay": 61.0}
    assert pick_payloads(counted, "count") == [(1,), (2,)]
    assert pick_payloads(valued, "value") == [(7.0,), (61.0,)]


@pytest.mark.parametrize(
    ("query", "options", "says"),
    [
        ("misspelt", [], "misspelt failed: A column.*`dely` cannot be resolved.*line 19"),
        ("broken", [], r"broken failed: KeyError: 'nothing' \(line 22\); correct it"),
        ("empty", [], "empty returned NoneType; it must return"),
        ("homeless", [], "homeless returned rows without a topic; add the column"),
        ("untyped", [], "the schema 'origin strng' cannot be read: .*; pass a file, or fields"),
        ("late", [], "ZeroDivisionError: integer division or modulo by zero; see docs"),
        ("counted", ["--schema", "n bigint"], "AssertionError"),
    ],
)
def test_a_mistake_in_a_function_is_reported_in_one_line(
    fill, command, mine, query, options, says
):
    fill([{"origin": "JFK"}])

    (line,) = command(
        f"{mine}:{query}", *options, code=1 if query == "late" else 2
    ).splitlines()

    assert re.search(says, line), line
    assert "Traceback" not in line
    assert "org.apache" not in line


def test_a_function_fails_on_undecodable_records_without_a_log_of_dead_letters(
    fill, command, mine, tmp_path
):
    fill([{"delay": "much"}, {"delay": 1}])

    said = command(f"{mine}:counted", code=1)
    (record,) = command(f"{mine}:counted", "--dead-letters", tmp_path / "bad")

    assert said.endswith(
        "set a log with --dead-letters, or add the column error STRING to the schema\n"
    )
    assert record.payload == {"count": 1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--field", "dely"], "--field 'dely' is not in the schema; did you mean delay[?]"),
        (["--field", "origin"], "--field 'origin' is string in the schema"),
        (["--field", "delay", "--by", "x"], "--by 'x' is not in the schema; it has origin, d"),
        (["--field", "delay", "--schema", "a int, A int"], "has the field 'a' twice"),
    ],
)
def test_fields_that_a_schema_lacks_are_reported(fill, command, options, says):
    fill([{"delay": 1}])

    assert re.search(says, command("quantiles", *FLIGHTS, *options, code=2))


def pick_payloads(found, *names):
    told = [tuple(each.payload[name] for name in names) for each in found]
    return sorted(told, key=lambda each: (each[0] is not None, each))


@pytest.mark.parametrize("page", [PAGE, TUTORIAL], ids=lambda page: page.stem)
def test_the_programs_of_a_page_run_as_they_stand(page, spark, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    namespace = {"__name__": "pipeline"}
    assert blocks

    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page.name} block {number}", "exec"), namespace)

        said = re.findall(r"^ *print\(.*\)  +# (.*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == said


# --- stores of objects ---


def test_a_stream_between_object_stores_can_be_read_by_a_bridge(
    archived, s3, storage, spark, tmp_path
):
    options = {**storage, "tail": archived.folder, "inferSchema": "true"}

    place = archived.archives[0].place

    def run():
        rows = spark.readStream.format("callboard").options(**options).load(place)
        query = (
            rows.selectExpr("topic", "n * 2 as twice")
            .writeStream.format("callboard")
            .options(**storage, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start("s3://logs/out")
        )
        query.awaitTermination()

    run()
    archived.append_batch([{"n": n} for n in range(400, 500)], topic="/n")
    run()
    out = LogReader("s3://logs/out", storage_options=s3)
    assert [each.payload["twice"] for each in out] == [2 * n for n in range(500)]
    taken = []

    class Taker:
        def publish_batch(self, *batch):
            taken.extend(value["twice"] for _, value in batch)

    for _ in range(2):
        with Bridge("s3://logs/out", endpoint=Taker(), storage_options=s3):
            pass
    assert taken == [2 * n for n in range(500)]


def recipes():
    """Return the functions of the page that write to Delta and PostgreSQL."""
    (block,) = re.findall(
        r"```python\n(def into_postgresql.*?)```", PAGE.read_text(), re.DOTALL
    )
    names = {}
    exec(block, names)  # a program of ours
    return names


def test_the_recipe_for_delta_writes_a_repeated_batch_once(spark, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    write = recipes()["into_delta"](str(tmp_path / "loads"))
    batch = spark.createDataFrame([("/a", 1.0), ("/b", 2.0)], "topic string, load double")

    for number in (0, 0, 1, 0):
        write(batch, number)

    assert deltalake.DeltaTable(str(tmp_path / "loads")).to_pyarrow_table().num_rows == 4


def test_the_recipe_for_postgresql_writes_a_repeated_batch_once(spark):
    psycopg = pytest.importorskip("psycopg")
    url = running_server().new_database()
    write = recipes()["into_postgresql"](url)
    batch = spark.createDataFrame([("/a", 1.0), ("/b", 2.0)], "topic string, load double")

    for number in (0, 0, 1, 0):
        write(batch, number)

    with psycopg.connect(url) as connection:
        query = "SELECT topic, load FROM loads ORDER BY topic"
        assert connection.execute(query).fetchall() == [("/a", 1.0)] * 2 + [("/b", 2.0)] * 2


def test_a_table_has_fields_from_columns_and_from_records(spark, folder):
    with CommitLog(folder, segment_bytes=1) as log:
        for first in range(0, 60, 20):
            rows = [{"n": n, "delay": n / 4} for n in range(first, first + 20)]
            log.append_batch(rows, topic="/f")
        log.append("/f", {"delay": "late", "n": 60})
    write_columns(folder)

    rows = table(spark, folder, fields=True)

    (found,) = rows.selectExpr("avg(delay)", "count(delay)", "sum(n)", "count(*)").collect()
    assert tuple(found) == (7.375, 60, sum(range(61)), 61)
    assert len(rows.inputFiles()) == 3
    assert [loads(row.payload)["n"] for row in rows.orderBy("offset").collect()] == list(
        range(61)
    )


def test_the_source_reads_fields_from_column_files(spark, folder, read):
    with CommitLog(folder, segment_bytes=1) as log:
        for first in range(0, 60, 20):
            rows = [{"n": n, "delay": n / 4} for n in range(first, first + 20)]
            log.append_batch(rows, topic=[f"/f/{n % 2}" for n in range(20)])
        log.append("/f", {"delay": "late", "n": 60})
    made = write_columns(folder)
    assert len(made) == 3
    schema = "offset bigint, n bigint, delay double, error string"

    expected = [(n, n, n / 4, None) for n in range(60)]
    found = [tuple(row) for row in read(schema).orderBy("offset").collect()]
    assert found[:60] == expected
    assert found[60][:3] == (60, 60, None)
    assert "late" in found[60][3]
    some = read(schema, topics="/f/1", where="offset >= 10 AND offset < 30")
    assert [row.n for row in some.orderBy("offset").collect()] == list(range(11, 30, 2))
