"""Certificates that are made for the tests."""

from dataclasses import dataclass, field
from pathlib import Path

import trustme

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
