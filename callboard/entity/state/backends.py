"""Opens the state and leases of a URL: `sqlite:FILE`, `postgresql://…`, or leases in etcd.

`sqlite:FILE?mode=640` sets the mode of new files; the default is 0600.
"""

from pathlib import Path
from typing import Any

from callboard.entity.state.interface import EntityState
from callboard.entity.state.member_sockets import MemberSockets
from callboard.entity.state.sql import SqlView
from callboard.entity.state.sqlite import SqliteState, SqliteView
from callboard.kernel.errors import WrongValue
from callboard.lease.errors import StateUnavailable
from callboard.lease.leases import Leases
from callboard.lease.sqlite import SqliteLeases
from callboard.support.files.private_file import check_file_mode
from callboard.support.redaction import redacted
from callboard.support.slots import BACKENDS

_POSTGRESQL = ("postgresql://", "postgres://")
_ETCD = ("etcd://", "etcds://")


def open_state(url: str, writer: str) -> EntityState:
    """Open a state for a writer, which is the name of a process's life. May block for seconds.

    Raises:
        WrongValue: the URL is of an unknown kind.
        StorageError: the database cannot be opened, or must not be used.
    """
    if url.startswith(_POSTGRESQL):
        state: EntityState = _backend("postgresql", "state")(url, writer)
        return state
    url, mode = _mode_of(url)
    return SqliteState(_file_of(url), writer, mode)


def open_view(url: str, _writer: str = "") -> SqlView:
    """Open a state for reading only; may block for seconds.

    Raises:
        WrongValue: the URL is of an unknown kind.
        StateUnavailable: the database does not exist.
        StorageError: the database cannot be opened, or does not hold a state.
    """
    if url.startswith(_POSTGRESQL):
        view: SqlView = _backend("postgresql", "view")(url)
        return view
    return SqliteView(_file_of(_mode_of(url)[0]))


def open_leases(url: str, writer: str) -> Leases:
    """Open the leases of a URL; for `sqlite:FILE` they are in `FILE-leases`.

    Raises:
        WrongValue: the URL is of an unknown kind.
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


def open_sockets(url: str) -> MemberSockets | None:
    """Open the sockets of the nodes that share a register; None if it is not a file.

    Raises:
        OSError: the folder cannot be made, or its path is too long.
    """
    url, mode = _mode_of(url)
    if not url.startswith("sqlite:"):
        return None
    return MemberSockets(Path(f"{_file_of(url)}-nodes"), mode)


def _backend(extra: str, kind: str) -> Any:
    """Return the class of a backend whose package is optional.

    Raises:
        StateUnavailable: the package of the backend is not installed.
    """
    try:
        return BACKENDS.load(f"{extra} {kind}")
    except ImportError as cause:
        msg = f"{extra}:// needs a package ({cause.name}): pip install 'callboard[{extra}]'"
        raise StateUnavailable(msg) from cause


def _mode_of(url: str) -> tuple[str, int | None]:
    """Return a SQLite URL without `?mode=640`, and that mode.

    Raises:
        WrongValue: the mode is invalid, or the user could not access such files.
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
    """Return the file of a SQLite URL.

    Raises:
        WrongValue: the URL is not a SQLite URL with a file.
    """
    kind, _, path = url.partition(":")
    if url.startswith(_ETCD):
        message = f"{redacted(url)!r} holds leases but no state; use leases={redacted(url)!r}"
        raise WrongValue(message)
    if kind != "sqlite" or not path.strip("/"):
        message = (
            f"{redacted(url)!r}"
            " is not the URL of a state: use sqlite:FILE for the processes of one machine, or"
            " postgresql://USER@HOST/DATABASE for several"
        )
        raise WrongValue(message)
    if path.startswith("//"):
        # sqlite:///relative and sqlite:////absolute, as in SQLAlchemy
        path = path.removeprefix("///")
    return Path(path).absolute()
