"""The state of a router as plain values: what the console and `mqtt top` show.

All functions run on the router's thread.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from callboard.mqtt.config import RouterConfig
from callboard.mqtt.connection import Connection
from callboard.mqtt.datalog import DataLog
from callboard.mqtt.door import Door
from callboard.mqtt.machine import RouterMachine
from callboard.mqtt.session import Session
from callboard.mqtt.tracker import DataRequest

if TYPE_CHECKING:
    from callboard.mqtt.remote_link import RemoteLink

MOST_ITEMS: Final = 1_000
"""Clients or filters of one answer; the count is told as well."""

Table = dict[str, Any]


def router_view(machine: RouterMachine, door: Door) -> Table:
    """Return counts of the router."""
    figures = door.figures
    return {
        "connections": len(machine.connections),
        "sessions_away": len(machine.graveyard),
        "filters": len(machine.routes),
        "shared_groups": len(machine.groups),
        "retained": len(machine.retained),
        "wills_waiting": len(machine.wills),
        "ready_queue": len(machine.ready),
        "log_bytes": sum(log.weight for log in machine.routes),
        "meters": asdict(machine.meters),
        "network": {
            "open": len(door.links),
            "accepted": figures.accepted,
            "bytes_in": figures.bytes_in,
            "bytes_out": figures.bytes_out,
            "packets_in": figures.packets_in,
            "timeouts": figures.timeouts,
            "slowed": figures.slowed,
            "held": figures.held,
            "passed_over": door.holding.passed_over,
            "refusals": dict(figures.refusals),
            "ends": dict(figures.ends),
        },
    }


def devices_view(machine: RouterMachine) -> Table:
    """Return all clients that the router knows, connected or not."""
    sessions = [connection.session for connection in machine.connections.values()]
    sessions += machine.graveyard.values()
    return {
        "count": len(sessions),
        "devices": [_brief(session) for session in sessions[:MOST_ITEMS]],
    }


def _brief(session: Session) -> Table:
    connection = session.connection
    return {
        "client_id": session.client_id,
        "connected": connection is not None,
        "address": "" if connection is None else connection.link.peer,
        "status": session.tracker.status.value if connection is not None else "",
        "subscriptions": len(session.subscriptions),
        "inflight": len(session.window.inflight),
        "behind": behind(session),
        "packets_in": 0 if connection is None else connection.packets_in,
    }


def behind(session: Session) -> int:
    """Return how many messages of its filters a session has not been sent."""
    requests = set(session.requests.values()) | set(session.tracker.requests)
    return sum(max(each.log.end - each.offset, 0) for each in requests)


def device_view(machine: RouterMachine, client_id: str) -> Table | None:
    """Return all that is known of one client; None if nothing is."""
    connection = machine.connections.get(client_id)
    session = machine.graveyard.get(client_id) if connection is None else connection.session
    if session is None:
        return None
    view = _brief(session)
    view["subscriptions"] = [
        {"filter": each.topic_filter, "qos": each.qos, "no_local": each.no_local}
        for each in session.subscriptions.values()
    ]
    view["requests"] = [_request(each) for each in session.tracker.requests]
    view["history"] = [list(event) for event in session.history]
    view["session_expiry"] = session.expiry
    view["durable"] = session.is_durable
    view["awaiting_release"] = len(session.received)
    view["awaiting_completion"] = len(session.window.releasing)
    view["to_resend"] = len(session.window.resend)
    if connection is not None:
        view |= _connected(connection)
    return view


def _connected(connection: Connection) -> Table:
    will = connection.will
    return {
        "version": 5 if connection.is_v5 else 4,
        "keep_alive": connection.keep_alive,
        "acks_waiting": len(connection.acks),
        "will": None if will is None else will.topic,
        "dropped": connection.dropped,
    }


def _request(request: DataRequest) -> Table:
    return {
        "filter": request.log.topic_filter,
        "offset": request.offset,
        "end": request.log.end,
        "client_id": "" if request.session is None else request.session.client_id,
        "group": "" if request.group is None else request.group.topic_filter,
    }


def subscriptions_view(machine: RouterMachine) -> Table:
    """Return all filters that somebody reads."""
    logs = list(machine.routes)
    return {"count": len(logs), "filters": [_log(log) for log in logs[:MOST_ITEMS]]}


def _log(log: DataLog) -> Table:
    return {
        "filter": log.topic_filter,
        "readers": log.readers,
        "waiters": len(log.waiters),
        "start": log.start,
        "end": log.end,
        "segments": len(log.segments),
        "bytes": log.weight,
    }


def subscription_view(machine: RouterMachine, topic_filter: str) -> Table | None:
    """Return one filter with its readers; None if nobody reads it."""
    log = machine.routes.get(topic_filter)
    if log is None:
        return None
    readers = [
        session.client_id
        for session in _sessions(machine)
        if any(request.log is log for request in session.requests.values())
    ]
    return _log(log) | {"clients": readers[:MOST_ITEMS]}


def _sessions(machine: RouterMachine) -> list[Session]:
    connected = [connection.session for connection in machine.connections.values()]
    return [*connected, *machine.graveyard.values()]


def waiters_view(machine: RouterMachine, topic_filter: str) -> Table | None:
    """Return the requests that have read all of a filter; None if nobody reads it."""
    log = machine.routes.get(topic_filter)
    if log is None:
        return None
    waiters = list(log.waiters)
    return {"count": len(waiters), "waiters": [_request(each) for each in waiters[:MOST_ITEMS]]}


def ready_queue_view(machine: RouterMachine) -> Table:
    """Return the connections that wait to be served, in order."""
    ready = list(machine.ready)
    return {"count": len(ready), "clients": [each.client_id for each in ready[:MOST_ITEMS]]}


def slow_view(machine: RouterMachine, door: Door) -> Table:
    """Return the connected subscribers that are behind, those that are most first."""
    held = {getattr(reader, "client_id", "") for reader in door.holding.slow_readers()}
    held |= machine.brakes.laggards()
    found = []
    for connection in machine.connections.values():
        count = behind(connection.session)
        if count or connection.client_id in held or connection.dropped:
            found.append(
                {
                    "client_id": connection.client_id,
                    "behind": count,
                    "dropped": connection.dropped,
                    "unsent_bytes": connection.unsent_bytes,
                    "status": connection.session.tracker.status.value,
                    "held_others_up": connection.client_id in held,
                }
            )
    found.sort(key=lambda each: (each["dropped"], each["behind"]), reverse=True)
    return {"count": len(found), "slow": found[:MOST_ITEMS]}


def config_view(config: RouterConfig) -> Table:
    """Return what the router was configured with; nothing secret."""
    limits = asdict(config.limits)
    limits["share_strategy"] = config.limits.share_strategy.value
    return {
        "name": config.name,
        "directory": None if config.directory is None else str(config.directory),
        "listeners": [listener.address for listener in config.listeners],
        "sessions": config.sessions.value,
        "limits": limits,
        "network": asdict(config.network),
        "users": sorted({*config.security.users, *config.security.scram}),
        "methods": sorted(config.methods),
        "anonymous": config.security.anonymous,
        "acl": [asdict(entry) for entry in config.security.acl],
        "bans": list(config.security.bans.entries),
        "rules": [rule.topic_filter for rule in config.rules],
        "bridges": [bridge.address for bridge in config.bridges],
    }


def links_of(door: Door) -> "dict[str, RemoteLink]":
    """Return the connections that came over the network, by client id."""
    return {remote.client_id: remote for remote in door.links if remote.client_id}
