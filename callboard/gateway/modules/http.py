"""The module `http`: takes messages by POST, posts messages, fetches pages."""

import logging
import threading
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

from pydantic import Field, field_validator, model_validator

from actors.errors import MailboxFull
from callboard.gateway.errors import GatewayError
from callboard.gateway.message import Message
from callboard.gateway.module import Module
from callboard.gateway.modules.arguments import Arguments

log = logging.getLogger("callboard.gateway")

BODY_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of a body."""

REQUEST_LIMIT: Final = 10.0
"""Seconds that a client may take to say what it wants."""


class HttpArguments(Arguments):
    """What an HTTP module may be told; at least one of `listen`, `post` and `get`.

    Attributes:
        listen: `HOST:PORT`; the body of each POST there is published, with the properties
            `path` and `content-type`. Anybody who reaches the port may do that.
        post: the URL that received messages are posted to; another answer than 2xx fails.
        get: the URL that is fetched every `period` seconds, and published.
        period: seconds.
        timeout: seconds that a request may take.
        headers: of requests.
    """

    listen: str | None = None
    post: str | None = None
    get: str | None = None
    period: float = Field(default=60.0, gt=0, strict=False)
    timeout: float = Field(default=10.0, gt=0, strict=False)
    headers: dict[str, str] = {}

    @field_validator("listen")
    @classmethod
    def _has_port(cls, text: str | None) -> str | None:
        if text is not None:
            host, colon, port = text.rpartition(":")
            if not colon or not host or not port.isdecimal() or int(port) > 65535:
                msg = f"{text!r} is no HOST:PORT; write it like 127.0.0.1:8080"
                raise ValueError(msg)
        return text

    @field_validator("post", "get")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            msg = f"{url!r} is no URL of HTTP"
            raise ValueError(msg)
        return url

    @model_validator(mode="after")
    def _does_something(self) -> "HttpArguments":
        if self.listen is None and self.post is None and self.get is None:
            msg = "give listen, post or get"
            raise ValueError(msg)
        return self


class Http(Module):
    """HTTP as a source, a sink, or both."""

    Arguments = HttpArguments
    detached: ClassVar[bool] = True  # requests block

    def create(self, args: Mapping[str, Any]) -> None:
        """Check the arguments."""
        self._args = HttpArguments.read(args)
        self._server: _Server | None = None

    def start(self) -> None:
        """Open the port, and begin to fetch."""
        if self._args.listen is not None:
            host, _, port = self._args.listen.rpartition(":")
            self._server = _Server((host.strip("[]"), int(port)), _Handler)
            self._server.module = self
            threading.Thread(
                target=self._server.serve_forever,
                args=(0.1,),
                name=f"callboard-http-{self.name}",
                daemon=True,
            ).start()
            log.info("module %r takes POST at port %d", self.name, self.port)
        if self._args.get is not None:
            self._fetch()
            self.every(self._args.period, self._fetch)

    @property
    def port(self) -> int:
        """The port that was opened; 0 before."""
        return 0 if self._server is None else int(self._server.server_address[1])

    def receive(self, message: Message) -> None:
        """Post it."""
        if self._args.post is None:
            msg = f"module {self.name!r} has nobody to post to; give it args.post"
            raise ValueError(msg)
        kind = message.properties.get("content-type", "application/octet-stream")
        headers = {"Content-Type": kind, **self._args.headers}
        self._request(self._args.post, headers, message.content)

    def destroy(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _fetch(self) -> None:
        assert self._args.get is not None
        kind, body = self._request(self._args.get, self._args.headers, None)
        self.publish(body, {"url": self._args.get, "content-type": kind})

    def _request(
        self, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[str, bytes]:
        request = urllib.request.Request(url, data=body, headers=dict(headers))  # noqa: S310  # checked
        with urllib.request.urlopen(request, timeout=self._args.timeout) as answer:  # noqa: S310
            found = answer.read(BODY_LIMIT + 1)
        if len(found) > BODY_LIMIT:
            msg = f"the body of {url} exceeds {BODY_LIMIT:,} B"
            raise ValueError(msg)
        return answer.headers.get_content_type(), found


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    module: Http


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    timeout = REQUEST_LIMIT
    server: _Server

    def do_POST(self) -> None:  # noqa: N802  # the base class calls it
        """Publish the body."""
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal():
            self._answer(HTTPStatus.LENGTH_REQUIRED)
            return
        if int(size) > BODY_LIMIT:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        body = self.rfile.read(int(size))
        about = {"path": self.path, "content-type": self.headers.get_content_type()}
        try:
            self.server.module.publish(body, about)
        except (MailboxFull, GatewayError):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE)
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST)
        else:
            self._answer(HTTPStatus.ACCEPTED)

    def _answer(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Say nothing: there may be many."""
