"""Options of the sink."""

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from callboard.commitlog import LogReader
from callboard.pipeline import InvalidSetting
from callboard.pipeline.spark.cluster import MASTER
from callboard.pipeline.spark.encode import RowEncoder
from callboard.pipeline.spark.options import SourceOptions
from callboard.pipeline.spark.sink import LogStreamWriter, SinkOptions


def test_results_are_kept_for_the_configured_time(folder):
    options = SinkOptions.parse({"path": folder, "retain": "records=2", "sync": "none"})
    for batch in range(4):
        rows = RowEncoder(pa.schema({"n": pa.int64()}), "/t").encode(
            pa.RecordBatch.from_pylist([{"n": batch}]), 0, 0
        )
        options.journal.publish("q", batch, [options.journal.stage([(*rows, 1)])])

    assert [record.payload["n"] for record in LogReader(folder)] == [2, 3]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("retain", "much", "use a value like bytes="),
        ("retain", "rows=1", "use a value like bytes="),
        ("retain", "records=0", "use a value like bytes="),
        ("sync", "always", "use batch, checkpoint or none"),
        ("sync", "checkpoint", "is not a local folder; use batch"),
        ("staging", "everywhere", "use shared or driver"),
        ("path", "", "to the directory of a log"),
    ],
)
def test_an_invalid_value_is_refused_with_the_valid_ones(name, value, says):
    with pytest.raises(InvalidSetting, match=says):
        SinkOptions.parse({"path": "results", name: value})


@pytest.fixture
def on_a_cluster(monkeypatch):
    monkeypatch.setenv(MASTER, "spark://10.0.0.1:7077")


@pytest.mark.usefixtures("on_a_cluster")
def test_a_local_folder_on_a_cluster_needs_a_declared_staging():
    with pytest.raises(InvalidSetting, match=r"spark://10.0.0.1:7077 has other hosts; set"):
        SinkOptions.parse({"path": "/results"})

    assert SinkOptions.parse({"path": "/results", "staging": "driver"}).is_sent
    assert not SinkOptions.parse({"path": "/results", "staging": "shared"}).is_sent
    assert not SinkOptions.parse({"path": "s3://bucket/results"}).is_sent
    letters = {"path": "grpc+tls://there:1/log", "deadLetters": "/letters"}
    with pytest.raises(InvalidSetting, match="other hosts; tasks append dead letters"):
        SourceOptions.parse(letters)
    assert SourceOptions.parse(letters | {"staging": "shared"}).dead_letters == "/letters"


def writer(folder, **options):
    given = {"path": folder, "topic": "/t", "sync": "none", **options}
    return LogStreamWriter(SinkOptions.parse(given), StructType().add("n", LongType()))


def rows(*numbers):
    return iter([pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})])


@pytest.mark.usefixtures("on_a_cluster")
def test_results_sent_to_the_driver_are_published_once(folder):
    task = writer(folder, staging="driver", queryId="q")
    told = [task.write(rows(1, 2)), None, task.write(rows()), task.write(rows(3))]
    assert not [each.staged for each in told if each and each.staged]
    task.commit([task.write(rows())], 6)  # nothing was ever staged here

    for _ in range(2):
        writer(folder, staging="driver", queryId="q").commit(told, 7)

    assert [record.payload["n"] for record in LogReader(folder)] == [1, 2, 3]


def test_a_query_without_an_id_is_not_published(folder):
    sink = writer(folder)

    with pytest.raises(InvalidSetting, match="queryId"):
        sink.commit([sink.write(rows(1))], 0)
