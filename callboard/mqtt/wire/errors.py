"""The errors of MQTT, below the root of all callboard errors.

CallboardError
└── MqttError
    ├── ListenError               a port cannot be opened, or its address is invalid (OSError)
    ├── JournalFailed             the directory of a router cannot be used         (OSError)
    ├── RouterClosed              the router is not running                   (RuntimeError)
    ├── LinkClosed                a client of this package is disconnected (ConnectionError)
    ├── Refused                   a router refused a packet from a client of this package
    ├── InvalidPacket             this side made a packet that must not be sent (ValueError)
    └── RemoteMqttError           the other side broke the protocol; see `reason_code`
        ├── MalformedPacket       its bytes cannot be parsed                    (ValueError)
        └── ProtocolViolation     they can be parsed, but are not allowed
"""

from callboard.kernel.errors import CallboardError
from callboard.mqtt.wire.reason_code import ReasonCode


class MqttError(CallboardError):
    """Root of the errors of MQTT."""


class ListenError(MqttError, OSError):
    """A listener cannot be opened; the text says which and why."""


class JournalFailed(MqttError, OSError):
    """The journal cannot be opened or read; the text says why."""


class RouterClosed(MqttError, RuntimeError):
    """The router has not been started, or was closed."""


class LinkClosed(MqttError, ConnectionError):
    """The link with the router is closed; the text says why."""


class Refused(MqttError):
    """The router refused a packet; `reason_code` says why."""

    def __init__(self, message: str, reason_code: int) -> None:
        super().__init__(message)
        self.reason_code = reason_code


class InvalidPacket(MqttError, ValueError):
    """A packet of this side violates the standard; nothing was sent."""


class RemoteMqttError(MqttError):
    """The other side violated the protocol: the connection ends with `reason_code`."""

    reason_code = ReasonCode.PROTOCOL_ERROR

    def __init__(self, message: str, reason_code: ReasonCode | None = None) -> None:
        super().__init__(message)
        self.reason_code = reason_code or self.reason_code


class MalformedPacket(RemoteMqttError, ValueError):
    """The bytes are not a packet of the standard."""

    reason_code = ReasonCode.MALFORMED_PACKET


class ProtocolViolation(RemoteMqttError):
    """A well-formed packet that the standard does not allow there."""
