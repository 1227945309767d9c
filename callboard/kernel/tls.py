"""TLS: renewed certificates, limits of ports, and addresses that need a guard."""

from callboard.proxies.link.certificates import (
    CERTIFICATE_POLL_SECONDS as CERTIFICATE_POLL_SECONDS,
)
from callboard.proxies.link.certificates import Certificates as Certificates
from callboard.proxies.link.certificates import TlsSource as TlsSource
from callboard.proxies.link.limits import Limits as Limits
from callboard.proxies.link.limits import source_of as source_of
from callboard.proxies.link.ports import is_loopback as is_loopback
from callboard.proxies.link.ports import refuse_unguarded as refuse_unguarded
from callboard.proxies.link.revocation import expiry_of as expiry_of
from callboard.proxies.link.tls import Tls as Tls
from callboard.proxies.link.tls import load_lists as load_lists
from callboard.proxies.link.tls import never_resume as never_resume
from callboard.proxies.link.tls import read_file as read_file
from callboard.proxies.link.tls_socket import HANDSHAKE_LIMIT as HANDSHAKE_LIMIT
