"""A socket with TLS, for streams.

The decrypted bytes are the same BASP as on a plain connection. OpenSSL reads and writes only
memory, and this class moves the bytes between that memory and the socket. This has three
advantages: no decrypted bytes remain in OpenSSL unnoticed by the selector, one read of the
socket can return many records, and OpenSSL never waits for a direction that the selector does
not watch.
"""

import contextlib
import errno
import selectors
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from callboard import locks
from callboard.actors.runner import contention
from callboard.actors.runner.runner import ConnectionOwner, Runner
from callboard.basp.foreign import FIRST_BYTES, OURS, wire_of
from callboard.proxies.link.secret_tls import Encryption
from callboard.support.text import describe
from callboard.tls.certificates import Secured
from callboard.tls.contexts import SecretContext, explain

#: Bytes encrypted at once: four records, which limits the data that is in memory twice.
CHUNK: Final = 65536

#: Parts of a certificate that name its owner, as Python's `ssl` calls them.
NAME_KINDS: Final = frozenset({"commonName", "DNS", "URI", "IP Address"})

#: Bytes of the largest TLS record, the most that one call decrypts.
RECORD: Final = 16384


class TlsSocket:
    """A non-blocking socket with TLS, with the methods that a stream uses.

    A lock protects OpenSSL's objects, which must not be used by two threads at once: any thread
    may write to a stream.
    """

    def __init__(self, sock: Any, context: ssl.SSLContext, host: str | None) -> None:
        """Wrap a connected socket.

        Args:
            sock: the socket.
            context: the TLS context of the port, or of the node's dials.
            host: the name that was dialed; None on an accepted connection.

        Raises:
            ValueError: no certificate could be for such a host.
        """
        self.was_heard = False
        #: The first bytes of a dialed peer: they may belong to another protocol.
        self._first = b""
        self._is_dialer = host is not None
        #: Whether the peer does not speak TLS, or no version or cipher that this side accepts.
        self.is_unfit = False
        #: Whether the peer sent nothing in time, like a node without TLS.
        self.is_silent = False
        self._socket = sock
        self._lock = locks.lock("TLS socket", 730)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=host is None,
            server_hostname=None if host is None else host.partition("%")[0],
        )
        #: Encrypted bytes that the socket has not accepted yet.
        self._encrypted = memoryview(b"")
        #: Number of bytes of the next `send` that are already encrypted in `_encrypted`.
        self._taken = 0
        self._failure: OSError | None = None
        #: Whether the key of TLS is the shared secret.
        self._is_by_secret = isinstance(context, SecretContext)
        self._is_secured = False
        self._is_shut = False
        sock.setblocking(False)  # noqa: FBT003  # its signature

    def __getattr__(self, name: str) -> Any:
        """Forward other attributes to the socket: options, its number."""
        return getattr(self._socket, name)

    def names(self) -> tuple[str, ...]:
        """Return the names in the peer's verified certificate; none without one.

        The subject's common names come first, then the alternative names: DNS, URI and IP.
        Names with unprintable characters are skipped.
        """
        certificate = self._ssl.getpeercert() or {}  # empty if it was not verified
        subject: Any = certificate.get("subject", ())
        pairs = [(kind, name) for part in subject for kind, name in part]
        pairs += cast("Any", certificate.get("subjectAltName", ()))
        names = [name for kind, name in pairs if kind in NAME_KINDS and name.isprintable()]
        return tuple(dict.fromkeys(names))

    def channel(self) -> bytes:
        """Return bytes that identify this connection, if its peer is proven.

        The proof is a verified certificate, or the shared secret as the key of TLS. The bytes
        are the client's `Finished` message, which depends on the whole handshake and its keys.
        Both ends of a connection have the same bytes. An attacker who relays between two
        connections has different bytes on each of them.
        """
        is_proven = (
            # True only with a pre-shared key, because no session tickets are issued.
            self._ssl.session_reused
            if self._is_by_secret
            else bool(self._ssl.getpeercert())  # empty if it was not verified
        )
        return (self._ssl.get_channel_binding("tls-unique") or b"") if is_proven else b""

    def follow(self, encryption: Encryption, connection: Secured) -> None:
        """End the connection on this socket when its peer's certificate is revoked."""
        encryption.follow(connection, self._ssl)

    def shake_hands(self) -> int:
        """Continue the handshake; return the events to wait for, 0 when it is over.

        Raises:
            OSError: the handshake failed; `strerror` has the reason and a remedy.
        """
        with self._lock:
            try:
                data = self._receive(RECORD)
            except ConnectionResetError:  # the peer closed before it read our first bytes
                data = b""
            is_over = True
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                is_over = False
            except ssl.SSLError as error:
                raise self._fail(error) from None
            self._is_secured = is_over
            is_clear = self._push()
            if is_over:
                return 0 if is_clear else selectors.EVENT_WRITE
            if data == b"":
                text = "closed by the other side during the TLS handshake; it may be full"
                raise ConnectionAbortedError(errno.ECONNABORTED, text)
            return selectors.EVENT_READ | (0 if is_clear else selectors.EVENT_WRITE)

    def send(self, data: bytes | memoryview) -> int:
        """Send as much as the socket accepts.

        After a partial send, the next call must start with the rest, as streams do.

        Raises:
            BlockingIOError: the socket is full.
            OSError: the connection broke.
        """
        # A nested call on the same thread is treated as if the socket were full.
        if locks.is_owned(self._lock):
            raise BlockingIOError(errno.EAGAIN, "the socket is in use by this thread")
        with self._lock:
            if not self._push():
                raise BlockingIOError(errno.EAGAIN, "the socket is full")
            offset, self._taken = self._taken, 0
            view = memoryview(data)
            while offset < len(view):
                chunk = view[offset : offset + CHUNK]
                try:
                    self._ssl.write(chunk)
                except ssl.SSLError as error:
                    raise self._fail(error) from None
                if not self._push():
                    self._taken = len(chunk)
                    break
                offset += len(chunk)
            if not offset and self._taken:
                raise BlockingIOError(errno.EAGAIN, "the socket is full")
            return offset

    def recv(self, size: int) -> bytes:
        """Return the decrypted bytes of one read of the socket; empty at the end.

        After `shutdown`, input is not decrypted, because the stream ignores it.

        Raises:
            BlockingIOError: no record is complete.
            OSError: the connection broke; `strerror` says why.
        """
        if self._is_shut:
            return contention.receive(self._socket, size)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            data = self._receive(size)
            pieces = []
            is_at_end = data == b""
            try:
                # Each call releases the interpreter's lock, so it is made only if it returns
                # data.
                while self._incoming.pending or self._ssl.pending():
                    piece = self._ssl.read(RECORD)
                    if not piece:
                        is_at_end = True  # the peer announced the end
                        break
                    pieces.append(piece)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self._failure = self._fail(error)
                if not pieces:
                    raise self._failure from None
            if self._outgoing.pending:  # an alert or other answer of OpenSSL
                with contextlib.suppress(OSError):  # the received data is returned anyway
                    self._push()
        if not pieces and not is_at_end:
            raise BlockingIOError(errno.EAGAIN, "no record is complete")
        return b"".join(pieces)

    def shutdown(self, direction: int) -> None:
        """Announce the end if the socket accepts it, and close for writing."""
        with self._lock:
            if not self._is_shut:
                self._is_shut = True
                with contextlib.suppress(OSError):
                    if not self._encrypted:
                        with contextlib.suppress(OSError):
                            self._ssl.unwrap()  # raises if it would wait for the peer
                    self._push()
            self._socket.shutdown(direction)

    def close(self) -> None:
        """Announce the end if the socket accepts it, and close."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_WR)
        self._socket.close()

    def _receive(self, size: int) -> bytes | None:
        """Read the socket once; None if there is nothing, empty at the end."""
        try:
            data = contention.receive(self._socket, size)
        except BlockingIOError:
            return None
        if data:
            if self._is_dialer and not self.was_heard:
                self._first = data[:FIRST_BYTES]
            self.was_heard = True
            self._incoming.write(data)
        return data

    def _push(self) -> bool:
        """Send OpenSSL's output on the socket; return whether the socket accepted all of it."""
        if self._outgoing.pending:
            fresh = self._outgoing.read()
            self._encrypted = memoryview(bytes(self._encrypted) + fresh)
        while self._encrypted:
            try:
                count = contention.send(self._socket, self._encrypted)
            except BlockingIOError:
                return False
            self._encrypted = self._encrypted[count:]
        return True

    def _fail(self, error: ssl.SSLError) -> OSError:
        """Send OpenSSL's alert to the peer, and return the error with a readable text."""
        self.is_unfit = True
        with contextlib.suppress(OSError):
            self._push()
        wire = wire_of(self._first)
        is_other = wire not in ("", OURS, "TLS")
        text = (
            f"the peer speaks {wire}, without TLS"
            if is_other
            else explain(error, by_secret=self._is_by_secret and not self._is_secured)
        )
        return ConnectionAbortedError(errno.ECONNABORTED, text)


