"""TLS of a node: certificates from files, and the contexts made from them."""

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from callboard.base_error import CallboardError
from callboard.support.dataclass import dataclass
from callboard.support.files.user_file import read_user_file

FilePath = str | os.PathLike[str]


class TlsError(CallboardError, ValueError):
    """A certificate, key or authority cannot be used."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a node for TLS, all of them in PEM format.

    They are read again when they change; if the new ones are invalid, the old ones stay in use.

    Attributes:
        certificate: our own certificate, and those between it and the authority. Needed to
            listen, and to dial nodes that demand one.
        key: its private key, without a password; None if it is in the same file.
        authority: certificates of the authorities for peers; None uses the system's.
        mutual: whether dialing peers must show a certificate of the authority too.
        revoked: revocation lists, in one file or several: a valid one of each authority in the
            chain of a peer's certificate. None revokes no certificate.
    """

    certificate: FilePath | None = None
    key: FilePath | None = None
    authority: FilePath | None = None
    mutual: bool = True
    revoked: FilePath | Sequence[FilePath] | None = None

    @classmethod
    def of_folder(cls, folder: Path) -> "Tls":
        """Return the files of a folder.

        They are `authority.pem` and, if present, `certificate.pem`, `key.pem` and
        `revoked.pem`.
        """
        authority, certificate, key, revoked = (
            folder / f"{name}.pem" for name in ("authority", "certificate", "key", "revoked")
        )
        lists = revoked if revoked.exists() else None
        if not certificate.exists():
            return cls(authority=authority, revoked=lists)
        key_file = key if key.exists() else None
        return cls(certificate, key_file, authority=authority, revoked=lists)

    def lists(self) -> tuple[FilePath, ...]:
        """Return the files of revocation lists."""
        if self.revoked is None:
            return ()
        if isinstance(self.revoked, str | os.PathLike):
            return (self.revoked,)
        return tuple(self.revoked)

    def files(self) -> tuple[FilePath, ...]:
        """Return all files."""
        named = (self.certificate, self.key, self.authority)
        return (*(path for path in named if path is not None), *self.lists())

    def for_listening(self) -> ssl.SSLContext:
        """Return the context of a port.

        Raises:
            TlsError: a file is missing or unusable.
        """
        if self.certificate is None:
            msg = "listening with TLS needs a certificate; pass Tls(certificate=…, key=…)"
            raise TlsError(msg)
        if self.mutual and self.authority is None:
            msg = (
                "mutual TLS needs the authority that signs the peers' certificates; pass "
                "Tls(authority=…), or mutual=False to accept any peer"
            )
            raise TlsError(msg)
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        never_resume(context)
        if self.mutual:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def for_dialing(self) -> ssl.SSLContext:
        """Return the context of outgoing connections.

        Raises:
            TlsError: a file is missing or unusable.
        """
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)  # checks the name of the host
        if self.authority is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        """Return a context with our certificate and authority."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self.certificate is not None:
            self._load_certificate(context)
        elif self.key is not None:
            msg = "Tls has a key but no certificate; pass both"
            raise TlsError(msg)
        load_lists(context, self.lists())
        if self.authority is not None:
            _load(context, self.authority, "authority", "certificates")
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        """Load our certificate and its key."""
        assert self.certificate is not None
        read_file(self.certificate, "certificate")
        key = self.certificate if self.key is None else self.key
        read_file(key, "key")

        def refuse_password() -> NoReturn:  # OpenSSL would ask for it on the terminal
            msg = f"the key in {key} has a password; remove it, or pass an ssl.SSLContext"
            raise TlsError(msg)

        try:
            context.load_cert_chain(self.certificate, self.key, refuse_password)
        except OSError as error:
            msg = (
                f"certificate {self.certificate} and key {key} cannot be used "
                f"({plain_reason(error)}); both have to be in PEM format and belong together"
            )
            raise TlsError(msg) from None


class SecretContext(ssl.SSLContext):
    """A context whose links are opened by a shared secret only."""


def never_resume(context: ssl.SSLContext) -> None:
    """Disable resumption, so that each connection shows its certificate, revoked or not."""
    context.num_tickets = 0  # TLS 1.3
    context.options |= ssl.OP_NO_TICKET  # TLS 1.2


def load_lists(context: ssl.SSLContext, paths: Sequence[FilePath]) -> None:
    """Add revocation lists to a context without trusted certificates.

    Raises:
        TlsError: a file is missing, or holds anything but lists.
    """
    for path in paths:
        _load(context, path, "revocation list", "revocation lists")
    if paths:
        # OpenSSL would trust a certificate in the same file.
        if context.cert_store_stats()["x509"]:
            msg = f"{paths[0]}: a file of revocation lists may not hold certificates"
            raise TlsError(msg)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN


def _load(context: ssl.SSLContext, path: FilePath, label: str, contents: str) -> None:
    """Load trusted certificates, or revocation lists."""
    read_file(path, label)
    try:
        context.load_verify_locations(path)
    except OSError as error:
        msg = f"{path} contains no {contents} in PEM format ({plain_reason(error)})"
        raise TlsError(msg) from None


def read_file(path: FilePath, label: str) -> bytes:
    """Return the content of a file of the owner's choice, following links.

    Raises:
        TlsError: the file cannot be read, or is a pipe or a device, which might block.
    """
    try:
        return read_user_file(path)
    except OSError as error:
        msg = f"the {label} cannot be read: {path}: {error.strerror}"
        raise TlsError(msg) from None


def fixed_context(context: ssl.SSLContext, *, listens: bool) -> ssl.SSLContext:
    """Return a context of the user.

    Raises:
        TlsError: the context is for the other direction.
    """
    unfit, step = (
        (ssl.PROTOCOL_TLS_CLIENT, "can only dial; pass listen(tls=…) one that can listen")
        if listens
        else (ssl.PROTOCOL_TLS_SERVER, "can only listen; pass it to listen(tls=…)")
    )
    if context.protocol == unfit:
        msg = f"this ssl.SSLContext {step}"
        raise TlsError(msg)
    return context


_EXPIRED: Final = 10

#: OpenSSL's X509_V_ERR codes about revocation lists.
_REVOCATION: Final = {
    3: "its authority has no list in Tls(revoked=…); add one of each authority of its chain",
    8: "a list in Tls(revoked=…) is not signed by the authority that it names",
    11: "the revocation list of its authority is not valid yet; see the clock of this machine",
    12: "the revocation list of its authority is out of date; replace it",
    23: "its certificate was revoked; give it another one",
}
#: Codes that say nothing about the certificate: the lists are unusable.
UNCHECKED: Final = frozenset(_REVOCATION) - {23}
_OTHER_HOST: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH


def explain(error: ssl.SSLError, *, by_secret: bool = False) -> str:
    """Return in one line why TLS with a peer failed, with a remedy.

    Args:
        error: the error from OpenSSL.
        by_secret: whether the shared secret is the key of TLS.
    """
    if by_secret and not any(part in (error.reason or "") for part in _NOT_OF_THE_SECRET):
        return (
            "the shared secrets differ, or one side encrypts with certificates; set the same "
            f"secret, and encrypt=True, on both nodes ({plain_reason(error)})"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    reason = error.reason or str(error)
    for part, text in _REASONS.items():
        if part in reason:
            return f"{text} ({plain_reason(error)})"
    return f"TLS failed: {plain_reason(error)}"


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    """Return why a certificate was refused, with a remedy."""
    reason = error.verify_message.rstrip(".")
    if error.verify_code == _EXPIRED:
        return f"its certificate is out of date ({reason}); give it another one"
    if error.verify_code in _REVOCATION:
        return f"{_REVOCATION[error.verify_code]} ({reason})"
    if error.verify_code in _OTHER_HOST:
        return (
            f"its certificate is for another host ({reason}); dial it by a name or "
            "address in the certificate"
        )
    return (
        f"its certificate is not trusted ({reason}); pass the authority that "
        "signed it: Tls(authority=…)"
    )


_WANTS_CERTIFICATE: Final = (
    "it demands a certificate of its authority; pass Tls(certificate=…, key=…)"
)
_DISLIKES_CERTIFICATE: Final = (
    "it does not accept this node's certificate; use one that its authority signed"
)
_NO_TLS: Final = "it does not speak TLS; listen with tls there, or leave it out here"
_VERSION: Final = "no TLS version in common; both sides need TLS 1.2 or newer"

#: OpenSSL's names of errors, and our texts.
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
    "ALERT_CERTIFICATE_REVOKED": "this node's certificate was revoked; get another one",
    "ALERT_CERTIFICATE_EXPIRED": (
        "this node's certificate is out of date, or the revocation list there; replace it"
    ),
    "ALERT_PROTOCOL_VERSION": _VERSION,
    "UNSUPPORTED_PROTOCOL": _VERSION,
}


#: Errors that are explained alike with a shared secret and with certificates.
_NOT_OF_THE_SECRET: Final = (
    *("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"),
    *("ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"),
)


def plain_reason(error: OSError) -> str:
    """Return OpenSSL's reason in plain words."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.lower().replace("_", " ")
    return error.strerror or str(error)
