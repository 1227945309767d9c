"""The guard of the dashboard: checks host, origin and token of every request.

A page of another site can make a browser send any request here, and with DNS rebinding even
read the response. So for every method the host and the origin must be ours (`host_guard`), and
everything except static files needs the token. The printed link contains the token once; after
that it is in a cookie that the browser sends only for our own pages. Programs send it as
`Authorization: Bearer TOKEN`.

Sans-IO: `Guard.judge` decides from method, path and headers; `GuardedApp` is the driver.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import field
from typing import Any, Final
from urllib.parse import parse_qs

from callboard.support.dataclass import dataclass
from callboard.support.host_guard import Asking, HostGuard

#: Maximum bytes of the body of an action, and of the headers of any request.
BODY_LIMIT: Final = 1 << 20
HEAD_LIMIT: Final = 16 << 10

#: Headers of every response. Scripts, styles and data may only come from this server.
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
class RequestDecision:
    """The decision about a request: 200 accepts it; `cookie` is set along with a redirect."""

    status: int = 200
    text: str = ""
    cookie: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of one dashboard.

    Attributes:
        token: required in every request except those for static files.
        hosts: allowed host names, besides addresses of this machine. With a proxy that
            changes `Host`, list both: the proxy's name, and the name (with a port, if there
            is one) that browsers use.
        any_address: whether any IP address is an allowed host, because the port is public.
        cookie: name of the cookie. Ports of one machine share cookies, so names must differ.
        static: prefixes of paths that need no token; their files say nothing about the cluster.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    hosts: Collection[str] = ()
    any_address: bool = False
    cookie: str = "callboard"
    static: tuple[str, ...] = ("/static/",)

    def judge(self, method: str, path: str, query: str, headers: Headers) -> RequestDecision:
        """Decide whether to accept a request; `headers` have lower-case names."""
        is_page = path in ("/", "")
        navigates = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        origins = [headers["origin"]] if "origin" in headers else []
        fetched = headers.get("sec-fetch-site", "")
        asking = Asking([headers.get("host", "")], origins, fetched, path)
        port = HostGuard(self.hosts, self.any_address, option="hosts (--host)")
        refusal = port.refusal(asking, is_link=is_page and navigates)
        if refusal is not None:
            return RequestDecision(
                int(refusal.status), f"{refusal.text}, or use the printed link"
            )
        token = parse_qs(query).get("token", [""])[-1] if is_page and method == "GET" else ""
        if token:
            if self._is_token(token):
                return RequestDecision(303, cookie=self.token)
            return RequestDecision(403, "the token is wrong; use the printed link")
        if is_page or path.startswith(self.static):
            return RequestDecision()
        if any(map(self._is_token, self._tokens(headers))):
            return RequestDecision()
        return RequestDecision(401, "the token is missing; open the link that was printed")

    def _is_token(self, text: str) -> bool:
        """Compare a text with the token, in constant time."""
        return secrets.compare_digest(text.encode(), self.token.encode())

    def _tokens(self, headers: Headers) -> list[str]:
        """Return all possible tokens in a request's headers.

        Browsers share cookies between all ports of a host name. So cookies of other programs
        arrive too: in any form, and even under the name of ours.
        """
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return [value.strip()]
        pairs = (part.partition("=") for part in headers.get("cookie", "").split(";"))
        return [value.strip() for name, _, value in pairs if name.strip() == self.cookie]


class GuardedApp:
    """An ASGI application protected by a guard; only HTTP is accepted."""

    def __init__(self, app: Application, guard: Guard) -> None:
        self._app = app
        self.guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # WebSockets are not supported
            await send({"type": "websocket.close", "code": 1008})
            return
        root = scope.get("root_path", "")
        path = str(scope["path"]).removeprefix(root) or "/"
        headers = _read_headers(scope["headers"])
        verdict = _MALFORMED
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_LIMIT:
            verdict = RequestDecision(431, f"send at most {HEAD_LIMIT:,} bytes of headers")
        elif headers is not None:
            query = scope.get("query_string", b"").decode("latin-1")
            verdict = self.guard.judge(scope["method"], path, query, headers)
        if verdict.status != 200:
            await self._answer(verdict, root, path, scope, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers_sent = list(message.get("headers", ()))
                named = {
                    name.lower() for name, _ in headers_sent
                }  # the page sets its own policy
                headers_sent += [header for header in _OWN_HEADERS if header[0] not in named]
                message["headers"] = headers_sent
            await send(message)

        await self._app(scope, receive, send_guarded)

    async def _answer(
        self, verdict: RequestDecision, root: str, path: str, scope: Scope, send: Send
    ) -> None:
        """Answer a refused request: in JSON below /api/, else in plain text."""
        headers = [*_OWN_HEADERS, (b"cache-control", b"no-store")]
        if verdict.cookie:
            secure = "; Secure" if scope.get("scheme") == "https" else ""
            cookie = f"{self.guard.cookie}={verdict.cookie}; Path={root or '/'}; HttpOnly; "
            headers.append((b"set-cookie", f"{cookie}SameSite=Strict{secure}".encode()))
            headers.append((b"location", f"{root}/".encode()))
        # The end of a malformed request is unknown, so later bytes cannot be parsed.
        if verdict.status in (400, 431):
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

#: Headers that the guard relies on. Two of one name are ambiguous, so they are refused.
_ONCE: Final = (
    *("host", "origin", "authorization", "sec-fetch-site", "sec-fetch-mode"),
    *("content-length", "transfer-encoding"),
)

_MALFORMED: Final = RequestDecision(400, "headers contradict one another; send each once")


def _read_headers(pairs: Collection[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """Return headers by name; None if a header in `_ONCE` is repeated.

    Content-Length together with Transfer-Encoding is refused as well: a proxy and this server
    could disagree about the end of the body, which allows request smuggling.
    """
    headers: dict[str, str] = {}
    for raw, value in pairs:
        name = raw.decode("latin-1").lower()
        if name in headers and name in _ONCE:
            return None
        text = value.decode("latin-1")
        headers[name] = f"{headers[name]}; {text}" if name in headers else text
    return None if {"content-length", "transfer-encoding"} <= headers.keys() else headers
