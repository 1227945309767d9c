"""What stands before every request: who asks, through which name, and from which page.

A page of another site can make a browser ask for anything here, and with DNS rebinding even
read the answer. So, whatever the method: host and page have to be ours (`host_guard`), and
whatever is not a static file takes the token. The link that is printed carries the token once;
from then on it is in a cookie that the browser sends for our own pages only. Programs send it
as `Authorization: Bearer TOKEN`.

Sans-IO: `Guard.judge` looks at method, path and headers; `GuardedApp` is the driver.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import field
from typing import Any, Final
from urllib.parse import parse_qs

from callboard.support.dataclass import dataclass
from callboard.support.host_guard import Asking, HostGuard

#: Bytes of the body of an action, and of the headers of any request.
BODY_LIMIT: Final = 1 << 20
HEAD_LIMIT: Final = 16 << 10

#: What every answer carries. Scripts, styles and data come from here and nowhere else.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Headers = Mapping[str, str]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Judgment:
    """What becomes of a request: 200 lets it pass; `cookie` is to be set before a redirect."""

    status: int = 200
    text: str = ""
    cookie: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of one dashboard.

    Attributes:
        token: what takes part in every request that is not for a static file.
        hosts: names by which it may be reached, beside addresses of this machine. Behind a
            proxy that asks with a `Host` of its own these are both: that one, and the name
            (with its port, if it has one) that browsers know.
        any_address: whether any IP address may be such a name: the port is a public one.
        cookie: what the cookie is called; ports of one machine share their cookies.
        static: paths of files that say nothing about the cluster, and their beginnings.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    hosts: Collection[str] = ()
    any_address: bool = False
    cookie: str = "callboard"
    static: tuple[str, ...] = ("/static/",)

    def judge(self, method: str, path: str, query: str, headers: Headers) -> Judgment:
        """Return whether a request may pass; `headers` have names in lower case."""
        is_page = path in ("/", "")
        navigates = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        origins = [headers["origin"]] if "origin" in headers else []
        fetched = headers.get("sec-fetch-site", "")
        asking = Asking([headers.get("host", "")], origins, fetched, path)
        port = HostGuard(self.hosts, self.any_address, option="hosts (--host)")
        refusal = port.refusal(asking, is_link=is_page and navigates)
        if refusal is not None:
            return Judgment(int(refusal.status), f"{refusal.text}, or use the printed link")
        given = parse_qs(query).get("token", [""])[-1] if is_page and method == "GET" else ""
        if given:
            if self._is_token(given):
                return Judgment(303, cookie=self.token)
            return Judgment(403, "the token is not that of this page; use the printed link")
        if is_page or path.startswith(self.static):
            return Judgment()
        if any(map(self._is_token, self._shown(headers))):
            return Judgment()
        return Judgment(401, "open it by the link that was printed; it has the token")

    def _is_token(self, given: str) -> bool:
        """Return whether it is the token, in constant time."""
        return secrets.compare_digest(given.encode(), self.token.encode())

    def _shown(self, headers: Headers) -> list[str]:
        """Return the tokens that a request may carry.

        Cookies of whatever else is on this machine come along, in whatever form they have: all
        ports of a name share them, and some may even bear the name of ours.
        """
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return [value.strip()]
        pairs = (each.partition("=") for each in headers.get("cookie", "").split(";"))
        return [value.strip() for name, _, value in pairs if name.strip() == self.cookie]


class GuardedApp:
    """An ASGI application behind a guard; only HTTP is let through."""

    def __init__(self, app: Application, guard: Guard) -> None:
        self._app = app
        self.guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge a request, and let it pass or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no WebSocket is spoken here
            await send({"type": "websocket.close", "code": 1008})
            return
        root = scope.get("root_path", "")
        path = str(scope["path"]).removeprefix(root) or "/"
        headers = _read_headers(scope["headers"])
        verdict = _MALFORMED
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_LIMIT:
            verdict = Judgment(431, f"send at most {HEAD_LIMIT:,} bytes of headers")
        elif headers is not None:
            query = scope.get("query_string", b"").decode("latin-1")
            verdict = self.guard.judge(scope["method"], path, query, headers)
        if verdict.status != 200:
            await self._answer(verdict, root, path, scope, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                named = {name.lower() for name, _ in given}  # the page has a policy of its own
                given += [each for each in _OWN_HEADERS if each[0] not in named]
                message["headers"] = given
            await send(message)

        await self._app(scope, receive, send_guarded)

    async def _answer(
        self, verdict: Judgment, root: str, path: str, scope: Scope, send: Send
    ) -> None:
        """Answer a request that is not let through: a program in JSON, a browser in text."""
        headers = [*_OWN_HEADERS, (b"cache-control", b"no-store")]
        if verdict.cookie:
            secure = "; Secure" if scope.get("scheme") == "https" else ""
            cookie = f"{self.guard.cookie}={verdict.cookie}; Path={root or '/'}; HttpOnly; "
            headers.append((b"set-cookie", f"{cookie}SameSite=Strict{secure}".encode()))
            headers.append((b"location", f"{root}/".encode()))
        if verdict.status in (400, 431):  # what else comes on this connection, nobody knows
            headers.append((b"connection", b"close"))
        body, kind = f"{verdict.text}\n".encode() if verdict.text else b"", b"text/plain"
        if path.startswith("/api/"):
            body, kind = json.dumps({"error": verdict.text}).encode(), b"application/json"
        headers.append((b"content-type", kind + b"; charset=utf-8"))
        headers.append((b"content-length", str(len(body)).encode()))
        await send(
            {"type": "http.response.start", "status": verdict.status, "headers": headers}
        )
        body = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": body})


_OWN_HEADERS: Final = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]

#: What decides must stand there once: which of two a browser meant, nobody knows.
_ONCE: Final = (
    *("host", "origin", "authorization", "sec-fetch-site", "sec-fetch-mode"),
    *("content-length", "transfer-encoding"),
)

_MALFORMED: Final = Judgment(400, "headers contradict one another; send each once")


def _read_headers(pairs: Collection[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """Return headers by name; None where one that decides stands there twice.

    So do two lengths of a body: what one server takes for its end, the proxy before it may not.
    """
    headers: dict[str, str] = {}
    for raw, value in pairs:
        name = raw.decode("latin-1").lower()
        if name in headers and name in _ONCE:
            return None
        text = value.decode("latin-1")
        headers[name] = f"{headers[name]}; {text}" if name in headers else text
    return None if {"content-length", "transfer-encoding"} <= headers.keys() else headers
