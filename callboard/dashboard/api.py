"""What can be read: each view by its name, with its parameters and what it answers.

The table `VIEWS` is the one place that knows views: routes, the description in OpenAPI and the
streams of pages are made of it. Rows are those that `--json` of the commands prints.
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
from callboard.support.parts import LOOKED_AT, RowWindow, found_rows

#: Rows of one answer at most: what a page shows, and a file that is saved.
ROWS: Final = 5_000

#: Characters of a parameter.
TEXT: Final = 2_000

ACTOR_SORTS: Final = (
    *("depth", "handled", "age", "waited", "busy", "restarts", "rate"),
    *("name", "class", "state"),
)


class InvalidParameter(CallboardError):
    """A parameter is of no use."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a view, as a text of the query."""

    name: str
    text: str
    kind: str = "string"
    default: Any = ""
    most: int = TEXT
    choices: tuple[str, ...] = ()
    is_needed: bool = False

    def read(self, given: Mapping[str, str]) -> Any:
        """Return its value.

        Raises:
            InvalidParameter: it is missing, or of another kind.
        """
        value = given.get(self.name)
        if value is None:
            if self.is_needed:
                msg = f"{self.name} is missing: {self.text}"
                raise InvalidParameter(msg)
            return self.default
        if self.kind == "boolean":
            if value not in ("true", "false"):
                msg = f"{self.name} is true or false"
                raise InvalidParameter(msg)
            return value == "true"
        if self.kind == "integer":
            if not value.isascii() or not value.isdecimal() or len(value) > 9:
                msg = f"{self.name} is a number from 0 to {self.most}"
                raise InvalidParameter(msg)
            return min(int(value), self.most)
        if self.choices and value not in self.choices:
            msg = f"{self.name} is one of {', '.join(self.choices)}"
            raise InvalidParameter(msg)
        if len(value) > self.most or "\0" in value:
            msg = f"{self.name} has at most {self.most} characters, none of them NUL"
            raise InvalidParameter(msg)
        return value

    @property
    def schema(self) -> dict[str, Any]:
        """Its description in OpenAPI."""
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
    """Something that can be read.

    Attributes:
        text: what it is.
        answer: makes it.
        parameters: that it takes.
        row: the model of its rows; None for rows of a part, whose columns are its own.
        needs_round: whether the collector has to have asked all nodes before.
    """

    text: str
    answer: Callable[[ClusterWatch, Asked], Awaitable[Answer]]
    parameters: tuple[Parameter, ...] = ()
    row: Any = None
    needs_round: bool = field(default=True)

    def read(self, given: Mapping[str, str]) -> Asked:
        """Return the parameters of a query.

        Raises:
            InvalidParameter: one is of no use.
        """
        return {each.name: each.read(given) for each in self.parameters}


_WINDOW: Final = (
    Parameter("search", "a text that the row holds, in any case", most=500),
    Parameter("rising", "the smallest first", "boolean", default=False),
    Parameter("skip", "rows before the first", "integer", 0, LOOKED_AT),
    Parameter("limit", "rows at most", "integer", 100, ROWS),
    Parameter("node", "only this node: its name or id"),
)
_WHICH: Final = Parameter("which", "of which one: a store, a client", is_needed=True)
_ADDRESS: Final = Parameter("address", "the text of the actor's ref", is_needed=True)


def _window(asked: Asked) -> RowWindow:
    """Return the window that is asked for."""
    return RowWindow(
        asked["search"], asked["sort"], asked["rising"], asked["skip"], asked["limit"]
    )


async def _nodes(collector: ClusterWatch, _: Asked) -> Answer:
    """Tell the nodes."""
    return {"rows": collector.nodes()}


async def _overview(collector: ClusterWatch, _: Asked) -> Answer:
    """Tell all that the first page shows."""
    return {
        "nodes": collector.nodes(),
        "links": collector.links(),
        "pairs": collector.pairs(),
        "alarms": collector.alarms(),
    }


async def _history(collector: ClusterWatch, _: Asked) -> Answer:
    """Tell the rates of ten minutes."""
    return collector.history()


async def _actors(collector: ClusterWatch, asked: Asked) -> Answer:
    """Tell actors."""
    window, where = _window(asked), {"node": asked["node"], "state": asked["state"]}
    found, count, silent = await collector.actors(window, **where)
    rows = found_rows((member.name, actor) for member, actor in found)
    return {"rows": rows, "count": count, "silent": silent}


async def _actor(collector: ClusterWatch, asked: Asked) -> Answer:
    """Return all that is told of one actor, by the node that its address names."""
    node_id = collector.node.ref(asked["address"]).node_id
    told = await collector.ask(node_id, InspectActor(asked["address"]))
    name = collector.members[node_id].name if node_id in collector.members else node_id.hex()
    return {"rows": found_rows((name, page) for page in told.pages), "silent": {}}


async def _trace(collector: ClusterWatch, asked: Asked) -> Answer:
    """Begin or go on with the trace of an actor, and return what it has."""
    node_id = collector.node.ref(asked["address"]).node_id
    order = TraceActor(asked["address"], asked["after"], float(asked["seconds"]))
    told = await collector.ask(node_id, order)
    rows = found_rows(("", each) for each in told.messages)
    return {"rows": rows, "last": told.last, "left": round(told.left, 1)}


