"""An object store as a log needs one: whole objects, ranges, and create-if-absent.

Nothing is ever renamed or written twice. What decides is `create`: of all who create an object
of one name, one succeeds. S3, Google's and Azure's stores have that as a conditional request;
a folder of this machine has it as a link to a file that is whole.
"""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from callboard.commitlog.disk import sync_path
from callboard.commitlog.errors import ExtraMissing, InvalidOption, LogError, LogFailed
from callboard.support.private_file import make_folder, make_private_file, open_private
from callboard.support.redaction import redacted

#: Bytes of a part of an object that is sent as several.
_PART: Final = 32 << 20
#: Where an object that decides nothing shows whether a store has create-if-absent.
_PROBE: Final = "probe"

#: What s3fs says of a bucket that is not there; a path could have the word alone.
_NO_BUCKET: Final = "specified bucket"

_INSTALL: Final = "pip install 'callboard[objects]'"


class Objects(Protocol):
    """Objects below one address, by names with `/`. What a store refuses is `LogFailed`."""

    url: str

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return an object, or a range of it; fewer bytes only behind its end.

        Raises:
            FileNotFoundError: there is no such object.
        """

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write an object whose name is used once."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless there is one; returns False where there is one."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none where there is no such folder."""

    def remove(self, name: str) -> None:
        """Remove an object if it is there."""

    def age(self, name: str, than: str) -> float:
        """Return by how many seconds an object is older than another, by the store's clock.

        Raises:
            FileNotFoundError: there is no such object.
        """


class ObjectAddress(NamedTuple):
    """Where a log lies, and what fsspec needs to get there, as JSON; as a text, the former."""

    url: str
    options: str = ""

    def __repr__(self) -> str:
        return f"<ObjectAddress {redacted(self.url)}>"

    def __str__(self) -> str:
        """Return the address without credentials."""
        return self.url


def object_address(url: str, options: Mapping[str, Any] | None = None) -> ObjectAddress:
    """Return an address that two readers of one place have alike.

    Raises:
        InvalidOption: the address names no place, or the options are nothing that JSON holds.
    """
    if not url.partition("://")[2].strip("/"):
        what = f"{redacted(url)!r} names no place; write it like s3://BUCKET/NAME"
        raise InvalidOption(what)
    try:
        told = json.dumps(dict(options), sort_keys=True) if options else ""
    except (TypeError, ValueError):
        what = "storage_options are texts, numbers, lists and dictionaries, by their names"
        raise InvalidOption(what) from None
    return ObjectAddress(url.rstrip("/"), told)


