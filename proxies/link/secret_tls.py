"""Encryption without certificates: the shared secret is the key of TLS.

A link is TLS 1.3 with an external pre-shared key, always together with a fresh Diffie-Hellman
exchange, so that a secret that leaks later opens no recorded link. Key and identity are
HMAC-SHA256 with the secret over ``callboard TLS key`` and ``callboard TLS identity``; the
handshake of nodes inside uses other labels (:mod:`callboard.basp.handshake`). The identity
tells the acceptor which of its secrets is meant.

Only such a key opens a link: the acceptor has no certificate, and the dialer trusts none.
"""

import hmac
import ssl
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final, Protocol

from callboard.proxies.errors import TlsError
from callboard.proxies.link.certificates import Certificates, Secured
from callboard.proxies.link.tls import SecretContext, never_resume

#: The secrets of a node or a port, with their names.
Keys = Sequence[tuple[str, bytes]]

#: Since Python 3.13, unless its OpenSSL was built without.
HAS_PSK: Final[bool] = getattr(ssl, "HAS_PSK", False)


class SecretTls:
    """TLS of a door whose key is a secret. Its methods are for one thread at a time."""

    def __init__(self, keys: Callable[[], Keys]) -> None:
        """Encrypt with secrets.

        Args:
            keys: returns the secrets that are accepted at this moment.

        Raises:
            TlsError: this Python has no TLS with shared keys.
        """
        if not HAS_PSK:
            version = ".".join(map(str, sys.version_info[:3]))
            msg = (
                "encrypt=True needs Python 3.13 or newer with an OpenSSL that has PSK, this is "
                f"Python {version}; use certificates instead: tls=Tls(…)"
            )
            raise TlsError(msg)
        self._keys = keys
        #: The context of accepted connections, and the secrets that it was made of.
        self._listening: tuple[Keys, ssl.SSLContext] | None = None

    def listening(self) -> ssl.SSLContext:
        """Return the context for a connection that was accepted: it accepts each secret."""
        secrets = self._keys()
        if self._listening is None or self._listening[0] != secrets:
            self._listening = secrets, _accepting(secrets)
        return self._listening[1]

    def dialing(self, key_index: int = 0) -> ssl.SSLContext:
        """Return the context for a connection that we make: it proves one of the secrets."""
        context = SecretContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the peer is known by the secret, not by a name
        # CERT_REQUIRED stays, without an authority: who shows a certificate is refused.
        keys = self._keys()
        secret = keys[key_index % len(keys)][1]
        answer = _identity(secret), _key(secret)
        _psk(context).set_psk_client_callback(lambda _hint: answer)
        return context

    def for_key(self, key_index: int) -> "DialingKey":
        """Return what secures a dial that proves the secret at this index."""
        return DialingKey(self, key_index)

    def follow(self, connection: Secured, secured: Any) -> None:
        """Do nothing: a secret that was taken back ends its links above TLS."""


class DialingEncryption(Protocol):
    """What encrypts a connection that we make."""

    def dialing(self) -> ssl.SSLContext:
        """Return the context for it."""


class DialingKey:
    """One secret of a node, with which it dials."""

    def __init__(self, tls: SecretTls, key_index: int) -> None:
        self._tls = tls
        self._key_index = key_index

    def dialing(self) -> ssl.SSLContext:
        """Return the context for a connection that we make."""
        return self._tls.dialing(self._key_index)


#: What encrypts the links of a node or a port.
Encryption = Certificates | SecretTls


def _accepting(secrets: Keys) -> ssl.SSLContext:
    """Return a context that accepts each of some secrets."""
    context = SecretContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    never_resume(context)
    keys = {_identity(secret): _key(secret) for _, secret in secrets}
    # OpenSSL refuses who names no key that is here: there is no certificate to go on with.
    _psk(context).set_psk_server_callback(lambda identity: keys.get(identity or "", b""))
    return context


def _psk(context: ssl.SSLContext) -> Any:
    """Return a context with its methods for shared keys, which type stubs of 3.11 lack."""
    return context


def _identity(secret: bytes) -> str:
    """Return the name of a key on the wire: whoever knows the secret knows it, and no other."""
    return hmac.digest(secret, b"callboard TLS identity", sha256)[:16].hex()


def _key(secret: bytes) -> bytes:
    """Return the key of TLS for a secret."""
    return hmac.digest(secret, b"callboard TLS key", sha256)
