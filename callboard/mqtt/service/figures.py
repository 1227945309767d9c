"""The router's figures: for Prometheus, the console, and as `$SYS` topics.

`$SYS` topics are retained messages, with the topic names of mosquitto. All functions run on the
router's thread.
"""

import asyncio
import math
import resource
from collections.abc import Callable, Sequence
from dataclasses import InitVar
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import Any, Final, NamedTuple

from callboard.figures import (
    Figure,
    FigureRow,
    Metric,
    ProcessFigures,
    Samples,
    by_label,
    figures_of,
    metrics_of,
    process_metrics,
    values_of,
)
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.port.remote_link import ClientConnections
from callboard.mqtt.router.effects import Meters
from callboard.mqtt.router.link import RouterMailbox
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.session import Session
from callboard.mqtt.service.bridge import BridgeConnection
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.errors import LinkClosed, RouterClosed
from callboard.support.dataclass import dataclass
from callboard.support.platform.system import resident_bytes

CLIENT_ID: Final = "$sys"
#: Wildcards, which are not allowed in a topic name.
_NO_WILDCARDS: Final = str.maketrans("+#", "__")
ROOT: Final = "$SYS/broker"
_PREFIX: Final = "callboard_mqtt_"


class RouterState(NamedTuple):
    """The source of the figures."""

    machine: RouterMachine
    connections: ClientConnections
    bridges: Sequence[BridgeConnection] = ()


def behind(session: Session) -> int:
    """Return how many messages of its filters a session has not been sent."""
    return sum(max(r.log.end - r.offset, 0) for r in set(session.all_requests))


def backlog(machine: RouterMachine, client_id: str) -> int:
    """Return how many messages wait in the logs for a client; 0 for an unknown one."""
    session = machine.sessions.get(client_id)
    return 0 if session is None else behind(session)


def _of_bridges(attribute: str) -> Callable[[RouterState], Samples]:
    """Return a function that reads an attribute of each bridge."""
    read = attrgetter(attribute)
    return lambda s: [((("bridge", b.settings.client_id),), read(b)) for b in s.bridges]


_BRIDGES: Final[tuple[FigureRow[RouterState], ...]] = tuple(
    (f"bridge_{name}", text, _of_bridges(attribute))
    for name, attribute, text in (
        ("connected", "is_connected", "whether a bridge is connected: 1 or 0"),
        ("waiting", "waiting", "messages for a bridge's broker that it has not acknowledged"),
        ("sent_total", "figures.sent", "messages to a bridge's broker, without resent ones"),
        ("received_total", "figures.received", "messages from a bridge's broker"),
        ("dropped_total", "figures.dropped", "messages that a bridge's broker cannot accept"),
        ("refused_total", "figures.refused", "messages and filters that were refused"),
        ("lost_total", "figures.lost", "messages with QoS 0 without a connection"),
    )
)


def _of_meter(name: str, text: str) -> Figure[RouterState]:
    return Figure(f"{_PREFIX}{name}_total", text, f"machine.meters.{name}")


def _of_network(name: str, text: str) -> Figure[RouterState]:
    return Figure(f"{_PREFIX}{name}_total", text, f"connections.figures.{name}")


