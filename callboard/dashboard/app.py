"""The API and the pages of the dashboard as one ASGI application."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from callboard.commitlog import json_text
from callboard.dashboard import api
from callboard.dashboard.actions import Actions, NodeControls, message_types
from callboard.dashboard.assets import assets
from callboard.dashboard.collector import ClusterWatch
from callboard.dashboard.errors import DashboardError, explained
from callboard.dashboard.guard import BODY_LIMIT, Application, Guard, GuardedApp
from callboard.dashboard.streams import STREAMS, Streams
from callboard.kernel.errors import CallboardError
from callboard.node import Node
from callboard.support.text import logged, printable

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_LOG: Final = logging.getLogger(__name__)

_EXTRA: Final = "a dashboard needs starlette and uvicorn; pip install 'callboard[dashboard]'"


def make_app(
    node: Node,
    guard: Guard | None = None,
    *,
    actions: bool = False,
    levers: NodeControls | None = None,
    shows_itself: bool = True,
    collector: ClusterWatch | None = None,
) -> Application:
    """Return the dashboard of a node's cluster as an ASGI application.

    Mount it under any path of your own application. It includes its guard; the link that opens
    it is the mount path followed by `?token=` and the guard's token.

    Args:
        node: the node through which the cluster is inspected.
        guard: checks tokens and host names; one with a new token by default.
        actions: whether the actions are allowed: stop actors, send, publish, write stores.
        levers: extra actions: name → function of a target that returns its result as a text.
        shows_itself: whether the node itself is shown.
        collector: polls the nodes; a new one by default.

    Raises:
        DashboardError: the extra `dashboard` is not installed.
    """
    try:
        import starlette  # noqa: F401
    except ImportError:
        raise DashboardError(_EXTRA) from None
    collector = collector or ClusterWatch(node, shows_itself=shows_itself)
    pages = _Pages(collector, Actions(node, levers), may_act=actions)
    return GuardedApp(pages.router(), guard or Guard())


class _Pages:
    """Handlers of requests that the guard has accepted."""

    def __init__(self, collector: ClusterWatch, actions: Actions, *, may_act: bool) -> None:
        self._collector, self._actions, self._may_act = collector, actions, may_act
        self._streams = Streams(collector)
        self._open = 0

    def router(self) -> Application:
        """Return the routes as an application."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        def route(
            path: str, answer: Callable[..., Awaitable[Any]], method: str = "GET"
        ) -> Route:
            return Route(path, self._answering(answer), methods=[method])

        actions = [
            route(f"/api/v1/actions/{name}", self._action(name), "POST")
            for name in self._actions.kinds()
        ]
        app = Starlette(
            routes=[
                route("/", self._file),
                route("/static/{name:path}", self._file),
                route("/api/v1/openapi.json", self._description),
                route("/api/v1/session", self._session),
                route("/api/v1/stream", self._stream),
                *(
                    route(f"/api/v1/{name}", self._reading(view))
                    for name, view in api.VIEWS.items()
                ),
                *actions,
            ],
            exception_handlers={404: _not_found, 405: _not_found},
        )
        application: Any = app
        return application  # type: ignore[no-any-return]  # Starlette has other types for ASGI

    def _answering(self, answer: "Callable[[Request], Awaitable[Any]]") -> Callable[..., Any]:
        """Return an endpoint that turns exceptions into error responses."""

        async def endpoint(request: "Request") -> "Response":
            from starlette.requests import ClientDisconnect
            from starlette.responses import Response

            try:
                answered = await answer(request)
            except api.InvalidParameter as error:
                return _json({"error": str(error)}, 400)
            except ValidationError as error:
                return _json({"error": _mistakes(error)}, 422)
            except (CallboardError, TimeoutError) as error:
                status, text = explained(error)
                return _json({"error": text}, status)
            except asyncio.CancelledError:  # the port is closing
                return _json({"error": "this node is closing; use another one"}, 503)
            except ClientDisconnect:  # the client left before the end of its request
                return _json({"error": "the request is incomplete; send it again"}, 400)
            except Exception as error:  # noqa: BLE001  # logged here and reported to the client
                logged(_LOG, "dashboard: %s failed", request.url.path, error=error)
                return _json({"error": "internal error; see the log of this node"}, 500)
            return answered if isinstance(answered, Response) else _json(answered)

        return endpoint

    async def _file(self, request: "Request") -> "Response":
        """Return a static file, or the page itself."""
        from starlette.responses import Response

        name = request.path_params.get("name")
        asset = assets().get(name or "") if name != "" else None
        if asset is None:
            return await _not_found(request, KeyError(name))
        status, body, headers = asset.answer(request.headers)
        return Response(body, status, headers)

    async def _description(self, _: "Request") -> Any:
        """Return the description of the API."""
        kinds = {name: kind for name, (kind, _) in self._actions.kinds().items()}
        return api.description(kinds)

    async def _session(self, _: "Request") -> Any:
        """Return the abilities of this dashboard: actions, levers, message types."""
        return {
            "actions": self._may_act,
            "levers": sorted(self._actions.levers),
            "types": message_types(),
            "node": self._collector.node.name,
        }

    def _reading(self, view: "api.View") -> "Callable[[Request], Awaitable[Any]]":
        """Return a handler that answers a view once; an idle collector polls first."""

        async def read(request: "Request") -> Any:
            query = view.read(request.query_params)
            async with self._collector.watched():
                if view.needs_round:
                    await self._collector.next_round(self._collector.rounds)
                return await view.answer(self._collector, query)

        return read

    def _action(self, name: str) -> "Callable[[Request], Awaitable[Any]]":
        """Return a handler that runs an action."""

        async def act(request: "Request") -> Any:
            if not self._may_act:
                text = "this dashboard is read-only; pass actions=True or --allow-actions"
                return _json({"error": text}, 403)
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                return _json({"error": "send Content-Type: application/json"}, 415)
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_LIMIT:
                    return _json({"error": f"send at most {BODY_LIMIT:,} bytes"}, 413)
            order = self._actions.kinds()[name][0].model_validate_json(bytes(body))
            client = "?" if request.client is None else request.client.host
            return {"outcome": await self._actions.carry_out(name, order, client)}

        return act

    async def _stream(self, request: "Request") -> Any:
        """Stream the contents of a page, then its changes once or twice a second."""
        from starlette.responses import StreamingResponse

        changes = self._streams.changes(request.query_params)
        if self._open >= STREAMS:
            return _json(
                {"error": f"{STREAMS} pages are open, which is the limit; close one"}, 503
            )

        async def events() -> AsyncIterator[bytes]:
            self._open += 1
            try:
                async with aclosing(changes) as stream:
                    async for change in stream:
                        yield b"data: " + _encoded(change) + b"\n\n"
            except (asyncio.CancelledError, GeneratorExit):
                raise
            finally:
                self._open -= 1

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _json(value: Any, status: int = 200) -> "Response":
    """Return a value as a response, in the JSON form of the commands."""
    from starlette.responses import Response

    headers = {"Cache-Control": "no-store"}
    return Response(_encoded(value), status, headers, "application/json")


def _encoded(value: Any) -> bytes:
    """Encode a value as JSON. Lone surrogates in local texts are replaced."""
    return json_text.to_json(value).encode("utf-8", "replace")


async def _not_found(request: "Request", error: Exception) -> "Response":
    """Answer an unknown path (404) or method (405)."""
    status = int(getattr(error, "status_code", 404))
    allowed: Mapping[str, str] = getattr(error, "headers", None) or {}
    text = "there is nothing here; api/v1/openapi.json lists all paths"
    if status == 405:
        text = f"{request.method} is not allowed here; use {allowed.get('Allow', 'GET')}"
    answer = _json({"error": printable(text[:200])}, status)
    for name, value in allowed.items():
        answer.headers[name] = value
    return answer


def _mistakes(error: ValidationError) -> str:
    """Return one line with the mistakes in the body of an action."""
    lines = "; ".join(
        f"{'.'.join(map(str, mistake['loc'])) or 'body'}: {mistake['msg']}"
        for mistake in error.errors()[:10]
    )
    return printable(f"{lines[:1_000]}; api/v1/openapi.json describes the fields")
