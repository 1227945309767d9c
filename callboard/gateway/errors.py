"""Errors of gateways, under the one root of callboard.

CallboardError
└── GatewayError
    ├── MalformedMessage     the bytes are not a gateway message               (ValueError)
    ├── MalformedControl     the bytes are not a control message               (ValueError)
    ├── BrokerClosed         the module broker has ended
    ├── UnknownModule        not a module of this broker or gateway            (LookupError)
    ├── DuplicateModule      the module, or its name, exists already           (ValueError)
    ├── InvalidLink          an end of a link is unknown, or is `*` as a sink  (ValueError)
    ├── DuplicateLink        the link exists already in the gateway            (ValueError)
    ├── ModuleFailed         a module could not be created or started
    ├── PublishTimeout       a sink had no room within the timeout             (TimeoutError)
    ├── ConfigurationError   a configuration cannot be used                    (ValueError)
    ├── InvalidEntrypoint    an entrypoint cannot be found or loaded           (ValueError)
    └── InvalidArguments     the arguments of a module cannot be used          (ValueError)

A sink that is full raises `MailboxFull`, as an actor does.
"""

from collections.abc import Sequence
from typing import NoReturn

from callboard.kernel.errors import CallboardError


class GatewayError(CallboardError):
    """Root of the errors of gateways."""


class MalformedMessage(GatewayError, ValueError):
    """The bytes are not a gateway message."""


class MalformedControl(GatewayError, ValueError):
    """The bytes are not a control message."""


class BrokerClosed(GatewayError):
    """The module broker has ended; nothing can be added, linked or published."""


class UnknownModule(GatewayError, LookupError):
    """A name or handle does not belong to a module of this broker or gateway."""


class DuplicateModule(GatewayError, ValueError):
    """A module of that name, or the same object, exists already."""


class InvalidLink(GatewayError, ValueError):
    """One end of a link is not a module, or the sink is `*`."""


class DuplicateLink(GatewayError, ValueError):
    """The link exists already in the gateway."""


class ModuleFailed(GatewayError):
    """A module could not be created or started; the text says what it raised."""


class PublishTimeout(GatewayError, TimeoutError):
    """A sink had no room for a message within the timeout; the loss is counted."""


class ConfigurationError(GatewayError, ValueError):
    """A configuration cannot be used; nothing was started or changed.

    Attributes:
        lines: one for each mistake: file, path in it, value, expected value.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


class InvalidEntrypoint(GatewayError, ValueError):
    """An entrypoint cannot be found or loaded; `key` is the place in the entry."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


def invalid_entry(text: str, key: str = "") -> NoReturn:
    """Raise an error about an entrypoint."""
    raise InvalidEntrypoint(text, key)


class InvalidArguments(GatewayError, ValueError):
    """The arguments of a module cannot be used."""