#: Seconds for a TLS handshake; a plain one has the same limit.
HANDSHAKE_LIMIT: Final = 10.0

#: Seconds for a dialer to send its first bytes.
#:
#: TLS clients speak first, nodes without TLS never do, so both sides would wait endlessly. This
#: limit ends the wait soon.
FIRST_WORD_LIMIT: Final = 2.0


class Handshake(ConnectionOwner):
    """A TLS handshake in progress, which ends once: done, failed, late, or cancelled."""

    def __init__(
        self, runner: Runner, sock: TlsSocket, first_word: float, ended: Callable[[str], None]
    ) -> None:
        """Create a handshake; `begin` starts it.

        Args:
            runner: provides the selector and the timers; all methods run with its role.
            sock: the connection; the creator of the handshake owns it.
            first_word: seconds within which the peer has to send its first bytes.
            ended: called with "" or with the error.
        """
        self.sock = sock
        self._runner = runner
        self._ended = ended
        self._awaited = 0
        self._timer = runner.call_later(first_word, self._listen_longer, first_word)

    def begin(self) -> None:
        """Send the first bytes, or wait for them."""
        self._continue(0)

    def abandon(self) -> None:
        """End the handshake and its connection without calling back."""
        self.cancel()
        self.sock.close()

    def cancel(self) -> None:
        """Forget the handshake: the node closes."""
        self._timer.cancel()
        self._runner.watch(self.sock, self._awaited, 0, self._continue)
        self._awaited = 0

    def _continue(self, _: int) -> None:
        """Continue the handshake, and poll for the events it needs."""
        try:
            awaited = self.sock.shake_hands()
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not awaited:
            self._end("")
        else:
            self._runner.watch(self.sock, self._awaited, awaited, self._continue)
        if self._timer.callback is not None:
            self._awaited = awaited

    def broken(self, error: BaseException) -> None:
        """End with an error of this node."""
        self._end(f"an error of this node: {describe(error)}")

    def _listen_longer(self, waited: float) -> None:
        """Allow more time if the peer has sent bytes; otherwise end the handshake."""
        if self.sock.was_heard and waited < HANDSHAKE_LIMIT:
            rest = HANDSHAKE_LIMIT - waited
            self._timer = self._runner.call_later(rest, self._listen_longer, HANDSHAKE_LIMIT)
            return
        self.sock.is_silent = not self.sock.was_heard
        self._end(
            f"the TLS handshake took longer than {waited:g} s"
            if self.sock.was_heard
            else f"it sent nothing for {waited:g} s; does it speak TLS?"
        )

    def _end(self, error: str) -> None:
        """End the handshake, with an error or without."""
        self.cancel()
        self._ended(error)
