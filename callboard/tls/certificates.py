"""Certificates of an open port or dialer: reloads changed files, ends links of revoked peers.

The owner asks for a context for each connection, and calls `check` once a second. When a file
has changed, all contexts are rebuilt. Sessions are never resumed, so none outlives a
revocation.
"""

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from callboard import locks
from callboard.arguments import require
from callboard.support.dataclass import dataclass
from callboard.tls.contexts import (
    UNCHECKED,
    FilePath,
    TlsError,
    explain,
    fixed_context,
    read_file,
)
from callboard.tls.revocation import CertificateId, Revocations, chain_of, read_lists

_log = logging.getLogger("callboard.links")

#: Seconds between two checks of the files.
CERTIFICATE_POLL_SECONDS: Final = 1.0

#: Seconds for which a changed file is read again: a second change within one tick of the file
#: system's clock is not visible in its times.
SETTLED: Final = 2.0

#: Total bytes of files above which they are read on a thread: 100,000 revoked certificates are
#: 5 MB and take seconds.
LARGE: Final = 128 * 1024

REVOKED: Final = "its certificate was revoked"


#: State of each file that changes whenever the file does; size first, time of change last.
Stamp = list[tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class CertificatesReplaced:
    """Files of certificates, keys or revocation lists have changed, and were read again.

    New connections use them; established ones keep their certificates.
    """

    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CertificatesRefused:
    """A file of certificates, keys or revocation lists is invalid; the old ones stay in use.

    Reported once until the files change; also for an expired revocation list.
    """

    reason: str


class TlsSource(Protocol):
    """Files and contexts of TLS: `Tls`, or the type of another protocol in its place."""

    def for_listening(self) -> ssl.SSLContext:
        """Return the context of a port."""

    def for_dialing(self) -> ssl.SSLContext:
        """Return the context of outgoing connections."""

    def files(self) -> Sequence[FilePath]:
        """Return the files and folders that contexts are made from."""

    def lists(self) -> Sequence[FilePath]:
        """Return the files with revocation lists among them."""


class Secured(Protocol):
    """A connection with TLS."""

    def end(self, reason: str) -> None:
        """Close the connection."""


class Certificates:
    """TLS of one owner. Its methods must not run on two threads at once."""

    def __init__(
        self,
        tls: TlsSource | ssl.SSLContext,
        report: Callable[[object], object] = lambda _: None,
    ) -> None:
        """Read the files, or use a context of the user.

        Args:
            tls: the files; a context of the user is used unchanged.
            report: called with the events.

        Raises:
            TlsError: a revocation list is missing or invalid.
        """
        self._tls = tls
        self.report = report
        self._contexts: dict[bool, ssl.SSLContext] = {}
        # Reentrant, as a listener of an event may open a port.
        self._lock = locks.lock("certificates", 630, reentrant=True)
        #: State of the files at the last read; None if one may have changed since.
        self._seen: Stamp | None = None if isinstance(tls, ssl.SSLContext) else _stamp(tls)
        #: State of the files in use.
        self._used = self._seen
        self._reported: set[str] = set()
        self._is_reading = False
        self._lists = Revocations()
        #: Whether our own certificate is valid by the lists, if that can be checked.
        self._is_sound = True
        if not isinstance(tls, ssl.SSLContext):
            self._lists = _read_lists(tls)
            self._is_sound = not _misfit(tls, {})
            self._settle(self._seen)
        self._connections: WeakKeyDictionary[Secured, frozenset[CertificateId]]
        self._connections = WeakKeyDictionary()

    @classmethod
    def of_dials(cls, tls: TlsSource | ssl.SSLContext | None) -> "Certificates | None":
        """Return TLS for outgoing connections, None without it.

        Raises:
            TlsError: a file is missing or unusable, or the context can only listen.
        """
        if tls is None:
            return None
        is_tls = isinstance(tls, ssl.SSLContext) or hasattr(tls, "files")
        require(is_tls, "tls takes Tls(certificate=…) or an ssl.SSLContext", tls)
        certificates = cls(tls)
        certificates.dialing()
        return certificates

    def listening(self) -> ssl.SSLContext:
        """Return the context for an accepted connection.

        Raises:
            TlsError: a file is missing or unusable, the first time.
        """
        return self._context(listens=True)

    def dialing(self) -> ssl.SSLContext:
        """Return the context for an outgoing connection.

        Raises:
            TlsError: a file is missing or unusable, the first time.
        """
        return self._context(listens=False)

    def follow(self, connection: Secured, secured: Any) -> None:
        """End a connection as soon as a certificate of its peer is revoked.

        Args:
            connection: held weakly.
            secured: its `ssl.SSLObject`.
        """
        if isinstance(self._tls, ssl.SSLContext) or not self._tls.lists():
            return
        try:
            self._connections[connection] = chain_of(secured)
        except ValueError as error:  # OpenSSL accepts some certificates beyond the standard
            connection.end(f"its certificate cannot be compared with the lists: {error}")

    @property
    def is_fixed(self) -> bool:
        """Whether the context is fixed, without files to watch."""
        return isinstance(self._tls, ssl.SSLContext) or not self._tls.files()

    def check(self) -> None:
        """Read changed files, and end the connections of revoked peers."""
        with self._lock:
            self._read_changed()
        if self._lists.expires <= _now():
            when = datetime.fromtimestamp(self._lists.expires, UTC)
            self._report(
                f"a revocation list has been out of date since {when:%Y-%m-%d %H:%M:%S} "
                "UTC: no peer of its authority is accepted until it is replaced"
            )
        for connection, chain in list(self._connections.items()):
            if self._lists.has_any_of(chain):
                del self._connections[connection]
                connection.end(REVOKED)

    def _context(self, *, listens: bool) -> ssl.SSLContext:
        """Return the context of a direction, from the files in their current state."""
        if isinstance(self._tls, ssl.SSLContext):
            return fixed_context(self._tls, listens=listens)
        with self._lock:
            if listens in self._contexts:
                self._read_changed()
            else:
                self._contexts[listens] = _make(self._tls, listens=listens)
            return self._contexts[listens]

    def _read_changed(self) -> None:
        """Rebuild the contexts if a file has changed; keep the old ones if one is invalid."""
        tls = self._tls
        if isinstance(tls, ssl.SSLContext) or self._is_reading:
            return
        stamp = _stamp(tls)
        if stamp == self._seen:
            return
        self._is_reading = True
        if sum(fact[0] for fact in stamp) <= LARGE:
            self._read(tls, stamp)
        else:
            read = threading.Thread(target=self._read, args=(tls, stamp), daemon=True)
            read.start()

    def _read(self, tls: TlsSource, stamp: Stamp) -> None:
        """Rebuild the contexts; it may run on any thread."""
        try:
            contexts = {
                listens: _make(tls, listens=listens) for listens in list(self._contexts)
            }
            lists, misfit = _read_lists(tls), _misfit(tls, contexts)
            if misfit and self._is_sound:
                msg = f"no peer could connect with these files: {misfit}"
                raise TlsError(msg)
            if lists.expires <= _now() < self._lists.expires:
                msg = "the new revocation list is out of date"
                raise TlsError(msg)
        except TlsError as error:
            self._report(f"{error}; the last valid version stays in force")
        else:
            # The context of another direction may have been made since, from the same files.
            with self._lock:
                self._contexts = {**self._contexts, **contexts}
                self._lists, self._is_sound = lists, not misfit
            if stamp != self._used:
                self._used = stamp
                self._reported.clear()
                files = tuple(str(path) for path in tls.files())
                _log.info("certificates were read again: %s", ", ".join(files))
                self.report(CertificatesReplaced(files))
        finally:
            self._settle(stamp)
            self._is_reading = False

    def _settle(self, stamp: Stamp | None) -> None:
        """Record the state of the files that were read; recent ones are read again."""
        now = _now()
        is_settled = all(not 0.0 <= now - fact[-1] < SETTLED for fact in stamp or ())
        self._seen = stamp if is_settled else None

    def _report(self, message: str) -> None:
        """Report an invalid file, once."""
        if message not in self._reported:
            self._reported.add(message)
            _log.warning("%s", message)
            self.report(CertificatesRefused(message))


def _now() -> float:
    """Return the wall-clock time, which files and lists refer to."""
    return time.time()  # noqa: TID251


def _stamp(tls: TlsSource) -> Stamp:
    stamp: Stamp = []
    for path in tls.files():
        try:
            status = Path(path).stat()
        except OSError as error:
            stamp.append((0, error.errno or 0, 0.0))
        else:
            facts = (status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)
            stamp.append((*facts, status.st_ctime_ns, status.st_ctime))
    return stamp


def _misfit(tls: TlsSource, contexts: dict[bool, ssl.SSLContext]) -> str:
    """Return why the lists are unusable: our own certificate cannot be checked against them.

    The certificate is verified in a handshake with ourselves, with contexts that are not in use
    yet. Other errors of it say nothing about the lists, because our authority need not be that
    of our peers. It may also be revoked.
    """
    if not tls.lists():
        return ""
    try:
        server = contexts.get(True) or tls.for_listening()
        client = contexts.get(False) or tls.for_dialing()
    except TlsError:
        return ""  # the owner only dials, or gets the error elsewhere
    checked = server.verify_mode, client.check_hostname
    server.verify_mode, client.check_hostname = ssl.CERT_NONE, False
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True))
    try:
        for side in sides * 2:  # the client sees the certificate in its second step
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return explain(error) if error.verify_code in UNCHECKED else ""
    except ssl.SSLError:
        pass
    finally:
        server.verify_mode, client.check_hostname = checked
    return ""


def _make(tls: TlsSource, *, listens: bool) -> ssl.SSLContext:
    return tls.for_listening() if listens else tls.for_dialing()


def _read_lists(tls: TlsSource) -> Revocations:
    lists = Revocations()
    for path in tls.lists():
        try:
            lists |= read_lists(read_file(path, "revocation list"))
        except ValueError as error:
            if isinstance(error, TlsError):
                raise
            msg = f"the revocation list cannot be read: {path}: {error}"
            raise TlsError(msg) from None
    return lists
