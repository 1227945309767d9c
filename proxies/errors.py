"""Errors of the network side, under callboard's one root.

CallboardError
├── LinkError                     no link came of a connection: secrets, versions or
│                                 applications differ, or bytes broke a rule (NodeUnreachable)
├── NotSerializable               a message cannot be sent to another node     (TypeError)
├── DuplicateMessageType          a message name belongs to another class      (TypeError)
├── MessageVersion                a message of another release cannot be read  (TypeError)
├── UnknownMessageType            a message of a type unknown to the receiver  (TypeError)
├── MessageTooLarge               a message is larger than a frame may be      (ValueError)
├── NotPermitted                  a peer's rights do not include a request     (PermissionError)
├── LinkFull                      too many bytes wait to be sent to a node     (BufferError)
├── NoMembers                     a group has no members in reach              (LookupError)
├── PublicAddress                 a public port without a secret or TLS        (ValueError)
├── PortUnavailable               the address or port cannot be listened at    (OSError)
├── TlsError                      a certificate, key or authority is invalid   (ValueError)
└── WorkerFailed                  a worker process did not start, or ended
"""

from callboard.actors.errors import CallboardError, NodeUnreachable
from callboard.tls.contexts import TlsError as TlsError


class LinkError(NodeUnreachable):
    """A node answers but refuses a link; `__cause__` is the protocol's own error."""


class NotSerializable(CallboardError, TypeError):
    """A message to another node contains something that cannot be serialized."""


class DuplicateMessageType(CallboardError, TypeError):
    """Another class is registered under that message name."""


class MessageVersion(CallboardError, TypeError):
    """The receiver's enum lacks a member, or its class needs a field that was not sent."""


class UnknownMessageType(CallboardError, TypeError):
    """The receiver has not registered the type of a message; import its module on that node."""


class MessageTooLarge(CallboardError, ValueError):
    """A message for another node is larger than one frame may be; send it in parts."""


class NotPermitted(CallboardError, PermissionError):
    """The rights of this node at a peer do not include a request; the text names the right."""


class LinkFull(CallboardError, BufferError):
    """A peer does not read as fast as this node sends; send less, or wait for answers."""


class NoMembers(CallboardError, LookupError):
    """The group has no members known to this node."""


class PublicAddress(CallboardError, ValueError):
    """Any machine could reach this port; set a secret or TLS, or pass `insecure=True`."""


class PortUnavailable(CallboardError, OSError):
    """The port is used by another program, or the address is not an address of this machine."""


class WorkerFailed(CallboardError):
    """A worker process did not start in time, or ended; the text has the reason."""