async def _events(collector: ClusterWatch, asked: Asked) -> Answer:
    """Tell events."""
    search, kind, node = asked["search"].casefold(), asked["kind"], asked["node"]
    found = [
        event
        for event in collector.events
        if event["id"] > asked["after"]
        and node in ("", event["at"])
        and kind in ("", event["kind"])
        and (not search or any(search in str(each).casefold() for each in event.values()))
    ]
    found.sort(key=lambda event: event["time"], reverse=True)
    window = slice(asked["skip"], asked["skip"] + asked["limit"])
    kinds = sorted({event["kind"] for event in collector.events})
    return {"rows": found[window], "count": len(found), "kinds": kinds}


def part(name: str, text: str, *, which: Parameter | None = None, sort: str = "") -> View:
    """Return the view of a part of the nodes: see `callboard.support.parts`."""

    async def answer(collector: ClusterWatch, asked: Asked) -> Answer:
        where = {"which": asked.get("which", ""), "node": asked["node"]}
        found, count, silent = await collector.rows(name, _window(asked), **where)
        rows = [{"node": member.name, **row} for member, row in found]
        return {"rows": rows, "count": count, "silent": silent}

    sorting = Parameter("sort", "a column", default=sort, most=100)
    more = () if which is None else (which,)
    return View(text, answer, (*_WINDOW, sorting, *more))


VIEWS: Final[dict[str, View]] = {
    "nodes": View("the nodes, with their figures", _nodes, row=Inspection),
    "overview": View("nodes, links, balance and alarms", _overview),
    "history": View("rates of the last ten minutes", _history),
    "actors": View(
        "the actors of all nodes",
        _actors,
        (
            *_WINDOW,
            Parameter("sort", "by what", default="depth", choices=ACTOR_SORTS),
            Parameter("state", "only those in this state", most=20),
        ),
        ActorInfo,
    ),
    "actor": View("all about one actor", _actor, (_ADDRESS,), ActorPage),
    "trace": View(
        "the messages that one actor takes, while it is traced",
        _trace,
        (
            _ADDRESS,
            Parameter("after", "behind this number", "integer", 0, 10**9),
            Parameter("seconds", "how long it goes on; 0 only looks", "integer", 0, 60),
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
    "mqtt/slow": part("mqtt_slow", "MQTT subscribers that are behind", sort="behind"),
    "mqtt/bans": part("mqtt_bans", "who is kept out", sort="ban"),
    "mqtt/trace": part("mqtt_trace", "packets of one client", which=_WHICH, sort="number"),
    "entities": part("entities", "types of entities on each host", sort="type"),
    "entities/slots": part(
        "entity_slots", "slots of a type, and who owns them", which=_WHICH, sort="slot"
    ),
    "entities/keys": part(
        "entity_cells", "entities of a type that live", which=_WHICH, sort="key"
    ),
    "entities/events": part(
        "entity_events",
        "the latest events of an entity",
        which=Parameter("which", "TYPE/KEY", is_needed=True),
        sort="number",
    ),
    "logs": part("logs", "logs that are written, and their readers", sort="log"),
    "events": View(
        "what happened, the latest first",
        _events,
        (
            *(each for each in _WINDOW if each.name != "rising"),
            Parameter("after", "behind this id", "integer", 0, 10**9),
            Parameter("kind", "only events of this kind", most=100),
        ),
    ),
}


# --- its description ---


def description(actions: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Return the description of the API: OpenAPI 3.1."""
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
        "info": {"title": "callboard", "version": "1", "description": "The window's API."},
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_REF: Final = "#/components/schemas/{model}"


def _schema(schema: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Move the parts of a schema to those of the document."""
    parts.update(schema.pop("$defs", {}))
    return schema


def _row_schema(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the rows of a model, which begin with their node."""
    try:
        schema = _schema(TypeAdapter(kind).json_schema(ref_template=_REF), parts)
    except Exception:  # noqa: BLE001  # a type that JSON Schema has no word for
        return {"type": "object"}
    schema["properties"] = {"node": {"type": "string"}} | schema.get("properties", {})
    schema.pop("required", None)
    return schema


def _answers(*statuses: int) -> dict[str, Any]:
    """Return the descriptions of refusals."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        str(status): {"description": _STATUSES[status], "content": content}
        for status in statuses
    }


_STATUSES: Final = {
    400: "a parameter is of no use",
    401: "no token",
    403: "refused",
    409: "it could not be done",
    413: "too large",
    415: "not JSON",
    422: "the body is of no use",
    500: "it failed, and the log of the node tells why",
}


def _reading(name: str, view: View, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a view."""
    row = {"type": "object"} if view.row is None else _row_schema(view.row, parts)
    answer = {"type": "object", "properties": {"rows": {"type": "array", "items": row}}}
    content = {"application/json": {"schema": answer}}
    return {
        "operationId": f"read_{name.replace('/', '_')}",
        "summary": view.text,
        "parameters": [each.schema for each in view.parameters],
        "responses": {
            "200": {"description": view.text, "content": content},
            **_answers(400, 401, 403, 409, 500),
        },
    }


def _acting(name: str, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the description of an action."""
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
    done = {"type": "object", "properties": {"outcome": {}}, "required": ["outcome"]}
    content = {"application/json": {"schema": done}}
    return {
        "operationId": f"do_{name.replace('/', '_')}",
        "summary": f"do: {name}",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "done", "content": content},
            **_answers(400, 401, 403, 409, 413, 415, 422, 500),
        },
    }
