"""Errors of flows, under the one root of callboard.

CallboardError
└── FlowError
    ├── MalformedMessage          not a ZIO message, or not one of flows         (ValueError)
    ├── LocalFlowError            this side broke a rule of the protocol         (RuntimeError)
    ├── RemoteFlowError           the other side broke one; the flow has ended
    ├── FlowRefused               the flow was not accepted; the text is the reason
    ├── FlowEnded                 EOT: the flow has ended                        (EOFError)
    ├── FlowAborted               the other side ended with a reason, or was lost
    ├── FlowTimeout               the other side did not respond in time         (TimeoutError)
    ├── FactoryDeadlock           a factory waits for its own broker             (WouldDeadlock)
    ├── InvalidRule               a rule is malformed, or names a path outside   (ValueError)
    └── RecordError               a record file is damaged or not writable       (OSError)
"""

from collections.abc import Mapping
from typing import Any

from callboard.kernel.errors import CallboardError, WouldDeadlock


class FlowError(CallboardError):
    """Root of the errors of flows."""


class MalformedMessage(FlowError, ValueError):
    """The bytes are not a ZIO message, or their label is not a flow object."""


class LocalFlowError(FlowError, RuntimeError):
    """The call is not allowed in the present state of the flow; nothing was sent."""


class RemoteFlowError(FlowError):
    """The other side broke a rule of the flow protocol; the text names the rule."""


class FlowRefused(FlowError):
    """The flow broker, its factory or the handler did not accept the flow.

    A factory raises it with the reason; the client's error has the same text.
    """


class FlowEnded(FlowError, EOFError):
    """The flow has ended with EOT; `attributes` holds its attributes."""

    def __init__(self, message: str, attributes: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.attributes = dict(attributes or {})


class FlowAborted(FlowError):
    """The flow ended with a reason: the other side failed, or was lost."""


class FlowTimeout(FlowError, TimeoutError):
    """The other side did not grant credit, send or answer in time."""


class FactoryDeadlock(FlowError, WouldDeadlock):
    """A factory must not open or answer flows, because its broker waits for it."""


class InvalidRule(FlowError, ValueError):
    """A rule is malformed, or would name a file outside of its folder."""


class RecordError(FlowError, OSError):
    """A record file cannot be read or written."""
