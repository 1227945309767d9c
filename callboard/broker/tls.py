"""TLS as in Broker: encryption without certificates, or authentication of both sides.

Without certificates both sides agree on a secret key, but neither authenticates the other: an
attacker between them can read everything. With a certificate authority (`openssl_cafile` or
`openssl_capath`) both sides present a certificate signed by it. Names in certificates are not
compared with host names; only the signature counts.
"""

import ssl
from typing import Final

from callboard.broker.options import Configuration
from callboard.kernel.errors import TlsError
from callboard.support.dataclass import dataclass
from callboard.tls.contexts import load_lists, never_resume

#: Elliptic-curve Diffie-Hellman without certificates, as in Broker; TLS 1.3 lacks such a suite.
_ANONYMOUS: Final = "AECDH-AES256-SHA:@SECLEVEL=0"


@dataclass(frozen=True, slots=True)
class BrokerTls:
    """TLS of an endpoint, for `Node(tls=…)`, which reloads changed files."""

    configuration: Configuration

    @classmethod
    def of(cls, configuration: Configuration) -> "BrokerTls | None":
        """Return the TLS of a configuration; None for plain connections."""
        return None if configuration.options.disable_ssl else cls(configuration)

    def for_listening(self) -> ssl.SSLContext:
        """Return the context for ports.

        Raises:
            TlsError: a file is missing or unusable.
        """
        return _context(self.configuration, listens=True)

    def for_dialing(self) -> ssl.SSLContext:
        """Return the context for dialed connections.

        Raises:
            TlsError: a file is missing or unusable.
        """
        return _context(self.configuration, listens=False)

    def lists(self) -> tuple[str, ...]:
        """Return the file of revocation lists."""
        configuration = self.configuration
        return (configuration.openssl_crlfile,) if configuration.openssl_crlfile else ()

    def files(self) -> tuple[str, ...]:
        """Return the certificate files, and the folder of authorities."""
        configuration = self.configuration
        paths = (
            configuration.openssl_certificate,
            configuration.openssl_key,
            configuration.openssl_cafile,
        )
        return tuple(filter(None, (*paths, configuration.openssl_capath, *self.lists())))


def _context(configuration: Configuration, *, listens: bool) -> ssl.SSLContext:
    """Return the context for ports, or for dialed connections."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if listens:
        never_resume(context)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if configuration.openssl_certificate:
        _load_certificate(context, configuration)
    elif configuration.openssl_key:
        msg = "openssl_key is set but openssl_certificate is not; set both"
        raise TlsError(msg)
    if configuration.has_certificates:
        if not configuration.openssl_certificate:
            msg = (
                "openssl_cafile or openssl_capath requires a certificate of both sides; set "
                "openssl_certificate and openssl_key as well"
            )
            raise TlsError(msg)
        if configuration.openssl_crlfile:
            load_lists(context, (configuration.openssl_crlfile,))
        _load_authority(context, configuration)
    elif not configuration.openssl_certificate:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_ANONYMOUS)
    return context


def _load_certificate(context: ssl.SSLContext, configuration: Configuration) -> None:
    certificate, key = configuration.openssl_certificate, configuration.openssl_key

    def password() -> str:  # without this function OpenSSL would prompt for it
        if not configuration.openssl_passphrase:
            msg = f"the key {key or certificate} has a password; set openssl_passphrase"
            raise TlsError(msg)
        return configuration.openssl_passphrase

    try:
        context.load_cert_chain(certificate, key or None, password)
    except OSError as error:
        msg = (
            f"certificate {certificate} and key {key or certificate} cannot be used ({error}); "
            "both must be in PEM format and match, and the passphrase must fit the key"
        )
        raise TlsError(msg) from None


def _load_authority(context: ssl.SSLContext, configuration: Configuration) -> None:
    file, folder = configuration.openssl_cafile, configuration.openssl_capath
    try:
        context.load_verify_locations(file or None, folder or None)
    except OSError as error:
        msg = f"{file or folder} contains no certificates in PEM format ({error})"
        raise TlsError(msg) from None
    context.verify_mode = ssl.CERT_REQUIRED
