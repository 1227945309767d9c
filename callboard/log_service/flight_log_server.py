"""A Flight server of logs whose certificate can be renewed while it runs.

Flight reads its certificate only when it starts to listen. So when valid new files appear, the
server is shut down and another one starts on the same port. Readers lose their connection and
resume from their last position, as after any disconnect. Clients wait for the fraction of a
second in which no server listens.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from callboard.backoff import Backoff, retrying
from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.remote.server import LogServer, Readers
from callboard.kernel.events import CertificatesReplaced
from callboard.tls.certificates import Certificates
from callboard.tls.contexts import Tls, read_file

#: Seconds between two attempts to listen again.
_PAUSE: Final = 0.1
#: Attempts with the renewed certificate before the previous one is tried.
_TRIES: Final = 20

_log = logging.getLogger("callboard.commitlog")

_Papers = tuple[bytes, bytes]


class FlightLogServer:
    """A server of logs that runs from construction until `shutdown`.

    Attributes:
        port: The port on which it listens.
    """

    def __init__(
        self, logs: Mapping[str, str], location: str, readers: Readers, tls: Tls | None
    ) -> None:
        """Listen.

        Args:
            logs: Folders by the names under which they are served.
            location: Flight's form of the address: `grpc://HOST:PORT` or
                `grpc+tls://HOST:PORT`.
            readers: Returns the log patterns that a token may read.
            tls: Paths of the certificate; None serves without TLS.

        Raises:
            TlsError: a file is missing or unusable.
            OSError: the address cannot be used.
        """
        self._logs, self._readers, self._tls = logs, readers, tls
        self._certificates = None if tls is None else Certificates(tls, self._count_reload)
        if self._certificates is not None:
            self._certificates.listening()  # raises with a reason; Flight gives none
        self._is_renewed = False
        self._papers = self._read()
        self._server = self._listen(location, self._papers)
        self.port: int = self._server.port
        self._location = f"{location.rpartition(':')[0]}:{self.port}"

    def check(self) -> None:
        """Use a renewed certificate; call this about once a second."""
        if self._certificates is None:
            return
        self._certificates.check()
        if not self._is_renewed:
            return
        self._is_renewed = False
        previous, self._papers = self._papers, self._read()
        if self._papers == previous:
            return
        self._server.shutdown()
        backoff = Backoff.fixed(_PAUSE)
        for _ in retrying(backoff):
            if backoff.attempts and backoff.attempts % _TRIES == 0:
                previous, self._papers = self._papers, previous
            try:
                self._server = self._listen(self._location, self._papers)
                break
            except (OSError, load_pyarrow().ArrowException) as error:
                _log.warning(
                    "%s cannot be served again yet, retrying: %s", self._location, error
                )
        _log.info("%s uses its new certificate", self._location)

    def shutdown(self) -> None:
        """Stop at once. Readers lose their connection and reconnect to the next server."""
        self._server.shutdown()

    def _listen(self, location: str, papers: _Papers | None) -> LogServer:
        certificates = () if papers is None else (papers,)
        return LogServer(self._logs, location, self._readers, certificates=certificates)

    def _read(self) -> _Papers | None:
        """Return chain and key."""
        if self._tls is None or self._tls.certificate is None:
            return None
        chain, key = self._tls.certificate, self._tls.key or self._tls.certificate
        return read_file(Path(chain), "certificate"), read_file(Path(key), "key")

    def _count_reload(self, event: Any) -> None:
        """Record that the files were replaced; `Certificates` reports unusable ones."""
        self._is_renewed |= isinstance(event, CertificatesReplaced)
