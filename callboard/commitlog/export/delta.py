"""Exports to a Delta table, with the package `deltalake`.

Each commit of the table adds rows together with a transaction of the Delta protocol: its
application is this export, its version the offset after the last record. So the table itself
tells where the export continues.
"""

from typing import Any

import pyarrow as pa

from callboard.commitlog.errors import ExtraMissing, LogFailed
from callboard.commitlog.export.rows import DAY, ExportProgress, RowOptions
from callboard.commitlog.fields.declared import FIELD, DeclaredField, type_name

_RECORD = frozenset({"offset", "time", "topic", "key", "headers", "sender", "value", DAY})


class DeltaTarget:
    """A Delta table in a directory or an object store."""

    def __init__(self, address: str, log: str, options: RowOptions) -> None:
        """Refer to a table, which need not exist.

        Args:
            address: Directory, or address such as `s3://bucket/table`.
            log: The log; each log has its own position in the table.
            options: Options of the rows.

        Raises:
            ExtraMissing: the package `deltalake` is not installed.
        """
        try:
            import deltalake
        except ImportError:
            msg = "Delta tables need deltalake; install it with: pip install 'callboard[delta]'"
            raise ExtraMissing(msg) from None
        self._delta: Any = deltalake
        self._address, self._options = address, options
        self._app = f"callboard-export:{log}"
        self._types: dict[str, pa.DataType] = {}

    def open(self) -> ExportProgress | None:
        """Return the progress of the export; None at its begin.

        Raises:
            LogFailed: the table cannot be read.
        """
        try:
            if not self._delta.DeltaTable.is_deltatable(self._address):
                return None
            table = self._delta.DeltaTable(self._address)
            offset = table.transaction_version(self._app)
            epoch = table.transaction_version(f"{self._app}:epoch")
            schema = pa.schema(table.schema().to_arrow())
        except (OSError, self._delta.exceptions.DeltaError) as error:
            raise self._failed(error) from error
        self._types = {field.name: field.type for field in schema}
        fields = [
            DeclaredField(name.removeprefix(FIELD), type_)
            for name, kind in self._types.items()
            if name not in _RECORD and (type_ := type_name(kind))
        ]
        return ExportProgress(offset or 0, fields, epoch or 0)

    def planned_end(self, start: int) -> int | None:
        """Return None: a commit that was not completed leaves nothing in the table."""
        return None

    def write(self, rows: pa.Table, start: int, progress: ExportProgress) -> None:
        """Commit rows and the progress at once.

        Raises:
            LogFailed: the table refuses the rows, or another process exports to it.
        """
        delta = self._delta
        transactions = [
            delta.Transaction(self._app, progress.offset),
            delta.Transaction(f"{self._app}:epoch", progress.epoch),
        ]
        try:
            rows = self._typed(rows)
            delta.write_deltalake(
                self._address,
                rows,
                mode="append",
                schema_mode="merge",
                partition_by=[DAY] if self._options.partition else None,
                commit_properties=delta.CommitProperties(app_transactions=transactions),
            )
        except (OSError, pa.ArrowException, delta.exceptions.DeltaError) as error:
            raise self._failed(error) from error
        self._types |= {field.name: field.type for field in rows.schema}

    def _typed(self, rows: pa.Table) -> pa.Table:
        """Return rows with the types that the table has, and with types that Delta knows."""
        fields = []
        for field in rows.schema:
            kind = self._types.get(field.name, field.type)
            fields.append(
                field.with_type(pa.decimal128(20, 0) if kind == pa.uint64() else kind)
            )
        return rows.cast(pa.schema(fields))

    def _failed(self, error: Exception) -> LogFailed:
        """Return the error of a table that failed."""
        return LogFailed(f"the Delta table {self._address} cannot be used: {error}")

    def close(self) -> None:
        """Do nothing: the table holds no connection."""
