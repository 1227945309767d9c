"""The object store interface of a log: whole objects, ranges, and create-if-absent.

Objects are never renamed or written twice. `create` is atomic: of several processes that create
an object of the same name, one succeeds. The stores of S3, Google and Azure have conditional
requests for this; in a folder of this machine, a hard link to a complete file is used.
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
from callboard.support.files.private_file import make_folder, make_private_file, open_private
from callboard.support.redaction import redacted

#: Bytes of a part of an object that is uploaded in several parts.
_PART: Final = 32 << 20
#: Prefix of the objects that test whether a store supports create-if-absent.
_PROBE: Final = "probe"

#: Part of s3fs's error for a missing bucket; "bucket" alone could be part of a path.
_NO_BUCKET: Final = "specified bucket"

_INSTALL: Final = "pip install 'callboard[objects]'"


class Objects(Protocol):
    """Objects below one address, with `/` in names. Failures of the store raise `LogFailed`."""

    url: str

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return an object, or a range of it; fewer bytes only at its end.

        Raises:
            FileNotFoundError: the object does not exist.
        """

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write an object under a name that is used only once."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty if the folder does not exist."""

    def remove(self, name: str) -> None:
        """Remove an object if it exists."""

    def age(self, name: str, than: str) -> float:
        """Return how many seconds an object is older than another, by the store's clock.

        Raises:
            FileNotFoundError: one of the objects does not exist.
        """


class ObjectAddress(NamedTuple):
    """The URL of a log, and options for fsspec as JSON; its text is the URL."""

    url: str
    options: str = ""

    def __repr__(self) -> str:
        return f"<ObjectAddress {redacted(self.url)}>"

    def __str__(self) -> str:
        """Return the address without credentials."""
        return self.url


def object_address(url: str, options: Mapping[str, Any] | None = None) -> ObjectAddress:
    """Return a normalized address: equal for readers of the same place.

    Raises:
        InvalidOption: the URL lacks a path, or the options cannot be encoded as JSON.
    """
    if not url.partition("://")[2].strip("/"):
        msg = f"{redacted(url)!r} does not name a place; write it like s3://BUCKET/NAME"
        raise InvalidOption(msg)
    try:
        encoded = json.dumps(dict(options), sort_keys=True) if options else ""
    except (TypeError, ValueError):
        msg = "storage_options must map names to texts, numbers, lists and dictionaries"
        raise InvalidOption(msg) from None
    return ObjectAddress(url.rstrip("/"), encoded)


