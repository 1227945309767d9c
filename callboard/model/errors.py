"""Errors of topics and their data.

::

    actors.CallboardError
    └── EndpointError
        ├── DoorTaken                 a second door of one node to a foreign peer
        ├── UnsupportedData           (TypeError) a Python value outside the data model
        ├── InvalidOption             (TypeError, ValueError) an option with an invalid value
        ├── MalformedMessage          (ValueError) malformed bytes from another endpoint
        ├── InvalidData               (ValueError) a value or text breaks a rule of its type
        │   └── InvalidTopic          a topic or filter that is not plain text, or too long
        └── DataOverflow              (OverflowError) a number outside the range of its type
"""

from callboard.kernel.errors import CallboardError


class EndpointError(CallboardError):
    """Root of the errors of topics, data and endpoints."""


class DoorTaken(EndpointError):
    """This node has a door to that peer; a second one would return messages of the first."""


class UnsupportedData(EndpointError, TypeError):
    """The data model cannot represent this Python value."""


class InvalidData(EndpointError, ValueError):
    """A value, or the text of one, breaks a rule of its type."""


class InvalidTopic(InvalidData):
    """The text is not a valid topic or filter."""


class DataOverflow(EndpointError, OverflowError):
    """A number does not fit its type; it was not truncated or wrapped around."""


class InvalidOption(EndpointError, TypeError, ValueError):
    """An option of an endpoint has an invalid value."""


class MalformedMessage(EndpointError, ValueError):
    """Bytes of another endpoint are not a message; none of them were used."""
