"""Certificates that are made for the tests."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256

from callboard import Tls


@dataclass
class Papers:
    """An authority, and files for the nodes that it knows."""

    folder: Path
    authority: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.authority.cert_pem.write_to_path(self.folder / "authority.pem")

    def issue(self, *names: str, **options) -> Path:
        path = self.folder / f"{'-'.join(names)}.pem"
        issued = self.authority.issue_cert(*names, **options)
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def tls(self, *names: str, **options) -> Tls:
        certificate = self.issue(*(names or ("127.0.0.1", "localhost")))
        return Tls(certificate, authority=self.folder / "authority.pem", **options)

    @property
    def trust(self) -> Tls:
        """For dialing only."""
        return Tls(authority=self.folder / "authority.pem")

    def revoke(self, *paths: Path, days: float = 1.0, name: str = "revoked.pem") -> Path:
        """Write the authority's list of revoked certificates; returns its file."""
        return write_list(self.authority, self.folder / name, *paths, days=days)


def write_list(authority: trustme.CA, target: Path, *paths: Path, days: float = 1.0) -> Path:
    """Write a revocation list as one step, with the first certificate of each file."""
    key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    builder = builder.last_update(now - timedelta(days=9)).next_update(
        now + timedelta(days=days)
    )
    for path in paths:
        serial = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial)
        builder = builder.add_revoked_certificate(entry.revocation_date(now).build())
    replace(target, builder.sign(key, SHA256()).public_bytes(serialization.Encoding.PEM))
    return target


def replace(path: Path, content: bytes) -> None:
    """Put another file in the place of one, in one step."""
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.rename(path)
