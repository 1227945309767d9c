"""One side of one flow: bytes and calls in, bytes and events out.

    IDLE ──open──> BOTSEND ──BOT──> FLOWING          a client, and a handler behind a broker
    IDLE ──BOT──> BOTRECV ──open──> FLOWING          a server without a broker
    BOTSEND ──EOT──> FIN                             refused (the originals have no such arc)
    FLOWING ──end──> ACKFIN ──EOT──> FIN             late DAT and PAY are absorbed
    FLOWING ──EOT──> FINACK ──end──> FIN             `end` is the echo

A giver (`extract`) sends DAT and needs credit for each; a taker (`inject`) has all credit at
first and gives it away with PAY. Credit that came back with a DAT is held once the application
has taken the DAT, so never more DATs wait anywhere than the credit that was agreed:

    total = held by the taker + DATs that wait at the taker + with the giver or under way

The machine belongs to one caller at a time; it knows no clock.
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

#: DATs that may be under way in one flow: they wait in memory on some node.
CREDIT_LIMIT: Final = 1_000_000

OPPOSITE: Final = {EXTRACT: INJECT, INJECT: EXTRACT}
_KINDS: Final = ("BOT", "DAT", "PAY", "EOT")
_PLAIN_DAT: Final = b'{"flow":"DAT"}'
_PLAIN_PAY: Final = b'{"flow":"PAY","credit":%d}'
_RESERVED: Final = frozenset({"flow", "direction", "credit"})


class FlowState(Enum):
    """Where a flow is."""

    IDLE = "idle"
    BOTSEND = "BOT sent"
    BOTRECV = "BOT received"
    FLOWING = "flowing"
    ACKFIN = "EOT sent"
    FINACK = "EOT received"
    FIN = "ended"


@dataclass(frozen=True, slots=True)
class Dat:
    """What arrives in one DAT.

    Attributes:
        payload: its frames.
        attributes: what stood in the flow object beside `flow`.
        seqno: the sender's number of the message.
    """

    payload: tuple[bytes, ...] = ()
    attributes: Attributes = field(default_factory=dict)
    seqno: int = 0

    def __bytes__(self) -> bytes:
        return b"".join(self.payload)


@dataclass(frozen=True, slots=True)
class Opened:
    """The other side's BOT came."""

    attributes: Attributes
    payload: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """EOT came."""

    attributes: Attributes


Event = Opened | Dat | End


def reverse(direction: object) -> str:
    """Return the other side's direction.

    Raises:
        MalformedMessage: it is not a direction.
    """
    found = OPPOSITE.get(direction) if isinstance(direction, str) else None
    if found is None:
        msg = f"direction {direction!r} is neither 'extract' nor 'inject'"
        raise MalformedMessage(msg)
    return found


def checked_credit(credit: object) -> int:
    """Return the credit of a BOT or PAY.

    Raises:
        MalformedMessage: it is not a whole number from 1 to `CREDIT_LIMIT`.
    """
    if type(credit) is not int or not 1 <= credit <= CREDIT_LIMIT:
        msg = f"credit {credit!r} is no whole number from 1 to {CREDIT_LIMIT:,}"
        raise MalformedMessage(msg)
    return credit


def kind_of(attributes: Attributes) -> str:
    """Return BOT, DAT, PAY or EOT.

    Raises:
        MalformedMessage: the flow object says none of them.
    """
    kind = attributes.get("flow")
    if kind not in _KINDS:
        msg = f"flow {str(kind)[:40]!r} is none of {', '.join(_KINDS)}"
        raise MalformedMessage(msg)
    assert isinstance(kind, str)
    return kind


