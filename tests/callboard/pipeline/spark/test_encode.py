"""Rows of results become records."""

import datetime

import pytest

pa = pytest.importorskip("pyarrow")

from callboard.commitlog import InvalidRecord, LogReader  # noqa: E402
from callboard.pipeline import InvalidSetting  # noqa: E402
from callboard.pipeline.spark.encode import RowEncoder  # noqa: E402
from callboard.pipeline.spark.options import SourceOptions  # noqa: E402
from callboard.pipeline.spark.range_reader import RECORD_SCHEMA, read_range  # noqa: E402

NOW = 1_000_000
MOMENT = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


@pytest.fixture
def publish(tmp_path):
    def encode(rows, topic=None):
        batch = pa.RecordBatch.from_pylist(rows) if isinstance(rows, list) else rows
        encoded = RowEncoder(batch.schema, topic).encode(batch, 0, NOW)
        (tmp_path / f"{0:020}.log").write_bytes(b"".join(encoded))
        return list(LogReader(tmp_path))

    return encode


def test_columns_of_a_record_are_its_parts_and_all_others_the_payload(publish):
    (record,) = publish(
        [{"topic": "/rates", "key": "a", "sender": "n", "time": MOMENT, "rate": 0.5, "n": 3}]
    )

    assert (record.topic, record.key, record.sender) == ("/rates", "a", "n")
    assert record.time == int(MOMENT.timestamp()) * 10**9
    assert record.payload == {"rate": 0.5, "n": 3}


def test_missing_topics_and_times_are_taken_from_the_option_and_the_clock(publish):
    (record,) = publish([{"rate": 0.5}], topic="/rates")

    assert (record.topic, record.key, record.time) == ("/rates", None, NOW)


@pytest.mark.parametrize("payload", [b"\x00", "text", 7, 0.5, None, {"a": [1]}, [1, 2], MOMENT])
def test_a_payload_may_be_of_any_type(publish, payload):
    (record,) = publish([{"topic": "/t", "payload": payload}])

    assert record.payload == payload


def test_maps_become_maps(publish):
    rows = pa.RecordBatch.from_arrays(
        [pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))], names=["counts"]
    )

    assert [record.payload for record in publish(rows, topic="/t")] == [
        {"counts": {"a": 1}},
        {"counts": None},
    ]


def test_records_that_were_read_are_written_as_they_were(publish, fill, folder):
    fill(
        [b"x", {"load": 1}, [1]] * 5000,
        topic=["/a", "/b", "/c"] * 5000,
        key=["k", None, "l"] * 5000,
        headers=[{"unit": "s"}, None, None] * 5000,
        sender="n",
    )
    table = pa.Table.from_batches(read_range(SourceOptions(folder), RECORD_SCHEMA, 0, 15_000))
    (whole,) = table.combine_chunks().to_batches()

    copied = publish(whole)

    before = list(LogReader(folder))
    assert [record[2:] for record in copied] == [record[2:] for record in before]
    assert [record.is_bytes for record in copied] == [record.is_bytes for record in before]
    assert [record.offset for record in copied] == list(range(15_000))


def test_large_payloads_are_spread_over_batches(publish):
    size = 6 << 20

    records = publish([{"topic": "/t", "payload": bytes([n]) * size} for n in range(7)])

    assert [(record.payload[0], len(record.payload)) for record in records] == [
        (n, size) for n in range(7)
    ]


@pytest.mark.slow
def test_large_fields_are_spread_over_batches_as_well(publish):
    text = "x" * (1 << 20)

    records = publish([{"topic": "/t", "n": n, "text": text} for n in range(80)])

    assert [record.payload["n"] for record in records] == list(range(80))


def test_a_payload_that_is_too_large_is_refused(publish):
    with pytest.raises(InvalidRecord, match="exceeds the limit"):
        publish([{"topic": "/t", "payload": bytes((16 << 20) + 1)}])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"rate": 1.0}, 'no column "topic"'),
        ({"topic": "/t", "payload": b"", "rate": 1.0}, 'rate besides "payload"'),
        ({"topic": "/t", "time": 5}, '"time" is int64'),
    ],
)
def test_invalid_rows_are_refused_with_the_reason(publish, row, says):
    with pytest.raises(InvalidSetting, match=says):
        publish([row])
