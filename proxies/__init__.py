"""Remote actors as local ones: nodes, links between them, proxies, names, remote spawn."""

if __name__ != "callboard.proxies":
    # Under a second name every class would exist twice, and neither would know the other's.
    what = "import callboard.proxies"
    raise ImportError(what, name=__name__)

from callboard.proxies.errors import (
    DuplicateMessageType,
    LinkError,
    LinkFull,
    MessageTooLarge,
    MessageVersion,
    NoMembers,
    NotSerializable,
    PublicAddress,
    TlsError,
    UnknownMessageType,
    WorkerFailed,
)
from callboard.proxies.messages import message
from callboard.proxies.node import Node

__all__ = [
    "DuplicateMessageType",
    "LinkError",
    "LinkFull",
    "MessageTooLarge",
    "MessageVersion",
    "NoMembers",
    "Node",
    "NotSerializable",
    "PublicAddress",
    "TlsError",
    "UnknownMessageType",
    "WorkerFailed",
    "message",
]
