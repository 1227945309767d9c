"""Enhanced authentication (MQTT 5, 4.12): a client proves its identity in several steps.

A method is a function that begins an exchange with a client, registered by its name. An
exchange is an object with one function, `step`, which takes what the client sent and returns
what follows:

| | |
|---|---|
| `Challenge(data)` | the client gets this, and answers with the data of the next step |
| `Proved(user, data)` | its identity is proved; `data` goes with the CONNACK or last AUTH |
| a `ReasonCode` | it is not let in |

The first step has the data of the CONNECT. A client that is in may prove itself again whenever
it wants, with an exchange of its own; it may not become another user by that. An exchange does
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

_WHAT: Final = "the authentication method"


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer this."""

    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Proved:
    """The identity of the client is proved.

    Attributes:
        user: that rules and bans are about; empty for no particular one.
        data: for the client, to prove the identity of this side.
    """

    user: str = ""
    data: bytes | None = None


#: What follows; a reason code, such as NOT_AUTHORIZED, refuses.
Step = Challenge | Proved | ReasonCode


class Exchange(Protocol):
    """One exchange with one client."""

    def step(self, data: bytes) -> Step | Awaitable[Step]:
        """Take what the client sent last, first of all with its CONNECT; may be async."""


class Candidate(Protocol):
    """The connection of a client that proves its identity."""

    def think(self) -> None:
        """Read nothing while a step takes its time."""

    def answer(self, data: bytes) -> None:
        """Write a packet that does not come from the router, and read on."""

    def proved(self, user: str, data: bytes | None) -> None:
        """Let the client in, unless that is over; `data` goes with the CONNACK."""

    def fail(self, reason: ReasonCode, text: str) -> None:
        """Refuse the CONNECT; or end the connection if it is open."""

    def end(self, reason: ReasonCode) -> None:
        """End the connection without a word."""


@dataclass(slots=True, eq=False)
class Authentication:
    """The exchange of one client, or its result; a connection has one as long as it lasts.

    Attributes:
        candidate: the connection.
        method: its name, which is that of the whole connection.
        begin: makes an exchange.
        run: runs a step that takes time.
        failed: is called for each exchange that refuses.
        user: the name that it has proved; None before.
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
        """Begin with the data of a CONNECT, or of an AUTH that wants it again."""
        begun = call_function(f"{_WHAT} {self.method}", self.begin)
        if isinstance(begun, ReasonCode):
            self._conclude(begun)
        else:
            self._exchange = begun
            self._step(data or b"")

    def receive(self, chunk: bytes) -> None:
        """Take what a client sends that is not in yet.

        Raises:
            RemoteMqttError: it is neither an AUTH nor a DISCONNECT (MQTT 5, 3.1.2-30).
        """
        size = packet_end(chunk)
        packet = decode_packet(chunk[:size], V5)
        if isinstance(packet, Disconnect):
            self.candidate.end(ReasonCode.NORMAL_DISCONNECTION)
        elif isinstance(packet, Auth) and size == len(chunk):
            self.take(packet)
        else:
            message = f"{type(packet).__name__} or more, before the authentication was over"
            raise ProtocolViolation(message)

    def take(self, packet: Auth) -> None:
        """Take an AUTH.

        Raises:
            ProtocolViolation: it does not belong here, or is of another method.
        """
        properties = packet.properties or NO_PROPERTIES
        if properties.authentication_method != self.method:
            message = f"an AUTH of {properties.authentication_method!r}, not {self.method!r}"
            raise ProtocolViolation(message)
        goes_on = self._exchange is not None and not self._is_thinking
        may_begin = self._exchange is None and self.user is not None
        if packet.reason_code == ReasonCode.CONTINUE_AUTHENTICATION and goes_on:
            self._step(properties.authentication_data or b"")
        elif packet.reason_code == ReasonCode.REAUTHENTICATE and may_begin:
            self.start(properties.authentication_data)
        else:
            message = f"an AUTH with 0x{packet.reason_code:02x}, which does not come here"
            raise ProtocolViolation(message)

    def _step(self, data: bytes) -> None:
        """Take a step of the exchange, which may be async."""
        assert self._exchange is not None
        outcome = call_function(f"{_WHAT} {self.method}", self._exchange.step, data)
        if inspect.isawaitable(outcome):
            self._is_thinking = True
            if self.user is None:
                self.candidate.think()
            self.run(self._await(outcome))
        else:
            self._conclude(outcome)

    async def _await(self, outcome: Awaitable[Step]) -> None:
        """Wait for a step that takes its time."""
        step = await await_answer(f"{_WHAT} {self.method}", outcome)
        self._is_thinking = False
        self._conclude(step)

    def _conclude(self, outcome: Step) -> None:
        """Do what follows from a step."""
        if isinstance(outcome, Challenge):
            self._say(ReasonCode.CONTINUE_AUTHENTICATION, outcome.data)
            return
        self._exchange = None
        if not isinstance(outcome, Proved):
            self.failed()
            self.candidate.fail(outcome, f"the method {self.method} refuses it")
        elif self.user is None:
            self.user = outcome.user
            self.candidate.proved(outcome.user, outcome.data)
        elif self.user == outcome.user:
            self._say(ReasonCode.SUCCESS, outcome.data)
        else:
            self.candidate.fail(ReasonCode.NOT_AUTHORIZED, "another user")

    def _say(self, code: ReasonCode, data: bytes | None) -> None:
        """Send an AUTH to the client."""
        said = Properties(authentication_method=self.method, authentication_data=data)
        self.candidate.answer(encode(Auth(code, said), V5))
