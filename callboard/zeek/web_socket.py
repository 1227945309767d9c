"""Both ends of Zeek's WebSocket JSON, version 1, as pure machines for the stream driver.

| state | client | server |
|---|---|---|
| UPGRADE | asked for the upgrade | waits for the request |
| FILTER | sent its filter, waits for the ack | waits for the filter |
| OPEN | messages go both ways | the same |
| ENDED | closed, by either side | the same |

The client's filter goes once, as the first text: a list of topics, and all that begin so is
sent to it. The answer is one ack, also to the empty list; a client sends messages behind it,
and a server takes them before. A message that cannot be read is answered by an error frame,
and the connection stays, as with Zeek. Silence is ended: a ping goes after `PING_INTERVAL`
seconds without a byte, and `SILENCE_LIMIT` seconds of it are the end.

Only `take`, `tick`, `lost` and `close` change the state; the driver owns socket and clock.
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

from callboard.endpoint.machine.topic import checked_topic
from callboard.kernel.codec import (
    AuthenticationFailed,
    BaspError,
    LinkLost,
    MalformedHandshake,
)
from callboard.kernel.wire import Admitted, Arrived, Closed, Transmit
from callboard.model.errors import EndpointError, InvalidOption, InvalidTopic, MalformedMessage
from callboard.support.dataclass import dataclass
from callboard.support.host_guard import ANY_HOST, Asking, HostGuard, is_loopback
from callboard.support.nesting import parse_json
from callboard.support.redaction import redacted
from callboard.zeek.form import Forms
from callboard.zeek.json_message import message_of_frame, parse_frame
from callboard.zeek.text_frames import TextFrames

#: Where Zeek serves it.
PATH: Final = "/v1/messages/json"

#: Seconds without a byte after which a ping goes, and after which the connection is ended.
PING_INTERVAL: Final = 10.0
SILENCE_LIMIT: Final = 25.0

#: Topics of one filter.
FILTER_LIMIT: Final = 4_096

#: Error frames to one client: what sends so many mistakes is ended.
ERROR_LIMIT: Final = 10_000

_NAME: Final = re.compile(r"[A-Za-z0-9/_\-.=:*@]{1,128}")
_SHOWN: Final = 200

#: Of the package below, which would write requests with their tokens into a log for debugging.
_DISCREET: Final = logging.getLogger("callboard.zeek.websocket")
_DISCREET.setLevel(logging.INFO)


class SessionState(Enum):
    """How far a connection is."""

    UPGRADE = "upgrade"
    FILTER = "filter"
    OPEN = "open"
    ENDED = "ended"


#: What came: topic and value, the value as our topics carry it.
Message = tuple[str, bytes]
_Effect = Transmit | Arrived | Admitted | Closed


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The other side could not read a message, or refuses it.

    Attributes:
        code: `deserialization_failed`, `invalid_uri` and so on.
        context: for people.
    """

    code: str
    context: str


def parse_address(url: str) -> WebSocketURI:
    """Return the parts of `ws://host:port/path` or `wss://…`; the path is Zeek's by default.

    Raises:
        InvalidOption: it is none.
    """
    try:
        found = parse_uri(url)
    except (InvalidURI, ValueError) as cause:
        msg = f"{redacted(url)!r} is no address of a WebSocket, as ws://HOST:27759{PATH} is one"
        raise InvalidOption(msg) from cause
    if found.path in ("", "/"):
        found.path = PATH
    return found


def checked_name(name: str) -> str:
    """Return the name of an application.

    Raises:
        InvalidOption: Zeek would refuse it.
    """
    if not _NAME.fullmatch(name):
        msg = (
            f"{name[:_SHOWN]!r} is no name of an application: 1 to 128 of A-Z a-z 0-9 /_-.=:*@"
        )
        raise InvalidOption(msg)
    return name


class _Silence:
    """When to ping, and when to give a silent peer up."""

    def __init__(self, now: float) -> None:
        self.heard = now
        self.pinged = now

    @property
    def due(self) -> float:
        """When something is to be done."""
        return min(max(self.heard, self.pinged) + PING_INTERVAL, self.heard + SILENCE_LIMIT)


