"""Exports to a table of PostgreSQL, whose position is in the same transaction as the rows."""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from callboard.commitlog.errors import ExtraMissing, InvalidOption, LogFailed
from callboard.commitlog.export.rows import DAY, ExportProgress, RowOptions
from callboard.commitlog.fields.declared import DeclaredField
from callboard.support.nesting import parse_json
from callboard.support.redaction import redacted, redacted_error

_STATE: Final = """CREATE TABLE IF NOT EXISTS callboard_exports (
    target TEXT, log TEXT, position BIGINT NOT NULL, fields TEXT NOT NULL,
    epoch BIGINT NOT NULL, PRIMARY KEY (target, log))"""
#: Serializes the creation of tables: it fails if two processes create one at the same time.
_SCHEMA_LOCK: Final = "SELECT pg_advisory_xact_lock(7236850772135470)"
_READ: Final = (
    "SELECT position, fields, epoch FROM callboard_exports"
    " WHERE target = %s AND log = %s FOR UPDATE"
)
_STORE: Final = (
    "INSERT INTO callboard_exports VALUES (%s, %s, %s, %s, %s) ON CONFLICT (target, log)"
    " DO UPDATE SET position = EXCLUDED.position, fields = EXCLUDED.fields,"
    " epoch = EXCLUDED.epoch"
)


class PostgresqlTarget:
    """A table of PostgreSQL; with partitions, one table for each day."""

    def __init__(self, address: str, name: str, log: str, options: RowOptions) -> None:
        """Refer to a table, which need not exist.

        Args:
            address: `postgresql://USER@HOST/DATABASE`, and `#TABLE` for another name.
            name: The name of the table without that.
            log: The log; each log has its own position.
            options: Options of the rows.

        Raises:
            ExtraMissing: psycopg is not installed.
            InvalidOption: the address is malformed.
        """
        try:
            import psycopg
        except ImportError:
            msg = (
                "exports to PostgreSQL need psycopg; install it with:"
                " pip install 'callboard[postgresql]'"
            )
            raise ExtraMissing(msg) from None
        self._url, _, table = address.partition("#")
        if not self._url.startswith(("postgresql://", "postgres://")):
            msg = f"{redacted(address)} is not an address; use postgresql://USER@HOST/DATABASE"
            raise InvalidOption(msg)
        self._table, self._log, self._options = table or name, log, options
        self._psycopg: Any = psycopg
        self._connection: Any = None
        self._columns: dict[str, str] = {}

    def open(self) -> ExportProgress | None:
        """Connect; return the progress of the export, None at its begin.

        Raises:
            LogFailed: the database cannot be reached.
        """
        try:
            self._connection = self._psycopg.connect(self._url, connect_timeout=10)
            with self._connection.transaction():
                self._connection.execute(_SCHEMA_LOCK)
                self._connection.execute(_STATE)
                return self._progress()
        except self._psycopg.Error as error:
            raise self._failed(error) from error

    def _progress(self) -> ExportProgress | None:
        """Return the stored progress, and lock it until the end of the transaction."""
        row = self._connection.execute(_READ, (self._table, self._log)).fetchone()
        if row is None:
            return None
        fields = [DeclaredField(*field) for field in parse_json(row[1])]
        return ExportProgress(row[0], fields, row[2])

    def planned_end(self, start: int) -> int | None:
        """Return None: a transaction that was not completed leaves nothing."""
        return None

    def write(self, rows: pa.Table, start: int, progress: ExportProgress) -> None:
        """Insert rows and store the progress in one transaction.

        Raises:
            LogFailed: the database refuses the rows, or another process exports to the table.
        """
        connection = self._connection
        try:
            with connection.transaction():
                connection.execute(_SCHEMA_LOCK)
                current = self._progress()
                if current is not None and current.offset > start:
                    msg = f"another process exported records {start} to {current.offset - 1}"
                    raise LogFailed(msg)
                self._make_table(rows)
                if self._options.partition:
                    self._make_partitions(rows)
                self._insert(rows)
                fields = json.dumps(progress.fields)
                state = (self._table, self._log, progress.offset, fields, progress.epoch)
                connection.execute(_STORE, state)
        except self._psycopg.Error as error:
            raise self._failed(error) from error

    def _make_table(self, rows: pa.Table) -> None:
        """Create the table, add the columns that it lacks, and widen integers to floats."""
        sql = self._psycopg.sql
        types = {field.name: _sql_type(field.type) for field in rows.schema}
        table = sql.Identifier(self._table)
        if not self._columns:
            columns = sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
                for name, kind in types.items()
            )
            ending = sql.SQL(" PARTITION BY LIST ({})").format(sql.Identifier(DAY))
            self._connection.execute(
                sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}){}").format(
                    table, columns, ending if self._options.partition else sql.SQL("")
                )
            )
            self._columns = dict(
                self._connection.execute(
                    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
                    " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                    (table.as_string(self._connection),),
                ).fetchall()
            )
        for name, kind in types.items():
            column = sql.Identifier(name)
            if name not in self._columns:
                statement = "ALTER TABLE {} ADD COLUMN IF NOT EXISTS {} {}"
            elif kind == "double precision" and self._columns[name] in {"bigint", "numeric"}:
                statement = "ALTER TABLE {} ALTER COLUMN {} TYPE {}"
            else:
                continue
            self._connection.execute(sql.SQL(statement).format(table, column, sql.SQL(kind)))
            self._columns[name] = kind

    def _make_partitions(self, rows: pa.Table) -> None:
        """Create the partitions of the days of some rows."""
        sql = self._psycopg.sql
        for day in pc.unique(rows[DAY]).to_pylist():
            self._connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} PARTITION OF {} FOR VALUES IN ({})"
                ).format(
                    sql.Identifier(f"{self._table}_{day:%Y%m%d}"),
                    sql.Identifier(self._table),
                    sql.Literal(day),
                )
            )

    def _insert(self, rows: pa.Table) -> None:
        """Copy rows into the table."""
        sql = self._psycopg.sql
        names = sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(self._table), names
        )
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in rows.to_batches():
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(row)

    def _failed(self, error: Exception) -> LogFailed:
        """Return the error of a database, without the secrets of its address."""
        text = " ".join(redacted_error(error, self._url).split())
        return LogFailed(f"the export to PostgreSQL failed: {text}")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _sql_type(kind: pa.DataType) -> str:
    """Return PostgreSQL's type for a type of Arrow."""
    if pa.types.is_list(kind):
        return _sql_type(kind.value_type) + "[]"
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone"
    if pa.types.is_decimal(kind) or kind == pa.uint64():
        return "numeric"
    names = {
        "int64": "bigint",
        "double": "double precision",
        "bool": "boolean",
        "binary": "bytea",
        "date32[day]": "date",
    }
    return names.get(str(kind), "text")
