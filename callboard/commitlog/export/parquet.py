"""Exports to a directory of Parquet files.

The file `_callboard.json` has the position. The end of the next files is stored before they are
written: after a crash the same records are written again under the same names, so a reader of
the directory never sees a record twice.
"""

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from callboard.commitlog.disk import RealDisk
from callboard.commitlog.errors import LogFailed
from callboard.commitlog.export.rows import DAY, ExportProgress, RowOptions
from callboard.commitlog.fields.declared import DeclaredField
from callboard.commitlog.folder import FileLock, Folder
from callboard.support.nesting import parse_json

_STATE: Final = "_callboard.json"
_LOCK: Final = "_callboard.lock"


class ParquetTarget:
    """A directory of Parquet files, with a directory for each day if it has partitions."""

    def __init__(self, directory: Path, log: str, options: RowOptions) -> None:
        """Refer to a directory, which need not exist.

        Args:
            directory: The directory.
            log: The log; the files of another one are refused.
            options: Options of the rows.
        """
        self._folder = Folder(RealDisk("/"), str(directory.absolute()))
        self._directory = directory.absolute()
        self._log, self._options = log, options
        self._state: dict[str, Any] = {}
        self._lock: FileLock | None = None

    def open(self) -> ExportProgress | None:
        """Return the progress of the export; None at its begin.

        Raises:
            LogFailed: the directory has another log, or cannot be written.
            LogLocked: another process exports to it.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            problem = f"another export to {self._directory} runs"
            self._lock = FileLock(str(self._directory), _LOCK, problem, "wait for its end")
            text = self._read()
        except OSError as error:
            raise self._failed(error) from error
        if not text:
            return None
        self._state = parse_json(text)
        if self._state["log"] != self._log:
            msg = (
                f"{self._directory} has the log {self._state['log']}, not {self._log}; export"
                " each log to a directory of its own"
            )
            raise LogFailed(msg)
        if self._state["partition"] != self._options.partition:
            msg = (
                f"{self._directory} has the partitions {self._state['partition'] or 'none'};"
                " export with the same, or to another directory"
            )
            raise LogFailed(msg)
        fields = [DeclaredField(*row) for row in self._state["fields"]]
        return ExportProgress(self._state["offset"], fields, self._state["epoch"])

    def planned_end(self, start: int) -> int | None:
        """Return the end of rows that a former run began to write; None if there are none."""
        if self._state.get("offset", 0) == start or self._state.get("begin") == start:
            return self._state.get("planned")
        return None

    def write(self, rows: pa.Table, start: int, progress: ExportProgress) -> None:
        """Write rows as files, then store the progress.

        Raises:
            LogFailed: the disk failed.
        """
        offset = self._state.get("offset", start)
        fields = self._state.get("fields", [])
        try:
            epoch = self._state.get("epoch", 0)
            self._store(offset, fields, epoch, planned=progress.offset, begin=start)
            for path, part in self._parts(rows, start):
                path.parent.mkdir(exist_ok=True)
                out = pa.BufferOutputStream()
                parquet.write_table(part, out, compression="zstd", write_page_checksum=True)
                folder = Folder(self._folder.disk, str(path.parent))
                folder.replace(str(path), out.getvalue().to_pybytes())
                self._folder.sync()
            columns = [list(field) for field in progress.fields]
            self._store(progress.offset, columns, progress.epoch)
        except OSError as error:
            raise self._failed(error) from error

    def _parts(self, rows: pa.Table, start: int) -> "list[tuple[Path, pa.Table]]":
        """Return the files for some rows."""
        name = f"part-{start:020}.parquet"
        if not self._options.partition:
            return [(self._directory / name, rows)]
        parts = []
        for day in pc.unique(rows[DAY]).to_pylist():
            part = rows.filter(pc.equal(rows[DAY], pa.scalar(day, pa.date32())))
            # The directory has the day, as Hive's partitions do.
            path = self._directory / f"{DAY}={day.isoformat()}" / name
            parts.append((path, part.drop_columns([DAY])))
        return parts

    def _store(self, offset: int, fields: list[Any], epoch: int, **plan: int) -> None:
        """Store the progress durably."""
        self._state = {
            "log": self._log,
            "offset": offset,
            "epoch": epoch,
            "fields": fields,
            "partition": self._options.partition,
            **plan,
        }
        self._folder.replace(self._folder.file(_STATE), json.dumps(self._state).encode())

    def _read(self) -> bytes:
        """Return the stored state; empty without one."""
        path = self._directory / _STATE
        return path.read_bytes() if path.exists() else b""

    def _failed(self, error: OSError) -> LogFailed:
        """Return the error of a disk that failed."""
        reason = error.strerror or error
        return LogFailed(f"{self._directory} cannot be written: {reason}; check its disk")

    def close(self) -> None:
        """Release the lock of the directory."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
