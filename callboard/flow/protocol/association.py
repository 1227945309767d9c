"""The association table of a flow broker: pairs of client and handler. No sockets, no clock.

The flow-initiation protocol, with one entry for each flow:

    BOT of a client         pending: its routing id becomes the `cid`, the direction is
                            reversed, and the factory is called
    BOT-loc with the cid    open: it goes to the client without the cid, and back to the handler
                            with the direction reversed
    DAT, PAY                forwarded to the partner, unchanged
    first EOT               forwarded to the partner; messages from its sender are then dropped
    second EOT              (an echo, or sent at the same time) forwarded; the entry is removed

If the first EOT removed the entry, its echo would come from an unknown peer and be dropped, and
the sender of the EOT would wait for it without end. A refusal (EOT before the flow is open)
gets no echo and removes the entry.

Any peer could send a message with the cid of another. The factory therefore also gets a random
`cid_key`, and the handler's answer must contain it. Clients see neither.

The table also checks messages against the protocol: a second BOT, a DAT without credit, a PAY
beyond the total or a wrong direction ends the flow on both sides, with a reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from callboard.flow.errors import MalformedMessage
from callboard.flow.protocol import machine, message
from callboard.flow.protocol.message import Attributes, Message, encode_flow, object_text

#: Flows that wait for their handlers; beyond it, clients are refused at once.
PENDING_LIMIT: Final = 4096

#: Seconds that a handler has to answer a BOT.
PENDING_TIME: Final = 10.0

_OWN: Final = frozenset({"cid", "cid_key"})
_REASON_LENGTH: Final = 500
_SECOND_BOT: Final = "only the first message may be a BOT"


@dataclass(frozen=True, slots=True)
class Send:
    """Send bytes to a peer."""

    rid: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CallFactory:
    """Call the factory with BOT-loc."""

    cid: int
    bot: Message


@dataclass(frozen=True, slots=True)
class Forget:
    """Free the routing id of a peer without a flow."""

    rid: int


Effect = Send | CallFactory | Forget


@dataclass(slots=True)
class FlowCounters:
    """Counters of a flow broker.

    Attributes:
        opened: flows that both sides opened.
        ended: flows that ended with an EOT of both sides.
        refused: BOTs answered with EOT.
        aborted: flows that ended because a side was lost or broke a rule.
        unknown: messages dropped because their sender has no flow.
        malformed: messages dropped because they could not be read.
        routed: messages forwarded to the partner of their sender.
    """

    opened: int = 0
    ended: int = 0
    refused: int = 0
    aborted: int = 0
    unknown: int = 0
    malformed: int = 0
    routed: int = 0


@dataclass(slots=True, eq=False)
class Association:
    """One flow at the broker."""

    client: int
    #: The routing id of the giver; None while the giver is a handler that has not answered.
    giver: int | None
    total: int
    key: str
    expires: float
    handler: int | None = None
    #: The giver's credit by the messages that were forwarded; the giver cannot have more.
    credit: int = 0
    is_open: bool = False
    #: The sides whose EOT was forwarded.
    ended: set[int | None] = field(default_factory=set)
    seqnos: dict[int | None, int] = field(default_factory=dict)

    def partner(self, rid: int) -> int | None:
        """Return the other side."""
        return self.handler if rid == self.client else self.client


class AssociationTable:
    """Routes messages between clients and handlers."""

    def __init__(
        self, make_key: Callable[[], str], *, most_credit: int = machine.CREDIT_LIMIT
    ) -> None:
        """Make an empty table.

        Args:
            make_key: returns a new random `cid_key`.
            most_credit: limit of credit; BOTs that request more are refused.
        """
        self.counters = FlowCounters()
        self._make_key = make_key
        self._most_credit = most_credit
        self._entries: dict[int, Association] = {}
        #: Flows that wait for their handler, by the client's routing id, oldest first.
        self._pending: dict[int, Association] = {}

    def __len__(self) -> int:
        """Return the number of flows, including pending ones."""
        return sum(rid == entry.client for rid, entry in self._entries.items())

    def __contains__(self, rid: int) -> bool:
        """Return whether a peer has a flow."""
        return rid in self._entries

    @property
    def is_waiting(self) -> bool:
        """Whether a flow waits for its handler."""
        return bool(self._pending)

    # --- routing ---

    def receive(self, rid: int, data: bytes, now: float) -> list[Effect]:
        """Handle a message from the peer with a routing id."""
        try:
            attributes, seqno, _ = message.read_head(data)
            kind = machine.kind_of(attributes)
        except MalformedMessage:
            self.counters.malformed += 1
            return []
        entry = self._entries.get(rid)
        if "cid" in attributes:
            try:
                return self._handle_cid(rid, entry, attributes, data, now)
            except MalformedMessage as error:
                self.counters.malformed += 1
                return [] if entry is None else self._abort(entry, str(error))
        if entry is None:
            if kind == "BOT":
                return self._begin(rid, attributes, data, now)
            self.counters.unknown += 1
            return []
        if kind == "BOT":
            return self._abort(entry, _SECOND_BOT)
        if not entry.is_open:
            if kind == "EOT":  # a client cancels its pending flow
                self.counters.aborted += 1
                return [Send(rid, _eot(1)), *self._erase(entry)]
            return self._abort(entry, f"{kind} arrived before the flow was open")
        entry.seqnos[rid] = seqno
        return self._route(rid, entry, kind, attributes, data)

    def _route(
        self, rid: int, entry: Association, kind: str, attributes: Attributes, data: bytes
    ) -> list[Effect]:
        """Check a message of an open flow against the protocol, and forward it."""
        partner = entry.partner(rid)
        assert partner is not None
        if kind == "EOT":
            self.counters.routed += 1
            entry.ended.add(rid)
            if partner not in entry.ended:
                return [Send(partner, data)]
            self.counters.ended += 1
            return [Send(partner, data), *self._erase(entry)]
        if rid in entry.ended:
            self.counters.unknown += 1  # sent after its EOT
            return []
        if kind == "DAT":
            if rid != entry.giver:
                return self._abort(entry, "only the giver may send a DAT")
            entry.credit -= 1
            if entry.credit < 0:
                return self._abort(entry, "a DAT needs credit, and its sender has none")
        else:
            if rid == entry.giver:
                return self._abort(entry, "only the taker may send a PAY")
            credit = attributes.get("credit")
            if type(credit) is not int or credit < 1:
                return self._abort(entry, f"the credit {credit!r} of a PAY is not above 0")
            entry.credit += credit
            if entry.credit > entry.total:
                return self._abort(entry, f"a PAY exceeds the total credit of {entry.total:,}")
        self.counters.routed += 1
        return [Send(partner, data)]

    # --- initiation ---

    def _begin(self, rid: int, attributes: Attributes, data: bytes, now: float) -> list[Effect]:
        """Handle the BOT of a client: add a pending flow, and call the factory."""
        try:
            direction = machine.reverse(attributes.get("direction"))
            credit = machine.checked_credit(attributes.get("credit"))
            label = {**attributes, "direction": direction, "cid": rid, "cid_key": ""}
            bot = Message.decode(data).with_object(label)
            assert bot.prefix  # raises if the cid makes the label too long
        except MalformedMessage as error:
            return self._refusal(rid, str(error))
        if credit > self._most_credit:
            return self._refusal(rid, f"credit {credit:,} exceeds {self._most_credit:,}")
        if len(self._pending) >= PENDING_LIMIT:
            return self._refusal(rid, f"{PENDING_LIMIT:,} flows are pending; try again later")
        giver = rid if direction == "inject" else None
        entry = Association(rid, giver, credit, self._make_key(), now + PENDING_TIME)
        self._entries[rid] = self._pending[rid] = entry
        return [CallFactory(rid, bot.with_object({**label, "cid_key": entry.key}))]

    def _handle_cid(
        self,
        rid: int,
        entry: Association | None,
        attributes: Attributes,
        data: bytes,
        now: float,
    ) -> list[Effect]:
        """Handle a message with a cid, which its handler sends; the key proves that it is."""
        cid, label = attributes["cid"], machine.without(attributes, _OWN)
        pending = self._pending.get(cid) if type(cid) is int else None
        if entry is not None and entry.handler == rid and entry.client == cid:
            stripped = _rewritten(data, label)
            if machine.kind_of(label) == "BOT" or not entry.is_open:
                return self._abort(entry, _SECOND_BOT)
            return self.receive(rid, stripped, now)
        if entry is not None:
            return self._abort(entry, f"cid {str(cid)[:20]!r} belongs to another flow")
        if pending is None:
            return self._refusal(rid, f"cid {str(cid)[:20]!r} is not that of a pending flow")
        if attributes.get("cid_key") != pending.key:
            return self._refusal(rid, "a handler must return cid and cid_key unchanged")
        return self._open(rid, pending, label, data)

    def _open(
        self, rid: int, entry: Association, label: Attributes, data: bytes
    ) -> list[Effect]:
        """Handle the answer of a handler to a BOT."""
        kind, forward = machine.kind_of(label), _rewritten(data, label)
        opposite = machine.OPPOSITE.get(str(label.get("direction")))
        back = _rewritten(data, {**label, "direction": opposite}) if kind == "BOT" else forward
        del self._pending[entry.client]
        entry.handler = rid
        self._entries[rid] = entry
        if kind == "EOT":
            self.counters.refused += 1
            return [Send(entry.client, forward), *self._erase(entry)]
        if kind != "BOT":
            return self._abort(entry, f"{kind} arrived before the flow was open")
        expected = "inject" if entry.giver == entry.client else "extract"
        if label.get("direction") != expected:
            return self._abort(entry, f"the direction of the handler's BOT is not {expected!r}")
        try:
            credit = machine.checked_credit(label.get("credit"))
        except MalformedMessage as error:
            return self._abort(entry, f"the handler's BOT: {error}")
        if credit > entry.total:
            return self._abort(
                entry, f"the BOT raises the credit from {entry.total:,} to {credit:,}"
            )
        entry.total = credit
        entry.is_open = True
        if entry.giver is None:
            entry.giver = rid
        self.counters.opened += 1
        entry.seqnos = {rid: 0, entry.client: 0}
        return [Send(entry.client, forward), Send(rid, back)]

    # --- ending ---

    def refuse(self, cid: int, reason: str) -> list[Effect]:
        """Refuse a pending flow; does nothing if a handler has answered it."""
        entry = self._pending.get(cid)
        return [] if entry is None else [*self._refusal(cid, reason), *self._erase(entry)]

    def down(self, rid: int, reason: str) -> list[Effect]:
        """Abort the flow of a lost peer."""
        if (entry := self._entries.get(rid)) is None:
            return []
        return self._abort(entry, f"the other side is lost: {reason}", lost=rid)

    def expire(self, now: float) -> list[Effect]:
        """Refuse pending flows whose handlers have not answered in time."""
        effects: list[Effect] = []
        for cid, entry in list(self._pending.items()):
            if entry.expires > now:
                break  # the following entries are younger
            effects += self.refuse(cid, f"no handler answered within {PENDING_TIME:g} s")
        return effects

    def close(self, reason: str) -> list[Effect]:
        """End all flows."""
        effects: list[Effect] = []
        for entry in list(self._entries.values()):
            if entry.client in self._entries:
                effects += self._abort(entry, reason)
        return effects

    def _refusal(self, rid: int, reason: str) -> list[Effect]:
        """Answer a peer with EOT, and free its routing id unless it has a flow."""
        self.counters.refused += 1
        forget = () if rid in self._entries else (Forget(rid),)
        return [Send(rid, _eot(0, reason)), *forget]

    def _abort(self, entry: Association, reason: str, lost: int | None = None) -> list[Effect]:
        """End a flow with an EOT for each side, except a lost one."""
        self.counters.aborted += 1
        effects: list[Effect] = []
        for rid in (entry.client, entry.handler):
            # A side whose partner has ended has its EOT, and expects no second one.
            if rid is not None and rid != lost:
                other = entry.partner(rid)
                if other not in entry.ended:
                    effects.append(Send(rid, _eot(entry.seqnos.get(other, -1) + 1, reason)))
        return effects + self._erase(entry)

    def _erase(self, entry: Association) -> list[Effect]:
        """Remove a flow from the table."""
        self._pending.pop(entry.client, None)
        effects: list[Effect] = []
        for rid in (entry.client, entry.handler):
            if rid is not None and self._entries.get(rid) is entry:
                del self._entries[rid]
                effects.append(Forget(rid))
        return effects


def _rewritten(data: bytes, attributes: Attributes) -> bytes:
    """Return a message with another label object."""
    return Message.decode(data).with_object(attributes).encode()


def _eot(seqno: int, reason: str = "") -> bytes:
    """Return an EOT."""
    label = {"flow": "EOT", "reason": reason[:_REASON_LENGTH]} if reason else {"flow": "EOT"}
    return encode_flow(object_text(label).encode(), min(seqno, 2**64 - 1))
