"""The Binary Actor System Protocol, pure: bytes and events in, effects out.

No sockets, no threads, no clock, no randomness: time, nonces and ids are arguments. The names
below are the ones a node needs; header constants, effects and codecs of single
payloads are imported from their modules.
"""

from basp.accounting import Account, Accounts
from basp.errors import BaspError, LocalProtocolError, RemoteProtocolError
from basp.frame import Frame, FrameReader, pack_frame
from basp.handshake import LinkConfig
from basp.header import Operation
from basp.link import Link
from basp.link_pairs import LinkPairs
from basp.node_id import NodeId
from basp.payload import PayloadCodec
from basp.registry import MessageRegistry
from basp.routing import Router

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
