"""A client's two buffers with the router: one for whole packets, one for notifications.

Payloads are only ever in the two buffers of a `RouterLink`. The other side gets a wake-up,
however much is in a buffer, and then reads all of it.

The life of a link::

    link = Link(mailbox, connect, wake)      # mailbox: the router's, see `RouterMailbox`
    link.begin()                             # the router answers with a CONNACK in the buffer
    link.push(chunk)                         # whole packets, any number, after each read
    for notification in link.take():         # whenever `wake` was called
        bytes         -> write them
        UNSCHEDULE    -> when all bytes before it were written: link.ready()
        Disconnected  -> write all bytes before it, then close; it is the last one
    link.disconnect(reason)                  # the connection is lost, or the client misbehaves

`wake` is called on the router's thread, at most once between two calls of `take`. All methods
of a link may be called from any thread, but the methods of one side from one thread at a time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, field
from typing import Final, NamedTuple, Protocol

from callboard.mqtt.wire.packet import Auth, Connect
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support import after_fork
from callboard.support.dataclass import dataclass


class Unschedule:
    """The buffer is full: the router sends nothing more until `Ready`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSCHEDULE"


UNSCHEDULE: Final = Unschedule()


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The router ended the connection.

    Attributes:
        reason_code: the reason code of the end; `NORMAL_DISCONNECTION` if the client
            disconnected. Before this marker there is a DISCONNECT or a refusing CONNACK, if the
            version of MQTT has it.
        text: the reason for a log.
    """

    reason_code: ReasonCode
    text: str = ""


#: The router's output: packets ready to write (one or many), or a marker.
Notification = bytes | Unschedule | Disconnected


class Access(Protocol):
    """The permissions of one client.

    Decisions are cached by topic until `RouterLink.access_changed`. If it has a true attribute
    `is_open`, only `may_subscribe` is called.
    """

    def may_publish(self, topic: str) -> bool:
        """Return whether this client may publish to a topic."""

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the QoS to grant (0 to 2), or a reason code of SUBACK (128 and above)."""

    def may_receive(self, topic: str) -> bool:
        """Return whether this client may receive messages of a topic."""


# --- events for the router ---


class LinkEnding(NamedTuple):
    """The reason for the end of a connection, and how it ends.

    Attributes:
        reason: the reason, for the client and the log.
        has_will: whether the will is published.
        is_told: whether the client gets a DISCONNECT.
        text: the reason in words.
        expiry: a new session expiry in seconds, if the client's DISCONNECT had one.
    """

    reason: ReasonCode
    has_will: bool
    is_told: bool = True
    text: str = ""
    expiry: float | None = None


@dataclass(slots=True, eq=False)
class LinkEvent:
    """An event of a link, for the router."""

    link: "RouterLink"


class ConnectRequested(LinkEvent):
    """An authenticated client requests its session."""

    __slots__ = ()


class DeviceData(LinkEvent):
    """There are chunks in the incoming buffer."""

    __slots__ = ()


class Ready(LinkEvent):
    """The packets before the marker in the outgoing buffer were written."""

    __slots__ = ()


class AccessChanged(LinkEvent):
    """The decisions of the client's `Access` may have changed."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class DisconnectRequested(LinkEvent):
    """The connection is lost, or must end."""

    ending: LinkEnding


class RouterMailbox:
    """The events of all links for the router, in order. Can be used from any thread.

    Attributes:
        events: the events of links in the order of arrival; the router removes them.
        is_poked: whether the router was woken for its next turn.
    """

    def __init__(self) -> None:
        self.events: deque[LinkEvent] = deque()
        self.wake_pending = False
        after_fork.own_wake(self)
        self._wake: Callable[[], None] | None = None

    def attach(self, wake: Callable[[], None]) -> None:
        """Set the function that wakes the router for a turn."""
        self._wake = wake
        if self.events:
            self.wake()

    def post(self, event: LinkEvent) -> None:
        """Append an event, and wake the router if it is parked."""
        self.events.append(event)
        if not self.wake_pending:
            self.wake()

    def wake(self) -> None:
        """Wake the router for a turn."""
        if self._wake is not None:
            self.wake_pending = True
            self._wake()


def _asleep() -> None:
    """Do nothing; replaces the callback of a link whose connection is closed."""


@dataclass(slots=True, eq=False, repr=False)
class RouterLink:
    """The two buffers of one client, and how each side wakes the other.

    Attributes:
        connect: the client's CONNECT; its password is not used here.
        access: the client's permissions; None is all.
        peer: the client's address, for logs and the console.
        is_local: true for links within the process, which may publish to `$SYS`.
        client_id: the client id of the session, even if the router chose it; empty until it
            exists.
        user: the user that the client has authenticated as. Empty for a client without a name
            among clients with names; None if no client has to authenticate.
        listed: the name in the router's table of users; empty if it is not there.
        maximum_qos: the highest QoS that its listener allows.
        ending: how the connection ends, after `disconnect`.
        authenticate: handles AUTH packets from a client whose CONNECT named a method.
        catch_up: pushes data from the client that has arrived and was not read yet.
        is_full: set by the router while it holds the client and has queued enough of its
            packets; the router calls `wake` when it accepts more.
    """

    _mailbox: RouterMailbox
    connect: Connect
    wake: Callable[[], None]
    _: KW_ONLY
    access: Access | None = None
    peer: str = ""
    is_local: bool = False
    client_id: str = ""
    user: str | None = None
    listed: str = ""
    maximum_qos: int = 2
    ending: LinkEnding | None = None
    authenticate: Callable[[Auth], None] | None = None
    catch_up: Callable[[], None] | None = None
    is_woken: bool = False
    is_full: bool = False
    incoming: list[bytes] = field(init=False, default_factory=list)
    outgoing: list[Notification] = field(init=False, default_factory=list)
    _device_data: DeviceData | None = None

    # --- towards the router ---

    def begin(self) -> None:
        """Request the session; once, before anything else."""
        self._mailbox.post(ConnectRequested(self))

    def push(self, chunk: bytes) -> None:
        """Put whole packets from the client into the incoming buffer, and wake the router."""
        self.incoming.append(chunk)
        event = self._device_data
        if event is None:  # made on first use, because many clients never send anything
            event = self._device_data = DeviceData(self)
        self._mailbox.post(event)

    def ready(self) -> None:
        """Report that all bytes before `UNSCHEDULE` were written."""
        self._mailbox.post(Ready(self))

    def disconnect(
        self,
        reason_code: ReasonCode = ReasonCode.UNSPECIFIED_ERROR,
        *,
        is_told: bool = False,
        has_will: bool = True,
    ) -> None:
        """End the connection after the chunks that were pushed.

        Args:
            reason_code: the reason code of the end.
            is_told: whether the router sends a DISCONNECT with the reason (MQTT 5).
            has_will: whether the will is published.
        """
        self.ending = LinkEnding(reason_code, has_will=has_will, is_told=is_told)
        self._mailbox.post(DisconnectRequested(self, self.ending))

    def access_changed(self) -> None:
        """Discard cached decisions of the client's `Access`."""
        self._mailbox.post(AccessChanged(self))

    # --- from the router ---

    def take(self) -> list[Notification]:
        """Empty the outgoing buffer, and return its content."""
        self.is_woken = False
        notifications = self.outgoing[:]
        del self.outgoing[: len(notifications)]
        return notifications

    def let_go(self) -> None:
        """Drop all callbacks: the connection is closed.

        Otherwise the reference cycles would keep it in memory until a garbage collection.
        """
        self.wake = _asleep
        self.authenticate = self.catch_up = None
        self._device_data = None
