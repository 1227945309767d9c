"""The console: a router's state as JSON over HTTP.

| path | content |
|---|---|
| `/router` | counts |
| `/config` | the configuration |
| `/devices`, `/device/ID` | clients |
| `/subscriptions`, `/subscriptions/FILTER` | filters and their readers |
| `/waiters/FILTER` | requests that have read everything |
| `/readyqueue` | clients in the ready queue |
| `/slow` | subscribers with a backlog |
| `/bridges` | bridges with their counts |
| `/metrics` | counts for Prometheus |
| `POST /trace/ID/NUMBER` | starts a trace of a client; its packets after a number |
| `POST /logs` | sets the level of the router's log: `debug`, `info`, `warning`, `error` |
| `POST /kick/ID` | disconnects a client; with the text `session`, its session ends, too |
| `POST /purge/FILTER` | removes retained messages |
| `POST /disable/ADDRESS`, `/enable/ADDRESS` | closes a listener, or opens it again |
| `POST /reload` | reads the configuration file again, as SIGHUP does |

In ids and filters `%2F` means `/`. So does a dot in a filter, unless
a filter with that dot exists.
The console answers every program that reaches its port: bind it to 127.0.0.1 or a private
network.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote

from callboard.mqtt.port.trace import SHOWN, Tracer
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.session import Connection, DataRequest, FilterLog, Session
from callboard.mqtt.service.bridge import BridgeConnection
from callboard.mqtt.service.config import RouterConfig
from callboard.mqtt.service.figures import RouterState, behind, router_metrics, router_view
from callboard.mqtt.wire.errors import MqttError
from callboard.pages import Page, json_page, metrics_page, text_page
from callboard.support.inspection_tables import Row
from callboard.support.redaction import redacted

#: Clients or filters in one answer; the total count is given as well.
MOST_ITEMS: Final = 1_000

T = TypeVar("T")
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


@dataclass(eq=False)
class ConsolePages(Mapping[str, Callable[[], Page]]):
    """The pages of a router, by path.

    Attributes:
        call: calls a function on the router's thread.
        state: the state of the router; read through `call` only.
        config: returns the current configuration.
    """

    call: Callable[..., Any]
    state: RouterState
    config: Callable[[], RouterConfig]

    def __iter__(self) -> Iterator[str]:
        return iter(_PATHS)

    def __len__(self) -> int:
        return len(_PATHS)

    def __getitem__(self, path: str) -> Callable[[], Page]:
        """Return the function that makes a page.

        Raises:
            KeyError: there is no such page.
        """
        noun, _, rest = path.removeprefix("/").partition("/")
        if noun == "metrics" and not rest:
            return self._metrics
        view = _BY_NOUN[noun, bool(rest)]
        return partial(self._answer, partial(view, self, unquote(rest)))

    def of_filter(self, view: Callable[..., Any], name: str) -> Any:
        """Return a view of a filter; a dot may stand for a slash."""
        result = view(self.state.machine, name)
        return view(self.state.machine, name.replace(".", "/")) if result is None else result

    def _answer(self, view: Callable[[], Any]) -> Page:
        """Return a view as a page, made on the router's thread."""
        if (result := self.call(view)) is None:
            return text_page("the router does not know that name", HTTPStatus.NOT_FOUND)
        return json_page(result)

    def _metrics(self) -> Page:
        """Return the page for Prometheus."""
        return metrics_page(self.call(router_metrics, self.state))


class Operated(Protocol):
    """The operations of a router that the console offers; see `Router`."""

    reload_file: Callable[[], list[str]] | None

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the router's thread."""

    def kick(self, client_id: str, *, end_session: bool = False) -> bool:
        """Disconnect a client."""

    def purge_retained(self, topic_filter: str = "#") -> int:
        """Remove retained messages."""

    def disable(self, address: str) -> bool:
        """Close a listener."""

    def enable(self, address: str) -> bool:
        """Open a listener again."""


#: An operation of the console: called with the router, a name and the posted text; returns how
#: many things it has changed.
Operation = Callable[[Operated, str, str], int]

