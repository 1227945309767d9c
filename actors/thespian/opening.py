"""Opening a system to others: what its 'Admin Port' asks for."""

import logging
from collections.abc import Collection
from importlib.metadata import entry_points
from typing import Any, Final

from thespian.actors import (
    ActorExitRequest,
    ActorSystemStartupFailure,
    PoisonMessage,
    Thespian_StatusReq,
)
from thespian.system.messages.status import Thespian_ActorStatus, Thespian_SystemStatus
from thespian.system.timing import ExpirationTimer

from actors.errors import CallboardError
from actors.thespian.neighbors import Convention, Opener

log = logging.getLogger("callboard.thespian")

OPENER_GROUP: Final = "callboard.openers"
"""The entry points, one of which opens a system."""

TRAVELING: Final = (
    ActorExitRequest,
    ExpirationTimer,
    PoisonMessage,
    Thespian_ActorStatus,
    Thespian_StatusReq,
    Thespian_SystemStatus,
)
"""Thespian's own messages that other systems may send."""


def open_convention(
    capabilities: dict[str, Any], messages: Collection[str]
) -> Convention | None:
    """Open the port of a system that has one.

    Raises:
        ActorSystemStartupFailure: it cannot be opened.
    """
    if capabilities.get("Admin Port") is None:
        return None
    # Found by its name in the installed package: this room knows no other one.
    for entry in entry_points(group=OPENER_GROUP):
        opener: Opener = entry.load()
        break
    else:
        log.warning("the 'Admin Port' is not opened: install callboard, not only its sources")
        return None
    try:
        return opener(capabilities, messages, TRAVELING)
    except (OSError, CallboardError) as error:
        msg = f"'Admin Port' {capabilities['Admin Port']} cannot be opened: {error}"
        raise ActorSystemStartupFailure(msg) from error
