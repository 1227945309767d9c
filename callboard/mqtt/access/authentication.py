"""Enhanced authentication (MQTT 5, 4.12): a client proves its identity in several steps.

A method is a function, registered by name, that starts an exchange with a client. An exchange
is an object with one function, `step`. It gets the client's data and returns a result:

| result | effect |
|---|---|
| `Challenge(data)` | sends the data; the client's answer goes to the next step |
| `Proved(user, data)` | admits the client; `data` goes with the CONNACK or last AUTH |
| a `ReasonCode` | refuses the client |

The first step gets the data of the CONNECT. A connected client may authenticate again at any
time, with a new exchange, but not as another user. An exchange does not know whether it is the
first one. It uses no socket, so it can be tested without one.

| packet | meaning |
|---|---|
| CONNECT with a method | starts an exchange; the answer is AUTH *continue* or CONNACK |
| AUTH *continue* (0x18) | the next step, in both directions |
| AUTH *re-authenticate* (0x19) | starts another exchange, on an open connection |
| AUTH *success* (0x00) | ends that exchange; the first one ends with the CONNACK |
| CONNACK, DISCONNECT | end an exchange with a reason |
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from callboard.mqtt.access.admission import await_answer, call_function
from callboard.mqtt.wire.codec import decode_packet, encode
from callboard.mqtt.wire.errors import ProtocolViolation
from callboard.mqtt.wire.framing import packet_end
from callboard.mqtt.wire.packet import V5, Auth, Disconnect
from callboard.mqtt.wire.properties import NO_PROPERTIES, Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass

_LABEL: Final = "the authentication method"


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client must answer this data."""

    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Proved:
    """The client's identity is proved.

    Attributes:
        user: the user name, for rules and bans; may be empty.
        data: data sent to the client, to prove the router's identity.
    """

    user: str = ""
    data: bytes | None = None


#: The result of a step; a reason code, such as NOT_AUTHORIZED, is a refusal.
Step = Challenge | Proved | ReasonCode


class Exchange(Protocol):
    """One exchange with one client."""

    def step(self, data: bytes) -> Step | Awaitable[Step]:
        """Process the client's data, first the data of its CONNECT; may be async."""


class Candidate(Protocol):
    """The connection of a client that authenticates."""

    def await_step(self) -> None:
        """Pause reading while a step is computed."""

    def answer(self, data: bytes) -> None:
        """Write a packet that does not come from the router, and resume reading."""

    def proved(self, user: str, data: bytes | None) -> None:
        """Admit the client, if it is still connected; `data` goes with the CONNACK."""

    def fail(self, reason: ReasonCode, text: str) -> None:
        """Refuse the CONNECT, or end the connection if it is open."""

    def end(self, reason: ReasonCode) -> None:
        """End the connection without a packet."""


@dataclass(slots=True, eq=False)
class Authentication:
    """The authentication of one client; it lasts as long as the connection.

    Attributes:
        candidate: the connection.
        method: the name of the method, the same for the whole connection.
        begin: makes an exchange.
        run: runs an async step.
        failed: called for each exchange that refuses.
        user: the authenticated user; None until then.
    """

    candidate: Candidate
    method: str
    begin: Callable[[], Exchange]
    run: Callable[[Coroutine[Any, Any, None]], None]
    failed: Callable[[], None]
    user: str | None = None
    _exchange: Exchange | None = None
    _is_thinking: bool = False

    def start(self, data: bytes | None) -> None:
        """Start an exchange with the data of a CONNECT, or of an AUTH *re-authenticate*."""
        exchange = call_function(f"{_LABEL} {self.method}", self.begin)
        if isinstance(exchange, ReasonCode):
            self._apply(exchange)
        else:
            self._exchange = exchange
            self._step(data or b"")

    def receive(self, chunk: bytes) -> None:
        """Handle data from a client that is not admitted yet.

        Raises:
            RemoteMqttError: the packet is neither an AUTH nor a DISCONNECT (MQTT 5, 3.1.2-30).
        """
        size = packet_end(chunk)
        packet = decode_packet(chunk[:size], V5)
        if isinstance(packet, Disconnect):
            self.candidate.end(ReasonCode.NORMAL_DISCONNECTION)
        elif isinstance(packet, Auth) and size == len(chunk):
            self.take(packet)
        else:
            message = f"a {type(packet).__name__} before the end of the authentication"
            raise ProtocolViolation(message)

    def take(self, packet: Auth) -> None:
        """Handle an AUTH.

        Raises:
            ProtocolViolation: the AUTH is unexpected, or has another method.
        """
        properties = packet.properties or NO_PROPERTIES
        if properties.authentication_method != self.method:
            message = f"an AUTH of {properties.authentication_method!r}, not {self.method!r}"
            raise ProtocolViolation(message)
        may_continue = self._exchange is not None and not self._is_thinking
        may_begin = self._exchange is None and self.user is not None
        if packet.reason_code == ReasonCode.CONTINUE_AUTHENTICATION and may_continue:
            self._step(properties.authentication_data or b"")
        elif packet.reason_code == ReasonCode.REAUTHENTICATE and may_begin:
            self.start(properties.authentication_data)
        else:
            message = f"an AUTH with 0x{packet.reason_code:02x} is not expected now"
            raise ProtocolViolation(message)

    def _step(self, data: bytes) -> None:
        """Run a step of the exchange, which may be async."""
        assert self._exchange is not None
        outcome = call_function(f"{_LABEL} {self.method}", self._exchange.step, data)
        if inspect.isawaitable(outcome):
            self._is_thinking = True
            if self.user is None:
                self.candidate.await_step()
            self.run(self._await(outcome))
        else:
            self._apply(outcome)

    async def _await(self, outcome: Awaitable[Step]) -> None:
        """Wait for an async step."""
        step = await await_answer(f"{_LABEL} {self.method}", outcome)
        self._is_thinking = False
        self._apply(step)

    def _apply(self, outcome: Step) -> None:
        """Apply the result of a step."""
        if isinstance(outcome, Challenge):
            self._send_auth(ReasonCode.CONTINUE_AUTHENTICATION, outcome.data)
            return
        self._exchange = None
        if not isinstance(outcome, Proved):
            self.failed()
            self.candidate.fail(outcome, f"refused by the method {self.method}")
        elif self.user is None:
            self.user = outcome.user
            self.candidate.proved(outcome.user, outcome.data)
        elif self.user == outcome.user:
            self._send_auth(ReasonCode.SUCCESS, outcome.data)
        else:
            self.candidate.fail(ReasonCode.NOT_AUTHORIZED, "another user")

    def _send_auth(self, code: ReasonCode, data: bytes | None) -> None:
        """Send an AUTH to the client."""
        properties = Properties(authentication_method=self.method, authentication_data=data)
        self.candidate.answer(encode(Auth(code, properties), V5))
