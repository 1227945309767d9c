"""TLS: renewed certificates, limits of ports, and addresses that need a guard."""

from callboard.proxies.link.certificates import LOOK_INTERVAL, Certificates, TlsSource
from callboard.proxies.link.limits import Limits, source_of
from callboard.proxies.link.ports import is_loopback, refuse_unguarded
from callboard.proxies.link.revocation import expiry_of
from callboard.proxies.link.tls import Tls, load_lists, never_resume, read_file
from callboard.proxies.link.tls_socket import HANDSHAKE_LIMIT

__all__ = [
    "Certificates",
    "HANDSHAKE_LIMIT",
    "LOOK_INTERVAL",
    "Limits",
    "Tls",
    "TlsSource",
    "expiry_of",
    "is_loopback",
    "load_lists",
    "never_resume",
    "read_file",
    "refuse_unguarded",
    "source_of",
]