class FlowMachine:
    """The state of one side."""

    def __init__(
        self, direction: str, credit: int, attributes: Attributes | None = None
    ) -> None:
        """Make one that is idle.

        Args:
            direction: what this side does: `extract` gives, `inject` takes.
            credit: DATs that may be under way at most; the other side may lower it.
            attributes: what else the BOT says.

        Raises:
            MalformedMessage: direction or credit is of no use.
        """
        reverse(direction)
        self.direction = direction
        #: Whether this side sends the DATs.
        self.is_giver = direction == EXTRACT
        self.total_credit = checked_credit(credit)
        given: object = attributes
        if not isinstance(given, Mapping | None):
            msg = f"attributes are a mapping of names to values, not {given!r:.100}"
            raise MalformedMessage(msg)
        self.attributes = without(attributes or {}, _RESERVED)
        self.state = FlowState.IDLE
        #: Credit that this side has.
        self.credit = 0
        #: DATs that came and were not taken by the application.
        self.waiting = 0
        #: DATs and PAYs that came after this side's EOT.
        self.late = 0
        self._seqno = -1
        self._seen = -1

    # --- out ---

    def open(self, payload: tuple[bytes, ...] = ()) -> bytes:
        """Return this side's BOT.

        Raises:
            LocalFlowError: it was sent before.
        """
        if self.state is FlowState.IDLE:
            self.state = FlowState.BOTSEND
        elif self.state is FlowState.BOTRECV:
            self._begin()
        else:
            self._refuse("send BOT")
        about = {"flow": "BOT", "direction": self.direction, "credit": self.total_credit}
        return self._encode({**about, **self.attributes}, payload)

    def put(
        self, payload: tuple[bytes, ...] = (), attributes: Attributes | None = None
    ) -> bytes:
        """Return a DAT.

        Raises:
            LocalFlowError: this side is the taker, has no credit, or the flow is not open.
        """
        if self.state is not FlowState.FLOWING or not self.is_giver:
            self._refuse("send DAT")
        if self.credit < 1:
            msg = "DAT needs credit, and all of it is used; wait for PAY"
            raise LocalFlowError(msg)
        if attributes:
            encoded = self._encode({"flow": "DAT", **_free(attributes)}, payload)
        else:
            self._seqno += 1
            encoded = encode_flow(_PLAIN_DAT, self._seqno, payload)
        self.credit -= 1
        return encoded

    def taken(self) -> None:
        """Hold the credit of a DAT that the application has taken."""
        assert self.waiting
        self.waiting -= 1
        self.credit += 1

    def wants_to_pay(self) -> bool:
        """Return whether half of the credit is held: a PAY for each DAT would be waste."""
        return (
            self.state is FlowState.FLOWING
            and not self.is_giver
            and self.credit > 0
            and 2 * self.credit >= self.total_credit
        )

    def pay(self) -> bytes:
        """Return a PAY of all credit that is held.

        Raises:
            LocalFlowError: this side is the giver, holds none, or the flow is not open.
        """
        if self.state is not FlowState.FLOWING or self.is_giver or self.credit < 1:
            self._refuse("send PAY")
        credit, self.credit = self.credit, 0
        self._seqno += 1
        return encode_flow(_PLAIN_PAY % credit, self._seqno)

    def end(self, attributes: Attributes | None = None) -> bytes:
        """Return an EOT, or the echo of one; what follows until the echo is absorbed.

        Raises:
            LocalFlowError: the flow has not begun, or has ended.
        """
        if self.state in (FlowState.IDLE, FlowState.ACKFIN, FlowState.FIN):
            self._refuse("send EOT")
        encoded = self._encode({"flow": "EOT", **_free(attributes)})
        self.state = FlowState.FIN if self.state is FlowState.FINACK else FlowState.ACKFIN
        return encoded

    def refuse(self, reason: str, attributes: Attributes | None = None) -> bytes:
        """Return an EOT in place of this side's BOT: a refusal, which needs no echo.

        Raises:
            LocalFlowError: the BOT was sent.
        """
        if self.state not in (FlowState.IDLE, FlowState.BOTRECV):
            self._refuse("refuse the flow")
        self.state = FlowState.FIN
        return self._encode({"flow": "EOT", **_free(attributes), "reason": reason})

    # --- in ---

    def receive(self, data: bytes) -> Event | None:
        """Take one message; None when it is late, or only gives credit.

        Raises:
            MalformedMessage: it is not a flow message; the flow goes on.
            RemoteFlowError: it breaks the protocol; `end` tells the other side.
        """
        attributes, seqno, at = message.read_head(data)
        payload = tuple(message.decode_frames(data, at))
        kind = kind_of(attributes)
        if seqno <= self._seen:
            text = f"{kind} has seqno {seqno}, and {self._seen} came before"
            raise RemoteFlowError(text)
        self._seen = seqno
        if kind == "EOT":
            flowing = self.state in (FlowState.FLOWING, FlowState.BOTRECV)
            self.state = FlowState.FINACK if flowing else FlowState.FIN  # its echo, a refusal
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
        """Take the other side's BOT."""
        if self.state not in (FlowState.IDLE, FlowState.BOTSEND):
            self._blame("BOT comes once, first")
        try:
            direction, credit = attributes.get("direction"), attributes.get("credit")
            if reverse(direction) != self.direction:
                self._blame(f"BOT says {direction!r}, and so does this side")
            credit = checked_credit(credit)
        except MalformedMessage as error:
            raise RemoteFlowError(str(error)) from None
        if self.state is FlowState.BOTSEND:
            if credit > self.total_credit:
                self._blame(f"BOT raises the credit from {self.total_credit:,} to {credit:,}")
            self.total_credit = credit
            self._begin()
        else:
            self.total_credit = min(credit, self.total_credit)
            self.state = FlowState.BOTRECV
        return Opened(without(attributes, _RESERVED), payload)

    def _received_dat(
        self, attributes: Attributes, payload: tuple[bytes, ...], seqno: int
    ) -> Dat:
        """Take a DAT."""
        if self.state is not FlowState.FLOWING or self.is_giver:
            self._blame("DAT goes from the giver to the taker")
        if self.waiting + self.credit >= self.total_credit:
            self._blame("DAT needs credit, and its sender has none")
        self.waiting += 1
        free = {} if len(attributes) == 1 else without(attributes, {"flow"})
        return Dat(payload, free, seqno)

    def _received_pay(self, attributes: Attributes) -> None:
        """Take credit."""
        if self.state is not FlowState.FLOWING or not self.is_giver:
            self._blame("PAY goes from the taker to the giver")
        try:
            credit = checked_credit(attributes.get("credit"))
        except MalformedMessage as error:
            msg = f"PAY: {error}"
            raise RemoteFlowError(msg) from None
        if self.credit + credit > self.total_credit:
            self._blame(f"PAY of {credit:,} exceeds the total of {self.total_credit:,}")
        self.credit += credit

    # --- rest ---

    def _begin(self) -> None:
        """Let DATs flow."""
        self.state = FlowState.FLOWING
        self.credit = 0 if self.is_giver else self.total_credit

    def _encode(self, attributes: Attributes, payload: tuple[bytes, ...] = ()) -> bytes:
        """Return a message with the next number."""
        label = object_text(attributes).encode()
        self._seqno += 1
        return encode_flow(label, self._seqno, payload)

    def _refuse(self, what: str) -> NoReturn:
        """Raise because this side may not do that now."""
        role = "giver" if self.is_giver else "taker"
        msg = f"this {role} may not {what} while the flow is {self.state.value!r}"
        raise LocalFlowError(msg)

    def _blame(self, rule: str) -> NoReturn:
        """Raise because the other side broke a rule."""
        msg = f"{rule} (this side: {self.direction}, {self.state.value})"
        raise RemoteFlowError(msg)


def _free(attributes: Attributes | None) -> Attributes:
    """Return attributes that users may set."""
    if attributes and "flow" in attributes:
        msg = "the attribute 'flow' is the protocol's own; choose another name"
        raise LocalFlowError(msg)
    return attributes or {}


def without(attributes: Attributes, names: AbstractSet[str]) -> dict[str, Any]:
    """Return attributes without some names."""
    return {key: value for key, value in attributes.items() if key not in names}
