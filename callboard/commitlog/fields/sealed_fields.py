"""Reads fields of payloads from column files, instead of decoding the payloads.

A record with a template, or whose columns are complete, is read from the columns. The payloads
of the one_by_one are decoded, so the result is that of `decode_arrays`.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from callboard.commitlog.arrow import arrow_schema
from callboard.commitlog.disk import RealDisk
from callboard.commitlog.fields.declared import FIELD, column_name
from callboard.commitlog.fields.decoding import Decoded, Rules, decode_arrays, with_rows
from callboard.commitlog.folder import Folder
from callboard.commitlog.sealed import (
    TEMPLATE,
    FileFields,
    SealedSegment,
    intact_columns,
    sealed_segments_in,
    with_payloads,
)

#: Records in a batch of a column file.
_ROWS: Final = 1 << 16


class FieldBatch(NamedTuple):
    """Records of a column file: columns of records, and the fields of their payloads."""

    records: pa.RecordBatch
    decoded: Decoded


class ColumnFile(NamedTuple):
    """An intact column file whose fields can be read without its payloads."""

    segment: SealedSegment
    fields: FileFields


class SealedFields:
    """The column files of a log, for a reader of certain fields."""

    def __init__(
        self,
        folder: Folder,
        records: Collection[str],
        fields: Sequence[pa.Field],
        rules: Rules = Rules(),  # noqa: B008  # never changed
    ) -> None:
        """Find the column files.

        Args:
            folder: Folder of the log.
            records: Columns of records to read, with the names and types of `arrow_schema`.
            fields: Names and types of the fields.
            rules: Rules for decoding them.
        """
        self._records, self._fields, self._rules = set(records), fields, rules
        self._segments: list[SealedSegment] = []
        if fields and isinstance(folder.disk, RealDisk):
            self._segments = [
                segment for segment in sealed_segments_in(folder) if segment.columns is not None
            ]

    def next_file(self, start: int, end: int) -> ColumnFile | None:
        """Return the first file with records of a range that can be used; None without one."""
        for segment in self._segments:
            if segment.end <= start or segment.base >= end:
                continue
            intact = intact_columns(segment)
            if intact is None or intact[0] != segment.end:  # the segment is read instead
                continue
            if self._columns(intact[1]) is not None:
                return ColumnFile(segment, intact[1])
        return None

    def _columns(self, own: FileFields) -> list[str] | None:
        """Return the column of each field in a file; None if payloads must be decoded.

        The column of a field that no record has is empty.
        """
        columns = []
        names = {field.name for field in own.fields}
        for field in self._fields:
            name = field.name.removeprefix(FIELD)
            is_map = any(item.startswith(f"{name}.") for item in names)
            is_float = pa.types.is_floating(field.type) and self._rules.keeps_nan
            if not own.fields or is_map or is_float or own.is_unknown(name):
                return None
            if field.name in self._rules.texts and field.type != pa.string():
                return None
            columns.append(column_name(name) if name in names else "")
        return columns

    def batches(self, file: ColumnFile, start: int, end: int) -> Iterator[FieldBatch]:
        """Yield the records of a file in a range of offsets."""
        columns = self._columns(file.fields)
        assert columns is not None
        assert file.segment.columns is not None
        with ParquetFile(file.segment.columns, page_checksum_verification=True) as parquet:
            schema = parquet.schema_arrow
            usable = all(
                not column or _is_castable(schema.field(column).type, field.type)
                for column, field in zip(columns, self._fields, strict=True)
            )
            needs_payload = "payload" in self._records or not usable
            names = self._names(file.fields, columns, needs_payload)
            base = file.segment.base
            for batch in parquet.iter_batches(_ROWS, columns=names):
                begin, base = base, base + batch.num_rows
                if base <= start or begin >= end:
                    continue
                first = max(start - begin, 0)
                part = batch.slice(first, min(end, base) - begin - first)
                if needs_payload:
                    table = pa.Table.from_batches([part]).replace_schema_metadata(
                        schema.metadata
                    )
                    part = with_payloads(table).combine_chunks().to_batches()[0]
                yield self._batch(part, columns if usable else None)

    def _names(self, own: FileFields, columns: list[str], needs_payload: bool) -> list[str]:  # noqa: FBT001
        """Return the columns to read from a file."""
        names = {*self._records, *filter(None, columns), "payload", "is_bytes", TEMPLATE}
        if "time" in names:
            names = names - {"time"} | {"time_ns"}
        if needs_payload:
            names |= {slot.column for template in own.templates for slot in template.slots}
        return sorted(names - {""})

    def _batch(self, part: pa.RecordBatch, columns: list[str] | None) -> FieldBatch:
        """Return records and fields of a part of a file."""
        schema = arrow_schema()
        records = {}
        for name in schema.names:
            if name in self._records:
                column = part["time_ns"] if name == "time" else part[name]
                records[name] = column.cast(schema.field(name).type)
        if columns is None:
            decoded = decode_arrays(
                part["payload"], part["is_bytes"], self._fields, self._rules
            )
        else:
            decoded = self._decoded(part, columns)
        return FieldBatch(pa.RecordBatch.from_pydict(records), decoded)

    def _decoded(self, part: pa.RecordBatch, columns: list[str]) -> Decoded:
        """Return the fields of a part, of which only some payloads are decoded."""
        fields, rules, count = self._fields, self._rules, part.num_rows
        arrays = [
            part[column].cast(field.type) if column else pa.nulls(count, field.type)
            for column, field in zip(columns, fields, strict=True)
        ]
        is_left = np.asarray(part[TEMPLATE].is_null())
        reasons: dict[int, str] = {}
        for field, column in zip(fields, arrays, strict=True):
            if field.name in rules.required and column.null_count:
                for row in np.flatnonzero(np.asarray(column.is_null()) & ~is_left):
                    reasons.setdefault(
                        int(row), f"field {field.name.removeprefix(FIELD)} is missing"
                    )
        if is_left.any():
            rows = np.flatnonzero(is_left)
            left = part.take(pa.array(rows))
            one_by_one = decode_arrays(left["payload"], left["is_bytes"], fields, rules)
            arrays = [
                with_rows(column, rows, other)
                for column, other in zip(arrays, one_by_one.columns, strict=True)
            ]
            reasons |= {int(rows[row]): text for row, text in one_by_one.reasons.items()}
        return Decoded(arrays, reasons)


def _is_castable(own: pa.DataType, target: pa.DataType) -> bool:
    """Return whether all values of a column keep their value in another type."""
    return bool(own == target or (pa.types.is_integer(own) and target == pa.float64()))
