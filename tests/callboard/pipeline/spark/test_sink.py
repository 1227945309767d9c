"""What the sink is told by options."""

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

import pyarrow as pa

from callboard.commitlog import LogReader
from callboard.pipeline import InvalidSetting
from callboard.pipeline.spark.encode import RowEncoder
from callboard.pipeline.spark.sink import SinkOptions


def test_results_are_kept_as_long_as_the_option_says(folder):
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
        ("retain", "much", "give for instance bytes="),
        ("retain", "rows=1", "give for instance bytes="),
        ("retain", "records=0", "give for instance bytes="),
        ("sync", "always", "give batch or none"),
        ("path", "", "give the directory of a log"),
    ],
)
def test_a_wrong_value_says_what_to_give(name, value, says):
    with pytest.raises(InvalidSetting, match=says):
        SinkOptions.parse({"path": "results", name: value})
