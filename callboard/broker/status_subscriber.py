"""Status subscribers: what becomes of peers, as values in a queue."""

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from callboard.broker.subscriber import QueueReader
from callboard.endpoint import (
    EC,
    SC,
    EndpointInfo,
    Error,
    NetworkInfo,
    OptionalNetworkInfo,
    Status,
)
from callboard.endpoint.core_effect import PeerEvent, PeerEventKind
from callboard.endpoint.message_queue import MessageQueue

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

__all__ = ["StatusSubscriber", "notice_of"]

_STATUSES: Final = {
    PeerEventKind.PEER_DISCOVERED: SC.EndpointDiscovered,
    PeerEventKind.PEER_CONNECTED: SC.PeerAdded,
    PeerEventKind.PEER_DISCONNECTED: SC.PeerLost,
    PeerEventKind.PEER_REMOVED: SC.PeerRemoved,
    PeerEventKind.PEER_UNREACHABLE: SC.EndpointUnreachable,
}
_ERRORS: Final = {
    PeerEventKind.CANNOT_REMOVE_PEER: EC.PeerInvalid,
    PeerEventKind.PEER_UNAVAILABLE: EC.PeerUnavailable,
}


def notice_of(event: PeerEvent) -> Status | Error:
    """Return what users are told of a peer event: Broker's code, and its text."""
    network = None if event.address is None else NetworkInfo(*event.address)
    name = "" if event.endpoint is None else str(uuid.UUID(bytes=event.endpoint))
    context = EndpointInfo(name, OptionalNetworkInfo(network))
    status = _STATUSES.get(event.kind)
    if status is not None:
        return Status(status, context)
    return Error(_ERRORS[event.kind], context)


class StatusSubscriber(QueueReader[Status | Error]):
    """Errors, and where it was asked for, changes among the peers. Made by an endpoint."""

    def __init__(
        self, hub: "Hub", closed: Callable[[Any], object], *, receive_statuses: bool
    ) -> None:
        """Use `Endpoint.make_status_subscriber`."""
        super().__init__(MessageQueue())
        self._hub = hub
        self._closed_told = closed
        self._takes_statuses = receive_statuses
        hub.on_peer_event(self._told)

    def _told(self, event: PeerEvent) -> None:
        notice = notice_of(event)
        if self._takes_statuses or isinstance(notice, Error):
            self._queue.take([notice])

    def _detach(self) -> None:
        self._hub.off_peer_event(self._told)
        self._closed_told(self)
