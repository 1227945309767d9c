"""Encryption without certificates: the shared secret is the key of TLS.

A link uses TLS 1.3 with an external pre-shared key and always a fresh Diffie-Hellman exchange,
so that a secret that leaks later does not reveal recorded links. Key and identity are
HMAC-SHA256 with the secret over ``callboard TLS key`` and ``callboard TLS identity``; the
handshake of nodes inside uses other labels (:mod:`callboard.basp.handshake`). The identity
selects one of the acceptor's secrets.

A link cannot be made with a certificate instead of the key: the acceptor has no certificate,
and the dialer accepts none.
"""

import hmac
import ssl
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final, Protocol

from callboard.proxies.errors import TlsError
from callboard.tls.certificates import Certificates, Secured
from callboard.tls.contexts import SecretContext, never_resume

#: The secrets of a node or a port, with their names.
Keys = Sequence[tuple[str, bytes]]

#: True since Python 3.13, unless its OpenSSL was built without PSK.
HAS_PSK: Final[bool] = getattr(ssl, "HAS_PSK", False)


class SecretTls:
    """TLS with a secret as the key. Its methods must not run on two threads at once."""

    def __init__(self, keys: Callable[[], Keys]) -> None:
        """Encrypt with secrets.

        Args:
            keys: returns the currently accepted secrets.

        Raises:
            TlsError: this Python lacks TLS with shared keys.
        """
        if not HAS_PSK:
            version = ".".join(map(str, sys.version_info[:3]))
            msg = (
                "encrypt=True needs Python 3.13 or newer with an OpenSSL that has PSK, this is "
                f"Python {version}; use certificates instead: tls=Tls(…)"
            )
            raise TlsError(msg)
        self._keys = keys
        #: The context of accepted connections, and the secrets it was made from.
        self._listening: tuple[Keys, ssl.SSLContext] | None = None

    def listening(self) -> ssl.SSLContext:
        """Return the context for an accepted connection, which accepts any of the secrets."""
        secrets = self._keys()
        if self._listening is None or self._listening[0] != secrets:
            self._listening = secrets, _accepting(secrets)
        return self._listening[1]

    def dialing(self, key_index: int = 0) -> ssl.SSLContext:
        """Return the context for an outgoing connection, which proves one of the secrets."""
        context = SecretContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the secret identifies the peer, not a name
        # CERT_REQUIRED remains set, and there is no authority, so every certificate is refused.
        keys = self._keys()
        secret = keys[key_index % len(keys)][1]
        answer = _identity(secret), _key(secret)
        _psk(context).set_psk_client_callback(lambda _hint: answer)
        return context

    def for_key(self, key_index: int) -> "DialingKey":
        """Return the encryption of a dial that proves the secret at this index."""
        return DialingKey(self, key_index)

    def follow(self, connection: Secured, secured: Any) -> None:
        """Do nothing: the links of a withdrawn secret are ended above TLS."""


class DialingEncryption(Protocol):
    """Encryption of an outgoing connection."""

    def dialing(self) -> ssl.SSLContext:
        """Return its context."""


class DialingKey:
    """One secret of a node, used for dialing."""

    def __init__(self, tls: SecretTls, key_index: int) -> None:
        self._tls = tls
        self._key_index = key_index

    def dialing(self) -> ssl.SSLContext:
        """Return the context for an outgoing connection."""
        return self._tls.dialing(self._key_index)


#: Encryption of the links of a node or a port.
Encryption = Certificates | SecretTls


def _accepting(secrets: Keys) -> ssl.SSLContext:
    """Return a context that accepts any of some secrets."""
    context = SecretContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    never_resume(context)
    keys = {_identity(secret): _key(secret) for _, secret in secrets}
    # OpenSSL refuses an unknown identity, because no certificate can replace the key.
    _psk(context).set_psk_server_callback(lambda identity: keys.get(identity or "", b""))
    return context


def _psk(context: ssl.SSLContext) -> Any:
    """Return a context with its methods for shared keys, which type stubs of 3.11 lack."""
    return context


def _identity(secret: bytes) -> str:
    """Return the public name of a secret's key; it cannot be derived without the secret."""
    return hmac.digest(secret, b"callboard TLS identity", sha256)[:16].hex()


def _key(secret: bytes) -> bytes:
    """Return the key of TLS for a secret."""
    return hmac.digest(secret, b"callboard TLS key", sha256)