_OPERATIONS: Final[dict[str, Operation]] = {
    "kick": lambda router, name, text: router.kick(name, end_session=text == "session"),
    "purge": lambda router, name, _: router.purge_retained(name),
    "disable": lambda router, name, _: router.disable(name),
    "enable": lambda router, name, _: router.enable(name),
}


@dataclass(eq=False)
class ConsoleActions(Mapping[str, Callable[[str], Page]]):
    """The actions of POST requests to the console, by path.

    Attributes:
        router: the router.
        state: the state of the router; read through `router.call` only.
    """

    router: Operated
    state: RouterState

    def __post_init__(self) -> None:
        self._tracer = Tracer(self.state.connections.clock)

    def __iter__(self) -> Iterator[str]:
        return iter(_ACTIONS)

    def __len__(self) -> int:
        return len(_ACTIONS)

    def __getitem__(self, path: str) -> Callable[[str], Page]:
        """Return the function that handles a posted text.

        Raises:
            KeyError: there is no such action.
        """
        if path == "/logs":
            return set_log_level
        if path == "/reload":
            return self._reload
        noun, _, rest = path.removeprefix("/").partition("/")
        if not rest:
            raise KeyError(path)
        if noun in _OPERATIONS:
            return partial(self._operate, _OPERATIONS[noun], unquote(rest))
        if noun != "trace":
            raise KeyError(path)
        client, _, since = rest.rpartition("/")
        number = int(since) if since.isdecimal() and len(since) < 20 else 0
        return lambda _: self._trace(unquote(client), number)

    def _operate(self, operation: Operation, name: str, text: str) -> Page:
        """Carry out an operation on a client, a filter or a listener."""
        try:
            count = int(operation(self.router, name, text.strip()))
        except (ValueError, MqttError) as error:
            return text_page(str(error), HTTPStatus.BAD_REQUEST)
        return json_page({"name": name, "count": count})

    def _reload(self, _: str) -> Page:
        """Read the configuration file again."""
        if self.router.reload_file is None:
            return text_page("the router has no configuration file", HTTPStatus.NOT_FOUND)
        problems = self.router.reload_file()
        return json_page({"reloaded": not problems, "problems": problems})

    def _trace(self, client_id: str, since: int) -> Page:
        """Return the packets from a client after a number; the first request starts a trace."""

        def read_trace() -> Any:
            links = self.state.connections.links
            remote = next((link for link in links if link.client_id == client_id), None)
            return self._tracer.packets_since(client_id, remote, since)

        if (result := self.router.call(read_trace)) is None:
            text = "too many clients are traced; wait until other traces have ended"
            return text_page(text, HTTPStatus.SERVICE_UNAVAILABLE)
        return json_page(result)


def set_log_level(text: str) -> Page:
    """Set the level of the router's log."""
    level = text.strip().lower()
    if level not in _LEVELS:
        text = f"{level[:40]!r} is not a level; choose one of {', '.join(_LEVELS)}"
        return text_page(text, HTTPStatus.BAD_REQUEST)
    logging.getLogger("callboard.mqtt").setLevel(level.upper())
    return text_page(level)


# --- views, made on the router's thread ---


def _listed(name: str, items: Iterable[T], show: Callable[[T], Any]) -> Row:
    """Return the number of items, and views of the first of them."""
    entries = list(items)
    return {"count": len(entries), name: [show(entry) for entry in entries[:MOST_ITEMS]]}


def _brief(session: Session) -> Row:
    """Return the row of a session in the list of clients."""
    connection = session.connection
    return {
        "client_id": session.client_id,
        "connected": connection is not None,
        "address": "" if connection is None else connection.link.peer,
        "status": session.status.value if connection is not None else "",
        "subscriptions": len(session.subscriptions),
        "inflight": len(session.window.inflight),
        "behind": behind(session),
        "packets_in": 0 if connection is None else connection.packets_in,
    }


