"""Revocation lists: the certificates that an authority has revoked (RFC 5280).

Python's `ssl` checks lists only when a connection starts, and OpenSSL does not recheck
established connections. This module reads the lists for those. It decodes only the identity of
a certificate: issuer and serial number, both as raw bytes.

`cryptography` would read a list of 200,000 certificates in 0.1 s instead of 0.3, but takes
16 MB, and a node that revokes certificates would not start without it.
"""

import binascii
import math
import re
import ssl
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

from callboard.support.dataclass import dataclass

#: A certificate: the issuer's name and the serial number.
CertificateId = tuple[bytes, bytes]

_LIST: Final = rb"(?s)-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----"

_INTEGER: Final = 0x02
_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17
_TIMES: Final = (_UTC_TIME, 0x18)


@dataclass(frozen=True, slots=True)
class Revocations:
    """The content of one or more lists.

    Attributes:
        revoked: the revoked certificates.
        expires: time, in seconds since 1970, at which the first list expires.
    """

    revoked: frozenset[CertificateId] = frozenset()
    expires: float = math.inf

    def __or__(self, other: "Revocations") -> "Revocations":
        """Return the union of two contents."""
        return Revocations(self.revoked | other.revoked, min(self.expires, other.expires))


def read_lists(text: bytes) -> Revocations:
    """Return the content of lists in PEM format.

    Raises:
        ValueError: the content is not a list in PEM format.
    """
    revocations = Revocations()
    for block in re.finditer(_LIST, text):
        try:
            revocations |= _read_list(binascii.a2b_base64(block[1]))
        except IndexError:
            msg = "a revocation list is truncated"
            raise ValueError(msg) from None
    return revocations


def _read_list(data: bytes) -> Revocations:
    """Read one list (RFC 5280, section 5.1)."""
    offset, _ = _enter(data, 0)
    offset, end = _enter(data, offset)
    if data[offset] == _INTEGER:  # the version, which may be missing
        offset = _after(data, offset)
    offset = _after(data, offset)  # the signature algorithm
    issuer, offset = data[offset : _after(data, offset)], _after(data, offset)
    offset = _after(data, offset)  # the issue date
    expires = math.inf
    if offset < end and data[offset] in _TIMES:
        expires = _time(data, offset)
        offset = _after(data, offset)
    serials = []
    if offset < end and data[offset] == _SEQUENCE:
        offset, end = _enter(data, offset)
        while offset < end:
            if data[offset + 1] < 0x80:  # the usual case, as there may be a million
                serials.append(data[offset + 4 : offset + 4 + data[offset + 3]])
                offset += 2 + data[offset + 1]
            else:
                serial, offset = _enter(data, offset)
                first, last = _enter(data, serial)
                serials.append(data[first:last])
    return Revocations(frozenset(zip(repeat(issuer), serials, strict=False)), expires)


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
    offset, _ = _enter(data, 0)
    offset, _ = _enter(data, offset)
    if data[offset] != _INTEGER:  # the version
        offset = _after(data, offset)
    first, last = _enter(data, offset)
    offset = _after(data, last)  # the signature algorithm
    return data[offset : _after(data, offset)], data[first:last]


def expiry_of(text: str) -> float:
    """Return the expiry of the first PEM certificate in a text, in seconds since 1970.

    Raises:
        ValueError: the text has no certificate.
    """
    start, end = text.find(_PEM_BEGIN), text.find(_PEM_END)
    if start < 0 or end < start:
        msg = "the file contains no certificate in PEM format"
        raise ValueError(msg)
    data = ssl.PEM_cert_to_DER_cert(text[start : end + len(_PEM_END)])
    try:
        offset, _ = _enter(data, 0)
        offset, _ = _enter(data, offset)
        for _ in range(4 if data[offset] != _INTEGER else 3):  # the version up to the issuer
            offset = _after(data, offset)
        offset, _ = _enter(data, offset)
        return _time(data, _after(data, offset))
    except (IndexError, UnicodeDecodeError):
        msg = "its certificate is malformed"
        raise ValueError(msg) from None


def _enter(data: bytes, offset: int) -> tuple[int, int]:
    """Return start and end of an element's contents (X.690, section 8.1)."""
    size = data[offset + 1]
    offset += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[offset : offset + count], "big")
        offset += count
    return offset, offset + size


def _after(data: bytes, offset: int) -> int:
    """Return the end of an element."""
    return _enter(data, offset)[1]


def _time(data: bytes, offset: int) -> float:
    """Return a time in seconds since 1970."""
    first, last = _enter(data, offset)
    form = "%y%m%d%H%M%SZ" if data[offset] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(data[first:last].decode(), form).replace(tzinfo=UTC).timestamp()
