"""A client's two buffers with the router: whole runs of packets go in, notifications come out.

Payloads lie in the two buffers of a `Link`; what crosses to the other side is a wake-up only,
however much lies there. The side that takes a buffer takes all of it.

The life of a link::

    link = Link(mailbox, connect, wake)      # mailbox: the router's, see `Mailbox`
    link.begin()                             # the router answers with a CONNACK in the buffer
    link.push(chunk)                         # whole packets, any number, after each read
    for each in link.take():                 # whenever `wake` was called
        bytes         -> write them
        UNSCHEDULE    -> when what was written before has left: link.ready()
        Disconnected  -> write what stands before it, then close; nothing follows
    link.disconnect(reason)                  # the connection is lost, or the client misbehaves

`wake` is called on the router's thread, at most once between two calls of `take`. All methods
of a link may be called from any thread; those of one side from one thread at a time.
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
        reason_code: why; `NORMAL_DISCONNECTION` if the client wanted it. A DISCONNECT or a
            refusing CONNACK stands before this one where the version of MQTT has it.
        text: the same for a log.
    """

    reason_code: ReasonCode
    text: str = ""


#: What the router gives: packets ready to write (one or many), or a marker.
Notification = bytes | Unschedule | Disconnected


class Access(Protocol):
    """What one client may do. Answers are kept for each topic until `Link.access_changed`.

    One that has a true attribute `is_open` is asked about subscriptions only.
    """

    def may_publish(self, topic: str) -> bool:
        """Whether messages of this client may go to a topic."""

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the QoS to grant (0 to 2), or a reason code of SUBACK (128 and above)."""

    def may_receive(self, topic: str) -> bool:
        """Whether messages of a topic may go to this client."""


# --- events: what links tell the router ---


class Ending(NamedTuple):
    """Why a connection ends, and how.

    Attributes:
        reason: for the client and the log.
        has_will: whether its will is published.
        is_told: whether the client gets a DISCONNECT.
        text: the reason in words.
        expiry: seconds for which its session is to live on, if the client said so at last.
    """

    reason: ReasonCode
    has_will: bool
    is_told: bool = True
    text: str = ""
    expiry: float | None = None


@dataclass(slots=True, eq=False)
class LinkEvent:
    """What a link tells the router."""

    link: "Link"


class ConnectRequested(LinkEvent):
    """A client that has been authenticated wants its session."""

    __slots__ = ()


class DeviceData(LinkEvent):
    """There are chunks in the incoming buffer."""

    __slots__ = ()


class Ready(LinkEvent):
    """What came before the marker in the outgoing buffer has been written."""

    __slots__ = ()


class AccessChanged(LinkEvent):
    """Answers of the client's `Access` may be others from here on."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class DisconnectRequested(LinkEvent):
    """The connection is lost or has to end."""

    ending: Ending


class Mailbox:
    """The events of all links, in this order on their way to the router; from any thread.

    Attributes:
        events: in the order that they came; the router takes them out.
        is_poked: whether the router is about to take a turn.
    """

    def __init__(self) -> None:
        self.events: deque[LinkEvent] = deque()
        self.is_poked = False
        after_fork.own_poke(self)
        self._wake: Callable[[], None] | None = None

    def attach(self, wake: Callable[[], None]) -> None:
        """Call a function from now on when the router has to take a turn."""
        self._wake = wake
        if self.events:
            self.poke()

    def post(self, event: LinkEvent) -> None:
        """Append an event, and wake the router if it is parked."""
        self.events.append(event)
        if not self.is_poked:
            self.poke()

    def poke(self) -> None:
        """Let the router take a turn."""
        if self._wake is not None:
            self.is_poked = True
            self._wake()


def _asleep() -> None:
    """Stand for the function that a link called which is let go."""


@dataclass(slots=True, eq=False, repr=False)
class Link:
    """The two buffers of one client, and how each side wakes the other.

    Attributes:
        connect: the client's CONNECT; its password is not looked at here.
        access: what the client may do; None is everything.
        peer: who it is, for logs and the console: an address.
        is_local: true for links within the process, which may publish to `$SYS`.
        client_id: what the session has, also if the router chose it; empty before.
        user: who the client has proved to be; empty for a client that comes in without a name
            where others have one, None where nobody has to prove anything.
        listed: the name in the router's table of users; empty if it is not there.
        ending: how the connection ends, once it was asked to.
        authenticate: takes AUTH packets of a client whose CONNECT named a method.
        catch_up: pushes what has arrived of the client and was not read yet.
        is_full: the router holds the client, and has enough of its packets; set by the router,
            which calls `wake` when it takes more.
    """

    _mailbox: Mailbox
    connect: Connect
    wake: Callable[[], None]
    _: KW_ONLY
    access: Access | None = None
    peer: str = ""
    is_local: bool = False
    client_id: str = ""
    user: str | None = None
    listed: str = ""
    ending: Ending | None = None
    authenticate: Callable[[Auth], None] | None = None
    catch_up: Callable[[], None] | None = None
    is_woken: bool = False
    is_full: bool = False
    incoming: list[bytes] = field(init=False, default_factory=list)
    outgoing: list[Notification] = field(init=False, default_factory=list)
    _device_data: DeviceData | None = None

    # --- towards the router ---

    def begin(self) -> None:
        """Ask for the session; once, before anything else."""
        self._mailbox.post(ConnectRequested(self))

    def push(self, chunk: bytes) -> None:
        """Put whole packets of the client into the incoming buffer, and tell the router."""
        self.incoming.append(chunk)
        event = self._device_data
        if event is None:  # the first one of a link that may never say anything
            event = self._device_data = DeviceData(self)
        self._mailbox.post(event)

    def ready(self) -> None:
        """Tell the router that what came before `UNSCHEDULE` has been written."""
        self._mailbox.post(Ready(self))

    def disconnect(
        self,
        reason_code: ReasonCode = ReasonCode.UNSPECIFIED_ERROR,
        *,
        is_told: bool = False,
        has_will: bool = True,
    ) -> None:
        """End the connection, after the chunks that were pushed before.

        Args:
            reason_code: why.
            is_told: let the router send a DISCONNECT with the reason (MQTT 5), and the marker.
            has_will: whether the will is published.
        """
        self.ending = Ending(reason_code, has_will=has_will, is_told=is_told)
        self._mailbox.post(DisconnectRequested(self, self.ending))

    def access_changed(self) -> None:
        """Forget what the client's `Access` answered before."""
        self._mailbox.post(AccessChanged(self))

    # --- from the router ---

    def take(self) -> list[Notification]:
        """Return all that lies in the outgoing buffer, and empty it."""
        self.is_woken = False
        taken = self.outgoing[:]
        del self.outgoing[: len(taken)]
        return taken

    def let_go(self) -> None:
        """Forget who was woken and asked: the connection is gone, and all of it goes at once.

        What refers to each other would wait for the garbage collector.
        """
        self.wake = _asleep
        self.authenticate = self.catch_up = None
        self._device_data = None
