"""What can go wrong with topics and their data.

::

    actors.CallboardError
    └── EndpointError
        ├── DoorTaken                 a second door of one node to a foreign peer
        ├── UnsupportedData           (TypeError) a Python value outside the data model
        ├── InvalidOption             (TypeError, ValueError) an option that means nothing
        ├── MalformedMessage          (ValueError) bytes of another endpoint that are no message
        ├── InvalidData               (ValueError) a value or text against the rules of its type
        │   └── InvalidTopic          a topic or filter that is no plain text, or too long
        └── DataOverflow              (OverflowError) a number outside the range of its type
"""

from callboard.kernel.errors import CallboardError


class EndpointError(CallboardError):
    """Root of what topics, data and endpoints raise."""


class DoorTaken(EndpointError):
    """This node has a door to that foreign peer; a message would come back through another."""


class UnsupportedData(EndpointError, TypeError):
    """The data model has no type for this Python value."""


class InvalidData(EndpointError, ValueError):
    """A value, or the text of one, breaks a rule of its type."""


class InvalidTopic(InvalidData):
    """The text cannot be a topic."""


class DataOverflow(EndpointError, OverflowError):
    """A number does not fit its type; nothing was cut off or wrapped around."""


class InvalidOption(EndpointError, TypeError, ValueError):
    """An option of an endpoint has an invalid value."""


class MalformedMessage(EndpointError, ValueError):
    """Bytes of another endpoint are not a message; none of them were used."""
