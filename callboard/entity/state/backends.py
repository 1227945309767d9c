"""A state and its leases by a URL: `sqlite:FILE` or `postgresql://…`; leases in etcd, too.

`sqlite:FILE?mode=640` gives files that are made another mode than 0600.
"""

from pathlib import Path
from typing import Any

from callboard.entity.state.interface import EntityState
from callboard.entity.state.sql import SqlView
from callboard.entity.state.sqlite import SqliteState, SqliteView
from callboard.kernel.errors import WrongValue
from callboard.lease.errors import StateUnavailable
from callboard.lease.leases import Leases
from callboard.lease.sqlite import SqliteLeases
from callboard.support.private_file import check_file_mode
from callboard.support.redaction import redacted
from callboard.support.slots import BACKENDS

_POSTGRESQL = ("postgresql://", "postgres://")
_ETCD = ("etcd://", "etcds://")


def open_state(url: str, writer: str) -> EntityState:
    """Open the state of a writer, the id of a process' life; may block for seconds.

    Raises:
        WrongValue: the URL is of no known kind.
        StorageError: the database cannot be opened, or must not be used.
    """
    if url.startswith(_POSTGRESQL):
        opened: EntityState = _backend("postgresql", "state")(url, writer)
        return opened
    url, mode = _mode_of(url)
    return SqliteState(_file_of(url), writer, mode)


def open_view(url: str, _writer: str = "") -> SqlView:
    """Open a state of which nothing is changed; may block for seconds.

    Raises:
        WrongValue: the URL is of no known kind.
        StateUnavailable: it is not there.
        StorageError: the database cannot be opened, or holds no state.
    """
    if url.startswith(_POSTGRESQL):
        view: SqlView = _backend("postgresql", "view")(url)
        return view
    return SqliteView(_file_of(_mode_of(url)[0]))


def open_leases(url: str, writer: str) -> Leases:
    """Open leases by a URL; those of `sqlite:FILE` are in `FILE-leases`.

    Raises:
        WrongValue: the URL is of no known kind.
        StorageError: the database cannot be opened, or must not be used.
    """
    if url.startswith(_POSTGRESQL):
        leases: Leases = _backend("postgresql", "leases")(url)
        return leases
    if url.startswith(_ETCD):
        register: Leases = _backend("etcd", "leases")(url)
        return register
    url, mode = _mode_of(url)
    return SqliteLeases(Path(f"{_file_of(url)}-leases"), writer, mode=mode)


def _backend(extra: str, kind: str) -> Any:
    """Return the class of a backend that needs an extra.

    Raises:
        StateUnavailable: its package is not installed.
    """
    try:
        return BACKENDS.load(f"{extra} {kind}")
    except ImportError as cause:
        msg = f"{extra}:// needs a package ({cause.name}): pip install 'callboard[{extra}]'"
        raise StateUnavailable(msg) from cause


def _mode_of(url: str) -> tuple[str, int | None]:
    """Return a URL of SQLite's without `?mode=640`, and the mode of files that are made.

    Raises:
        WrongValue: the user could not use such files.
    """
    address, has_mode, digits = url.rpartition("?mode=")
    if not has_mode or not url.startswith("sqlite:"):
        return url, None
    try:
        return address, check_file_mode(int(digits, 8))
    except ValueError:
        step = "write the mode of new files in octal digits, such as ?mode=640"
        message = f"{redacted(url)!r}: {step}"
        raise WrongValue(message) from None


def _file_of(url: str) -> Path:
    """Return the file of a URL of SQLite's."""
    kind, _, path = url.partition(":")
    if url.startswith(_ETCD):
        message = f"{redacted(url)!r} holds leases and no state: write leases={redacted(url)!r}"
        raise WrongValue(message)
    if kind != "sqlite" or not path.strip("/"):
        message = (
            f"{redacted(url)!r}"
            " is no state: write sqlite:FILE for the processes of one machine, or"
            " postgresql://USER@HOST/DATABASE for several"
        )
        raise WrongValue(message)
    if path.startswith(
        "//"
    ):  # sqlite:///relative and sqlite:////absolute, as SQLAlchemy has it
        path = path.removeprefix("///")
    return Path(path).absolute()
