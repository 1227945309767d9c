"""TLS under a link: contexts from files, the handshake, and a socket that encrypts.

The bytes inside are the same BASP as on a plain connection. OpenSSL reads and writes memory
only; what goes over the socket is moved here. So a read never leaves decrypted bytes where no
selector sees them, one read of the socket takes many records, and nothing waits for a
direction that OpenSSL would like and the selector does not watch.
"""

import contextlib
import errno
import selectors
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from actors.errors import CallboardError

if TYPE_CHECKING:
    import os

    from actors.runner import Runner

CHUNK: Final = 65536
"""Bytes that are encrypted at once: four records, which bounds what waits in memory twice."""

RECORD: Final = 16384
"""Bytes of the largest TLS record: one call decrypts no more."""

HANDSHAKE_LIMIT: Final = 10.0
"""Seconds that a TLS handshake may take; a plain one has the same."""

FIRST_WORD_LIMIT: Final = 2.0
"""Seconds in which a dialer has to begin: TLS clients speak first, nodes without TLS never do.

They would wait for each other without end; so the one without TLS learns it soon.
"""

_EXPIRED: Final = 10
_OTHER_HOST: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH


class TlsError(CallboardError, ValueError):
    """A certificate, key or authority cannot be used."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a node for TLS, all of them in PEM format.

    Attributes:
        certificate: our own certificate, and those between it and the authority. Needed to
            listen, and to dial nodes that demand one.
        key: its private key, without a password; None when it stands in the same file.
        authority: certificates of those who may sign a peer's; None takes the system's.
        mutual: whether who dials us has to show a certificate of the authority as well.
    """

    certificate: "str | os.PathLike[str] | None" = None
    key: "str | os.PathLike[str] | None" = None
    authority: "str | os.PathLike[str] | None" = None
    mutual: bool = True

    def for_listening(self) -> ssl.SSLContext:
        """Return the context of a port.

        Raises:
            TlsError: a file is missing or of no use.
        """
        if self.certificate is None:
            msg = "listening with TLS needs a certificate; pass Tls(certificate=…, key=…)"
            raise TlsError(msg)
        if self.mutual and self.authority is None:
            msg = (
                "mutual TLS needs the authority that signs the peers' certificates; pass "
                "Tls(authority=…), or mutual=False to let anybody in"
            )
            raise TlsError(msg)
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # sessions are never resumed
        if self.mutual:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def for_dialing(self) -> ssl.SSLContext:
        """Return the context of the connections that we make.

        Raises:
            TlsError: a file is missing or of no use.
        """
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)  # checks the name of the host
        if self.authority is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self.certificate is not None:
            self._load_certificate(context)
        elif self.key is not None:
            msg = "Tls has a key but no certificate; pass both"
            raise TlsError(msg)
        if self.authority is not None:
            _check_file(self.authority, "authority")
            try:
                context.load_verify_locations(self.authority)
            except OSError as error:
                msg = f"{self.authority} holds no certificates in PEM format ({_reason(error)})"
                raise TlsError(msg) from None
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        assert self.certificate is not None
        _check_file(self.certificate, "certificate")
        key = self.certificate if self.key is None else self.key
        _check_file(key, "key")

        def refuse_password() -> NoReturn:  # OpenSSL would ask for it on the terminal
            msg = f"the key in {key} has a password; take it off, or pass an ssl.SSLContext"
            raise TlsError(msg)

        try:
            context.load_cert_chain(self.certificate, self.key, refuse_password)
        except OSError as error:
            msg = (
                f"certificate {self.certificate} and key {key} cannot be used "
                f"({_reason(error)}); both have to be in PEM format and belong together"
            )
            raise TlsError(msg) from None