@lru_cache(maxsize=64)
def _file_system(process: int, address: ObjectAddress) -> tuple[Any, str]:
    """Return fsspec's file system and the path there; one of before a fork is of no use."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        what = f"{redacted(address)} needs fsspec; install it with: {_INSTALL}"
        raise ExtraMissing(what) from None
    options = json.loads(address.options) if address.options else {}
    try:
        found, path = url_to_fs(address.url, **{"use_listings_cache": False, **options})
    except ImportError as error:
        what = (
            f"{redacted(address)}"
            f" needs a package that is missing ({error}); for s3://: {_INSTALL}"
        )
        raise ExtraMissing(what) from None
    except (ValueError, TypeError) as error:  # no such protocol, no such option
        step = "see its address and storage_options"
        what = f"{redacted(address)} cannot be opened: {redacted(error)}; {step}"
        raise InvalidOption(what) from None
    return found, path.rstrip("/")


class FileSystemObjects:
    """What fsspec opens."""

    def __init__(self, address: ObjectAddress) -> None:
        """Name a place; nothing is asked yet.

        Raises:
            ExtraMissing: a package is not installed.
            InvalidOption: the address means nothing.
        """
        self._address = address
        self.url = str(address)
        self._is_proven = False
        self._at("")

    def _at(self, name: str) -> tuple[Any, str]:
        """Return the file system of this process and the path of an object."""
        found, root = _file_system(os.getpid(), self._address)
        return found, f"{root}/{name}"

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return an object, or a range of it; fewer bytes only behind its end."""
        with self._told():
            found, path = self._at(name)
            try:
                data: bytes = found.cat_file(path, start=start or None, end=end)
            except OSError as error:
                if start and error.errno == errno.EINVAL:  # S3 knows no range behind the end
                    return b""
                raise
            return data

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write an object whose name is used once; an attempt that fails leaves an orphan."""
        with self._told():
            found, path = self._at(name)
            if _is_local(found):
                make_folder(Path(path).parent)
                make_private_file(path)
            with found.open(path, "wb", block_size=_PART) as file:
                for piece in pieces:
                    file.write(piece)
            if _is_local(found):
                sync_path(path)
                sync_path(Path(path).parent, os.O_DIRECTORY)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless there is one; returns False where there is one."""
        with self._told():
            found, path = self._at(name)
            if _is_local(found):
                return _link(Path(path), data)
            self._prove(found)
            return _create(found, path, data)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none where there is no such folder."""
        with self._told():
            found, path = self._at(folder)
            found.invalidate_cache()
            try:
                listed = found.ls(path, detail=False)
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise
                return []
            return sorted(each.rstrip("/").rpartition("/")[2] for each in listed)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        with self._told():
            found, path = self._at(folder)
            try:
                listed = found.ls(path.rstrip("/"), detail=True)
            except (FileNotFoundError, NotADirectoryError) as error:
                if _NO_BUCKET in str(error):
                    raise
                return []
            paths = [str(each["name"]) for each in listed if each["type"] == "directory"]
            return sorted(each.rstrip("/").rpartition("/")[2] for each in paths)

    def remove(self, name: str) -> None:
        """Remove an object if it is there."""
        with self._told(), suppress(FileNotFoundError):
            found, path = self._at(name)
            found.rm_file(path)

    def age(self, name: str, than: str) -> float:
        """Return by how many seconds an object is older than another."""
        with self._told():
            found, path = self._at(name)
            _, other = self._at(than)
            seconds: float = (found.modified(other) - found.modified(path)).total_seconds()
            return seconds

    def _prove(self, found: Any) -> None:
        """Refuse a store that lets two create one object: two copiers would lose records."""
        from fsspec.asyn import AsyncFileSystem
        from fsspec.spec import AbstractFileSystem

        if self._is_proven:
            return
        path = self._at(f"{_PROBE}-{os.urandom(16).hex()}")[1]
        own = type(found).pipe_file is not AbstractFileSystem.pipe_file
        has_it = own or isinstance(
            found, AsyncFileSystem
        )  # else it looks first, and writes then
        if has_it and _create(found, path, b"probe"):
            has_it = not _create(found, path, b"probe")
            with suppress(Exception):  # some may write and not remove
                found.rm_file(path)
        if not has_it:
            what = (
                f"{redacted(self.url)}"
                " has no create-if-absent (S3's If-None-Match), which keeps two"
                " writers apart; take a store that has"
            )
            raise LogFailed(what)
        self._is_proven = True

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what a store refuses into `LogFailed`, of one line that says what to do."""
        try:
            yield
        except LogError:
            raise
        except FileNotFoundError as error:
            if _NO_BUCKET not in str(error):
                raise
            what = f"{redacted(self.url)}: there is no such bucket; make it, or see the address"
            raise LogFailed(what) from error
        except PermissionError as error:
            what = (
                f"{redacted(self.url)}"
                f" refuses: {_line(error)}; see the key and its rights (environment"
                " AWS_…, or storage_options)"
            )
            raise LogFailed(what) from error
        except ImportError as error:
            what = f"{redacted(self.url)} needs a package that is missing: {error}; {_INSTALL}"
            raise ExtraMissing(what) from error
        except Exception as error:  # each file system of fsspec has errors of its own
            kind = type(error).__name__
            what = (
                f"{redacted(self.url)}"
                f" cannot be used: {kind}: {_line(error)}; {_STEPS.get(kind, _SEE)}"
            )
            raise LogFailed(what) from error


_SEE: Final = "see the store and the way to it"
_STEPS: Final = {
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or storage_options",
}


def _line(error: Exception) -> str:
    """Return what an error says, in one line."""
    text = str(error) or repr(error)
    return " ".join(text.split())[:300]


def _is_local(found: Any) -> bool:
    """Return whether a file system is that of this machine."""
    protocols = found.protocol
    return "file" in ((protocols,) if isinstance(protocols, str) else protocols)


def _create(found: Any, path: str, data: bytes) -> bool:
    """Create an object by the request of a store; returns False where there is one."""
    try:
        found.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


def _link(path: Path, data: bytes) -> bool:
    """Create a file that is whole and durable when it is seen."""
    make_folder(path.parent)
    whole = path.with_name(f"{path.name}.{os.urandom(16).hex()}.tmp")
    try:
        with open(whole, "xb", opener=open_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(whole)
        except FileExistsError:
            return False
    finally:
        whole.unlink(missing_ok=True)
    sync_path(path.parent, os.O_DIRECTORY)
    return True
