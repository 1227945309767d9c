"""Revocation lists: the certificates that an authority has revoked (RFC 5280).

Python's `ssl` checks lists only when a connection starts, and OpenSSL does not recheck
established connections. This module reads the lists for those, with `cryptography`. That is
imported when the first list or certificate is read: most nodes have no lists, and it takes a
tenth of the time in which a node starts.
"""

import binascii
import math
import re
import ssl
from collections.abc import Iterable
from typing import Any, Final

from callboard.support.dataclass import dataclass

#: A certificate: the issuer's name in DER, and the serial number.
CertificateId = tuple[bytes, int]

_LIST: Final = rb"(?s)-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class Revocations:
    """The content of one or more lists.

    Attributes:
        revoked: the issuer of each list, and the serial numbers that it revokes.
        expires: time, in seconds since 1970, at which the first list expires.
    """

    revoked: tuple[tuple[bytes, frozenset[int]], ...] = ()
    expires: float = math.inf

    def __or__(self, other: "Revocations") -> "Revocations":
        """Return the union of two contents."""
        return Revocations(self.revoked + other.revoked, min(self.expires, other.expires))

    def has_any_of(self, chain: Iterable[CertificateId]) -> bool:
        """Return whether a certificate of a chain is revoked."""
        return any(
            issuer == authority and serial in serials
            for issuer, serial in chain
            for authority, serials in self.revoked
        )


def read_lists(text: bytes) -> Revocations:
    """Return the content of lists in PEM format.

    Raises:
        ValueError: the content is not a list in PEM format.
    """
    revocations = Revocations()
    for block in re.finditer(_LIST, text):
        revocations |= _read_list(binascii.a2b_base64(block[1]))
    return revocations


def _read_list(data: bytes) -> Revocations:
    """Read one list (RFC 5280, section 5.1)."""
    from cryptography import x509

    try:
        revoked_list = x509.load_der_x509_crl(data)
        issuer, expires = revoked_list.issuer.public_bytes(), revoked_list.next_update_utc
        serials = frozenset(entry.serial_number for entry in revoked_list)
    except (ValueError, x509.InvalidVersion) as error:
        msg = f"a revocation list is truncated or malformed: {error}"
        raise ValueError(msg) from None
    expiry = math.inf if expires is None else expires.timestamp()
    return Revocations(((issuer, serials),), expiry)


_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"


def chain_of(connection: Any) -> frozenset[CertificateId]:
    """Return the verified certificates of a TLS connection's peer, if any.

    Args:
        connection: an `ssl.SSLObject` whose handshake is over.
    """
    ssl_object = connection._sslobj  # noqa: SLF001  # its methods are public from Python 3.13 on
    chain = ssl_object.get_verified_chain() or ()
    return frozenset(
        _id_of(ssl.PEM_cert_to_DER_cert(certificate.public_bytes())) for certificate in chain
    )


def _id_of(data: bytes) -> CertificateId:
    """Return issuer and serial number of a certificate (RFC 5280, section 4.1)."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(data)
    return certificate.issuer.public_bytes(), certificate.serial_number


def expiry_of(text: str) -> float:
    """Return the expiry of the first PEM certificate in a text, in seconds since 1970.

    Raises:
        ValueError: the text has no certificate.
    """
    start, end = text.find(_PEM_BEGIN), text.find(_PEM_END)
    if start < 0 or end < start:
        msg = "the file contains no certificate in PEM format"
        raise ValueError(msg)
    from cryptography import x509

    try:
        data = ssl.PEM_cert_to_DER_cert(text[start : end + len(_PEM_END)])
        return x509.load_der_x509_certificate(data).not_valid_after_utc.timestamp()
    except (ValueError, x509.InvalidVersion):
        msg = "the certificate in the file is malformed"
        raise ValueError(msg) from None