def _check_file(path: "str | os.PathLike[str]", what: str) -> None:
    """Say which file cannot be read: OpenSSL does not."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        msg = f"the {what} cannot be read: {path}: {error.strerror}"
        raise TlsError(msg) from None


def dialing_context(tls: Tls | ssl.SSLContext) -> ssl.SSLContext:
    """Return the context of connections that we make.

    Raises:
        TlsError: a file is missing or of no use, or the context can only listen.
    """
    if isinstance(tls, Tls):
        return tls.for_dialing()
    if tls.protocol == ssl.PROTOCOL_TLS_SERVER:
        msg = "this ssl.SSLContext can only listen; pass it to listen(tls=…)"
        raise TlsError(msg)
    return tls


def listening_context(tls: Tls | ssl.SSLContext) -> ssl.SSLContext:
    """Return the context of a port.

    Raises:
        TlsError: a file is missing or of no use, or the context can only dial.
    """
    if isinstance(tls, Tls):
        return tls.for_listening()
    if tls.protocol == ssl.PROTOCOL_TLS_CLIENT:
        msg = "this ssl.SSLContext can only dial; pass listen(tls=…) one that can listen"
        raise TlsError(msg)
    return tls


class TlsSocket:
    """A non-blocking socket that encrypts, with the methods that a wire uses.

    OpenSSL's objects are for one thread at a time, and wires write from any: hence the lock.
    """

    def __init__(self, sock: Any, context: ssl.SSLContext, host: str | None) -> None:
        """Wrap a connected socket.

        Args:
            sock: the socket.
            context: of the port or of the node's dials.
            host: whom we dialed; None when we accepted the connection.

        Raises:
            ValueError: no certificate could be for such a host.
        """
        self.was_heard = False
        self._socket = sock
        self._lock = threading.Lock()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=host is None,
            server_hostname=None if host is None else host.partition("%")[0],
        )
        #: Encrypted bytes that the socket has not taken yet …
        self._encrypted = memoryview(b"")
        #: … and how many bytes of the next `send` they stand for.
        self._taken = 0
        self._failure: OSError | None = None
        sock.setblocking(False)  # noqa: FBT003  # its signature

    def __getattr__(self, name: str) -> Any:
        """Everything else is the socket's: options, its number."""
        return getattr(self._socket, name)

    def shake_hands(self) -> int:
        """Go on with the handshake; returns what to wait for, 0 when it is over.

        Raises:
            OSError: it failed; `strerror` says why and what to do.
        """
        with self._lock:
            try:
                data = self._receive(RECORD)
            except ConnectionResetError:  # closed without having read our first word
                data = b""
            is_over = True
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                is_over = False
            except ssl.SSLError as error:
                raise self._fail(error) from None
            is_clear = self._push()
            if is_over:
                return 0 if is_clear else selectors.EVENT_WRITE
            if data == b"":
                text = "closed by the other side during the TLS handshake; it may be full"
                raise ConnectionAbortedError(errno.ECONNABORTED, text)
            return selectors.EVENT_READ | (0 if is_clear else selectors.EVENT_WRITE)

    def send(self, data: memoryview) -> int:
        """Send as much as the socket takes.

        After less than all, the next call has to begin with the rest, as wires do.

        Raises:
            BlockingIOError: the socket is full.
            OSError: the connection broke.
        """
        with self._lock:
            if not self._push():
                raise BlockingIOError(errno.EAGAIN, "the socket is full")
            sent, self._taken = self._taken, 0
            while sent < len(data):
                chunk = data[sent : sent + CHUNK]
                try:
                    self._ssl.write(chunk)
                except ssl.SSLError as error:
                    raise self._fail(error) from None
                if not self._push():
                    self._taken = len(chunk)
                    break
                sent += len(chunk)
            if not sent and self._taken:
                raise BlockingIOError(errno.EAGAIN, "the socket is full")
            return sent

    def recv(self, size: int) -> bytes:
        """Return what one read of the socket gave, decrypted; empty at the end.

        Raises:
            BlockingIOError: no record is complete.
            OSError: the connection broke; `strerror` says why.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            data = self._receive(size)
            pieces = []
            is_at_end = data == b""
            try:
                while piece := self._ssl.read(RECORD):
                    pieces.append(piece)
                is_at_end = True  # the other side said so
            except ssl.SSLWantReadError:
                if self._outgoing.pending:  # an answer of OpenSSL's own
                    with contextlib.suppress(OSError):  # what arrived counts all the same
                        self._push()
            except ssl.SSLError as error:
                self._failure = self._fail(error)
                if not pieces:
                    raise self._failure from None
        if not pieces and not is_at_end:
            raise BlockingIOError(errno.EAGAIN, "no record is complete")
        return b"".join(pieces)

    def close(self) -> None:
        """Say that nothing follows, as far as the socket takes it, and close."""
        with self._lock, contextlib.suppress(OSError):
            if not self._encrypted:
                with contextlib.suppress(OSError):
                    self._ssl.unwrap()  # fails where it would wait for the other side
            self._push()
        self._socket.close()

    def _receive(self, size: int) -> bytes | None:
        """Read the socket once; None when there is nothing, empty at the end."""
        try:
            data: bytes = self._socket.recv(size)
        except BlockingIOError:
            return None
        if data:
            self.was_heard = True
            self._incoming.write(data)
        return data

    def _push(self) -> bool:
        """Move what OpenSSL wrote to the socket; True when it took everything."""
        if self._outgoing.pending:
            fresh = self._outgoing.read()
            self._encrypted = memoryview(bytes(self._encrypted) + fresh)
        while self._encrypted:
            try:
                count = self._socket.send(self._encrypted)
            except BlockingIOError:
                return False
            self._encrypted = self._encrypted[count:]
        return True

    def _fail(self, error: ssl.SSLError) -> OSError:
        """Tell the other side, and return the error in words."""
        with contextlib.suppress(OSError):
            self._push()
        return ConnectionAbortedError(errno.ECONNABORTED, explain(error))


class Handshake:
    """A TLS handshake under way. It ends once: done, failed, late, or cancelled."""

    def __init__(
        self, runner: "Runner", sock: TlsSocket, first_word: float, ended: Callable[[str], None]
    ) -> None:
        """Make one; `begin` starts it.

        Args:
            runner: whose selector and timers are used; all methods run with its role.
            sock: the connection; whoever made the handshake owns it.
            first_word: seconds in which the other side has to say something.
            ended: called with "" or with why it failed.
        """
        self.sock = sock
        self._runner = runner
        self._ended = ended
        self._awaited = 0
        self._timer = runner.call_later(first_word, self._listen_longer, first_word)

    def begin(self) -> None:
        """Say the first word, or wait for it."""
        self._go_on(0)

    def cancel(self) -> None:
        """Forget it: the node closes."""
        self._timer.cancel()
        if self._awaited:
            self._runner.selector.unregister(self.sock)
            self._awaited = 0

    def _go_on(self, _: int) -> None:
        try:
            awaited = self.sock.shake_hands()
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not awaited:
            self._end("")
        elif not self._awaited:
            self._runner.selector.register(self.sock, awaited, self._go_on)
        elif awaited != self._awaited:
            self._runner.selector.modify(self.sock, awaited, self._go_on)
        if self._timer.callback is not None:
            self._awaited = awaited

    def _listen_longer(self, waited: float) -> None:
        if self.sock.was_heard and waited < HANDSHAKE_LIMIT:
            rest = HANDSHAKE_LIMIT - waited
            self._timer = self._runner.call_later(rest, self._listen_longer, HANDSHAKE_LIMIT)
            return
        self._end(
            f"the TLS handshake took longer than {waited:g} s"
            if self.sock.was_heard
            else f"it said nothing for {waited:g} s; does it speak TLS?"
        )

    def _end(self, error: str) -> None:
        self.cancel()
        self._ended(error)


def explain(error: ssl.SSLError) -> str:
    """Say in one line what went wrong with a peer, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    reason = error.reason or str(error)
    for part, text in _REASONS.items():
        if part in reason:
            return f"{text} ({_reason(error)})"
    return f"TLS failed: {_reason(error)}"


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    why = error.verify_message.rstrip(".")
    if error.verify_code == _EXPIRED:
        return f"its certificate is out of date ({why}); give it another one"
    if error.verify_code in _OTHER_HOST:
        return (
            f"its certificate is for another host ({why}); dial it by a name or address that "
            "stands in the certificate"
        )
    return (
        f"its certificate is not trusted ({why}); pass the authority that signed it: "
        "Tls(authority=…)"
    )


