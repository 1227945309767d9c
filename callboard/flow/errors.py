"""Errors of flows, under the one root of callboard.

CallboardError
└── FlowError
    ├── MalformedMessage          no ZIO message, or none of flows                  (ValueError)
    ├── LocalFlowError            this side broke a rule of the protocol         (RuntimeError)
    ├── RemoteFlowError           the other side did; the flow is over
    ├── FlowRefused               no handler takes the flow; the reason is the text
    ├── FlowEnded                 EOT: nothing more comes or may be sent         (EOFError)
    ├── FlowAborted               the other side ended with a reason, or was lost
    ├── FlowTimeout               nothing came in the time that was given        (TimeoutError)
    ├── FactoryDeadlock           a factory waits for its own broker             (WouldDeadlock)
    ├── InvalidRule               a rule cannot be read, or names a path outside (ValueError)
    └── RecordError               a file of records is damaged or not writable   (OSError)
"""

from collections.abc import Mapping
from typing import Any

from callboard.kernel.errors import CallboardError, WouldDeadlock


class FlowError(CallboardError):
    """Root of the errors of flows."""


class MalformedMessage(FlowError, ValueError):
    """The bytes are not a ZIO message, or their label is not a flow object."""


class LocalFlowError(FlowError, RuntimeError):
    """This side may not do that in the state that its flow is in; nothing was sent."""


class RemoteFlowError(FlowError):
    """The other side broke a rule of the flow protocol; the text names the rule."""


class FlowRefused(FlowError):
    """The flow broker, its factory or the handler does not take the flow.

    A factory raises it to say why; a client gets it with that text.
    """


class FlowEnded(FlowError, EOFError):
    """The flow has ended with EOT; `attributes` is what the EOT carried."""

    def __init__(self, message: str, attributes: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.attributes = dict(attributes or {})


class FlowAborted(FlowError):
    """The flow ended with a reason: the other side failed, or was lost."""


class FlowTimeout(FlowError, TimeoutError):
    """The other side did not pay, send or answer in time."""


class FactoryDeadlock(FlowError, WouldDeadlock):
    """A factory may not open or answer flows: its broker could not serve them meanwhile."""


class InvalidRule(FlowError, ValueError):
    """A rule cannot be read, or would name a file outside of its folder."""


class RecordError(FlowError, OSError):
    """A file of records cannot be read or written."""
