"""Codes of statuses and errors, with the numbers and texts that Broker gives them.

Codes and texts: Zeek Broker 2.8; version 1.4 has the same numbers for the errors that it
names. Its Python package knows them as `EC` and `SC`.
"""

import re
from enum import IntEnum

__all__ = ["EC", "SC", "ErrorCode", "StatusCode"]


class _Code(IntEnum):
    @property
    def text(self) -> str:
        """The name as Broker prints it: `peer_added`."""
        return re.sub(r"(?<!^)([A-Z])", r"_\1", self.name.replace("TimeOut", "Timeout")).lower()

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __eq__(self, other: object) -> bool:
        # A status and an error may have the same number: they are not the same for that.
        if isinstance(other, _Code) and type(other) is not type(self):
            return False
        return int.__eq__(self, other) if isinstance(other, int) else NotImplemented

    def __ne__(self, other: object) -> bool:  # int has its own, which would not ask the above
        return not self == other

    __hash__ = IntEnum.__hash__


class SC(_Code):
    """What changed in the network of peers."""

    Unspecified = 0
    PeerAdded = 1
    PeerRemoved = 2
    PeerLost = 3
    EndpointDiscovered = 4
    EndpointUnreachable = 5


class EC(_Code):
    """What went wrong."""

    NoError = 0
    Unspecified = 1
    PeerIncompatible = 2
    PeerInvalid = 3
    PeerUnavailable = 4
    PeerDisconnectDuringHandshake = 5
    PeerTimeout = 6
    MasterExists = 7
    NoSuchMaster = 8
    NoSuchKey = 9
    RequestTimeOut = 10
    TypeClash = 11
    InvalidData = 12
    BackendFailure = 13
    StaleData = 14
    CannotOpenFile = 15
    CannotWriteFile = 16
    InvalidTopicKey = 17
    EndOfFile = 18
    InvalidTag = 19
    InvalidMessage = 20
    InvalidStatus = 21
    ConversionFailed = 22
    ConsumerExists = 23
    ConnectionTimeout = 24
    BadMemberFunctionCall = 25
    RepeatedRequestId = 26
    BrokenClone = 27
    ShuttingDown = 28
    InvalidPeeringRequest = 29
    RepeatedPeeringHandshakeRequest = 30
    UnexpectedHandshakeMessage = 31
    InvalidHandshakeState = 32
    NoPathToPeer = 33
    NoConnectorAvailable = 34
    CannotOpenResource = 35
    SerializationFailed = 36
    DeserializationFailed = 37
    WrongMagicNumber = 38
    RedundantConnection = 39
    LogicError = 40
    InvalidJson = 41

    @property
    def text(self) -> str:
        """The name as Broker prints it: `peer_invalid`."""
        return "none" if self is EC.NoError else super().text


ErrorCode = EC
StatusCode = SC
