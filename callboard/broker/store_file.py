"""Import of store files from Zeek Broker masters.

Format, measured with files of Broker 1.4.0: a SQLite database with the tables
`store(key blob, value blob, expiry integer)`, keys and values in Broker's value encoding
(`callboard.zeek.value`), expiry in ns since 1970 or null, and `meta('broker_version', …)`.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from callboard.commitlog.disk import check_plain
from callboard.model.data import Data
from callboard.model.errors import EndpointError
from callboard.store.backend.interface import Backend
from callboard.store.backend.registry import make_backend
from callboard.store.backend.sqlite import zeek_broker_version
from callboard.store.errors import BackendFailure
from callboard.store.machine.step import Persist, Row
from callboard.store.machine.stored import Token, stored_of, token_of
from callboard.support.database.sqlite_file import open_read_only
from callboard.zeek.value import value_from_bytes

_NS: Final = 10**9

#: Seconds to wait for a Broker that writes the file.
_BUSY_SECONDS: Final = 5.0

#: Rows per transaction in the new file.
_RUN: Final = 10_000


class StoredEntry(NamedTuple):
    """An entry of a store; `expiry` is in seconds since 1970, None for never."""

    key: Data
    value: Data
    expiry: float | None


def read_store_file(path: Path) -> list[StoredEntry]:
    """Return the entries of a file of a Zeek Broker master; the file is not changed.

    Raises:
        BackendFailure: the file cannot be read, has another format, or is damaged.
    """
    try:
        check_plain(path.lstat().st_mode, str(path))
        with closing(open_read_only(path, _BUSY_SECONDS)) as file:
            if zeek_broker_version(file) is None:
                msg = f"{path} is not a store of Zeek Broker; it has no tables meta and store"
                raise BackendFailure(msg)
            return list(_entries(file))
    except (sqlite3.Error, OSError) as cause:
        msg = f"the store {path} cannot be read: {cause}"
        raise BackendFailure(msg) from cause


def _entries(file: sqlite3.Connection) -> Iterator[StoredEntry]:
    for row, (key, value, expiry) in enumerate(
        file.execute("SELECT key, value, expiry FROM store"), 1
    ):
        if not (type(key) is type(value) is bytes and (expiry is None or type(expiry) is int)):
            msg = (
                f"row {row:,} does not have the form that Zeek Broker writes; the file is "
                "damaged"
            )
            raise BackendFailure(msg)
        try:
            pair = value_from_bytes(key), value_from_bytes(value)
        except EndpointError as cause:
            msg = f"row {row:,} is damaged: {cause}"
            raise BackendFailure(msg) from cause
        yield StoredEntry(*pair, None if expiry is None else expiry / _NS)


def write_store_file(entries: list[StoredEntry], path: Path) -> None:
    """Write entries to a new file for a master with `Backend.SQLite`.

    Raises:
        BackendFailure: the file exists, or cannot be written.
    """
    if path.exists():
        msg = f"{path} exists already; use a new file"
        raise BackendFailure(msg)
    backend = make_backend(Backend.SQLite, {"path": str(path)})
    backend.open(0.0)  # its rows then use the wall clock
    failures: list[BackendFailure | None] = []
    done = threading.Semaphore(0)

    def on_written(failure: BackendFailure | None) -> None:
        failures.append(failure)
        done.release()

    runs = [entries[offset : offset + _RUN] for offset in range(0, len(entries), _RUN)]
    try:
        for run in runs:
            rows: dict[Token, Row] = {
                token_of(entry.key): (stored_of(entry.value), entry.expiry) for entry in run
            }
            backend.write(Persist(rows=rows), on_written)
        for _ in runs:
            done.acquire()
    finally:
        backend.close()
    failure = next((entry for entry in failures if entry is not None), None)
    if failure is not None:
        raise failure


def remaining(entry: StoredEntry) -> float | None:
    """Return the remaining seconds of an entry; None for ever."""
    return None if entry.expiry is None else entry.expiry - time.time_ns() / _NS