_GAUGES: Final[tuple[FigureRow[RouterState], ...]] = (
    ("connections", "clients now", lambda s: len(s.machine.sessions.connections)),
    (
        "sessions_away",
        "sessions of absent clients",
        lambda s: len(s.machine.sessions.graveyard),
    ),
    (
        "sessions_in_doubt",
        "copies of sessions that their routers have not given up yet",
        lambda s: len(s.machine.sessions.adopted),
    ),
    ("filters", "filters with readers", lambda s: len(s.machine.logs)),
    ("retained", "retained messages", lambda s: len(s.machine.logs.retained)),
    ("retained_bytes", "bytes in memory of retained messages", "machine.logs.retained.weight"),
    ("session_bytes", "bytes in memory of sessions, without messages", "machine.effects.held"),
    ("ready_queue", "clients to be served", lambda s: len(s.machine.delivery.ready)),
    (
        "log_bytes",
        "bytes of messages in memory",
        lambda s: sum(e.weight for e in s.machine.logs),
    ),
)
_METRICS: Final[tuple[Figure[RouterState], ...]] = (
    _of_meter("connects", "clients that got a session"),
    _of_meter("published", "messages from clients and wills"),
    _of_meter("published_bytes", "bytes of packets with messages from clients"),
    _of_meter("delivered", "messages to subscribers, each one counted"),
    _of_meter("refused", "messages that clients were not allowed to publish"),
    _of_meter("expired", "messages that were not sent because they had expired"),
    _of_meter("too_large", "messages that were not sent because the client limits packets"),
    _of_meter("lost", "messages that a log dropped before a subscriber had read them"),
    _of_meter("braked", "waits of publishers for slow readers with QoS 1 or 2"),
    _of_meter("passed_over", "slow readers with QoS 1 or 2 that made no progress for too long"),
    _of_meter("taken_over", "sessions whose client connected a second time"),
    _of_meter("adopted", "sessions that came from other routers of the cluster"),
    _of_meter("handed_over", "sessions that went to other routers"),
    _of_meter("violations", "connections that ended because the client violated the protocol"),
    _of_meter("wills", "wills that were published"),
    _of_meter("not_retained", "messages that could not be retained within the limits"),
    _of_meter("over_quota", "subscriptions, sessions and wills that exceeded the limits"),
    _of_meter("crowded_out", "sessions that ended: unread messages used too much memory"),
    *figures_of(_PREFIX, _GAUGES),
    _of_network("bytes_in", "bytes from clients"),
    _of_network("bytes_out", "bytes to clients"),
    _of_network("timeouts", "clients that were silent for too long"),
    _of_network("held", "waits of publishers for slow readers"),
    _of_network("certificates_replaced", "reloads of changed TLS files"),
    _of_network("certificates_refused", "reloads of changed TLS files that failed"),
    Figure(
        f"{_PREFIX}refusals_total",
        "refused clients, by reason",
        lambda s: by_label("reason", dict(sorted(s.connections.figures.refusals.items()))),
    ),
    *figures_of(_PREFIX, _BRIDGES),
)


@dataclass(eq=False)
class RunningRouter:
    """A router among the figures of its process.

    Attributes:
        name: the name of the router.
        address: its first address.
        state: the source of the figures.
    """

    name: str
    address: str
    state: RouterState


#: The routers of this process, for `/metrics` of its nodes. Read on any thread.
RUNNING: Final[ProcessFigures[RunningRouter]] = ProcessFigures(
    _METRICS,
    lambda router: (
        (("router", router.name), ("listener", router.address)),
        router.state,
    ),
    RouterClosed,
)


def router_metrics(state: RouterState) -> list[Metric]:
    """Return the metrics of a router that have samples."""
    return [metric for metric in metrics_of(_METRICS, state) if metric.samples]


def router_view(state: RouterState) -> dict[str, Any]:
    """Return the counts for the console."""
    machine, connections = state.machine, state.connections
    meters, figures = machine.meters, connections.figures
    network = {name: getattr(figures, name) for name in figures.__slots__}
    return {
        **values_of(figures_of("", _GAUGES), state),
        "shared_groups": len(machine.delivery.groups),
        "wills_waiting": len(machine.sessions.wills),
        "meters": {name: getattr(meters, name) for name in meters.__slots__},
        "network": {
            **network,
            "open": len(connections.links),
            "passed_over": connections.backpressure.passed_over,
        },
    }


def _sys_values(state: RouterState) -> dict[str, object]:
    """Return the figures for topics below `$SYS/broker`."""
    machine, figures = state.machine, state.connections.figures
    meters, sessions = machine.meters, machine.sessions
    away = len(sessions.graveyard)
    connected = sum(not c.link.is_local for c in sessions.connections.values())
    logs = list(machine.logs)
    return {
        "clients/connected": connected,
        "clients/active": connected,
        "clients/disconnected": away,
        "clients/inactive": away,
        "clients/expired": meters.expired_sessions,
        "clients/total": connected + away,
        "messages/received": meters.published,
        "messages/sent": meters.delivered,
        "publish/messages/received": meters.published,
        "publish/messages/sent": meters.delivered,
        "publish/messages/dropped": _dropped(meters),
        "publish/bytes/received": meters.published_bytes,
        "publish/bytes/sent": meters.delivered_bytes,
        "store/messages/count": sum(log.end - log.start for log in logs),
        "store/messages/bytes": sum(log.weight for log in logs),
        "messages/stored": sum(log.end - log.start for log in logs),
        "heap/current": resident_bytes(),
        "heap/maximum": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "shared_subscriptions/count": len(machine.delivery.groups),
        "bytes/received": figures.bytes_in,
        "bytes/sent": figures.bytes_out,
        "retained messages/count": len(machine.logs.retained),
        "retained messages/bytes": machine.logs.retained.weight,
        "retained messages/refused": meters.not_retained,
        "quota/refused": meters.over_quota,
        "quota/sessions ended": meters.crowded_out,
        "subscriptions/count": sum(log.readers for log in machine.logs),
    }


