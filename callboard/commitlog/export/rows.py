"""Rows of an export: records as columns, with the fields of their payloads."""

import json
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from callboard.commitlog.errors import LogFailed
from callboard.commitlog.fields.declared import DeclaredField, arrow_fields
from callboard.commitlog.fields.decoding import decode_arrays
from callboard.commitlog.fields.segment_fields import SegmentFields
from callboard.commitlog.json_text import payload_json
from callboard.commitlog.reader import LogReader
from callboard.commitlog.sealed import all_fields

#: Column with the day of a record, in UTC, if the export has partitions.
DAY: Final = "day"
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")


class ExportProgress(NamedTuple):
    """The progress of an export.

    Attributes:
        offset: The offset after the last exported record.
        fields: The fields so far.
        epoch: The epoch of the last exported record, as in `Position`.
    """

    offset: int
    fields: list[DeclaredField]
    epoch: int = 0


class ExportTarget(Protocol):
    """A place for rows, which stores the position of the export together with them."""

    def open(self) -> ExportProgress | None:
        """Return the progress of the export of this log; None at its begin.

        Raises:
            LogFailed: the target cannot be reached.
        """

    def planned_end(self, start: int) -> int | None:
        """Return the end of rows from `start` that a former run began to write; None if any."""

    def write(self, rows: pa.Table, start: int, progress: ExportProgress) -> None:
        """Add rows and store the progress, so that a crash leaves both or neither.

        Raises:
            LogFailed: the target refuses the rows, or cannot be reached.
        """

    def close(self) -> None:
        """Release connections."""


class RowOptions(NamedTuple):
    """Options of the rows.

    Attributes:
        partition: "day", or empty for an export without partitions.
        value: Whether there is a column `value` with the payload as JSON.
    """

    partition: str = ""
    value: bool = False


def rows_of(
    log: LogReader, start: int, end: int, fields: list[DeclaredField], options: RowOptions
) -> tuple[pa.Table, list[DeclaredField]]:
    """Return the records of a range as rows, and the fields that these have.

    Args:
        log: The log.
        start: The first offset.
        end: The offset after the last record.
        fields: The fields of earlier rows, which keep their columns.
        options: Options of the rows.

    Raises:
        LogCorrupt: records are damaged.
        LogFailed: records were removed by retention.
    """
    pieces = list(log.arrow_batches(start, end))
    records = pa.Table.from_batches(pieces)
    if records.num_rows < end - start:
        first = records["offset"][0].as_py() if records.num_rows else log.start
        msg = (
            f"records {start} to {first - 1} of {log.folder} were removed before they were"
            f" exported; continue without them with --from {first}"
        )
        raise LogFailed(msg)
    declared = all_fields(log.place)
    survey = SegmentFields(declared, fields)
    for piece in pieces:
        survey.survey(piece["payload"], piece["is_bytes"])
    survey.decide()
    columns = {
        "offset": records["offset"],
        "time": _times(records["time"]),
        "topic": records["topic"],
        "key": records["key"],
        "headers": pa.chunked_array([_headers(records["headers"])]),
        "sender": records["sender"],
    }
    if options.partition:
        columns[DAY] = columns["time"].cast(pa.date32())
    table = pa.table(columns)
    decoded = [
        decode_arrays(piece["payload"], piece["is_bytes"], arrow_fields(survey.fields)).columns
        for piece in pieces
    ]
    for index, field in enumerate(arrow_fields(survey.fields)):
        chunks = [piece[index] for piece in decoded]
        table = table.append_column(field, pa.chunked_array(chunks, field.type))
    if options.value:
        values = map(
            payload_json, records["payload"].to_pylist(), records["is_bytes"].to_pylist()
        )
        table = table.append_column("value", pa.array(list(values), pa.string()))
    return table, survey.fields


def _times(times: Any) -> Any:
    """Return times in microseconds, rounded down."""
    whole = times.cast(pa.int64())
    micros = pc.divide(whole, 1000)
    is_above = pc.greater(pc.multiply(micros, 1000), whole)
    return pc.subtract(micros, is_above.cast(pa.int64())).cast(_MICROSECONDS)


def _headers(headers: Any) -> pa.Array:
    """Return headers as JSON; null where there are none."""
    texts = [json.dumps(dict(pairs)) if pairs else None for pairs in headers.to_pylist()]
    return pa.array(texts, pa.string())
