"""A port for Zeek's WebSocket JSON, for programs, browsers and Zeeks.

    client ──> session ──> Hub.ingest_encoded ──> endpoints, actors, the other clients
    endpoint ──> Hub ──> receiver of the client ──> session ──> client

A client receives messages that match its filter from all reachable nodes, except its own. The
name of a client's token or certificate can limit the topics that it may publish and subscribe
to.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from callboard.arguments import require
from callboard.closing import Closing
from callboard.kernel.access import LinkAccess, Rights
from callboard.kernel.ports import Limits, refuse_unguarded
from callboard.kernel.topology import Endpoint, endpoint_text
from callboard.kernel.wire import ForeignLink, Opening
from callboard.model.errors import EndpointError, InvalidOption
from callboard.support.dataclass import dataclass
from callboard.support.host_guard import ANY_HOST, HostGuard
from callboard.support.seconds import check_numbers
from callboard.tls.certificates import Certificates
from callboard.tls.contexts import Tls
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import DoorReceiver, Item
from callboard.topics.machine.topic import is_reserved
from callboard.zeek.doors.unwritten import UnwrittenMessages
from callboard.zeek.json_message import message_to_json
from callboard.zeek.web_socket import WebSocketAdmission, ZeekServerSession

_log: Final = logging.getLogger("callboard.zeek")

#: Default version in acks: the Zeek release whose dialect this is.
VERSION: Final = "8.1.0"

#: Seconds for which reading from a client pauses while the hub is full.
PAUSE: Final = 0.02


#: Largest run in bytes whose frames are kept for the other clients.
KEPT_SIZE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """Limits of a port.

    Attributes:
        clients: connections; further ones are closed at once.
        clients_per_address: connections from one address.
        message: largest message in bytes, whole or fragmented.
        waiting: bytes queued for a client that does not read; above it the client is
            disconnected.
        handshake: seconds from the connection to the filter.
        messages_per_second: messages accepted from a client; more wait in its socket. 0: no
            limit.
        bytes_per_second: bytes accepted from a client; more wait in its socket. 0: no limit.
    """

    clients: int = 1_024
    clients_per_address: int = 256
    message: int = 4 << 20
    waiting: int = 16 << 20
    handshake: float = 10.0
    messages_per_second: int = 0
    bytes_per_second: int = 0

    def __post_init__(self) -> None:
        check_numbers(self)

    def of_port(self) -> Limits:
        """Return these limits in the form that ports use."""
        return Limits(
            links=self.clients,
            links_per_address=self.clients_per_address,
            handshakes_per_address=min(self.clients_per_address, 128),
            messages_per_second=self.messages_per_second,
            bytes_per_second=self.bytes_per_second,
        )


class WebSocketClient(DoorReceiver):
    """A client of a port.

    Attributes:
        name: the name in the client's token or certificate, or the one that it sent.
        topics: the permitted part of its filter.
        brought: messages received from it.
        taken: messages sent to it.
        refused: messages that it was not permitted to publish.
        unwritten: messages that JSON cannot express.
    """

    def __init__(
        self,
        link: ForeignLink,
        session: ZeekServerSession,
        frames: "RunFrames",
        unwritten: UnwrittenMessages,
    ) -> None:
        self.name = session.guest.application or session.guest.name
        self.peer_key = endpoint_text(link.remote)
        self.topics: tuple[str, ...] = ()
        self.brought = self.taken = self.refused = self.unwritten = 0
        self.link = link
        self.session = session
        self._frames = frames
        self._unwritten = unwritten

    def take_from(self, _sender: bytes, items: list[Item], size: int) -> None:
        """Send a run to the client; on the node's thread."""
        if self.session.is_over():
            return
        frames = []
        for item, frame in zip(items, self._frames.of(items, size, self.session), strict=True):
            if isinstance(frame, bytes):
                frames.append(frame)
            elif frame is not None:
                self.unwritten += 1
                self._unwritten.add(self.name, item[0], frame)
        self.taken += len(frames)
        if frames:
            self.link.say(b"".join(frames))


class RunFrames:
    """Cache of the last run's frames, which are the same for all clients."""

    def __init__(self) -> None:
        self._frames: dict[int, tuple[Item, bytes | EndpointError | None]] = {}

    def of(
        self, items: list[Item], size: int, session: ZeekServerSession
    ) -> list[bytes | EndpointError | None]:
        """Return the frame of each message, and None for messages on reserved topics.

        A value that JSON cannot express gives an error instead. `size` is that of the run.
        """
        cache = self._frames
        if size > KEPT_SIZE:
            cache.clear()
            return [_frame_of(item, session) for item in items]
        if id(items[0]) not in cache and id(items[-1]) not in cache:
            cache.clear()  # another run
        for item in items:
            if id(item) not in cache:
                cache[id(item)] = item, _frame_of(item, session)
        return [cache[id(item)][1] for item in items]


def _frame_of(item: Item, session: ZeekServerSession) -> bytes | EndpointError | None:
    """Return the frame of a message."""
    if is_reserved(item[0]):
        return None
    try:
        return session.send(message_to_json(*item))
    except EndpointError as error:
        return error.with_traceback(None)


