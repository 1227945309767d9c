"""Readers go on behind messages that their log has dropped, and are told of the loss."""

from typing import TYPE_CHECKING

from callboard.mqtt.datalog import CursorJump
from callboard.mqtt.record import Moved, Subscribed
from callboard.mqtt.session import Session
from callboard.mqtt.tracker import DataRequest

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine


def jump(machine: "RouterMachine", request: DataRequest, offset: int) -> None:
    """Go on at an offset; what was before it is gone."""
    _go_on_behind(machine, request, offset)
    _note(machine, request)


def tell_jumps(machine: "RouterMachine", session: Session) -> None:
    """Tell what logs dropped before a session read it; it would come to that later."""
    for request in (*session.requests.values(), *session.tracker.requests):
        start = request.log.start
        if request.stop is not None:
            start = min(start, request.stop)
        if start > request.offset:
            _go_on_behind(machine, request, start)


def _go_on_behind(machine: "RouterMachine", request: DataRequest, offset: int) -> None:
    """Go on behind messages that the log has dropped, and tell of them."""
    lost = offset - request.offset
    request.offset = offset
    machine.meters.lost += lost
    session = request.session
    client_id = "" if request.group is not None or session is None else session.client_id
    machine.alerts.append(CursorJump(client_id, request.log.topic_filter, lost))


def _note(machine: "RouterMachine", request: DataRequest) -> None:
    """Write down where a lasting session goes on.

    The journal may still have what was told as lost: a router that starts again would send it,
    behind what came after it.
    """
    session, subscription = request.session, request.subscription
    if session is None or not session.is_durable or not subscription.qos:
        return
    if request.group is not None or request.is_retained:
        return
    place = request.place(machine.number)
    if subscription.until is None:
        name = subscription.topic_filter
        machine.records.append(Moved(session.client_id, name, place))
    else:
        machine.records.append(Subscribed(session.client_id, subscription, place))
