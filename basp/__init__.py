"""The Binary Actor System Protocol as pure machines: bytes and events in, effects out.

No sockets, no threads, no clock, no randomness: time, nonces and ids are arguments. A node
needs the names below; header constants, effects and codecs of single payloads are imported
from their modules.
"""

if __name__ != "callboard.basp":
    # With a second name every class would exist twice, and `except` and `isinstance` would not
    # recognize objects of the other copy.
    message = "import callboard.basp"
    raise ImportError(message, name=__name__)

from callboard.basp.accounting import Account, Accounts
from callboard.basp.errors import BaspError, LocalProtocolError, RemoteProtocolError
from callboard.basp.frame import Frame, FrameReader, pack_frame
from callboard.basp.handshake import LinkConfig
from callboard.basp.header import Operation
from callboard.basp.link import Link, LinkPairs
from callboard.basp.node_id import NodeId
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import MessageRegistry
from callboard.basp.routing.router import Router

__all__ = [
    "Account",
    "Accounts",
    "BaspError",
    "Frame",
    "FrameReader",
    "Link",
    "LinkConfig",
    "LinkPairs",
    "LocalProtocolError",
    "MessageRegistry",
    "NodeId",
    "Operation",
    "PayloadCodec",
    "RemoteProtocolError",
    "Router",
    "pack_frame",
]
