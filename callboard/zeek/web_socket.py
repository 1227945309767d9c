"""Both ends of Zeek's WebSocket JSON, version 1, as pure machines for the stream driver.

| state | client | server |
|---|---|---|
| UPGRADE | has requested the upgrade | waits for the request |
| FILTER | has sent its filter, waits for the ack | waits for the filter |
| OPEN | exchanges messages | the same |
| ENDED | closed by either side | the same |

The client sends its filter once, as the first text: a list of topic prefixes. It then receives
all messages that match. The server replies with one ack, also to an empty list. A client sends
messages only after the ack; a server accepts them earlier. A message that cannot be read is
answered with an error frame, and the connection stays open, as in Zeek. After `PING_INTERVAL`
seconds without a byte a ping is sent; after `SILENCE_LIMIT` seconds the connection is closed.

Only `take`, `tick`, `lost` and `close` change the state; the driver owns the socket and the
clock.
"""

import hmac
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.uri import WebSocketURI, parse_uri

from callboard.kernel.wire import Admitted, Arrived, Closed, Transmit
from callboard.model.errors import EndpointError, InvalidOption, InvalidTopic, MalformedMessage
from callboard.protocol_errors import (
    AuthenticationFailed,
    BaspError,
    LinkLost,
    MalformedHandshake,
)
from callboard.support.dataclass import dataclass
from callboard.support.host_guard import ANY_HOST, Asking, HostGuard, is_loopback
from callboard.support.nesting import parse_json
from callboard.support.redaction import redacted
from callboard.topics.machine.topic import checked_topic
from callboard.zeek.json_message import message_of_frame, parse_frame
from callboard.zeek.template import MessageTemplates
from callboard.zeek.text_frames import TextFrames

#: Path of Zeek's endpoint.
PATH: Final = "/v1/messages/json"

#: Seconds without a byte until a ping is sent, and until the connection is closed.
PING_INTERVAL: Final = 10.0
SILENCE_LIMIT: Final = 25.0

#: Topics in one filter.
FILTER_LIMIT: Final = 4_096

#: Error frames to one client; then it is disconnected.
ERROR_LIMIT: Final = 10_000

_NAME: Final = re.compile(r"[A-Za-z0-9/_\-.=:*@]{1,128}")
_SHOWN: Final = 200

#: Logger for the package `websockets`. At level DEBUG it would log requests with their tokens.
_DISCREET: Final = logging.getLogger("callboard.zeek.websocket")
_DISCREET.setLevel(logging.INFO)


class SessionState(Enum):
    """State of a connection."""

    UPGRADE = "upgrade"
    FILTER = "filter"
    OPEN = "open"
    ENDED = "ended"


#: Topic, and value in the encoding of our topics.
Message = tuple[str, bytes]
_Effect = Transmit | Arrived | Admitted | Closed


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """Report of the peer that it could not read, or refuses, a message.

    Attributes:
        code: `deserialization_failed`, `invalid_uri` and so on.
        context: text for people.
    """

    code: str
    context: str


def parse_address(url: str) -> WebSocketURI:
    """Return the parts of `ws://host:port/path` or `wss://…`; the path defaults to Zeek's.

    Raises:
        InvalidOption: the address is invalid.
    """
    try:
        uri = parse_uri(url)
    except (InvalidURI, ValueError) as cause:
        msg = f"{redacted(url)!r} is not a WebSocket address; use ws://HOST:27759{PATH}"
        raise InvalidOption(msg) from cause
    if uri.path in ("", "/"):
        uri.path = PATH
    return uri


def checked_name(name: str) -> str:
    """Return a valid name of an application.

    Raises:
        InvalidOption: Zeek would refuse the name.
    """
    if not _NAME.fullmatch(name):
        msg = (
            f"{name[:_SHOWN]!r} is not an application name; "
            "use 1 to 128 of A-Z a-z 0-9 /_-.=:*@"
        )
        raise InvalidOption(msg)
    return name


