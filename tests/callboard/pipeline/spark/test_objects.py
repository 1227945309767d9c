"""Tasks read an archive and its tail; options of sinks on stores."""

import pytest

from callboard.pipeline import InvalidSetting

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

from callboard.pipeline.spark.options import SourceOptions  # noqa: E402
from callboard.pipeline.spark.sink import SinkOptions  # noqa: E402
from callboard.pipeline.spark.source import LogBatchReader, infer_schema  # noqa: E402


def rows_of(options):
    schema = infer_schema(options)
    reader = LogBatchReader(options, schema)
    pieces = [piece for part in reader.partitions() for piece in reader.read(part)]
    return pa.Table.from_batches(pieces)


def test_tasks_read_sealed_segments_from_the_store_and_the_tail_from_the_node(
    archived, s3, storage
):
    there = {
        "path": archived.archives[0].place,
        "inferSchema": "true",
        "numPartitions": "3",
        **storage,
    }
    here = rows_of(SourceOptions.parse({"path": archived.folder, "inferSchema": "true"}))
    both = SourceOptions.parse(there | {"tail": archived.folder})
    assert rows_of(both).equals(here)
    assert s3["endpoint_url"] not in repr(both)
    sealed = rows_of(SourceOptions.parse(there))
    assert sealed.equals(here.slice(0, archived.segments[-1].base))


def test_mistakes_in_options_of_sinks_are_reported(storage):
    wrong = {"grpc://h:1/x": "is read-only", "nonsense://x": "cannot be opened"}
    for path, text in wrong.items():
        with pytest.raises(InvalidSetting, match=text):
            assert SinkOptions.parse({"path": path}).journal
    assert "secret" not in repr(SinkOptions.parse({"path": "s3://x/y", **storage}))
