"""The views of the dashboard's API: names, parameters and answers.

Routes, the OpenAPI description and the streams of pages are all generated from the table
`VIEWS`. Rows have the same form as the commands' `--json` output.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

from callboard.dashboard.collector import ClusterWatch
from callboard.kernel.errors import CallboardError
from callboard.kernel.tables import (
    ActorInfo,
    ActorPage,
    InspectActor,
    Inspection,
    TraceActor,
    TracedMessage,
)
from callboard.support.dataclass import dataclass
from callboard.support.inspection_tables import SCAN_LIMIT, RowWindow, found_rows

#: Maximum rows in one answer, for pages and for exported files.
ROWS: Final = 5_000

#: Maximum characters of a parameter.
TEXT: Final = 2_000

ACTOR_SORTS: Final = (
    *("depth", "handled", "age", "waited", "busy", "restarts", "rate"),
    *("name", "class", "state"),
)


class InvalidParameter(CallboardError):
    """A parameter is missing or has an invalid value."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter of a view."""

    name: str
    text: str
    kind: str = "string"
    default: Any = ""
    most: int = TEXT
    choices: tuple[str, ...] = ()
    is_needed: bool = False

    def read(self, parameters: Mapping[str, str]) -> Any:
        """Return the value of this parameter in a query.

        Raises:
            InvalidParameter: the parameter is missing or has an invalid value.
        """
        value = parameters.get(self.name)
        if value is None:
            if self.is_needed:
                msg = f"{self.name} is missing: {self.text}"
                raise InvalidParameter(msg)
            return self.default
        if self.kind == "boolean":
            if value not in ("true", "false"):
                msg = f"{self.name} must be true or false"
                raise InvalidParameter(msg)
            return value == "true"
        if self.kind == "integer":
            if not value.isascii() or not value.isdecimal() or len(value) > 9:
                msg = f"{self.name} must be a number from 0 to {self.most}"
                raise InvalidParameter(msg)
            return min(int(value), self.most)
        if self.choices and value not in self.choices:
            msg = f"{self.name} must be one of {', '.join(self.choices)}"
            raise InvalidParameter(msg)
        if len(value) > self.most or "\0" in value:
            msg = f"{self.name} must have at most {self.most} characters and no NUL"
            raise InvalidParameter(msg)
        return value

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAPI description of the parameter."""
        schema: dict[str, Any] = {"type": self.kind}
        if self.kind == "integer":
            schema |= {"minimum": 0, "maximum": self.most}
        elif self.kind == "string" and self.choices:
            schema["enum"] = list(self.choices)
        elif self.kind == "string":
            schema |= {"maxLength": self.most, "pattern": "^[^\\u0000]*$"}
        return {
            "name": self.name,
            "in": "query",
            "description": self.text,
            "required": self.is_needed,
            "schema": schema,
        }


Asked = dict[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """A readable resource of the API.

    Attributes:
        text: summary for the OpenAPI description.
        answer: computes the answer.
        parameters: the query parameters.
        row: the model of the rows; None for rows of a part, which have dynamic columns.
        needs_round: whether the collector must poll all nodes first.
    """

    text: str
    answer: Callable[[ClusterWatch, Asked], Awaitable[Answer]]
    parameters: tuple[Parameter, ...] = ()
    row: Any = None
    needs_round: bool = field(default=True)

    def read(self, given: Mapping[str, str]) -> Asked:
        """Return the values of all parameters in a query.

        Raises:
            InvalidParameter: a parameter is missing or has an invalid value.
        """
        return {parameter.name: parameter.read(given) for parameter in self.parameters}


_WINDOW: Final = (
    Parameter("search", "a text in any column, ignoring case", most=500),
    Parameter("rising", "sort in ascending order", "boolean", default=False),
    Parameter("skip", "rows to skip", "integer", 0, SCAN_LIMIT),
    Parameter("limit", "maximum number of rows", "integer", 100, ROWS),
    Parameter("node", "only this node: its name or id"),
)
_WHICH: Final = Parameter("which", "the store, client, type or queue", is_needed=True)
_ADDRESS: Final = Parameter("address", "the text of the actor's ref", is_needed=True)


def _window(query: Asked) -> RowWindow:
    """Return the row window of a query."""
    return RowWindow(
        query["search"], query["sort"], query["rising"], query["skip"], query["limit"]
    )


async def _nodes(collector: ClusterWatch, _: Asked) -> Answer:
    """Return the nodes."""
    return {"rows": collector.nodes()}


async def _overview(collector: ClusterWatch, _: Asked) -> Answer:
    """Return the contents of the first page."""
    return {
        "nodes": collector.nodes(),
        "links": collector.links(),
        "pairs": collector.pairs(),
        "alarms": collector.alarms(),
    }


async def _history(collector: ClusterWatch, _: Asked) -> Answer:
    """Return the rates of the last ten minutes."""
    return collector.history()


async def _hour(collector: ClusterWatch, _: Asked) -> Answer:
    """Return the curves of the last hour."""
    return await collector.hour()


async def _actors(collector: ClusterWatch, query: Asked) -> Answer:
    """Return a window of the actors."""
    window, filters = _window(query), {"node": query["node"], "state": query["state"]}
    actors, count, silent = await collector.actors(window, **filters)
    rows = found_rows((member.name, actor) for member, actor in actors)
    return {"rows": rows, "count": count, "silent": silent}


async def _actor(collector: ClusterWatch, query: Asked) -> Answer:
    """Return the details of one actor from the node in its address."""
    node_id = collector.node.ref(query["address"]).node_id
    answer = await collector.ask(node_id, InspectActor(query["address"]))
    name = collector.members[node_id].name if node_id in collector.members else node_id.hex()
    return {"rows": found_rows((name, page) for page in answer.pages), "silent": {}}


async def _trace(collector: ClusterWatch, query: Asked) -> Answer:
    """Start or extend the trace of an actor, and return the traced messages."""
    node_id = collector.node.ref(query["address"]).node_id
    order = TraceActor(query["address"], query["after"], float(query["seconds"]))
    trace = await collector.ask(node_id, order)
    rows = found_rows(("", message) for message in trace.messages)
    return {"rows": rows, "last": trace.last, "left": round(trace.left, 1)}


async def _events(collector: ClusterWatch, query: Asked) -> Answer:
    """Return a window of the events, the latest first."""
    search, kind, node = query["search"].casefold(), query["kind"], query["node"]
    events = [
        event
        for event in collector.events
        if event["id"] > query["after"]
        and node in ("", event["at"])
        and kind in ("", event["kind"])
        and (not search or any(search in str(value).casefold() for value in event.values()))
    ]
    events.sort(key=lambda event: event["time"], reverse=True)
    window = slice(query["skip"], query["skip"] + query["limit"])
    kinds = sorted({event["kind"] for event in collector.events})
    return {"rows": events[window], "count": len(events), "kinds": kinds}


def part(name: str, text: str, *, which: Parameter | None = None, sort: str = "") -> View:
    """Return the view of a table of `callboard.support.inspection_tables`."""

    async def answer(collector: ClusterWatch, query: Asked) -> Answer:
        filters = {"which": query.get("which", ""), "node": query["node"]}
        found_rows, count, silent = await collector.rows(name, _window(query), **filters)
        rows = [{"node": member.name, **row} for member, row in found_rows]
        return {"rows": rows, "count": count, "silent": silent}

    sorting = Parameter("sort", "a column", default=sort, most=100)
    parameters = () if which is None else (which,)
    return View(text, answer, (*_WINDOW, sorting, *parameters))


VIEWS: Final[dict[str, View]] = {
    "nodes": View("the nodes, with their figures", _nodes, row=Inspection),
    "overview": View("nodes, links, balance and alarms", _overview),
    "history": View("rates of the last ten minutes", _history),
    "hour": View("rates, oldest message and memory of the last hour", _hour),
    "actors": View(
        "the actors of all nodes",
        _actors,
        (
            *_WINDOW,
            Parameter("sort", "a column", default="depth", choices=ACTOR_SORTS),
            Parameter("state", "only actors in this state", most=20),
        ),
        ActorInfo,
    ),
    "actor": View("details of one actor", _actor, (_ADDRESS,), ActorPage),
    "trace": View(
        "messages handled by one actor while it is traced",
        _trace,
        (
            _ADDRESS,
            Parameter("after", "only messages after this number", "integer", 0, 10**9),
            Parameter(
                "seconds", "extend the trace by this time; 0 only reads", "integer", 0, 60
            ),
        ),
        TracedMessage,
    ),
    "topics": part("topics", "topics that are subscribed to or published", sort="topic"),
    "peers": part("peers", "other endpoints of each node", sort="address"),
    "stores": part("stores", "masters and clones", sort="store"),
    "stores/keys": part("keys", "keys of a store", which=_WHICH, sort="key"),
    "mqtt": part("mqtt", "MQTT routers"),
    "mqtt/clients": part("mqtt_clients", "MQTT clients", sort="client_id"),
    "mqtt/subscriptions": part("mqtt_subscriptions", "MQTT filters", sort="filter"),
    "mqtt/retained": part("mqtt_retained", "retained messages", sort="topic"),
    "mqtt/slow": part("mqtt_slow", "slow MQTT subscribers", sort="behind"),
    "mqtt/bridges": part("mqtt_bridges", "MQTT bridges", sort="client_id"),
    "mqtt/bans": part("mqtt_bans", "banned MQTT clients", sort="ban"),
    "mqtt/trace": part("mqtt_trace", "packets of one client", which=_WHICH, sort="number"),
    "entities": part("entities", "entity types on each host", sort="type"),
    "entities/slots": part(
        "entity_slots", "slots of an entity type and their owners", which=_WHICH, sort="slot"
    ),
    "entities/keys": part(
        "entity_cells", "active entities of a type", which=_WHICH, sort="key"
    ),
    "entities/events": part(
        "entity_events",
        "the latest events of an entity",
        which=Parameter("which", "TYPE/KEY", is_needed=True),
        sort="number",
    ),
    "queues": part("queues", "work queues and their jobs by status", sort="queue"),
    "queues/dead": part("queue_dead", "dead jobs of a work queue", which=_WHICH, sort="job"),
    "logs": part("logs", "open logs and their readers", sort="log"),
    "events": View(
        "events of all nodes, the latest first",
        _events,
        (
            *(parameter for parameter in _WINDOW if parameter.name != "rising"),
            Parameter("after", "only events after this id", "integer", 0, 10**9),
            Parameter("kind", "only events of this kind", most=100),
        ),
    ),
}


# --- the OpenAPI description ---


def description(actions: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of the API."""
    parts: dict[str, Any] = {
        "Error": {
            "type": "object",
            "properties": {"error": {"type": "string"}},
            "required": ["error"],
        }
    }
    paths = {
        f"/api/v1/{name}": {"get": _reading(name, view, parts)} for name, view in VIEWS.items()
    }
    for name, kind in actions.items():
        parts[kind.__name__] = _schema(kind.model_json_schema(ref_template=_REF), parts)
        paths[f"/api/v1/actions/{name}"] = {"post": _acting(name, kind)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "callboard", "version": "1", "description": "The dashboard's API."},
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_REF: Final = "#/components/schemas/{model}"


