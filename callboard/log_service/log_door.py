"""A Flight server of logs whose certificate is renewed while it runs.

Flight takes a certificate when it begins to listen, and no other one later. So when the files
have changed and are of use, the listener ends and another one begins on the same port. What is
being read is cut off, and readers go on where they were, as behind any cut connection; for a
fraction of a second nobody listens, for which their clients wait.
"""

import itertools
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.remote.server import LogServer, Readers
from callboard.kernel.events import CertificatesReplaced
from callboard.kernel.tls import Certificates, Tls, read_file

#: Seconds between two tries to listen again.
_PAUSE: Final = 0.1
#: Tries with a renewed certificate before the one of before has its turn.
_TRIES: Final = 20

_log = logging.getLogger("callboard.commitlog")

_Papers = tuple[bytes, bytes]


class LogDoor:
    """Serves logs from its making until `shutdown`.

    Attributes:
        port: Where it listens.
    """

    def __init__(
        self, logs: Mapping[str, str], location: str, readers: Readers, tls: Tls | None
    ) -> None:
        """Listen.

        Args:
            logs: Folders by the names under which they are served.
            location: As Flight takes it: `grpc://HOST:PORT` or `grpc+tls://HOST:PORT`.
            readers: Who may read what.
            tls: Where its certificate is; None speaks plainly.

        Raises:
            TlsError: a file is missing or unusable.
            OSError: the address cannot be used.
        """
        self._logs, self._readers, self._tls = logs, readers, tls
        self._certificates = None if tls is None else Certificates(tls, self._note)
        if self._certificates is not None:
            self._certificates.listening()  # or say what is wrong: Flight says no reason
        self._is_renewed = False
        self._papers = self._read()
        self._server = self._listen(location, self._papers)
        self.port: int = self._server.port
        self._location = f"{location.rpartition(':')[0]}:{self.port}"

    def look(self) -> None:
        """Take up a certificate that was renewed; to be called about once a second."""
        if self._certificates is None:
            return
        self._certificates.look()
        if not self._is_renewed:
            return
        self._is_renewed = False
        before, self._papers = self._papers, self._read()
        if self._papers == before:
            return
        self._server.shutdown()
        for tries in itertools.count(1):
            try:
                self._server = self._listen(self._location, self._papers)
                break
            except (OSError, load_pyarrow().ArrowException) as error:
                _log.warning("%s cannot be served again so far: %s", self._location, error)
                if tries % _TRIES == 0:
                    before, self._papers = self._papers, before
                time.sleep(_PAUSE)
        _log.info("%s has its new certificate", self._location)

    def shutdown(self) -> None:
        """End at once: who reads is cut off, and comes again where there is a server."""
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

    def _note(self, event: Any) -> None:
        """Take note of files that were read again; `Certificates` tells of those of no use."""
        self._is_renewed |= isinstance(event, CertificatesReplaced)