class _Silence:
    """Timer for pings and for the end of a silent connection."""

    def __init__(self, now: float) -> None:
        self.heard = now
        self.pinged = now

    @property
    def due(self) -> float:
        """Time of the next action."""
        return min(max(self.heard, self.pinged) + PING_INTERVAL, self.heard + SILENCE_LIMIT)


class ZeekClientSession:
    """The protocol machine of a client.

    Attributes:
        topics: the filter that was sent.
        endpoint: the peer's name, from its ack.
        version: the version of the peer, from its ack.
    """

    def __init__(
        self,
        url: WebSocketURI,
        topics: Callable[[], Sequence[str]],
        now: float,
        *,
        limit: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create a session that is not started.

        Args:
            url: the dialed address.
            topics: returns the filter; called when it is sent.
            now: monotonic seconds.
            limit: largest message in bytes.
            headers: further headers of the request, such as `Authorization`.
        """
        self.state = SessionState.UPGRADE
        self.topics: tuple[str, ...] = ()
        self.endpoint = self.version = ""
        self._wanted = topics
        self._headers = dict(headers or {})
        self._core = ClientProtocol(url, max_size=limit, logger=_DISCREET)
        self._frames = TextFrames(self._core, limit)
        self._silence = _Silence(now)
        self._forms = MessageTemplates()

    @property
    def next_tick_at(self) -> float:
        """Time at which `tick` must be called."""
        return self._silence.due

    @property
    def held(self) -> int:
        """Buffered bytes of incomplete messages."""
        return self._frames.held

    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is SessionState.ENDED

    def start(self) -> list[_Effect]:
        """Request the upgrade."""
        request = self._core.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._core.send_request(request)
        return [Transmit(self._frames.to_write())]

    def send(self, text: str) -> bytes:
        """Return a message as bytes to write; empty before the ack."""
        return self._frames.framed(text) if self.state is SessionState.OPEN else b""

    def take(self, data: bytes, now: float) -> tuple[list[Any], list[_Effect]]:
        """Handle received bytes; return either messages and error frames, or effects."""
        if self.is_over():
            return [], []
        self._silence.heard = now
        messages: list[Any] = []
        effects: list[_Effect] = []
        for event in self._frames.take(data):
            if self.state is SessionState.OPEN and type(event) is str:
                message = self._forms.match(event) or _parse_server_text(event, self._forms)
                if message is not None:
                    messages.append(message)
            elif isinstance(event, Response):
                effects += self._upgraded(event)
            elif type(event) is str:
                effects += self._acknowledged(event)
            if self.is_over():
                return [], effects
        return _outcome(self._frames, messages, effects, self._end)

    def _upgraded(self, response: Response) -> list[_Effect]:
        """Send the filter if the server accepted the upgrade."""
        if self._core.handshake_exc is not None:
            return self._refused(response)
        self.state = SessionState.FILTER
        self.topics = tuple(self._wanted())
        text = json.dumps(self.topics, ensure_ascii=False)
        return [Transmit(self._frames.to_write() + self._frames.framed(text))]

    def _refused(self, response: Response) -> list[_Effect]:
        """End the session: the server did not accept the upgrade."""
        code = response.status_code
        text = f"the server answers HTTP {code} {response.reason_phrase}"
        if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            reason = (response.body or b"").decode(errors="replace").strip()[:_SHOWN]
            return self._end(f"{text} {reason}".strip(), AuthenticationFailed(text))
        if code == HTTPStatus.SWITCHING_PROTOCOLS:
            text = f"the server's upgrade is invalid: {self._core.handshake_exc}"[:_SHOWN]
            return self._end(text, MalformedHandshake(text))
        return self._end(f"{text}; check the address and its path", MalformedHandshake(text))

    def _acknowledged(self, text: str) -> list[_Effect]:
        """Handle the reply to the filter: an ack or an error."""
        try:
            frame = parse_frame(text)
        except MalformedMessage as error:
            frame = {"type": "text", "context": str(error)}
        if frame.get("type") != "ack":
            reason = f"{frame.get('code', frame.get('type'))}: {frame.get('context', '')}"
            return self._end(f"no ack: {reason}"[:_SHOWN], MalformedHandshake(reason[:_SHOWN]))
        self.state = SessionState.OPEN
        self.endpoint = str(frame.get("endpoint", ""))[:_SHOWN]
        self.version = str(frame.get("version", ""))[:_SHOWN]
        return [Admitted(self.endpoint)]

    def tick(self, now: float) -> list[_Effect]:
        """Send a ping to a silent peer, or close the connection."""
        return _pinged(self._frames, self._silence, now, self._end)

    def lost(self, reason: str) -> list[_Effect]:
        """Handle the loss of the connection."""
        for response in () if self.is_over() else self._frames.end():
            if isinstance(response, Response):
                return self._refused(response)
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """Send a close frame and end the session."""
        return _closed(self._frames, reason, self._end)

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End the session once, after writing pending bytes."""
        if self.is_over():
            return []
        self.state = SessionState.ENDED
        rest = self._frames.to_write()
        return [*([Transmit(rest)] if rest else ()), Closed(reason, error)]


def _parse_server_text(text: str, forms: MessageTemplates) -> Message | ErrorFrame | None:
    """Parse a text from a server; return None for a type that we do not use."""
    try:
        frame = parse_frame(text)
        kind = frame.get("type", "data-message")
        if kind == "data-message":
            message = message_of_frame(frame)
            forms.learn(text, message)
            return message
    except EndpointError as error:
        return ErrorFrame("unreadable", str(error)[:_SHOWN])
    if kind == "error":
        code, context = frame.get("code", ""), frame.get("context", "")
        return ErrorFrame(str(code)[:_SHOWN], str(context)[:_SHOWN])
    return None


_End = Callable[[str, BaspError | None], list[_Effect]]


def _outcome(
    frames: TextFrames, messages: list[Any], effects: list[_Effect], end: _End
) -> tuple[list[Any], list[_Effect]]:
    """Return messages alone, or all effects in their order with the messages among them."""
    data = frames.to_write()
    if not frames.failure and not data and not effects:
        return messages, []
    arrived: list[_Effect] = [Arrived(messages)] if messages else []
    writes: list[_Effect] = [Transmit(data)] if data else []
    ends = end(frames.failure, LinkLost(frames.failure)) if frames.failure else []
    return [], [*effects, *arrived, *writes, *ends]


def _pinged(frames: TextFrames, silence: _Silence, now: float, end: _End) -> list[_Effect]:
    """Send a ping to a silent peer, or close the connection."""
    if now >= silence.heard + SILENCE_LIMIT:
        reason = f"nothing was received for {SILENCE_LIMIT:g} s"
        return end(reason, LinkLost(reason))
    if now < silence.due:
        return []
    silence.pinged = now
    if frames.core.state is OPEN:
        frames.core.send_ping(b"")
    data = frames.to_write()
    return [Transmit(data)] if data else []


def _closed(frames: TextFrames, reason: str, end: _End) -> list[_Effect]:
    """Send a close frame and end the session."""
    frames.fail(CloseCode.GOING_AWAY, reason.encode()[:120].decode(errors="ignore"))
    return end(reason, None)


@dataclass(frozen=True, slots=True)
class Guest:
    """The sender of an accepted request.

    Attributes:
        name: the name in the guest's token or certificate; empty if none was required.
        application: name that it sent.
    """

    name: str = ""
    application: str = ""


@dataclass(frozen=True, slots=True)
class WebSocketAdmission:
    """The rules of a port for requests.

    Attributes:
        tokens: tokens by name. A client sends its token as `Authorization: Bearer TOKEN` or, as
            a browser must, as `?token=TOKEN`. Without tokens, no client needs one.
        origins: web sites whose pages may connect, `*` for all. By default only pages of this
            machine: through a browser, a page of any site could reach a local port.
        guard: host names under which the port may be reached; all by default.
    """

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    origins: tuple[str, ...] = ()
    guard: HostGuard = HostGuard(hosts=(ANY_HOST,))

    def judge(self, request: Request, certified: Sequence[str]) -> "Guest | tuple[int, str]":
        """Return the guest, or the HTTP status and text of a refusal."""
        parts, headers = urlsplit(request.path), request.headers
        if parts.path != PATH:
            return HTTPStatus.BAD_REQUEST, f"invalid_uri: the path is {PATH}"
        fetched = "".join(headers.get_all("Sec-Fetch-Site"))
        asking = Asking(
            headers.get_all("Host"), headers.get_all("Origin"), fetched, request.path
        )
        if (refusal := self.guard.host_refusal(asking, programs=True)) is not None:
            return refusal
        if not self._is_own(headers.get_all("Origin")):
            return HTTPStatus.FORBIDDEN, "pages of this site may not connect; see origins"
        names = headers.get_all("X-Application-Name")
        if any(not _NAME.fullmatch(name) for name in names) or len(names) > 1:
            return HTTPStatus.BAD_REQUEST, "X-Application-Name: 1 to 128 of A-Za-z0-9/_-.=:*@"
        application = names[0] if names else ""
        if not self.tokens:
            return Guest(certified[0] if certified else "", application)
        authorization = headers.get_all("Authorization")
        kind, _, token = authorization[0].partition(" ") if authorization else ("", "", "")
        sent_token = token.strip() if kind.lower() == "bearer" else ""
        sent_token = sent_token or parse_qs(parts.query).get("token", [""])[0]
        guest_name = ""
        for name, expected in self.tokens.items():  # no early exit, which timing would reveal
            if hmac.compare_digest(sent_token.encode(), expected.encode()):
                guest_name = name
        if not guest_name:
            return HTTPStatus.UNAUTHORIZED, "Authorization: Bearer TOKEN is needed, or ?token="
        return Guest(guest_name, application)

    def _is_own(self, origins: list[str]) -> bool:
        """Return whether the page that sent the request, if any, may connect."""
        if not origins or "*" in self.origins or self.tokens and not self.origins:
            return True
        if len(origins) > 1:
            return False
        if origins[0] in self.origins:
            return True
        try:
            name = urlsplit(origins[0]).hostname or ""
        except ValueError:
            return False
        return not self.origins and is_loopback(name)


class ZeekServerSession:
    """The protocol machine of a server.

    Attributes:
        guest: the client, once its request was accepted.
        topics: the filter of the client.
        failed: messages that could not be read.
    """

    def __init__(
        self,
        entry: WebSocketAdmission,
        endpoint: str,
        version: str,
        now: float,
        *,
        limit: int,
        certified: Sequence[str] = (),
    ) -> None:
        """Create a session for an accepted connection.

        Args:
            entry: rules for the request.
            endpoint: name of this side in the ack.
            version: version in the ack.
            now: monotonic seconds.
            limit: largest message in bytes.
            certified: names in the client's certificate.
        """
        self.state = SessionState.UPGRADE
        self.guest = Guest()
        self.topics: tuple[str, ...] = ()
        self.failed = 0
        self._entry = entry
        self._ack = json.dumps({"type": "ack", "endpoint": endpoint, "version": version})
        self._certified = certified
        self._core = ServerProtocol(max_size=limit, logger=_DISCREET)
        self._frames = TextFrames(self._core, limit)
        self._silence = _Silence(now)
        self._forms = MessageTemplates()
        self._inputs = 0

    @property
    def next_tick_at(self) -> float:
        """Time at which `tick` must be called."""
        return self._silence.due

    @property
    def held(self) -> int:
        """Buffered bytes of incomplete messages."""
        return self._frames.held

    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is SessionState.ENDED

    def start(self) -> list[_Effect]:
        """Wait for the client."""
        return []

    def send(self, text: str) -> bytes:
        """Return a message as bytes to write."""
        return self._frames.framed(text) if self.state is SessionState.OPEN else b""

    def refuse(self, code: str, context: str) -> bytes:
        """Return an error frame as bytes to write."""
        frame = {"type": "error", "code": code, "context": context}
        return self.send(json.dumps(frame, ensure_ascii=False))

    def take(self, data: bytes, now: float) -> tuple[list[Any], list[_Effect]]:
        """Handle received bytes; return either messages or effects."""
        if self.is_over():
            return [], []
        self._silence.heard = now
        messages: list[Any] = []
        effects: list[_Effect] = []
        for event in self._frames.take(data):
            if self.state is SessionState.OPEN and type(event) is str:
                self._inputs += 1
                try:
                    messages.append(self._forms.match(event) or self._read(event))
                except EndpointError as error:
                    effects += [Arrived(messages), *self._answer_mistake(error)]
                    messages = []
            elif isinstance(event, Request):
                effects += self._handle_request(event)
            elif type(event) is str:
                effects += self._handle_filter(event)
            if self.is_over():
                return [], effects
        return _outcome(self._frames, messages, effects, self._end)

    def _read(self, text: str) -> Message:
        """Parse a message."""
        message = message_of_frame(parse_frame(text))
        self._forms.learn(text, message)
        return message

    def _handle_request(self, request: Request) -> list[_Effect]:
        """Answer the upgrade request."""
        decision = self._entry.judge(request, self._certified)
        if isinstance(decision, Guest):
            response = self._core.accept(request)
        else:
            response = self._core.reject(HTTPStatus(decision[0]), decision[1] + "\n")
        self._core.send_response(response)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS or not isinstance(
            decision, Guest
        ):
            text = f"refused with HTTP {response.status_code}"
            return self._end(text, AuthenticationFailed(text))
        self.guest = decision
        self.state = SessionState.FILTER
        return [Transmit(self._frames.to_write())]

    def _handle_filter(self, text: str) -> list[_Effect]:
        """Handle the first text, which is the filter."""
        try:
            topics = parse_json(text)
            is_filter = type(topics) is list and len(topics) <= FILTER_LIMIT
            if not is_filter or any(type(topic) is not str for topic in topics):
                raise ValueError(text[:_SHOWN])
            self.topics = tuple(dict.fromkeys(map(checked_topic, topics)))
        except (ValueError, InvalidTopic):
            self.state = SessionState.OPEN  # `refuse` sends nothing in other states
            data = self.refuse("invalid_subscriptions", "subscriptions not an array of texts")
            self._frames.fail(CloseCode.POLICY_VIOLATION, "the first text is the filter")
            ends = self._end("the first text is not a filter", MalformedHandshake("no filter"))
            return [Transmit(data), *ends]
        self.state = SessionState.OPEN
        name = self.guest.application or self.guest.name
        return [Transmit(self._frames.framed(self._ack)), Admitted(name)]

    def _answer_mistake(self, error: EndpointError) -> list[_Effect]:
        """Answer an unreadable message with Zeek's error frame."""
        self.failed += 1
        kind = "malformed JSON" if isinstance(error, MalformedMessage) else "invalid data"
        context = f"input #{self._inputs} contained {kind} -> {str(error)[:_SHOWN]}"
        data = self.refuse("deserialization_failed", context)
        if self.failed < ERROR_LIMIT:
            return [Transmit(data)]
        self._frames.fail(CloseCode.POLICY_VIOLATION, "too many mistakes")
        reason = f"{self.failed:,} messages could not be read"
        return [Transmit(data), *self._end(reason, MalformedHandshake(reason))]

    def tick(self, now: float) -> list[_Effect]:
        """Send a ping to a silent peer, or close the connection."""
        return _pinged(self._frames, self._silence, now, self._end)

    def lost(self, reason: str) -> list[_Effect]:
        """Handle the loss of the connection."""
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """Send a close frame and end the session."""
        return _closed(self._frames, reason, self._end)

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End the session once, after writing pending bytes."""
        if self.is_over():
            return []
        self.state = SessionState.ENDED
        rest = self._frames.to_write()
        return [*([Transmit(rest)] if rest else ()), Closed(reason, error)]