class WebSocketServer(Closing):
    """A port, until it is closed; see `Endpoint.listen_web_socket`."""

    #: Name of this wire in events and figures.
    kind: Final = "websocket"

    def __init__(
        self,
        hub: Hub,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: Tls | None = None,
        tokens: Mapping[str, str] | None = None,
        permissions: Mapping[str, Rights] | None = None,
        origins: tuple[str, ...] | list[str] = (),
        hosts: tuple[str, ...] | list[str] = (),
        limits: WebSocketLimits | None = None,
        version: str = VERSION,
        insecure: bool = False,
    ) -> None:
        """Open the port; the arguments are as for `Endpoint.listen_web_socket`."""
        self._hub = hub
        self._limits = limits or WebSocketLimits()
        self._version = version
        hosts = hosts or ((ANY_HOST,) if tls is not None else ())
        guard = HostGuard.of_port(address, hosts)
        self._entry = WebSocketAdmission(_checked_tokens(tokens), tuple(origins), guard)
        self._access = LinkAccess.of(None, None, permissions)
        self._clients: dict[ForeignLink, WebSocketClient] = {}
        self._frames = RunFrames()
        self._unwritten = UnwrittenMessages(hub, _log)
        node = hub.node
        is_guarded = bool(tokens) or (tls is not None and tls.mutual)
        if not insecure:  # the server's certificate does not authenticate clients
            refuse_unguarded(address, is_guarded=is_guarded)
        certificates = None if tls is None else Certificates(tls, node.context.report)
        self._foreign = node.overlay.foreign
        self._port = self._foreign.listen(
            self,
            address,
            port,
            tls=certificates,
            is_guarded=is_guarded,
            insecure=insecure,
            limits=self._limits.of_port(),
            patience=self._limits.handshake,
            waiting=self._limits.waiting,
        )

    @property
    def port(self) -> int:
        """The TCP port."""
        number: int = self._port.port
        return number

    def clients(self) -> list[WebSocketClient]:
        """Return the connected clients. Can be called from any thread."""
        return list(self._clients.values())

    def close(self) -> None:
        """Close the port, and send its clients a close frame. Idempotent."""
        self._foreign.close_port(self._port, "the port is closed")

    # --- callbacks of the links; on the node's thread ---

    def make_machine(self, opening: Opening) -> ZeekServerSession:
        """Return the protocol machine of a new connection."""
        endpoint = f"{self._hub.name}-websocket-{self._hub.new_object_id()}"
        return ZeekServerSession(
            self._entry,
            endpoint,
            self._version,
            opening.now,
            limit=self._limits.message,
            certified=opening.certified,
        )

    def link_up(self, link: ForeignLink, _name: str) -> None:
        """Register a client's permitted topics, so that it receives messages."""
        session: Any = link.machine
        client = WebSocketClient(link, session, self._frames, self._unwritten)
        rights = self._rights(client)
        topics = client.session.topics
        if rights is not None:
            topics = tuple(topic for topic in topics if rights.permit_topic("subscribe", topic))
            for refused in set(client.session.topics) - set(topics):
                text = f"topic {refused[:80]!r} is not permitted"
                link.say(client.session.refuse("not_permitted", text))
        client.topics = topics
        self._clients[link] = client
        if topics:
            self._hub.add_receiver(client, topics, sees_own=True)

    def link_down(self, link: ForeignLink, reason: str) -> None:
        """Forget a client."""
        client = self._clients.pop(link, None)
        if client is not None:
            _log.info("client %s ended: %s", client.name or link.remote[0], reason)
            if client.topics:
                self._hub.remove_receiver(client)

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Publish messages from a client."""
        client = self._clients[link]
        rights = self._rights(client)
        permitted: list[tuple[str, bytes]] = []
        for topic, content in messages:
            if rights is None or rights.permit_topic("publish", topic):
                permitted.append((topic, content))
            else:
                client.refused += 1
                text = f"publishing to {topic[:80]!r} is not permitted"
                link.say(client.session.refuse("not_permitted", text))
        client.brought += len(permitted)
        if permitted:
            self._hub.publishing.ingest_encoded(permitted, client)
        if not self._hub.has_room():
            link.pause_reading(PAUSE)

    def not_linked(self, remote: Endpoint, reason: str) -> None:
        """Log a failed handshake."""
        _log.info("no client from %s: %s", remote[0], reason)

    def _rights(self, client: WebSocketClient) -> Rights | None:
        """Return the rights of a client; None if it may do everything."""
        if not self._access.limits_rights:
            return None
        rights = self._access.rights_of(client.session.guest.name)
        return Rights() if rights is None else rights


def _checked_tokens(tokens: Mapping[str, str] | None) -> dict[str, str]:
    """Return the tokens by name.

    Raises:
        InvalidOption: a token or a name is empty, or two tokens are equal.
        WrongArgument: `tokens` does not map texts to texts.
    """
    if tokens is None:
        return {}
    hint = 'tokens takes a map of names and tokens: {"zeek-1": "…"}'
    checked: Any = tokens
    require(isinstance(checked, Mapping), hint, checked)
    for name, token in checked.items():
        require(isinstance(name, str) and isinstance(token, str), hint, token)
        if not token or not name:
            msg = f"the token of {name!r} is empty" if name else "a token has no name"
            raise InvalidOption(msg)
    if len(set(checked.values())) < len(checked):
        msg = "two names have the same token; give each name its own"
        raise InvalidOption(msg)
    return dict(checked)
