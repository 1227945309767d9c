"""The API and the pages as one ASGI application, and how it is mounted into another one."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from callboard.commitlog import json_text
from callboard.dashboard import api
from callboard.dashboard.actions import Actions, Levers, message_types
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
    levers: Levers | None = None,
    shows_itself: bool = True,
    collector: ClusterWatch | None = None,
) -> Application:
    """Return the dashboard of a node's cluster as an ASGI application.

    Mount it where your own application wants it; the guard comes with it, and the link that
    opens it is that place with `?token=` and the guard's token behind it.

    Args:
        node: through which the cluster is seen.
        guard: who may ask, and by which names; a token of its own by default.
        actions: whether actors can be stopped and sent to, topics published, stores written.
        levers: what else can be done: name → function of a target that says what it did.
        shows_itself: whether the node is one of those that are shown.
        collector: what asks the nodes, where it is not made here.

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
    """What answers requests that the guard has let through."""

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
        found: Any = app
        return found  # type: ignore[no-any-return]  # Starlette's own types of ASGI

    def _answering(self, answer: "Callable[[Request], Awaitable[Any]]") -> Callable[..., Any]:
        """Return an endpoint that turns errors into answers."""

        async def endpoint(request: "Request") -> "Response":
            from starlette.requests import ClientDisconnect
            from starlette.responses import Response

            try:
                told = await answer(request)
            except api.InvalidParameter as error:
                return _json({"error": str(error)}, 400)
            except ValidationError as error:
                return _json({"error": _mistakes(error)}, 422)
            except (CallboardError, TimeoutError) as error:
                status, text = explained(error)
                return _json({"error": text}, status)
            except asyncio.CancelledError:  # by the port, which ends
                return _json({"error": "this node closes; ask another one"}, 503)
            except ClientDisconnect:  # it left in the midst of its request
                return _json({"error": "the request is not whole; send it again"}, 400)
            except Exception as error:  # noqa: BLE001  # who asks is told, and the log has it
                logged(_LOG, "dashboard: %s failed", request.url.path, error=error)
                return _json({"error": "it failed; the log of this node tells why"}, 500)
            return told if isinstance(told, Response) else _json(told)

        return endpoint

    async def _file(self, request: "Request") -> "Response":
        """Return a file of the pages, or the page itself."""
        from starlette.responses import Response

        name = request.path_params.get("name")
        found = assets().get(name or "") if name != "" else None
        if found is None:
            return await _not_found(request, KeyError(name))
        status, body, headers = found.answer(request.headers)
        return Response(body, status, headers)

    async def _description(self, _: "Request") -> Any:
        """Return the description of the API."""
        kinds = {name: kind for name, (kind, _) in self._actions.kinds().items()}
        return api.description(kinds)

    async def _session(self, _: "Request") -> Any:
        """Return what this dashboard may do."""
        return {
            "actions": self._may_act,
            "levers": sorted(self._actions.levers),
            "types": message_types(),
            "node": self._collector.node.name,
        }

    def _reading(self, view: "api.View") -> "Callable[[Request], Awaitable[Any]]":
        """Return what answers a view once: a collector that rests takes a look first."""

        async def read(request: "Request") -> Any:
            asked = view.read(request.query_params)
            async with self._collector.watched():
                if view.needs_round:
                    await self._collector.next_round(self._collector.rounds)
                return await view.answer(self._collector, asked)

        return read

    def _action(self, name: str) -> "Callable[[Request], Awaitable[Any]]":
        """Return what carries out an action."""

        async def act(request: "Request") -> Any:
            if not self._may_act:
                text = "this dashboard only looks; open it with actions=True or --allow-actions"
                return _json({"error": text}, 403)
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                return _json({"error": "say Content-Type: application/json"}, 415)
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_LIMIT:
                    return _json({"error": f"send at most {BODY_LIMIT:,} bytes"}, 413)
            order = self._actions.kinds()[name][0].model_validate_json(bytes(body))
            who = "?" if request.client is None else request.client.host
            return {"outcome": await self._actions.carry_out(name, order, who)}

        return act

    async def _stream(self, request: "Request") -> Any:
        """Tell a page what it shows, and then what changes, once or twice a second."""
        from starlette.responses import StreamingResponse

        changes = self._streams.changes(request.query_params)
        if self._open >= STREAMS:
            return _json({"error": f"{STREAMS} pages are open, which is the limit"}, 503)

        async def events() -> AsyncIterator[bytes]:
            self._open += 1
            try:
                async with aclosing(changes) as told:
                    async for change in told:
                        yield b"data: " + _encoded(change) + b"\n\n"
            except (asyncio.CancelledError, GeneratorExit):
                raise
            finally:
                self._open -= 1

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _json(value: Any, status: int = 200) -> "Response":
    """Return a value as an answer, in the JSON that commands print."""
    from starlette.responses import Response

    headers = {"Cache-Control": "no-store"}
    return Response(_encoded(value), status, headers, "application/json")


def _encoded(value: Any) -> bytes:
    """Return a value as JSON, whatever its texts hold: not all of them come from a wire."""
    return json_text.to_json(value).encode("utf-8", "replace")


async def _not_found(request: "Request", error: Exception) -> "Response":
    """Answer for a path or method that is not there."""
    status = int(getattr(error, "status_code", 404))
    allowed: Mapping[str, str] = getattr(error, "headers", None) or {}
    text = "there is nothing here; api/v1/openapi.json tells what there is"
    if status == 405:
        text = f"{request.method} is not done here; use {allowed.get('Allow', 'GET')}"
    answer = _json({"error": printable(text[:200])}, status)
    for name, value in allowed.items():
        answer.headers[name] = value
    return answer


def _mistakes(error: ValidationError) -> str:
    """Return what is wrong with the body of an action, in one line."""
    told = "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
        for each in error.errors()[:10]
    )
    return printable(f"{told[:1_000]}; api/v1/openapi.json describes the fields")