def _schema(schema: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Move the definitions of a schema to the document's components."""
    parts.update(schema.pop("$defs", {}))
    return schema


def _row_schema(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a model's rows; the first column is the node."""
    try:
        schema = _schema(TypeAdapter(kind).json_schema(ref_template=_REF), parts)
    except Exception:  # noqa: BLE001  # a type without a JSON Schema
        return {"type": "object"}
    schema["properties"] = {"node": {"type": "string"}} | schema.get("properties", {})
    schema.pop("required", None)
    return schema


def _answers(*statuses: int) -> dict[str, Any]:
    """Return the descriptions of error responses."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        str(status): {"description": _STATUSES[status], "content": content}
        for status in statuses
    }


_STATUSES: Final = {
    400: "a parameter is invalid",
    401: "no token",
    403: "refused",
    409: "the request failed",
    413: "the body is too large",
    415: "the body is not JSON",
    422: "the body is invalid",
    500: "internal error; see the log of the node",
}


def _reading(name: str, view: View, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a view."""
    row = {"type": "object"} if view.row is None else _row_schema(view.row, parts)
    answer = {"type": "object", "properties": {"rows": {"type": "array", "items": row}}}
    content = {"application/json": {"schema": answer}}
    return {
        "operationId": f"read_{name.replace('/', '_')}",
        "summary": view.text,
        "parameters": [parameter.schema for parameter in view.parameters],
        "responses": {
            "200": {"description": view.text, "content": content},
            **_answers(400, 401, 403, 409, 500),
        },
    }


def _acting(name: str, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of an action."""
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
    done = {"type": "object", "properties": {"outcome": {}}, "required": ["outcome"]}
    content = {"application/json": {"schema": done}}
    return {
        "operationId": f"do_{name.replace('/', '_')}",
        "summary": f"run the action {name}",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "done", "content": content},
            **_answers(400, 401, 403, 409, 413, 415, 422, 500),
        },
    }
