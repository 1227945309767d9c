"""Secrets, permissions and rights of peers."""

from callboard.proxies.rights.permissions import LinkAccess, Permissions, Secrets
from callboard.proxies.rights.rights import (
    CORE_NAME,
    MASTER_NAME,
    NAMED,
    TOPICS,
    Level,
    NamedRight,
    Rights,
)

__all__ = [
    "CORE_NAME",
    "Level",
    "LinkAccess",
    "MASTER_NAME",
    "NAMED",
    "NamedRight",
    "Permissions",
    "Rights",
    "Secrets",
    "TOPICS",
]
