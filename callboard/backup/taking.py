"""Taking a backup: one cut through everything that a process, or a folder, stores."""

import logging
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from socket import gethostname
from typing import Any, Final

from callboard.backoff import Backoff, retrying
from callboard.backup.copying import completing
from callboard.backup.errors import BackupError, BackupRefused
from callboard.backup.manifest import DATA, Manifest
from callboard.backup.sources import (
    BackupSource,
    IdleLogSource,
    IdleStoreSource,
    LogSource,
    StateSource,
    StoreSource,
    is_log,
)
from callboard.commitlog import LogError
from callboard.commitlog.disk import open_plain
from callboard.commitlog.errors import LogClosed
from callboard.commitlog.log import WRITTEN
from callboard.entity.state import copies
from callboard.entity.state.sqlite import OPEN as OPEN_STATES
from callboard.lease.errors import StorageError
from callboard.store.backend import sqlite as store_sqlite
from callboard.support.database.sqlite_file import open_read_only
from callboard.support.files.private_file import make_folder
from callboard.support.platform.release import RELEASE
from callboard.support.redaction import redacted

_log = logging.getLogger("callboard")

#: Seconds until a backup gives up to find a moment at which nothing is being written.
CUT_SECONDS: Final = 10.0

_SQLITE: Final = b"SQLite format 3\0"
_POSTGRESQL: Final = "callboard.entity.state.postgresql"


def back_up(target: str | Path, *, node: str = "") -> Manifest:
    """Copy everything that this process stores into a new folder.

    It contains the states of entities in SQLite, the stores in SQLite, and the logs that this
    process has open, as they were at one moment. Blocks until the backup is durable; call it
    on a thread of its own.

    Args:
        target: the folder, which must not exist or be empty.
        node: a name for people, stored in the manifest.

    Raises:
        BackupRefused: the target has contents, or this process stores nothing.
        BackupError: a file cannot be read or written; nothing is left at the target.
    """
    with completing(Path(target).absolute()) as partial:
        return fill(partial, node)


def fill(partial: Path, node: str) -> Manifest:
    """Write the backup of this process into a folder; see `back_up`."""
    return _take(_sources, partial, node, None)


def back_up_folder(folder: str | Path, target: str | Path) -> Manifest:
    """Copy everything in a folder, and in folders below it, that no process is writing.

    Raises:
        BackupRefused: the target has contents, or the folder holds nothing of callboard.
        BackupError: a file cannot be read or written, or a running node has it open; nothing
            is left at the target.
    """
    base = Path(folder).absolute()
    if not base.is_dir():
        message = f"{base} is not a folder; name a folder with logs or databases, or a node"
        raise BackupRefused(message)
    with completing(Path(target).absolute()) as partial:
        return _take(lambda: _sources_in(base), partial, "", base)


def _take(
    find: Callable[[], list[BackupSource]], partial: Path, node: str, base: Path | None
) -> Manifest:
    """Write a backup into a folder."""
    start = time.monotonic()
    with ExitStack() as cleanup:
        sources, held_ms, moment = _cut(find, cleanup)
        root = base or _common_folder(sources)
        data = partial / DATA
        make_folder(data)
        parts = []
        # Stores first: their owners wait until they are copied.
        for source in sorted(sources, key=lambda source: not isinstance(source, StoreSource)):
            name = str(source.place.relative_to(root))
            try:
                parts.append(source.copy(data, name))
            except (sqlite3.Error, LogError, StorageError) as error:
                message = f"{source.place} cannot be copied: {error}; see its file and disk"
                raise BackupError(message) from error
            source.close()
    manifest = Manifest(
        node=node,
        machine=gethostname(),
        time=moment,
        base=str(root),
        release=RELEASE,
        seconds=round(time.monotonic() - start, 3),
        held_ms=round(held_ms, 3),
        parts=sorted(parts, key=attrgetter("name")),
        left_out=_left_out() if base is None else [],
    )
    manifest.write(partial)
    _log.info("backed up %d parts, %d B", len(parts), manifest.size)
    return manifest