def device_view(machine: RouterMachine, client_id: str) -> Row | None:
    """Return the details of one client; None without a session."""
    connection = machine.sessions.connections.get(client_id)
    if (session := machine.sessions.get(client_id)) is None:
        return None
    view = _brief(session)
    view["subscriptions"] = [
        {"filter": s.topic_filter, "qos": s.qos, "no_local": s.no_local}
        for s in session.subscriptions.values()
    ]
    view["requests"] = [_request(request) for request in session.tracker]
    view["history"] = [list(event) for event in session.history]
    view["session_expiry"] = session.expiry
    view["durable"] = session.is_durable
    view["awaiting_release"] = len(session.received)
    view["awaiting_completion"] = len(session.window.releasing)
    view["to_resend"] = len(session.window.resend)
    if connection is not None:
        view |= _connected(connection)
    return view


def _connected(connection: Connection) -> Row:
    """Return the details that only a connected client has."""
    will = connection.link.connect.will
    return {
        "version": 5 if connection.is_v5 else 4,
        "keep_alive": connection.keep_alive,
        "acks_waiting": len(connection.acks),
        "will": None if will is None else will.topic,
        "dropped": connection.dropped,
    }


def _request(request: DataRequest) -> Row:
    """Return the position of a reader in the log of a filter."""
    return {
        "filter": request.log.topic_filter,
        "offset": request.offset,
        "end": request.log.end,
        "client_id": "" if request.session is None else request.session.client_id,
        "group": request.subscription.topic_filter if request.is_shared else "",
    }


def _log(log: FilterLog) -> Row:
    """Return the figures of a filter's log."""
    return {
        "filter": log.topic_filter,
        "readers": log.readers,
        "waiters": len(log.waiters),
        "start": log.start,
        "end": log.end,
        "segments": len(log.segments),
        "bytes": log.weight,
    }


def subscription_view(machine: RouterMachine, topic_filter: str) -> Row | None:
    """Return one filter with its readers; None without readers."""
    if (log := machine.logs.get(topic_filter)) is None:
        return None
    readers = [
        session.client_id
        for session in machine.sessions
        if any(request.log is log for request in session.requests.values())
    ]
    return _log(log) | {"clients": readers[:MOST_ITEMS]}


def waiters_view(machine: RouterMachine, topic_filter: str) -> Row | None:
    """Return the requests that have read all of a filter; None without readers."""
    log = machine.logs.get(topic_filter)
    return None if log is None else _listed("waiters", log.waiters, _request)


def slow_view(state: RouterState) -> Row:
    """Return the connected subscribers with a backlog, the slowest first."""
    machine, connections = state.machine, state.connections
    slow = {
        getattr(reader, "client_id", "") for reader in connections.backpressure.slow_readers()
    }
    slow |= machine.ingress.brakes.laggards()
    rows = []
    for connection in machine.sessions.connections.values():
        count = behind(connection.session)
        if count or connection.client_id in slow or connection.dropped:
            rows.append(
                {
                    "client_id": connection.client_id,
                    "behind": count,
                    "dropped": connection.dropped,
                    "unsent_bytes": connection.unsent_bytes,
                    "status": connection.session.status.value,
                    "held_others_up": connection.client_id in slow,
                }
            )
    rows.sort(key=lambda row: (row["dropped"], row["behind"]), reverse=True)
    return _listed("slow", rows, dict)


def _bridge(bridge: BridgeConnection) -> Row:
    """Return the row of a bridge."""
    return {
        "client_id": bridge.settings.client_id,
        "address": redacted(bridge.settings.address),
        "connected": bridge.is_connected,
        "waiting": bridge.waiting,
        **asdict(bridge.figures),
    }


def config_view(config: RouterConfig) -> Row:
    """Return the configuration of the router, without secrets."""
    limits = asdict(config.limits)
    limits["share_strategy"] = config.limits.share_strategy.value
    limits["duplicate_client_id"] = config.limits.duplicate_client_id.value
    return {
        "name": config.name,
        "directory": None if config.directory is None else str(config.directory),
        "listeners": [redacted(listener.address) for listener in config.listeners],
        "sessions": config.sessions.value,
        "limits": limits,
        "network": asdict(config.network),
        "users": sorted({*config.security.users, *config.security.scram}),
        "methods": sorted(config.methods),
        "anonymous": config.security.anonymous,
        "acl": [asdict(entry) for entry in config.security.acl],
        "bans": list(config.security.bans.entries),
        "rules": [rule.topic_filter for rule in config.rules],
        "bridges": [redacted(bridge.address) for bridge in config.bridges],
    }