@lru_cache(maxsize=64)
def _file_system(process: int, address: ObjectAddress) -> tuple[Any, str]:
    """Return fsspec's file system for this process, and the path; forks cannot share one."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        msg = f"{redacted(address)} needs fsspec; install it with: {_INSTALL}"
        raise ExtraMissing(msg) from None
    options = json.loads(address.options) if address.options else {}
    try:
        file_system, path = url_to_fs(address.url, **{"use_listings_cache": False, **options})
    except ImportError as error:
        msg = (
            f"{redacted(address)}"
            f" needs a package that is missing ({error}); for s3://: {_INSTALL}"
        )
        raise ExtraMissing(msg) from None
    except (ValueError, TypeError) as error:  # an unknown protocol or option
        step = "check its address and storage_options"
        msg = f"{redacted(address)} cannot be opened: {redacted(error)}; {step}"
        raise InvalidOption(msg) from None
    return file_system, path.rstrip("/")


class FileSystemObjects:
    """Objects in a file system of fsspec."""

    def __init__(self, address: ObjectAddress) -> None:
        """Open the file system; no request is sent yet.

        Raises:
            ExtraMissing: a package is not installed.
            InvalidOption: the address is invalid.
        """
        self._address = address
        self.url = str(address)
        self._is_proven = False
        self._at("")

    def _at(self, name: str) -> tuple[Any, str]:
        """Return the file system of this process and the path of an object."""
        file_system, root = _file_system(os.getpid(), self._address)
        return file_system, f"{root}/{name}"

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return an object, or a range of it; fewer bytes only at its end."""
        with self._errors():
            file_system, path = self._at(name)
            try:
                data: bytes = file_system.cat_file(path, start=start or None, end=end)
            except OSError as error:
                if start and error.errno == errno.EINVAL:  # S3 refuses a range after the end
                    return b""
                raise
            return data

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write an object under a name used only once; a failure may leave an orphan."""
        with self._errors():
            file_system, path = self._at(name)
            if _is_local(file_system):
                make_folder(Path(path).parent)
                make_private_file(path)
            with file_system.open(path, "wb", block_size=_PART) as file:
                for piece in pieces:
                    file.write(piece)
            if _is_local(file_system):
                sync_path(path)
                sync_path(Path(path).parent, os.O_DIRECTORY)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written."""
        with self._errors():
            file_system, path = self._at(name)
            if _is_local(file_system):
                return _link(Path(path), data)
            self._prove(file_system)
            return _create(file_system, path, data)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty if the folder does not exist."""
        with self._errors():
            file_system, path = self._at(folder)
            file_system.invalidate_cache()
            try:
                listed = file_system.ls(path, detail=False)
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise
                return []
            return sorted(listed_path.rstrip("/").rpartition("/")[2] for listed_path in listed)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        with self._errors():
            file_system, path = self._at(folder)
            try:
                listed = file_system.ls(path.rstrip("/"), detail=True)
            except (FileNotFoundError, NotADirectoryError) as error:
                if _NO_BUCKET in str(error):
                    raise
                return []
            paths = [str(item["name"]) for item in listed if item["type"] == "directory"]
            return sorted(folder.rstrip("/").rpartition("/")[2] for folder in paths)

    def remove(self, name: str) -> None:
        """Remove an object if it exists."""
        with self._errors(), suppress(FileNotFoundError):
            file_system, path = self._at(name)
            file_system.rm_file(path)

    def age(self, name: str, than: str) -> float:
        """Return how many seconds an object is older than another."""
        with self._errors():
            file_system, path = self._at(name)
            _, other = self._at(than)
            seconds: float = (
                file_system.modified(other) - file_system.modified(path)
            ).total_seconds()
            return seconds

    def _prove(self, file_system: Any) -> None:
        """Refuse a store without create-if-absent: two archivers would overwrite each other."""
        from fsspec.asyn import AsyncFileSystem
        from fsspec.spec import AbstractFileSystem

        if self._is_proven:
            return
        path = self._at(f"{_PROBE}-{os.urandom(16).hex()}")[1]
        own = type(file_system).pipe_file is not AbstractFileSystem.pipe_file
        is_atomic = own or isinstance(
            file_system, AsyncFileSystem
        )  # else fsspec checks first and then writes
        if is_atomic and _create(file_system, path, b"probe"):
            is_atomic = not _create(file_system, path, b"probe")
            with suppress(Exception):  # some users may write but not remove
                file_system.rm_file(path)
        if not is_atomic:
            msg = (
                f"{redacted(self.url)}"
                " does not support create-if-absent (S3's If-None-Match), without which two"
                " writers would overwrite each other; use another store"
            )
            raise LogFailed(msg)
        self._is_proven = True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the store into `LogFailed`, with one line that says what to do."""
        try:
            yield
        except LogError:
            raise
        except FileNotFoundError as error:
            if _NO_BUCKET not in str(error):
                raise
            msg = f"{redacted(self.url)}: the bucket does not exist; create it or check the URL"
            raise LogFailed(msg) from error
        except PermissionError as error:
            msg = (
                f"{redacted(self.url)}"
                f" refuses access: {_line(error)}; check the key and its rights (environment"
                " AWS_…, or storage_options)"
            )
            raise LogFailed(msg) from error
        except ImportError as error:
            msg = f"{redacted(self.url)} needs a package that is missing: {error}; {_INSTALL}"
            raise ExtraMissing(msg) from error
        except Exception as error:  # each file system of fsspec has its own errors
            kind = type(error).__name__
            msg = (
                f"{redacted(self.url)}"
                f" cannot be used: {kind}: {_line(error)}; {_STEPS.get(kind, _SEE)}"
            )
            raise LogFailed(msg) from error


_SEE: Final = "check the store and the network"
_STEPS: Final = {
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or storage_options",
}


def _line(error: Exception) -> str:
    """Return the text of an error in one line."""
    text = str(error) or repr(error)
    return " ".join(text.split())[:300]


def _is_local(file_system: Any) -> bool:
    """Return whether a file system is the one of this machine."""
    protocols = file_system.protocol
    return "file" in ((protocols,) if isinstance(protocols, str) else protocols)


def _create(file_system: Any, path: str, data: bytes) -> bool:
    """Create an object by a conditional request; return False if it exists."""
    try:
        file_system.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


def _link(path: Path, data: bytes) -> bool:
    """Create a file that is complete and durable as soon as it is visible."""
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
