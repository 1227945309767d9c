"""What OpenSSL says when TLS fails, in words that tell what to do."""

import ssl
from typing import Final

_EXPIRED: Final = 10
_OTHER_HOST: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH


def explain(error: ssl.SSLError) -> str:
    """Say in one line what went wrong with a peer, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    reason = error.reason or str(error)
    for part, text in _REASONS.items():
        if part in reason:
            return f"{text} ({plain_reason(error)})"
    return f"TLS failed: {plain_reason(error)}"


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    why = error.verify_message.rstrip(".")
    if error.verify_code == _EXPIRED:
        return f"its certificate is out of date ({why}); give it another one"
    if error.verify_code in _OTHER_HOST:
        return (
            f"its certificate is for another host ({why}); dial it by a name or address that "
            "stands in the certificate"
        )
    return (
        f"its certificate is not trusted ({why}); pass the authority that signed it: "
        "Tls(authority=…)"
    )


_WANTS_CERTIFICATE: Final = (
    "it demands a certificate of its authority; pass Tls(certificate=…, key=…)"
)
_DISLIKES_CERTIFICATE: Final = (
    "it does not accept this node's certificate; use one that its authority signed"
)
_NO_TLS: Final = "it does not speak TLS; listen with tls there, or leave it out here"
_VERSION: Final = "no TLS version in common; both sides need TLS 1.2 or newer"

#: OpenSSL's names for what went wrong, and ours.
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
    "ALERT_CERTIFICATE_EXPIRED": "this node's certificate is out of date; get another one",
    "ALERT_PROTOCOL_VERSION": _VERSION,
    "UNSUPPORTED_PROTOCOL": _VERSION,
}


def plain_reason(error: OSError) -> str:
    """Return OpenSSL's words without its decoration."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.lower().replace("_", " ")
    return error.strerror or str(error)