# --- inspection tables of the router's node ---


def _retained(machine: RouterMachine) -> Iterator[Row]:
    """Return the retained messages."""
    for run in machine.logs.retained:
        payload = run.payloads[-1]
        text = payload[:SHOWN].decode(errors="replace")
        yield {"topic": run.topic.decode(), "qos": run.qos, "bytes": len(payload), "text": text}


def _counts(state: RouterState, config: RouterConfig) -> Iterator[Row]:
    """Return the router's counts as one row."""
    view = router_view(state)
    numbers = {name: value for name, value in view.items() if isinstance(value, int)}
    listeners = ", ".join(listener.address for listener in config.listeners)
    yield {"router": config.name, "listeners": listeners, **numbers, **view["meters"]}


_Part = Callable[[RouterState, RouterConfig], Iterable[Row]]
PARTS: Final[dict[str, _Part]] = {
    "mqtt": _counts,
    "mqtt_clients": lambda state, _: map(_brief, state.machine.sessions),
    "mqtt_subscriptions": lambda state, _: map(_log, state.machine.logs),
    "mqtt_retained": lambda state, _: _retained(state.machine),
    "mqtt_slow": lambda state, _: slow_view(state)["slow"],
    "mqtt_bridges": lambda state, _: map(_bridge, state.bridges),
    "mqtt_bans": lambda _, config: ({"ban": ban} for ban in config.security.bans.entries),
}


def part_rows(part: str, state: RouterState, config: RouterConfig) -> list[Row]:
    """Return the rows of a table."""
    return list(PARTS[part](state, config))


def traced(tracer: Tracer, state: RouterState, client_id: str) -> list[Row]:
    """Return the packets in the trace of one client; the first call starts the trace."""
    links = state.connections.links
    remote = next((link for link in links if link.client_id == client_id), None)
    trace = tracer.packets_since(client_id, remote, 0)
    packets = [] if trace is None else trace["packets"]
    hidden = ("number", "time", "direction", "packet", "bytes")
    return [
        {
            "number": packet["number"],
            "time": packet["time"],
            "direction": packet["direction"],
            "packet": packet["packet"],
            "bytes": packet.get("bytes", 0),
            "fields": " ".join(f"{key}={packet[key]}" for key in packet if key not in hidden),
        }
        for packet in packets
    ]


# --- the paths ---

_VIEWS: Final[dict[str, Callable[[ConsolePages, str], Any]]] = {
    "/router": lambda pages, _: router_view(pages.state),
    "/config": lambda pages, _: config_view(pages.config()),
    "/devices": lambda pages, _: _listed("devices", pages.state.machine.sessions, _brief),
    "/device/ID": lambda pages, name: device_view(pages.state.machine, name),
    "/subscriptions": lambda pages, _: _listed("filters", pages.state.machine.logs, _log),
    "/subscriptions/FILTER": lambda pages, name: pages.of_filter(subscription_view, name),
    "/waiters/FILTER": lambda pages, name: pages.of_filter(waiters_view, name),
    "/readyqueue": lambda pages, _: _listed(
        "clients", pages.state.machine.delivery.ready, lambda connection: connection.client_id
    ),
    "/slow": lambda pages, _: slow_view(pages.state),
    "/bridges": lambda pages, _: _listed("bridges", pages.state.bridges, _bridge),
}
_ACTIONS: Final = (
    *("/trace/ID/NUMBER", "/logs", "/kick/ID", "/purge/FILTER"),
    *("/disable/ADDRESS", "/enable/ADDRESS", "/reload"),
)
_PATHS: Final = (*_VIEWS, "/metrics")
_BY_NOUN: Final[dict[tuple[str, bool], Callable[[ConsolePages, str], Any]]] = {
    ("", False): lambda *_: [*_PATHS, *(f"POST {path}" for path in _ACTIONS)],
    **{(path.split("/")[1], path.count("/") > 1): view for path, view in _VIEWS.items()},
}
