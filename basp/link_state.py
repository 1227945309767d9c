"""Where a link is in its life; the transitions are told in :mod:`basp.link`."""

from enum import Enum, auto

__all__ = ["LinkState"]


class LinkState(Enum):
    """Where a link is in its life."""

    INTRODUCING = auto()
    AWAIT_SYN = auto()
    PARKED = auto()
    AWAIT_SYN_ACK = auto()
    AWAIT_ACK = auto()
    ESTABLISHED = auto()
    CLOSED = auto()
