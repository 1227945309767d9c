"""Revocation lists: the certificates that an authority has taken back (RFC 5280).

Python's `ssl` checks lists when a connection begins. Here they are read for connections that
stand: OpenSSL says nothing of those. Only what names a certificate is decoded: its issuer and
serial number, both as they stand in the bytes.
"""

import binascii
import math
import re
import ssl
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

from callboard.support.dataclass import dataclass

#: One certificate: the issuer's name and the serial number.
CertificateId = tuple[bytes, bytes]

_LIST: Final = rb"(?s)-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----"

_INTEGER: Final = 0x02
_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17
_TIMES: Final = (_UTC_TIME, 0x18)


@dataclass(frozen=True, slots=True)
class Revocations:
    """What the lists of a file or more say.

    Attributes:
        revoked: the certificates that were taken back.
        expires: seconds since 1970 when the first of the lists is out of date.
    """

    revoked: frozenset[CertificateId] = frozenset()
    expires: float = math.inf

    def __or__(self, other: "Revocations") -> "Revocations":
        """Return what both say."""
        return Revocations(self.revoked | other.revoked, min(self.expires, other.expires))


def read_lists(text: bytes) -> Revocations:
    """Return what lists in PEM format say.

    Raises:
        ValueError: it is not a list.
    """
    found = Revocations()
    for block in re.finditer(_LIST, text):
        try:
            found |= _read_list(binascii.a2b_base64(block[1]))
        except IndexError:
            msg = "a revocation list is cut short"
            raise ValueError(msg) from None
    return found


def _read_list(data: bytes) -> Revocations:
    """Read one list (RFC 5280, section 5.1)."""
    at, _ = _enter(data, 0)
    at, end = _enter(data, at)
    if data[at] == _INTEGER:  # the version, which may be missing
        at = _after(data, at)
    at = _after(data, at)  # how it is signed
    issuer, at = data[at : _after(data, at)], _after(data, at)
    at = _after(data, at)  # when it was made
    expires = math.inf
    if at < end and data[at] in _TIMES:
        expires = _time(data, at)
        at = _after(data, at)
    serials = []
    if at < end and data[at] == _SEQUENCE:
        at, end = _enter(data, at)
        while at < end:
            if data[at + 1] < 0x80:  # by far the most, of which there may be a million
                serials.append(data[at + 4 : at + 4 + data[at + 3]])
                at += 2 + data[at + 1]
            else:
                serial, at = _enter(data, at)
                first, last = _enter(data, serial)
                serials.append(data[first:last])
    return Revocations(frozenset(zip(repeat(issuer), serials, strict=False)), expires)


_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"


def chain_of(connection: Any) -> frozenset[CertificateId]:
    """Return the verified certificates of a TLS connection's peer; none without.

    Args:
        connection: an `ssl.SSLObject` whose handshake is over.
    """
    told = connection._sslobj  # noqa: SLF001  # its methods are public from Python 3.13 on
    chain = told.get_verified_chain() or ()
    return frozenset(_id_of(ssl.PEM_cert_to_DER_cert(each.public_bytes())) for each in chain)


def _id_of(data: bytes) -> CertificateId:
    """Return issuer and serial number of a certificate (RFC 5280, section 4.1)."""
    at, _ = _enter(data, 0)
    at, _ = _enter(data, at)
    if data[at] != _INTEGER:  # the version
        at = _after(data, at)
    first, last = _enter(data, at)
    at = _after(data, last)  # how it is signed
    return data[at : _after(data, at)], data[first:last]


def expiry_of(text: str) -> float:
    """Return when the first certificate of a text in PEM ends, in seconds since 1970.

    Raises:
        ValueError: there is none.
    """
    start, end = text.find(_PEM_BEGIN), text.find(_PEM_END)
    if start < 0 or end < start:
        msg = "it holds no certificate in PEM format"
        raise ValueError(msg)
    data = ssl.PEM_cert_to_DER_cert(text[start : end + len(_PEM_END)])
    try:
        at, _ = _enter(data, 0)
        at, _ = _enter(data, at)
        for _ in range(4 if data[at] != _INTEGER else 3):  # the version, ..., who signed it
            at = _after(data, at)
        at, _ = _enter(data, at)
        return _time(data, _after(data, at))
    except (IndexError, UnicodeDecodeError):
        msg = "its certificate is malformed"
        raise ValueError(msg) from None


def _enter(data: bytes, at: int) -> tuple[int, int]:
    """Return where the contents of an element begin and end (X.690, section 8.1)."""
    size = data[at + 1]
    at += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[at : at + count], "big")
        at += count
    return at, at + size


def _after(data: bytes, at: int) -> int:
    """Return where an element ends."""
    return _enter(data, at)[1]


def _time(data: bytes, at: int) -> float:
    """Return a time in seconds since 1970."""
    first, last = _enter(data, at)
    form = "%y%m%d%H%M%SZ" if data[at] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(data[first:last].decode(), form).replace(tzinfo=UTC).timestamp()