_WANTS_CERTIFICATE: Final = (
    "it demands a certificate of its authority; pass Tls(certificate=…, key=…)"
)
_DISLIKES_CERTIFICATE: Final = (
    "it does not accept this node's certificate; use one that its authority signed"
)
_NO_TLS: Final = "it does not speak TLS; listen with tls there, or leave it out here"
_VERSION: Final = "no TLS version in common; both sides need TLS 1.2 or newer"

#: OpenSSL's names for what went wrong, and ours.
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "ALERT_CERTIFICATE_REQUIRED": _WANTS_CERTIFICATE,
    "ALERT_HANDSHAKE_FAILURE": _WANTS_CERTIFICATE,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "ALERT_UNKNOWN_CA": _DISLIKES_CERTIFICATE,
    "ALERT_BAD_CERTIFICATE": _DISLIKES_CERTIFICATE,
    "ALERT_UNSUPPORTED_CERTIFICATE": _DISLIKES_CERTIFICATE,
    "ALERT_CERTIFICATE_EXPIRED": "this node's certificate is out of date; get another one",
    "ALERT_PROTOCOL_VERSION": _VERSION,
    "UNSUPPORTED_PROTOCOL": _VERSION,
}


def _reason(error: OSError) -> str:
    """Return OpenSSL's words without its decoration."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.lower().replace("_", " ")
    return error.strerror or str(error)
