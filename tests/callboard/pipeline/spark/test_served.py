"""Tasks of Spark read a served log like one in a folder."""

import pytest

from callboard.commitlog import CommitLog
from callboard.pipeline.errors import InvalidSetting

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.flight")
pytest.importorskip("pyspark")

from callboard.commitlog.remote.server import LogServer  # noqa: E402
from callboard.pipeline.spark.options import SourceOptions  # noqa: E402
from callboard.pipeline.spark.source import LogBatchReader, LogStreamReader, infer_schema  # noqa: E402


def test_tasks_read_it_with_the_token(tmp_path):
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=3000) as log:
        for start in range(0, 400, 40):
            log.append_batch([{"n": n} for n in range(start, start + 40)], topic="/n")
        server = LogServer({"cpu": log.folder}, "grpc://127.0.0.1:0", {"t": ["cpu"]}.get)
        there = {"path": f"grpc://127.0.0.1:{server.port}/cpu", "inferSchema": "true"}
        options = SourceOptions.parse(there | {"token": "t", "numPartitions": "3"})
        assert "'t'" not in repr(options)
        here = SourceOptions.parse(there | {"path": log.folder, "numPartitions": "3"})
        schema = infer_schema(options)
        assert schema == infer_schema(here)
        rows = []
        for each in (options, here):
            reader = LogBatchReader(each, schema)
            pieces = [piece for part in reader.partitions() for piece in reader.read(part)]
            rows.append(pa.Table.from_batches(pieces))
        assert rows[0].equals(rows[1])
        assert rows[0].column("n").to_pylist() == list(range(400))
        assert LogStreamReader(options, schema).reportLatestOffset()["offset"] == 400
        for wrong in ({}, {"token": "x"}, {"token": "t", "path": "grpc://h"}):
            with pytest.raises(InvalidSetting):
                infer_schema(SourceOptions.parse(there | wrong))
        server.shutdown()
