"""The certificates of a door while it is open: files that are replaced, peers that are revoked.

A door asks for its context for each connection, and calls `look` once a second. Contexts are
made again, whole, when a file has changed. No session is resumed, so none outlives a
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
from callboard.actors.errors import require
from callboard.proxies.errors import TlsError
from callboard.proxies.events import CertificatesRefused, CertificatesReplaced
from callboard.proxies.link.revocation import (
    CertificateId,
    Revocations,
    chain_of,
    read_lists,
)
from callboard.proxies.link.tls import UNCHECKED, FilePath, explain, fixed_context, read_file

_log = logging.getLogger("callboard.links")

#: Seconds between two looks at the files.
LOOK_INTERVAL: Final = 1.0

#: Seconds for which a file that has changed is read again: a later change within the same tick
#: of the file system's clock leaves no mark.
SETTLED: Final = 2.0

#: Bytes of all files above which they are read on a thread: 100,000 revoked certificates are
#: 5 MB and take seconds.
LARGE: Final = 128 * 1024

REVOKED: Final = "its certificate was revoked"


#: What changes whenever a file does, for each; size first, time of the change last.
Stamp = list[tuple[float, ...]]


class TlsSource(Protocol):
    """What contexts are made of: `Tls`, or what other doors have in its place."""

    def for_listening(self) -> ssl.SSLContext:
        """Return the context of a port."""

    def for_dialing(self) -> ssl.SSLContext:
        """Return the context of the connections that we make."""

    def files(self) -> Sequence[FilePath]:
        """Return the files and folders that contexts are made of."""

    def lists(self) -> Sequence[FilePath]:
        """Return the files of revocation lists among them."""


class Secured(Protocol):
    """A connection with TLS."""

    def end(self, reason: str) -> None:
        """Close it."""


class Certificates:
    """TLS of one door. Its methods are for one thread at a time."""

    def __init__(
        self,
        tls: TlsSource | ssl.SSLContext,
        report: Callable[[object], object] = lambda _: None,
    ) -> None:
        """Take files, or a context that the user keeps.

        Args:
            tls: the files; a context of the user's is used as it is.
            report: takes the events.

        Raises:
            TlsError: a revocation list is missing or of no use.
        """
        self._tls = tls
        self.report = report
        self._contexts: dict[bool, ssl.SSLContext] = {}
        # A listener of an event may open a port.
        self._lock = locks.lock("certificates", 630, reentrant=True)
        #: The files when they were read last; None where one may have changed meanwhile.
        self._seen: Stamp | None = None if isinstance(tls, ssl.SSLContext) else _stamp(tls)
        #: The files that are in force.
        self._used = self._seen
        self._told: set[str] = set()
        self._is_reading = False
        self._lists = Revocations()
        #: Whether our own certificate passes by the lists, as far as that can be told.
        self._is_sound = True
        if not isinstance(tls, ssl.SSLContext):
            self._lists = _read_lists(tls)
            self._is_sound = not _misfit(tls, {})
            self._settle(self._seen)
        self._connections: WeakKeyDictionary[Secured, frozenset[CertificateId]]
        self._connections = WeakKeyDictionary()

    @classmethod
    def of_dials(cls, tls: TlsSource | ssl.SSLContext | None) -> "Certificates | None":
        """Return TLS for connections that we make, if any.

        Raises:
            TlsError: a file is missing or unusable, or the context can only listen.
        """
        if tls is None:
            return None
        is_tls = isinstance(tls, ssl.SSLContext) or hasattr(tls, "files")
        require(is_tls, "tls takes Tls(certificate=…) or an ssl.SSLContext", tls)
        made = cls(tls)
        made.dialing()
        return made

    def listening(self) -> ssl.SSLContext:
        """Return the context for a connection that was accepted.

        Raises:
            TlsError: a file is missing or unusable, the first time.
        """
        return self._context(listens=True)

    def dialing(self) -> ssl.SSLContext:
        """Return the context for a connection that we make.

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
        self._connections[connection] = chain_of(secured)

    @property
    def is_fixed(self) -> bool:
        """Whether there are no files to look at."""
        return isinstance(self._tls, ssl.SSLContext) or not self._tls.files()

    def look(self) -> None:
        """Read files that have changed, and end connections of the revoked."""
        with self._lock:
            self._read_changed()
        if self._lists.expires <= _now():
            when = datetime.fromtimestamp(self._lists.expires, UTC)
            self._tell(
                f"a revocation list is out of date since {when:%Y-%m-%d %H:%M:%S} UTC: no peer "
                "of its authority is let in until it is replaced"
            )
        for connection, chain in list(self._connections.items()):
            if not chain.isdisjoint(self._lists.revoked):
                del self._connections[connection]
                connection.end(REVOKED)

    def _context(self, *, listens: bool) -> ssl.SSLContext:
        """Return the context of a direction, made of the files as they are."""
        if isinstance(self._tls, ssl.SSLContext):
            return fixed_context(self._tls, listens=listens)
        with self._lock:
            if listens in self._contexts:
                self._read_changed()
            else:
                self._contexts[listens] = _make(self._tls, listens=listens)
            return self._contexts[listens]

    def _read_changed(self) -> None:
        """Make the contexts again if a file has changed; keep them where one is of no use."""
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
        """Make the contexts again, on whatever thread."""
        try:
            contexts = {
                listens: _make(tls, listens=listens) for listens in list(self._contexts)
            }
            lists, misfit = _read_lists(tls), _misfit(tls, contexts)
            if misfit and self._is_sound:
                msg = f"no peer would be let in: {misfit}"
                raise TlsError(msg)
            if lists.expires <= _now() < self._lists.expires:
                msg = "the new revocation list is out of date"
                raise TlsError(msg)
        except TlsError as error:
            self._tell(f"{error}; what was read before stays in force")
        else:
            with self._lock:  # another direction may have come meanwhile, of the same files
                self._contexts = {**self._contexts, **contexts}
                self._lists, self._is_sound = lists, not misfit
            if stamp != self._used:
                self._used = stamp
                self._told.clear()
                files = tuple(str(path) for path in tls.files())
                _log.info("certificates were read again: %s", ", ".join(files))
                self.report(CertificatesReplaced(files))
        finally:
            self._settle(stamp)
            self._is_reading = False

    def _settle(self, stamp: Stamp | None) -> None:
        """Take note of the files that were read; fresh ones are read again."""
        now = _now()
        is_settled = all(not 0.0 <= now - fact[-1] < SETTLED for fact in stamp or ())
        self._seen = stamp if is_settled else None

    def _tell(self, why: str) -> None:
        """Tell what is of no use, once."""
        if why not in self._told:
            self._told.add(why)
            _log.warning("%s", why)
            self.report(CertificatesRefused(why))


def _now() -> float:
    """Return the time that files and lists speak of."""
    return time.time()  # noqa: TID251


def _stamp(tls: TlsSource) -> Stamp:
    stamp: Stamp = []
    for path in tls.files():
        try:
            found = Path(path).stat()
        except OSError as error:
            stamp.append((0, error.errno or 0, 0.0))
        else:
            facts = (found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns)
            stamp.append((*facts, found.st_ctime_ns, found.st_ctime))
    return stamp


def _misfit(tls: TlsSource, contexts: dict[bool, ssl.SSLContext]) -> str:
    """Return why lists are of no use: by them our own certificate cannot be checked.

    It is shown to ourselves, by contexts that are not in force yet. What else may be wrong with
    it says nothing of the lists, as our authority need not be that of our peers; it may be
    revoked, too.
    """
    if not tls.lists():
        return ""
    try:
        server = contexts.get(True) or tls.for_listening()
        client = contexts.get(False) or tls.for_dialing()
    except TlsError:
        return ""  # it only dials, or is about to be told
    checked = server.verify_mode, client.check_hostname
    server.verify_mode, client.check_hostname = ssl.CERT_NONE, False
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True))
    try:
        for side in sides * 2:  # the client sees the certificate in its second turn
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
