"""Errors of gateways, under the one root of callboard.

CallboardError
└── GatewayError
    ├── MalformedMessage     the bytes are not a message of a gateway          (ValueError)
    ├── MalformedControl     the bytes are not a control message               (ValueError)
    ├── BrokerClosed         the module broker has ended
    ├── UnknownModule        no module of this broker or gateway               (LookupError)
    ├── DuplicateModule      a module is there already, under that name too    (ValueError)
    ├── InvalidLink          an end of a link is unknown, or is `*` as a sink  (ValueError)
    ├── DuplicateLink        a gateway has that link already                   (ValueError)
    ├── ModuleFailed         a module could not be created or started
    ├── PublishTimeout       a sink had no room in the time that was given     (TimeoutError)
    ├── ConfigurationError   a configuration cannot be used                    (ValueError)
    ├── InvalidEntrypoint    an entrypoint names nothing that can be loaded    (ValueError)
    └── InvalidArguments     the arguments of a module cannot be used          (ValueError)

A sink that is full raises `MailboxFull`, as an actor does.
"""

from collections.abc import Sequence
from typing import NoReturn

from callboard.kernel.errors import CallboardError


class GatewayError(CallboardError):
    """Root of the errors of gateways."""


class MalformedMessage(GatewayError, ValueError):
    """The bytes are not a message of a gateway."""


class MalformedControl(GatewayError, ValueError):
    """The bytes are not a control message."""


class BrokerClosed(GatewayError):
    """The module broker has ended; nothing can be added, linked or published."""


class UnknownModule(GatewayError, LookupError):
    """A name or handle is not that of a module here."""


class DuplicateModule(GatewayError, ValueError):
    """A module of that name, or the same object, is there already."""


class InvalidLink(GatewayError, ValueError):
    """One end of a link is not a module, or the sink is `*`."""


class DuplicateLink(GatewayError, ValueError):
    """The gateway has that link already."""


class ModuleFailed(GatewayError):
    """A module could not be created or started; the text says what it raised."""


class PublishTimeout(GatewayError, TimeoutError):
    """A sink had no room for a message in the time that was given; the loss is counted."""


class ConfigurationError(GatewayError, ValueError):
    """A configuration cannot be used; nothing was started or changed.

    Attributes:
        lines: one for each mistake: file, path in it, value, what was expected.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


class InvalidEntrypoint(GatewayError, ValueError):
    """An entrypoint names nothing that can be loaded; `key` is the place in the entry."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


def invalid_entry(text: str, key: str = "") -> NoReturn:
    """Raise because of an entrypoint."""
    raise InvalidEntrypoint(text, key)


class InvalidArguments(GatewayError, ValueError):
    """The arguments of a module cannot be used."""