class ZeekClientSession:
    """The machine of a client.

    Attributes:
        topics: the filter that was sent.
        endpoint: what the other side is called, from its ack.
        version: the version in it.
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
        """Make one that has not begun.

        Args:
            url: where it was dialed.
            topics: returns the filter, when it is sent.
            now: monotonic seconds.
            limit: bytes of a message.
            headers: more of them for the request, as `Authorization`.
        """
        self.state = SessionState.UPGRADE
        self.topics: tuple[str, ...] = ()
        self.endpoint = self.version = ""
        self._wanted = topics
        self._headers = dict(headers or {})
        self._core = ClientProtocol(url, max_size=limit, logger=_DISCREET)
        self._frames = TextFrames(self._core, limit)
        self._silence = _Silence(now)
        self._forms = Forms()

    @property
    def next_tick_at(self) -> float:
        """When silence is to be looked at."""
        return self._silence.due

    @property
    def held(self) -> int:
        """Bytes of the other side that wait for more of them."""
        return self._frames.held

    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is SessionState.ENDED

    def start(self) -> list[_Effect]:
        """Ask for the upgrade."""
        request = self._core.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._core.send_request(request)
        return [Transmit(self._frames.to_write())]

    def send(self, text: str) -> bytes:
        """Return what is to be written for a message; nothing, where the ack is missing."""
        return self._frames.framed(text) if self.state is SessionState.OPEN else b""

    def take(self, data: bytes, now: float) -> tuple[list[Any], list[_Effect]]:
        """Take what a read brought: messages and error frames alone, or effects."""
        if self.is_over():
            return [], []
        self._silence.heard = now
        found: list[Any] = []
        effects: list[_Effect] = []
        for event in self._frames.take(data):
            if self.state is SessionState.OPEN and type(event) is str:
                message = self._forms.match(event) or _brought(event, self._forms)
                if message is not None:
                    found.append(message)
            elif isinstance(event, Response):
                effects += self._upgraded(event)
            elif type(event) is str:
                effects += self._acknowledged(event)
            if self.is_over():
                return [], effects
        return _outcome(self._frames, found, effects, self._end)

    def _upgraded(self, response: Response) -> list[_Effect]:
        """Send the filter, if the server speaks WebSocket."""
        if self._core.handshake_exc is not None:
            return self._refused(response)
        self.state = SessionState.FILTER
        self.topics = tuple(self._wanted())
        text = json.dumps(self.topics, ensure_ascii=False)
        return [Transmit(self._frames.to_write() + self._frames.framed(text))]

    def _refused(self, response: Response) -> list[_Effect]:
        """End, as the server answered something else."""
        code = response.status_code
        text = f"it answers HTTP {code} {response.reason_phrase}"
        if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            why = (response.body or b"").decode(errors="replace").strip()[:_SHOWN]
            return self._end(f"{text} {why}".strip(), AuthenticationFailed(text))
        if code == HTTPStatus.SWITCHING_PROTOCOLS:
            text = f"its upgrade is none of WebSocket: {self._core.handshake_exc}"[:_SHOWN]
            return self._end(text, MalformedHandshake(text))
        return self._end(f"{text}; see the address and its path", MalformedHandshake(text))

    def _acknowledged(self, text: str) -> list[_Effect]:
        """Take the answer to the filter: an ack, or why there is none."""
        try:
            frame = parse_frame(text)
        except MalformedMessage as error:
            frame = {"type": "text", "context": str(error)}
        if frame.get("type") != "ack":
            why = f"{frame.get('code', frame.get('type'))}: {frame.get('context', '')}"
            return self._end(f"no ack: {why}"[:_SHOWN], MalformedHandshake(why[:_SHOWN]))
        self.state = SessionState.OPEN
        self.endpoint = str(frame.get("endpoint", ""))[:_SHOWN]
        self.version = str(frame.get("version", ""))[:_SHOWN]
        return [Admitted(self.endpoint)]

    def tick(self, now: float) -> list[_Effect]:
        """Ping what is silent, and end what stays so."""
        return _pinged(self._frames, self._silence, now, self._end)

    def lost(self, reason: str) -> list[_Effect]:
        """Take note that the connection broke."""
        for answer in () if self.is_over() else self._frames.end():
            if isinstance(answer, Response):
                return self._refused(answer)
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """Say goodbye and end."""
        return _closed(self._frames, reason, self._end)

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End once, behind what is to be written."""
        if self.is_over():
            return []
        self.state = SessionState.ENDED
        rest = self._frames.to_write()
        return [*([Transmit(rest)] if rest else ()), Closed(reason, error)]


