"""Spark reads an archive and its tail, and writes results to a store; bridges read them."""

import pytest

from callboard.commitlog import Archive, CommitLog, LogReader
from callboard.pipeline import InvalidSetting
from callboard.pipeline.bridge import Bridge
from tests.callboard.commitlog.stores import s3_server
from tests.polling import eventually

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

from callboard.pipeline.spark.options import SourceOptions  # noqa: E402
from callboard.pipeline.spark.sink import SinkOptions  # noqa: E402
from callboard.pipeline.spark.source import LogBatchReader, infer_schema  # noqa: E402


@pytest.fixture(scope="module")
def s3():
    with s3_server() as options:
        yield options


@pytest.fixture
def log(tmp_path, s3):
    place = Archive(f"s3://logs/{tmp_path.name}/cpu", storage_options=s3)
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=3000, archive=place) as log:
        for start in range(0, 400, 40):
            log.append_batch([{"n": n} for n in range(start, start + 40)], topic="/n")
        assert eventually(lambda: log.archives and log.archives[0].end == log.segments[-1].base)
        yield log


def storage(s3):
    return {f"storage.{name}": value for name, value in s3.items()}


def rows_of(options):
    schema = infer_schema(options)
    reader = LogBatchReader(options, schema)
    pieces = [piece for part in reader.partitions() for piece in reader.read(part)]
    return pa.Table.from_batches(pieces)


def test_tasks_read_sealed_segments_from_the_store_and_the_tail_from_the_node(log, s3):
    there = {
        "path": log.archives[0].place,
        "inferSchema": "true",
        "numPartitions": "3",
        **storage(s3),
    }
    here = rows_of(SourceOptions.parse({"path": log.folder, "inferSchema": "true"}))
    both = SourceOptions.parse(there | {"tail": log.folder})
    assert rows_of(both).equals(here)
    assert s3["endpoint_url"] not in repr(both)
    sealed = rows_of(SourceOptions.parse(there))
    assert sealed.equals(here.slice(0, log.segments[-1].base))


def test_mistakes_of_sinks_are_told(s3):
    wrong = {"grpc://h:1/x": "served to be read", "nonsense://x": "cannot be opened"}
    for path, text in wrong.items():
        with pytest.raises(InvalidSetting, match=text):
            assert SinkOptions.parse({"path": path}).journal
    assert "secret" not in repr(SinkOptions.parse({"path": "s3://x/y", **storage(s3)}))


@pytest.mark.spark
def test_a_stream_goes_from_store_to_store_and_a_bridge_takes_it(log, s3, spark, tmp_path):
    options = {**storage(s3), "tail": log.folder, "inferSchema": "true"}

    place = log.archives[0].place

    def run():
        rows = spark.readStream.format("callboard").options(**options).load(place)
        query = (
            rows.selectExpr("topic", "n * 2 as twice")
            .writeStream.format("callboard")
            .options(**storage(s3), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start("s3://logs/out")
        )
        query.awaitTermination()

    run()
    log.append_batch([{"n": n} for n in range(400, 500)], topic="/n")
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
