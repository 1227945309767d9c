"""Limits of ports, and the check that a public address is protected."""

from callboard.proxies.link.limits import Limits as Limits
from callboard.proxies.link.limits import source_of as source_of
from callboard.proxies.link.ports import is_loopback as is_loopback
from callboard.proxies.link.ports import refuse_unguarded as refuse_unguarded
from callboard.proxies.link.tls_socket import HANDSHAKE_LIMIT as HANDSHAKE_LIMIT
