"""The short way of packets that one client publishes and one other reads, as they came.

Where each client has a topic of its own, most messages have one reader, who has read all before
them and takes the very bytes that the publisher sent. `forwarding` would come to the same later
in the turn, but going through a run, the log, its waiters and the ready queue for a single
message costs more than all the rest of its way through the router. So packets that are plain
in every respect go to such a reader at once; all others take the long way.
"""

from typing import TYPE_CHECKING, Final

from callboard.mqtt.connection import Connection
from callboard.mqtt.routes import Route
from callboard.mqtt.tracker import Status

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

_CAUGHT_UP: Final = Status.CAUGHT_UP


def pass_through(
    machine: "RouterMachine",
    publisher: Connection,
    route: Route,
    topic: bytes,
    packets: bytes,
    count: int,
) -> bool:
    """Send plain packets with QoS 0 on; returns False, having done nothing, if it cannot be."""
    log = route.logs[0]
    if len(log.waiters) != 1 or log.readers != 1 or log.is_swollen:
        return False
    (request,) = log.waiters
    session = request.session
    if session is None:  # of a shared subscription, whose turns are the group's affair
        return False
    reader = session.connection
    if reader is None or session.tracker.status is not _CAUGHT_UP:
        return False
    subscription, limits = request.subscription, machine.limits
    size = len(packets)
    if (
        reader.is_v5 != publisher.is_v5
        or reader.alias_maximum
        or reader.largest is not None
        or subscription.identifier
        or (subscription.no_local and reader is publisher)
        or reader.unsent + count > limits.delivery_quota
        or reader.unsent_bytes + size > limits.delivery_bytes
        or (reader.access is not None and not reader.may_receive(topic))
    ):
        return False
    if not reader.out:
        machine.touch(reader)
    reader.out.append(packets)
    reader.unsent += count
    reader.unsent_bytes += size
    log.pass_by(count, (packets, size // count, reader.is_v5))
    request.offset = log.end
    machine.number += count
    meters = machine.meters
    meters.published += count
    meters.published_bytes += size
    meters.delivered += count
    return True
