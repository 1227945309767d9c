"""What can go wrong with MQTT, under callboard's one root.

CallboardError
└── MqttError
    ├── ListenError               a port cannot be opened, or its address is none  (OSError)
    ├── JournalFailed             the directory of a router is of no use        (OSError)
    ├── RouterClosed              the router does not run                    (RuntimeError)
    ├── LinkClosed                a client of ours is not connected any more (ConnectionError)
    ├── Refused                   a router did not take what a client of ours sent
    ├── InvalidPacket             this side made a packet that may not be sent   (ValueError)
    └── RemoteMqttError           the other side broke a rule; `reason_code` says which
        ├── MalformedPacket       its bytes cannot be read                       (ValueError)
        └── ProtocolViolation     they can be read, and are not allowed
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
    """The link with the router is over; the text says why."""


class Refused(MqttError):
    """The router said no; `reason_code` says why."""

    def __init__(self, message: str, reason_code: int) -> None:
        super().__init__(message)
        self.reason_code = reason_code


class InvalidPacket(MqttError, ValueError):
    """A packet of ours breaks a rule of the standard; nothing was sent."""


class RemoteMqttError(MqttError):
    """The other side broke a rule: the connection ends with `reason_code`."""

    reason_code = ReasonCode.PROTOCOL_ERROR

    def __init__(self, message: str, reason_code: ReasonCode | None = None) -> None:
        super().__init__(message)
        self.reason_code = reason_code or self.reason_code


class MalformedPacket(RemoteMqttError, ValueError):
    """The bytes are no packet of the standard."""

    reason_code = ReasonCode.MALFORMED_PACKET


class ProtocolViolation(RemoteMqttError):
    """A packet that can be read says what the standard does not allow there."""