def _brought(text: str, forms: Forms) -> Message | ErrorFrame | None:
    """Return what a text of a server is; None for what means nothing to us."""
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
    frames: TextFrames, found: list[Any], effects: list[_Effect], end: _End
) -> tuple[list[Any], list[_Effect]]:
    """Return messages alone, or with them what is to be done before and after."""
    data = frames.to_write()
    if not frames.failure and not data and not effects:
        return found, []
    arrived: list[_Effect] = [Arrived(found)] if found else []
    written: list[_Effect] = [Transmit(data)] if data else []
    ends = end(frames.failure, LinkLost(frames.failure)) if frames.failure else []
    return [], [*effects, *arrived, *written, *ends]


def _pinged(frames: TextFrames, silence: _Silence, now: float, end: _End) -> list[_Effect]:
    """Ping what is silent, and end what stays so."""
    if now >= silence.heard + SILENCE_LIMIT:
        reason = f"nothing was heard for {SILENCE_LIMIT:g} s"
        return end(reason, LinkLost(reason))
    if now < silence.due:
        return []
    silence.pinged = now
    if frames.core.state is OPEN:
        frames.core.send_ping(b"")
    data = frames.to_write()
    return [Transmit(data)] if data else []


def _closed(frames: TextFrames, reason: str, end: _End) -> list[_Effect]:
    """Say goodbye and end."""
    frames.fail(CloseCode.GOING_AWAY, reason.encode()[:120].decode(errors="ignore"))
    return end(reason, None)


