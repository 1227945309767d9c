"""Messages of status subscribers: changes among the peers, and errors, with their codes.

Codes, numbers and texts are those of Zeek Broker 2.8. Version 1.4 has fewer errors, with the
same numbers. Broker's Python package calls the codes `EC` and `SC`.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum, IntEnum, IntFlag
from typing import Final, Generic, Self, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

from callboard.support.dataclass import dataclass


class _Code(IntEnum):
    @property
    def text(self) -> str:
        """The name as Broker prints it: `peer_added`."""
        return re.sub(r"(?<!^)([A-Z])", r"_\1", self.name.replace("TimeOut", "Timeout")).lower()

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __eq__(self, other: object) -> bool:
        # A status and an error with the same number differ: `SC.PeerAdded` is not
        # `EC.Unspecified`, though both are 1.
        if isinstance(other, _Code) and type(other) is not type(self):
            return False
        return int.__eq__(self, other) if isinstance(other, int) else NotImplemented

    def __ne__(self, other: object) -> bool:  # int.__ne__ would not call __eq__
        return not self == other

    __hash__ = IntEnum.__hash__


class SC(_Code):
    """Code of a change among the peers."""

    Unspecified = 0
    PeerAdded = 1
    PeerRemoved = 2
    PeerLost = 3
    EndpointDiscovered = 4
    EndpointUnreachable = 5


class EC(_Code):
    """Code of an error."""

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


C = TypeVar("C", bound=_Code)

ErrorCode = EC
StatusCode = SC

#: Text in place of the id of an endpoint that was not reached yet.
INVALID_NODE = "invalid-node"


class PeerStatus(IntEnum):
    """State of a peering."""

    Initialized = 0
    Connecting = 1
    Connected = 2
    Peered = 3
    Disconnected = 4
    Reconnecting = 5
    Unknown = 6

    __str__ = Enum.__str__


class PeerFlags(IntFlag):
    """Location of a peer, and direction of the connection; remote peers have a flag of each."""

    Invalid = 0
    Local = 1
    Remote = 2
    Outbound = 4
    Inbound = 8

    __str__ = Enum.__str__


@dataclass(frozen=True, slots=True, order=True)
class NetworkInfo:
    """Address of an endpoint; `retry` is the seconds between dials, 0 for a single attempt."""

    address: str
    port: int
    retry: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class OptionalNetworkInfo:
    """Address of an endpoint, if known."""

    info: NetworkInfo | None = None

    def is_set(self) -> bool:
        """Return whether the address is known."""
        return self.info is not None

    def get(self) -> NetworkInfo:
        """Return the address.

        Raises:
            LookupError: the address is not known.
        """
        if self.info is None:
            msg = "the address of this endpoint is not known; check is_set() first"
            raise LookupError(msg)
        return self.info

    def __bool__(self) -> bool:
        return self.info is not None

    def __str__(self) -> str:
        return "none" if self.info is None else f"*{self.info}"


@dataclass(frozen=True, slots=True, repr=False)
class EndpointInfo:
    """Id and address of an endpoint; the id is empty until the endpoint was reached.

    `type` is its protocol; "native" is an endpoint of a node.
    """

    id: str = ""
    network: OptionalNetworkInfo = field(default_factory=OptionalNetworkInfo)
    type: str = field(default="native", compare=False)

    @classmethod
    def of(
        cls,
        endpoint: bytes | None,
        address: tuple[str, int] | None,
        retry: float = 0.0,
        wire: str = "native",
    ) -> Self:
        """Return the information on an endpoint with an id of 16 bytes and an address."""
        network = None if address is None else NetworkInfo(*address, retry)
        name = "" if endpoint is None else str(UUID(bytes=endpoint))
        return cls(name, OptionalNetworkInfo(network), wire)

    def node_id(self) -> str:
        """Return the id."""
        return self.id

    def __str__(self) -> str:
        return self.id or INVALID_NODE

    __repr__ = __str__  # programs of Broker build topics from repr(info)


def foreign_id(wire: str, address: tuple[str, int]) -> bytes:
    """Return 16 bytes in place of the endpoint id of a peer with a foreign protocol."""
    return uuid5(NAMESPACE_URL, f"{wire}://{address[0]}:{address[1]}").bytes


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A peer, its location, and the state of the peering."""

    peer: EndpointInfo
    flags: PeerFlags
    status: PeerStatus


_STATUS_TEXTS: Final = {
    SC.PeerAdded: "handshake successful",
    SC.PeerRemoved: "removed connection to remote peer",
    SC.PeerLost: "lost connection to remote peer",
    SC.EndpointDiscovered: "found a path to an endpoint",
    SC.EndpointUnreachable: "lost the last path to an endpoint",
}
_ERROR_TEXTS: Final = {
    EC.PeerInvalid: "cannot unpeer from unknown peer",
    EC.PeerUnavailable: "unable to connect to remote peer",
}


class _Notice(Generic[C]):
    """A code, the endpoint concerned, and a text for people."""

    __slots__ = ("_code", "_context", "_message")
    _codes: type[C]
    _texts: Mapping[C, str]

    def __init__(
        self,
        code: C | None = None,
        context: EndpointInfo | None = None,
        message: str | None = None,
    ) -> None:
        self._code: C = self._codes(0 if code is None else code)
        self._context = context
        self._message = self._texts.get(self._code, "") if message is None else message

    def code(self) -> C:
        """Return the code, which equals its number."""
        return self._code

    def context(self) -> EndpointInfo | None:
        """Return the endpoint concerned, if there is one."""
        return self._context

    def message(self) -> str:
        """Return the text for people."""
        return self._message

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Notice) or type(self) is not type(other):
            return NotImplemented
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __str__(self) -> str:
        about = []
        if self._context is not None:
            about = [str(self._context)]
            if self._context.network.is_set():
                about.append(str(self._context.network.get()))
        return f"{self._code.text}({', '.join([*about, chr(34) + self._message + chr(34)])})"

    def _facts(self) -> tuple[object, ...]:
        return type(self), self._code, self._context, self._message

    __repr__ = __str__


class Status(_Notice[SC]):
    """A change among the peers.

    >>> Status(SC.PeerAdded, EndpointInfo("A1"))
    peer_added(A1, "handshake successful")
    """

    __slots__ = ()
    _codes, _texts = SC, _STATUS_TEXTS


class Error(_Notice[EC]):
    """An error in the background, such as a failed dial; a value, not an exception.

    >>> Error(EC.PeerUnavailable)
    peer_unavailable("unable to connect to remote peer")
    """

    __slots__ = ()
    _codes, _texts = EC, _ERROR_TEXTS

    def __str__(self) -> str:
        return "none" if self._code == EC.NoError else super().__str__()

    __repr__ = __str__
