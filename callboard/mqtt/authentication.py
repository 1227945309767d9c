"""Enhanced authentication (MQTT 5, 4.12): a client proves who it is in several steps.

A method is a function that begins an exchange with a client, registered by its name. An
exchange is an object with one function, `step`, which takes what the client sent and returns
what follows:

| | |
|---|---|
| `Challenge(data)` | the client gets this, and answers with the data of the next step |
| `Proved(user, data)` | it is who it says; `data` goes with the CONNACK, or the last AUTH |
| a `ReasonCode` | it is not let in |

The first step has the data of the CONNECT. A client that is in may prove itself again whenever
it wants, with an exchange of its own; it may not become somebody else by that. An exchange does
not know whether it is the first one, and touches no socket, so it is tested without any.

| packet | when |
|---|---|
| CONNECT with a method | begins; an AUTH *continue* or the CONNACK answers |
| AUTH *continue* (0x18) | the next step, in both directions |
| AUTH *re-authenticate* (0x19) | begins again, on an open connection |
| AUTH *success* (0x00) | ends that; the first exchange ends with the CONNACK |
| CONNACK, DISCONNECT | end it with a reason |
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from callboard.mqtt.codec import decode, encode
from callboard.mqtt.errors import ProtocolViolation
from callboard.mqtt.framing import body_start, packet_end
from callboard.mqtt.link_state import State
from callboard.mqtt.packet import V5, Auth, Connect, Disconnect
from callboard.mqtt.properties import Properties
from callboard.mqtt.reason_code import DISCONNECT_CODES, ReasonCode

if TYPE_CHECKING:
    from callboard.mqtt.remote_link import RemoteLink

_LOG: Final = logging.getLogger(__name__)
_NONE: Final = Properties()


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer this."""

    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Proved:
    """The client is who it says.

    Attributes:
        user: whom rules and bans are about; empty for nobody in particular.
        data: for the client, to prove who we are.
    """

    user: str = ""
    data: bytes | None = None


Step = Challenge | Proved | ReasonCode
"""What follows; a reason code, such as NOT_AUTHORIZED, refuses."""


class Exchange(Protocol):
    """One exchange with one client."""

    def step(self, data: bytes) -> Step | Awaitable[Step]:
        """Take what the client sent last, first of all with its CONNECT; may be async."""


class Authentication:
    """How far one client is in proving who it is; its connection has one as long as it lasts.

    Attributes:
        method: its name, which is that of the whole connection.
        user: whom it has proved to be; None before.
    """

    __slots__ = (
        "_begin",
        "_connect",
        "_exchange",
        "_failed",
        "_is_thinking",
        "_remote",
        "_run",
        "method",
        "user",
    )

    def __init__(
        self,
        remote: "RemoteLink",
        connect: Connect,
        begin: Callable[[], Exchange],
        run: Callable[[Coroutine[Any, Any, None]], None],
        failed: Callable[[], None],
    ) -> None:
        """Begin nothing yet.

        Args:
            remote: the connection.
            connect: its CONNECT, which names the method.
            begin: makes an exchange.
            run: runs a step that takes time.
            failed: told of each exchange that refuses.
        """
        self.method = (connect.properties or _NONE).authentication_method or ""
        self.user: str | None = None
        self._remote = remote
        self._connect = connect
        self._begin = begin
        self._run = run
        self._failed = failed
        self._exchange: Exchange | None = None
        self._is_thinking = False

    def start(self, data: bytes | None) -> None:
        """Begin with the data of a CONNECT, or of an AUTH that wants it anew."""
        try:
            self._exchange = self._begin()
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the authentication method %s failed", self.method)
            self._told(ReasonCode.UNSPECIFIED_ERROR)
        else:
            self._step(data or b"")

    def receive(self, chunk: bytes) -> None:
        """Take what a client sends that is not in yet.

        Raises:
            RemoteMqttError: it is neither an AUTH nor a DISCONNECT (MQTT 5, 3.1.2-30).
        """
        size = packet_end(chunk)
        packet = decode(chunk[0], chunk[body_start(chunk) : size], V5)
        if isinstance(packet, Disconnect):
            self._remote.end(ReasonCode.NORMAL_DISCONNECTION)
        elif isinstance(packet, Auth) and size == len(chunk):
            self.take(packet)
        else:
            msg = f"{type(packet).__name__} or more, before the authentication was over"
            raise ProtocolViolation(msg)

    def take(self, packet: Auth) -> None:
        """Take an AUTH.

        Raises:
            ProtocolViolation: it does not belong here, or is of another method.
        """
        properties = packet.properties or _NONE
        if properties.authentication_method != self.method:
            msg = f"an AUTH of {properties.authentication_method!r}, not {self.method!r}"
            raise ProtocolViolation(msg)
        goes_on = self._exchange is not None and not self._is_thinking
        if packet.reason_code == ReasonCode.CONTINUE_AUTHENTICATION and goes_on:
            self._step(properties.authentication_data or b"")
        elif (
            packet.reason_code == ReasonCode.REAUTHENTICATE
            and self._exchange is None
            and self.user is not None
        ):
            self.start(properties.authentication_data)
        else:
            msg = f"an AUTH with 0x{packet.reason_code:02x}, which does not come here"
            raise ProtocolViolation(msg)

    def _step(self, data: bytes) -> None:
        assert self._exchange is not None
        try:
            outcome = self._exchange.step(data)
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the authentication method %s failed", self.method)
            outcome = ReasonCode.UNSPECIFIED_ERROR
        if inspect.isawaitable(outcome):
            self._is_thinking = True
            if self.user is None:
                self._remote.think()
            self._run(self._await(outcome))
        else:
            self._told(outcome)

    async def _await(self, outcome: Awaitable[Step]) -> None:
        try:
            found = await outcome
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the authentication method %s failed", self.method)
            found = ReasonCode.UNSPECIFIED_ERROR
        self._is_thinking = False
        self._told(found)

    def _told(self, outcome: Step) -> None:
        if isinstance(outcome, Challenge):
            self._say(ReasonCode.CONTINUE_AUTHENTICATION, outcome.data)
            return
        self._exchange = None
        if isinstance(outcome, Proved):
            self._succeed(outcome)
        else:
            self._failed()
            self._refuse(outcome, f"the method {self.method} refuses it")

    def _succeed(self, proved: Proved) -> None:
        remote = self._remote
        if self.user is None:
            self.user = proved.user
            if remote.state is State.ADMITTING:
                remote.peer = remote.peer._replace(user=proved.user)
                # What the method says last goes back in the CONNACK, with the method's name.
                said = replace(
                    self._connect.properties or _NONE, authentication_data=proved.data
                )
                remote.admit(replace(self._connect, properties=said))
        elif self.user == proved.user:
            self._say(ReasonCode.SUCCESS, proved.data)
        else:
            self._refuse(ReasonCode.NOT_AUTHORIZED, "another user")

    def _refuse(self, reason: ReasonCode, text: str) -> None:
        remote = self._remote
        if remote.state is State.ADMITTING:
            remote.refuse(V5, reason, text)
        elif remote.link is not None:
            said = reason if reason in DISCONNECT_CODES else ReasonCode.NOT_AUTHORIZED
            remote.link.disconnect(said, is_told=True)

    def _say(self, code: ReasonCode, data: bytes | None) -> None:
        said = Properties(authentication_method=self.method, authentication_data=data)
        self._remote.answer(encode(Auth(code, said), V5))