@dataclass(frozen=True, slots=True)
class Guest:
    """Who asked for an upgrade.

    Attributes:
        name: of the token or certificate that was shown; "" where none was asked for.
        application: what it calls itself.
    """

    name: str = ""
    application: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may come in by a port.

    Attributes:
        tokens: by the names of those who show them, as `Authorization: Bearer TOKEN` or, as a
            browser has to, as `?token=TOKEN`. Without any, nobody is asked.
        origins: web sites whose pages may connect, `*` for all; by default those of this
            machine alone, as a page of any site could reach a port here through a browser.
        guard: hosts by which the port is reached; all by default.
    """

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    origins: tuple[str, ...] = ()
    guard: HostGuard = HostGuard(hosts=(ANY_HOST,))

    def judge(self, request: Request, certified: Sequence[str]) -> "Guest | tuple[int, str]":
        """Return who asks, or the HTTP status and text with which it is refused."""
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
        shown = headers.get_all("Authorization")
        kind, _, token = shown[0].partition(" ") if shown else ("", "", "")
        given = token.strip() if kind.lower() == "bearer" else ""
        given = given or parse_qs(parts.query).get("token", [""])[0]
        found = ""
        for name, known in self.tokens.items():  # all of them, so that time tells nothing
            if hmac.compare_digest(given.encode(), known.encode()):
                found = name
        if not found:
            return HTTPStatus.UNAUTHORIZED, "Authorization: Bearer TOKEN is needed, or ?token="
        return Guest(found, application)

    def _is_own(self, origins: list[str]) -> bool:
        """Return whether a page, if one asks, may."""
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
    """The machine of a server's end.

    Attributes:
        guest: who came, once the request was taken.
        topics: the filter of the client.
        failed: messages that could not be read.
    """

    def __init__(
        self,
        entry: Admission,
        endpoint: str,
        version: str,
        now: float,
        *,
        limit: int,
        certified: Sequence[str] = (),
    ) -> None:
        """Make one for a connection that was accepted.

        Args:
            entry: who may come in.
            endpoint: what the ack calls this side.
            version: the version in the ack.
            now: monotonic seconds.
            limit: bytes of a message.
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
        self._forms = Forms()
        self._inputs = 0

    @property
    def next_tick_at(self) -> float:
        """When silence is to be looked at."""
        return self._silence.due

    @property
    def held(self) -> int:
        """Bytes of the other side that wait for more of them."""
        return self._frames.held

    def is_over(self) -> bool:
        """Return whether the connection has ended."""
        return self.state is SessionState.ENDED

    def start(self) -> list[_Effect]:
        """Wait for the client."""
        return []

    def send(self, text: str) -> bytes:
        """Return what is to be written for a message."""
        return self._frames.framed(text) if self.state is SessionState.OPEN else b""

    def refuse(self, code: str, context: str) -> bytes:
        """Return what is to be written where a message is refused."""
        frame = {"type": "error", "code": code, "context": context}
        return self.send(json.dumps(frame, ensure_ascii=False))

    def take(self, data: bytes, now: float) -> tuple[list[Any], list[_Effect]]:
        """Take what a read brought: messages alone, or effects."""
        if self.is_over():
            return [], []
        self._silence.heard = now
        found: list[Any] = []
        effects: list[_Effect] = []
        for event in self._frames.take(data):
            if self.state is SessionState.OPEN and type(event) is str:
                self._inputs += 1
                try:
                    found.append(self._forms.match(event) or self._read(event))
                except EndpointError as error:
                    effects += [Arrived(found), *self._answer_mistake(error)]
                    found = []
            elif isinstance(event, Request):
                effects += self._asked(event)
            elif type(event) is str:
                effects += self._take_filter(event)
            if self.is_over():
                return [], effects
        return _outcome(self._frames, found, effects, self._end)

    def _read(self, text: str) -> Message:
        """Parse a message."""
        message = message_of_frame(parse_frame(text))
        self._forms.learn(text, message)
        return message

    def _asked(self, request: Request) -> list[_Effect]:
        """Answer the request."""
        judged = self._entry.judge(request, self._certified)
        if isinstance(judged, Guest):
            response = self._core.accept(request)
        else:
            response = self._core.reject(HTTPStatus(judged[0]), judged[1] + "\n")
        self._core.send_response(response)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS or not isinstance(
            judged, Guest
        ):
            text = f"refused with HTTP {response.status_code}"
            return self._end(text, AuthenticationFailed(text))
        self.guest = judged
        self.state = SessionState.FILTER
        return [Transmit(self._frames.to_write())]

    def _take_filter(self, text: str) -> list[_Effect]:
        """Take the first text: the filter."""
        try:
            topics = parse_json(text)
            is_filter = type(topics) is list and len(topics) <= FILTER_LIMIT
            if not is_filter or any(type(topic) is not str for topic in topics):
                raise ValueError(text[:_SHOWN])
            self.topics = tuple(dict.fromkeys(map(checked_topic, topics)))
        except (ValueError, InvalidTopic):
            self.state = SessionState.OPEN  # so that the frame goes out
            data = self.refuse("invalid_subscriptions", "subscriptions not an array of texts")
            self._frames.fail(CloseCode.POLICY_VIOLATION, "the first text is the filter")
            ends = self._end("the first text is no filter", MalformedHandshake("no filter"))
            return [Transmit(data), *ends]
        self.state = SessionState.OPEN
        name = self.guest.application or self.guest.name
        return [Transmit(self._frames.framed(self._ack)), Admitted(name)]

    def _answer_mistake(self, error: EndpointError) -> list[_Effect]:
        """Answer a message that cannot be read, as Zeek does."""
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
        """Ping what is silent, and end what stays so."""
        return _pinged(self._frames, self._silence, now, self._end)

    def lost(self, reason: str) -> list[_Effect]:
        """Take note that the connection broke."""
        return self._end(reason, LinkLost(reason))

    def close(self, reason: str) -> list[_Effect]:
        """Say goodbye and end."""
        return _closed(self._frames, reason, self._end)

    def _end(self, reason: str, error: BaspError | None = None) -> list[_Effect]:
        """End once, behind what is to be written."""
        if self.is_over():
            return []
        self.state = SessionState.ENDED
        rest = self._frames.to_write()
        return [*([Transmit(rest)] if rest else ()), Closed(reason, error)]
