"""The module `http`: receives messages by POST, posts messages, fetches pages."""

import logging
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, ClassVar, Final
from urllib.error import HTTPError, URLError

from pydantic import Field, field_validator, model_validator

from callboard.configuration.host_port import parse_host_port
from callboard.configuration.reading import HostPort
from callboard.gateway.errors import GatewayError
from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.wire.message import Message
from callboard.kernel.errors import MailboxFull
from callboard.support.host_guard import HostGuard, Refusal
from callboard.support.redaction import redacted
from callboard.support.seconds import MAX_SECONDS
from callboard.support.text import describe
from callboard.web import WebHandler, WebServer

_log = logging.getLogger("callboard.gateway")

#: Bytes of a body.
BODY_LIMIT: Final = 16 * 1024 * 1024

#: Statuses below 500 after which a retry may succeed: timed out, too early, too many.
PASSING: Final = (408, 425, 429)


class HttpArguments(ModuleArguments):
    """Arguments of an HTTP module; at least one of `listen`, `post` and `get`.

    Attributes:
        listen: `HOST:PORT`; the body of each POST there is published, with the properties
            `path` and `content-type`. Any program that reaches the port may post, under any
            name of the host, but not a browser for a page of another site.
        hosts: names of the port for browsers, in addition to addresses, `localhost` and the
            name of the machine; `*` for all.
        post: the URL for received messages; an answer other than 2xx is a failure. With a
            `store`, messages wait while the server does not answer, or answers with 5xx.
        get: the URL that is fetched every `period` seconds, and published.
        period: seconds.
        timeout: seconds for a request.
        headers: the headers of each request.
    """

    listen: HostPort | None = None
    post: str | None = None
    get: str | None = None
    period: float = Field(default=60.0, gt=0, le=MAX_SECONDS, strict=False)
    timeout: float = Field(default=10.0, gt=0, le=MAX_SECONDS, strict=False)
    headers: dict[str, str] = Field(default={}, repr=False)
    hosts: list[str] = []

    @field_validator("post", "get")
    @classmethod
    def _check_http(cls, url: str | None) -> str | None:
        """Refuse URLs of other schemes."""
        if url is not None and not url.startswith(("http://", "https://")):
            msg = f"{redacted(url)!r} is not an HTTP URL"
            raise ValueError(msg)
        return url

    @model_validator(mode="after")
    def _does_something(self) -> "HttpArguments":
        """Refuse arguments without a direction."""
        if self.listen is None and self.post is None and self.get is None:
            msg = "set listen, post or get"
            raise ValueError(msg)
        return self


class HttpModule(Module):
    """HTTP as a source, a sink, or both."""

    Arguments = HttpArguments
    detached: ClassVar[bool] = True  # requests block

    def create(self, args: Mapping[str, Any]) -> None:
        """Check the arguments."""
        self._args = HttpArguments.read(args)
        self._server: _Server | None = None

    def start(self) -> None:
        """Open the port, and start to fetch."""
        if self._args.listen is not None:
            address = parse_host_port(self._args.listen)
            guard = HostGuard.of_port(address[0], self._args.hosts)
            self._server = _Server(address, _Handler, guard)
            self._server.module = self
            self._server.start(f"callboard-http-{self.name}")
            _log.info("module %r accepts POST at port %d", self.name, self.port)
        if self._args.get is not None:
            self._fetch()
            self.every(self._args.period, self._fetch)

    @property
    def port(self) -> int:
        """The open port; 0 without one."""
        return 0 if self._server is None else self._server.port

    def receive(self, message: Message) -> None:
        """Post the message."""
        if self._args.post is None:
            msg = f"module {self.name!r} has no URL to post to; set args.post"
            raise ValueError(msg)
        kind = message.properties.get("content-type", "application/octet-stream")
        headers = {"Content-Type": kind, **self._args.headers}
        self._request(self._args.post, headers, message.content)

    def destroy(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.close()

    def _fetch(self) -> None:
        """Fetch the URL and publish the body; report an outage once."""
        assert self._args.get is not None
        try:
            kind, body = self._request(self._args.get, self._args.headers, None)
        except (OSError, ValueError) as error:
            self.outage(error)
            return
        self.recovered()
        self.publish(body, {"url": self._args.get, "content-type": kind})

    def _request(
        self, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[str, bytes]:
        """Make a request; return the type and the body of the answer.

        Raises:
            OSError: no answer, or a temporary status (5xx, 408, 425, 429).
            ValueError: another status than 2xx, or a body that is too large.
        """
        request = urllib.request.Request(url, data=body, headers=dict(headers))  # noqa: S310  # checked
        try:
            with urllib.request.urlopen(request, timeout=self._args.timeout) as answer:  # noqa: S310
                data = answer.read(BODY_LIMIT + 1)
        except HTTPError as error:
            error.close()
            msg = f"{redacted(url)} answered with {error.code} {error.reason}"
            may_pass = error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code in PASSING
            raise (ConnectionError if may_pass else ValueError)(msg) from None
        except (HTTPException, URLError) as error:
            msg = f"{redacted(url)}: {getattr(error, 'reason', None) or describe(error)}"
            raise ConnectionError(msg) from None
        if len(data) > BODY_LIMIT:
            msg = f"the body of {redacted(url)} exceeds {BODY_LIMIT:,} B"
            raise ValueError(msg)
        return answer.headers.get_content_type(), data


class _Server(WebServer):
    module: HttpModule


class _Handler(WebHandler):
    """Handles one connection."""

    server: _Server

    def refusal(self) -> Refusal | None:
        """Return the reason to refuse a request; programs may use any name of the host."""
        return self.server.guard.refusal(self.asking, programs=self.command == "POST")

    def do_POST(self) -> None:  # noqa: N802  # the base class calls it
        """Publish the body, and answer with a status."""
        self.send_response(self._published())
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _published(self) -> HTTPStatus:
        """Publish the body; return the status for the answer."""
        if not self.headers.get("Content-Length", "").isdecimal():
            return HTTPStatus.LENGTH_REQUIRED
        if (body := self.body(BODY_LIMIT)) is None:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        properties = {"path": self.path, "content-type": self.headers.get_content_type()}
        try:
            self.server.module.publish(body, properties)
        except (MailboxFull, GatewayError):
            return HTTPStatus.SERVICE_UNAVAILABLE
        except ValueError:
            return HTTPStatus.BAD_REQUEST
        return HTTPStatus.ACCEPTED
