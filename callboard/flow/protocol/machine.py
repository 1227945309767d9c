"""The state machine of one side of a flow: bytes and calls in, bytes and events out.

    IDLE ──open──> BOTSEND ──BOT──> FLOWING          a client, and a handler of a broker
    IDLE ──BOT──> BOTRECV ──open──> FLOWING          a server without a broker
    BOTSEND ──EOT──> FIN                             refused (an addition to the original)
    FLOWING ──end──> ACKFIN ──EOT──> FIN             late DATs and PAYs are ignored
    FLOWING ──EOT──> FINACK ──end──> FIN             `end` returns the echo

A giver (`extract`) sends DATs, and needs credit for each. A taker (`inject`) has all credit at
first, and sends it with PAYs. A DAT returns its credit to the taker when the application has
received the DAT. So the DATs that wait anywhere never exceed the agreed credit:

    total = credit of the taker + DATs that wait at the taker + credit of the giver
            + DATs and credit in flight

The machine is not thread-safe, and does not use a clock.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NoReturn

from callboard.flow.errors import LocalFlowError, MalformedMessage, RemoteFlowError
from callboard.flow.protocol import message
from callboard.flow.protocol.message import Attributes, encode_flow, object_text

EXTRACT: Final = "extract"
INJECT: Final = "inject"

#: DATs in flight in one flow: they wait in the memory of some node.
CREDIT_LIMIT: Final = 1_000_000

OPPOSITE: Final = {EXTRACT: INJECT, INJECT: EXTRACT}
_KINDS: Final = ("BOT", "DAT", "PAY", "EOT")
_PLAIN_DAT: Final = b'{"flow":"DAT"}'
_PLAIN_PAY: Final = b'{"flow":"PAY","credit":%d}'
_RESERVED: Final = frozenset({"flow", "direction", "credit"})


class FlowState(Enum):
    """State of a flow."""

    IDLE = "idle"
    BOTSEND = "BOT sent"
    BOTRECV = "BOT received"
    FLOWING = "flowing"
    ACKFIN = "EOT sent"
    FINACK = "EOT received"
    FIN = "ended"


@dataclass(frozen=True, slots=True)
class Dat:
    """The contents of one DAT.

    Attributes:
        payload: the frames of the payload.
        attributes: attributes of the flow object, without `flow`.
        seqno: number of the message at its sender.
    """

    payload: tuple[bytes, ...] = ()
    attributes: Attributes = field(default_factory=dict)
    seqno: int = 0

    def __bytes__(self) -> bytes:
        return b"".join(self.payload)


@dataclass(frozen=True, slots=True)
class Opened:
    """The other side's BOT has arrived."""

    attributes: Attributes
    payload: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The other side's EOT has arrived."""

    attributes: Attributes


Event = Opened | Dat | End


def reverse(direction: object) -> str:
    """Return the other side's direction.

    Raises:
        MalformedMessage: the value is not a direction.
    """
    opposite = OPPOSITE.get(direction) if isinstance(direction, str) else None
    if opposite is None:
        msg = f"direction {direction!r} is neither 'extract' nor 'inject'"
        raise MalformedMessage(msg)
    return opposite


def checked_credit(credit: object) -> int:
    """Check the credit of a BOT or PAY.

    Raises:
        MalformedMessage: the credit is not a whole number from 1 to `CREDIT_LIMIT`.
    """
    if type(credit) is not int or not 1 <= credit <= CREDIT_LIMIT:
        msg = f"credit {credit!r} is not an integer from 1 to {CREDIT_LIMIT:,}"
        raise MalformedMessage(msg)
    return credit


def kind_of(attributes: Attributes) -> str:
    """Return the kind of a flow object: BOT, DAT, PAY or EOT.

    Raises:
        MalformedMessage: the object has another kind, or none.
    """
    kind = attributes.get("flow")
    if kind not in _KINDS:
        msg = f"flow {str(kind)[:40]!r} is not one of {', '.join(_KINDS)}"
        raise MalformedMessage(msg)
    assert isinstance(kind, str)
    return kind