def _cut(
    find: Callable[[], list[BackupSource]], cleanup: ExitStack
) -> tuple[list[BackupSource], float, str]:
    """Hold all sources, pin them, and release them.

    Returns:
        The pinned sources, which `cleanup` closes; the milliseconds of the hold; and
        the time of the cut.

    Raises:
        BackupRefused: there is no source.
        BackupError: a source cannot be held.
    """
    place = Path()
    for _ in retrying(Backoff.fixed(0.05), CUT_SECONDS):
        sources = find()
        if not sources:
            message = (
                "nothing is stored here: no entities, stores or logs on disk;"
                " name the node or folder that has them"
            )
            raise BackupRefused(message)
        with ExitStack() as attempt:
            start = time.monotonic()
            try:
                place = _hold(sources, attempt)
                if place != Path():
                    continue
                moment = datetime.now(UTC).isoformat(timespec="microseconds")
                for source in sources:
                    source.pin()
            except LogClosed:  # it was closed after it was listed
                continue
            except (LogError, StorageError, sqlite3.Error, OSError) as error:
                if isinstance(error, BackupError):
                    raise
                raise BackupError(str(error)) from error
            for source in sources:
                source.release()
            cleanup.push(attempt.pop_all())
            return sources, 1000 * (time.monotonic() - start), moment
    message = f"{place} was being written for {CUT_SECONDS:g} s; try again when it is less busy"
    raise BackupError(message)


def _hold(sources: Sequence[BackupSource], attempt: ExitStack) -> Path:
    """Hold all sources; return the path of the first that cannot be held, or an empty path."""
    for source in sources:
        attempt.callback(source.close)
        if not source.hold():
            return source.place
    return Path()


def _sources() -> list[BackupSource]:
    """Return the open files of this process, with the slowest to hold first."""
    places = {state.path for state in OPEN_STATES.sorted(lambda state: str(state.path))}
    states = [StateSource(place) for place in sorted(places)]
    stores = [
        StoreSource(backend)
        for backend in store_sqlite.OPEN.sorted(lambda backend: backend.options.path)
    ]
    logs = [LogSource.of(log) for log in WRITTEN.sorted(attrgetter("folder")) if log.folder]
    return [*states, *stores, *logs]


def _left_out() -> list[tuple[str, str]]:
    """Return the databases of this process that no backup contains, with the reasons."""
    module: Any = sys.modules.get(_POSTGRESQL)
    if module is None:
        return []
    reason = "a PostgreSQL database; back it up with pg_dump or the tools of its server"
    urls = {redacted(state.url) for state in module.OPEN.sorted(attrgetter("url"))}
    return [(url, reason) for url in sorted(urls)]


def _common_folder(sources: Sequence[BackupSource]) -> Path:
    """Return the deepest folder that holds all sources."""
    return Path(os.path.commonpath([source.place.parent for source in sources]))


def _sources_in(base: Path) -> list[BackupSource]:
    """Return the databases and logs in a folder and below it."""
    states: list[BackupSource] = []
    files_alone: list[BackupSource] = []
    for place, folders, files in os.walk(base):
        folder = Path(place)
        folders.sort()
        if is_log(folder):
            files_alone.append(IdleLogSource(folder))
            folders.clear()
            continue
        for file in sorted(files):
            tables = _tables_of(folder / file)
            if copies.is_state(tables):
                states.append(StateSource(folder / file))
            elif store_sqlite.is_store(tables):
                files_alone.append(IdleStoreSource(folder / file))
    return [*states, *files_alone]


def _tables_of(path: Path) -> set[str]:
    """Return the names of the tables in a file; none if it is not a database.

    Raises:
        BackupError: another process has the database locked.
    """
    if not path.is_file() or path.is_symlink():
        return set()
    with open(path, "rb", opener=open_plain) as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            return set()
    try:
        with closing(open_read_only(path, 1.0)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        message = (
            f"{path} cannot be read ({error}); if a node has this store, give the address of"
            " the node instead of the folder"
        )
        raise BackupError(message) from error