def _dropped(meters: Meters) -> int:
    """Return the number of messages that subscribers did not get."""
    return meters.lost + meters.expired + meters.too_large


#: Minutes over which rates are averaged, and the counts, by topics below `$SYS/broker/load`.
_MINUTES: Final = (1, 5, 15)
_LOADS: Final[dict[str, Callable[[RouterState], int]]] = {
    "messages/received": lambda s: s.machine.meters.published,
    "messages/sent": lambda s: s.machine.meters.delivered,
    "publish/received": lambda s: s.machine.meters.published,
    "publish/sent": lambda s: s.machine.meters.delivered,
    "publish/dropped": lambda s: _dropped(s.machine.meters),
    "bytes/received": lambda s: s.connections.figures.bytes_in,
    "bytes/sent": lambda s: s.connections.figures.bytes_out,
    "sockets": lambda s: s.connections.figures.opened,
    "connections": lambda s: s.connections.figures.accepted,
}


class SysLoads:
    """Counts per minute, as moving averages over one, five and fifteen minutes."""

    def __init__(self, state: RouterState, now: float) -> None:
        """Start with the current counts; all rates are 0."""
        self._state, self._time = state, now
        self._counts = {name: count(state) for name, count in _LOADS.items()}
        self._rates = {(name, minutes): 0.0 for name in _LOADS for minutes in _MINUTES}

    def values(self, now: float) -> dict[str, object]:
        """Return the averages at a time, by topic below `$SYS/broker`."""
        elapsed = now - self._time
        if elapsed > 0:
            self._time = now
            for name, count in _LOADS.items():
                total = count(self._state)
                rate = (total - self._counts[name]) * 60 / elapsed
                self._counts[name] = total
                for minutes in _MINUTES:
                    share = math.exp(-elapsed / (60 * minutes))
                    self._rates[name, minutes] = rate + share * (
                        self._rates[name, minutes] - rate
                    )
        return {
            f"load/{name}/{minutes}min": f"{rate:.2f}"
            for (name, minutes), rate in self._rates.items()
        }


def _reader_values() -> dict[str, object]:
    """Return figures of named log readers in this process, for topics below `$SYS/broker`."""
    values: dict[str, object] = {}
    for metric in process_metrics():
        start, _, figure = metric.name.rpartition("_")
        if start == "callboard_log_reader":
            for labels, value in metric.samples:
                folder, reader = (text for _, text in labels)
                log = folder.rpartition("/")[2].translate(_NO_WILDCARDS)
                values[f"log/{log}/{reader}/{figure}"] = int(value)
    return values


@dataclass(eq=False, repr=False)
class SysTopics:
    """Publishes `$SYS` topics periodically; unchanged values are not published again."""

    mailbox: InitVar[RouterMailbox]
    _state: RouterState
    _interval: float
    _loop: asyncio.AbstractEventLoop

    def __post_init__(self, mailbox: RouterMailbox) -> None:
        self._began = self._loop.time()
        self._known: dict[str, str] = {}
        self._loads = SysLoads(self._state, self._began)
        self._most_clients = 0
        self._link = LocalLink(mailbox, CLIENT_ID)
        self._publish({"version": _version()})
        self._timer = self._loop.call_soon(self._tick)

    def close(self) -> None:
        """Stop publishing; on the router's thread."""
        self._timer.cancel()
        self._link.close()

    def _tick(self) -> None:
        """Publish changed values; repeats itself."""
        self._timer = self._loop.call_later(self._interval, self._tick)
        now = self._loop.time()
        values = {"uptime": f"{int(now - self._began)} seconds", **_sys_values(self._state)}
        self._most_clients = max(self._most_clients, int(str(values["clients/total"])))
        values["clients/maximum"] = self._most_clients
        self._publish({**values, **self._loads.values(now), **_reader_values()})

    def _publish(self, values: dict[str, object]) -> None:
        """Publish the values that have changed."""
        texts = {name: str(value) for name, value in values.items()}
        fresh = [
            Message(f"{ROOT}/{name}", text.encode(), retain=True)
            for name, text in texts.items()
            if self._known.get(name) != text
        ]
        self._known |= texts
        try:
            self._link.publish_all(fresh)
        except LinkClosed:
            self._timer.cancel()


def _version() -> str:
    """Return the version of this package as a text."""
    try:
        return f"callboard {version('callboard')}"
    except PackageNotFoundError:
        return "callboard"