class FlowMachine:
    """The state machine of one side of a flow."""

    def __init__(
        self, direction: str, credit: int, attributes: Attributes | None = None
    ) -> None:
        """Make an idle machine.

        Args:
            direction: `extract` if this side sends DATs, `inject` if it receives them.
            credit: limit of DATs in flight; the other side may lower it.
            attributes: further attributes of the BOT.

        Raises:
            MalformedMessage: direction, credit or attributes are invalid.
        """
        reverse(direction)
        self.direction = direction
        #: Whether this side sends the DATs.
        self.is_giver = direction == EXTRACT
        self.total_credit = checked_credit(credit)
        value: object = attributes
        if not isinstance(value, Mapping | None):
            msg = f"attributes must be a mapping of names to values, not {value!r:.100}"
            raise MalformedMessage(msg)
        self.attributes = without(attributes or {}, _RESERVED)
        self.state = FlowState.IDLE
        #: Credit of this side.
        self.credit = 0
        #: DATs that have arrived and that the application has not received.
        self.waiting = 0
        #: DATs and PAYs that arrived after this side's EOT.
        self.late = 0
        self._seqno = -1
        self._last_seqno = -1

    # --- sending ---

    def open(self, payload: tuple[bytes, ...] = ()) -> bytes:
        """Return this side's BOT.

        Raises:
            LocalFlowError: the BOT has been sent.
        """
        if self.state is FlowState.IDLE:
            self.state = FlowState.BOTSEND
        elif self.state is FlowState.BOTRECV:
            self._begin()
        else:
            self._refuse("send BOT")
        label = {"flow": "BOT", "direction": self.direction, "credit": self.total_credit}
        return self._encode({**label, **self.attributes}, payload)

    def put(
        self, payload: tuple[bytes, ...] = (), attributes: Attributes | None = None
    ) -> bytes:
        """Return a DAT.

        Raises:
            LocalFlowError: this side is the taker or without credit, or the flow is not open.
        """
        if self.state is not FlowState.FLOWING or not self.is_giver:
            self._refuse("send DAT")
        if self.credit < 1:
            msg = "a DAT needs credit, and all credit is used; wait for a PAY"
            raise LocalFlowError(msg)
        if attributes:
            encoded = self._encode({"flow": "DAT", **_free(attributes)}, payload)
        else:
            self._seqno += 1
            encoded = encode_flow(_PLAIN_DAT, self._seqno, payload)
        self.credit -= 1
        return encoded

    def taken(self) -> None:
        """Return the credit of a DAT that the application has received to this side."""
        assert self.waiting
        self.waiting -= 1
        self.credit += 1

    def wants_to_pay(self) -> bool:
        """Return whether a PAY is due: this side has half of the credit.

        A PAY for each DAT would double the number of messages; a PAY for all credit would
        leave the giver without credit while it travels.
        """
        return (
            self.state is FlowState.FLOWING
            and not self.is_giver
            and self.credit > 0
            and 2 * self.credit >= self.total_credit
        )

    def pay(self) -> bytes:
        """Return a PAY with all credit of this side.

        Raises:
            LocalFlowError: this side is the giver or without credit, or the flow is not open.
        """
        if self.state is not FlowState.FLOWING or self.is_giver or self.credit < 1:
            self._refuse("send PAY")
        credit, self.credit = self.credit, 0
        self._seqno += 1
        return encode_flow(_PLAIN_PAY % credit, self._seqno)

    def end(self, attributes: Attributes | None = None) -> bytes:
        """Return an EOT, or its echo; messages that arrive before an echo are ignored.

        Raises:
            LocalFlowError: the flow has not started, or has ended.
        """
        if self.state in (FlowState.IDLE, FlowState.ACKFIN, FlowState.FIN):
            self._refuse("send EOT")
        encoded = self._encode({"flow": "EOT", **_free(attributes)})
        self.state = FlowState.FIN if self.state is FlowState.FINACK else FlowState.ACKFIN
        return encoded

    def refuse(self, reason: str, attributes: Attributes | None = None) -> bytes:
        """Return an EOT that replaces this side's BOT and refuses the flow; it gets no echo.

        Raises:
            LocalFlowError: the BOT has been sent.
        """
        if self.state not in (FlowState.IDLE, FlowState.BOTRECV):
            self._refuse("refuse the flow")
        self.state = FlowState.FIN
        return self._encode({"flow": "EOT", **_free(attributes), "reason": reason})

    # --- receiving ---

    def receive(self, data: bytes) -> Event | None:
        """Handle a message; return None for a PAY, or a message after this side's EOT.

        Raises:
            MalformedMessage: the bytes are not a flow message; the flow continues.
            RemoteFlowError: the message breaks the protocol; `end` returns an EOT for it.
        """
        attributes, seqno, offset = message.read_head(data)
        payload = tuple(message.decode_frames(data, offset))
        kind = kind_of(attributes)
        if seqno <= self._last_seqno:
            text = f"{kind} has seqno {seqno}, after seqno {self._last_seqno}"
            raise RemoteFlowError(text)
        self._last_seqno = seqno
        if kind == "EOT":
            needs_echo = self.state in (FlowState.FLOWING, FlowState.BOTRECV)
            # Otherwise it is an echo, or a refusal.
            self.state = FlowState.FINACK if needs_echo else FlowState.FIN
            return End(without(attributes, {"flow"}))
        if self.state in (FlowState.ACKFIN, FlowState.FINACK, FlowState.FIN):
            self.late += 1
            return None
        if kind == "DAT":
            return self._received_dat(attributes, payload, seqno)
        if kind == "PAY":
            self._received_pay(attributes)
            return None
        return self._received_bot(attributes, payload)

    def _received_bot(self, attributes: Attributes, payload: tuple[bytes, ...]) -> Opened:
        """Handle the other side's BOT."""
        if self.state not in (FlowState.IDLE, FlowState.BOTSEND):
            self._blame("only the first message may be a BOT")
        try:
            direction, credit = attributes.get("direction"), attributes.get("credit")
            if reverse(direction) != self.direction:
                self._blame(f"the BOT has the direction {direction!r} of this side")
            credit = checked_credit(credit)
        except MalformedMessage as error:
            raise RemoteFlowError(str(error)) from None
        if self.state is FlowState.BOTSEND:
            if credit > self.total_credit:
                self._blame(
                    f"the BOT raises the credit from {self.total_credit:,} to {credit:,}"
                )
            self.total_credit = credit
            self._begin()
        else:
            self.total_credit = min(credit, self.total_credit)
            self.state = FlowState.BOTRECV
        return Opened(without(attributes, _RESERVED), payload)

    def _received_dat(
        self, attributes: Attributes, payload: tuple[bytes, ...], seqno: int
    ) -> Dat:
        """Handle a DAT."""
        if self.state is not FlowState.FLOWING or self.is_giver:
            self._blame("only the giver of an open flow may send a DAT")
        if self.waiting + self.credit >= self.total_credit:
            self._blame("a DAT needs credit, and its sender has none")
        self.waiting += 1
        free = {} if len(attributes) == 1 else without(attributes, {"flow"})
        return Dat(payload, free, seqno)

    def _received_pay(self, attributes: Attributes) -> None:
        """Handle a PAY."""
        if self.state is not FlowState.FLOWING or not self.is_giver:
            self._blame("only the taker of an open flow may send a PAY")
        try:
            credit = checked_credit(attributes.get("credit"))
        except MalformedMessage as error:
            msg = f"PAY: {error}"
            raise RemoteFlowError(msg) from None
        if self.credit + credit > self.total_credit:
            self._blame(f"a PAY of {credit:,} exceeds the total of {self.total_credit:,}")
        self.credit += credit

    # --- internals ---

    def _begin(self) -> None:
        """Open the flow; all credit is the taker's."""
        self.state = FlowState.FLOWING
        self.credit = 0 if self.is_giver else self.total_credit

    def _encode(self, attributes: Attributes, payload: tuple[bytes, ...] = ()) -> bytes:
        """Return a message with the next seqno."""
        label = object_text(attributes).encode()
        self._seqno += 1
        return encode_flow(label, self._seqno, payload)

    def _refuse(self, action: str) -> NoReturn:
        """Raise the error of an action that the state of this side does not permit."""
        role = "giver" if self.is_giver else "taker"
        msg = f"this {role} may not {action} while the flow is {self.state.value!r}"
        raise LocalFlowError(msg)

    def _blame(self, rule: str) -> NoReturn:
        """Raise the error of a rule that the other side broke."""
        msg = f"{rule} (this side: {self.direction}, {self.state.value})"
        raise RemoteFlowError(msg)


def _free(attributes: Attributes | None) -> Attributes:
    """Check the attributes of a user."""
    if attributes and "flow" in attributes:
        msg = "the attribute 'flow' is reserved for the protocol; use another name"
        raise LocalFlowError(msg)
    return attributes or {}


def without(attributes: Attributes, names: AbstractSet[str]) -> dict[str, Any]:
    """Return attributes without some names."""
    return {key: value for key, value in attributes.items() if key not in names}
