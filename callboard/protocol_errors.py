"""Errors of the protocol, split by the side at fault.

::

    BaspError
    ├── LocalProtocolError            our side requested something the protocol forbids
    │   ├── NotSerializable           (TypeError) a value without a wire form
    │   ├── DuplicateMessageType      a name registered for two different classes
    │   └── InvalidNodeId             (ValueError) text or facts that are not a node id
    └── RemoteProtocolError           bytes from a peer broke a rule: close that link
        ├── MalformedFrame            header fields that contradict the operation
        ├── PayloadTooLarge           announced length over the limit
        ├── OutOfMemory               (MemoryError) no memory for the peer's data
        ├── UnknownOperation          operation number that no release assigned
        │   └── SpeaksTls             the first bytes of TLS
        ├── MalformedPayload          payload that does not fit its operation
        │   ├── MessageVersion        a field without default is missing: fail the ask
        │   ├── MessageRefused        the constructor of a registered type raised
        │   ├── UnknownMessageType    a type name that is not registered here
        │   ├── PayloadTooHeavy       more containers and scalars than a message may hold
        │   └── CollidingKeys         keys of a map or set chosen to have the same hash
        ├── MalformedHandshake        handshake out of order or with bad fields
        ├── IncompatibleVersion       protocol version below the one we need
        │   └── NotSealed             the release of the peer does not seal its links
        ├── IncompatibleApplication   no application id in common
        ├── AuthenticationFailed      missing or wrong proof of the shared secret
        ├── BrokenSeal                a batch that is not the next one the peer sent
        ├── AlreadyLinked             another connection with the peer exists: not a failure
        └── LinkLost                  (ConnectionError) the connection was lost
            └── PeerSilent            (TimeoutError) the peer was silent for too long

Bytes of a peer raise only :class:`RemoteProtocolError`; anything else is a defect of
this package. Errors below ``MalformedPayload`` concern one message, most often between nodes of
different releases: its link stays healthy.
"""


class BaspError(Exception):
    """Root of the errors of this package."""


class LocalProtocolError(BaspError):
    """Our own side broke a rule; nothing was sent."""


class NotSerializable(LocalProtocolError, TypeError):
    """A value has no wire form; the message names its type and its path."""


class DuplicateMessageType(LocalProtocolError):
    """A message name is already taken by a different class."""


class InvalidNodeId(LocalProtocolError, ValueError):
    """Text, bytes or facts do not make a node id."""


class RemoteProtocolError(BaspError):
    """Bytes of a peer broke a rule of the protocol."""


class MalformedFrame(RemoteProtocolError):
    """Header fields contradict the operation."""


class PayloadTooLarge(RemoteProtocolError):
    """The announced payload length is over the limit; nothing was allocated."""


class OutOfMemory(RemoteProtocolError, MemoryError):
    """The peer's data does not fit into memory: its link ends, and it may link again."""


class UnknownOperation(RemoteProtocolError):
    """The operation number is not one of the protocol's."""


class SpeaksTls(UnknownOperation):
    """The peer sent the start of a TLS handshake in place of a frame."""


class MalformedPayload(RemoteProtocolError):
    """A payload does not have the form that its operation requires."""


class MessageVersion(MalformedPayload):
    """A message lacks a field that has no default here, or names an unknown member."""


class MessageRefused(MalformedPayload):
    """The constructor of a registered type refused the fields of a message."""


class UnknownMessageType(MalformedPayload):
    """A message has a type name that is not registered on this node."""


class PayloadTooHeavy(MalformedPayload):
    """A message has more containers and scalars than allowed; decoding would take too long."""


class CollidingKeys(MalformedPayload):
    """Too many keys of a map, or elements of a set, have the same hash."""


class MalformedHandshake(RemoteProtocolError):
    """A handshake frame is out of order, too large, or has bad fields."""


class ConnectedToItself(MalformedHandshake):
    """Both ends of a connection are the same node."""


class IncompatibleVersion(RemoteProtocolError):
    """The peer speaks a protocol version that this release does not."""


class NotSealed(IncompatibleVersion):
    """The peer's release proves a secret, but does not seal the link with it."""


class IncompatibleApplication(RemoteProtocolError):
    """The peer shares no application id with this node."""


class AuthenticationFailed(RemoteProtocolError):
    """The peer did not prove that it knows the shared secret."""


class BrokenSeal(RemoteProtocolError):
    """Bytes of a sealed link were not written by the peer, or not as the next ones."""


class AlreadyLinked(RemoteProtocolError):
    """A connection is redundant: another one with the same peer exists or is being made."""


class LinkLost(RemoteProtocolError, ConnectionError):
    """The connection to a peer ended without a word from either side."""


class PeerSilent(LinkLost, TimeoutError):
    """A peer sent nothing for longer than the heartbeats or the handshake allow."""
