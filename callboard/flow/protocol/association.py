"""The table of a flow broker: which client talks with which handler. No sockets, no clock.

The flow-initiation protocol, one entry for each flow:

    BOT of a client         pending: its routing id becomes `cid`, the direction is reversed,
                            the factory is called
    BOT-loc with that cid   associated: stripped of the cid it goes to the client, reversed back
                            to the handler; both have opened
    DAT, PAY                to the partner, unchanged
    first EOT               to the partner; its sender's direction is erased
    second EOT              (echo, or one that crossed) to the partner; the entry is gone

If one EOT erased both directions, its echo would be a stranger's and its sender would wait for
ever. A refusal (EOT before the flow opened) needs no echo and erases both.

A cid alone proves nothing, every peer could claim one: beside it the factory gets `cid_key`, a
random word that has to come back with it. Clients see neither.

Messages are also checked against the protocol: a second BOT, DAT without credit, PAY beyond the
total, a wrong direction. That ends the flow on both sides with a reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from callboard.flow.errors import MalformedMessage
from callboard.flow.protocol import machine, message
from callboard.flow.protocol.message import Attributes, Message, encode_flow, object_text

#: Flows that may wait for their handlers: beyond that clients are refused at once.
PENDING_LIMIT: Final = 4096

#: Seconds that a handler may take to answer a BOT.
PENDING_TIME: Final = 10.0

_OWN: Final = frozenset({"cid", "cid_key"})
_REASON_LENGTH: Final = 500


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
    """The peer has no flow any more: its routing id is free."""

    rid: int


Effect = Send | CallFactory | Forget


@dataclass(slots=True)
class FlowCounters:
    """What happened at a flow broker.

    Attributes:
        opened: flows that both sides opened.
        ended: flows that ended with EOT of both sides.
        refused: BOTs answered with EOT.
        aborted: flows that ended because a side was lost or broke a rule.
        unknown: messages dropped because their sender has no flow.
        malformed: messages dropped because they could not be read.
        routed: messages that went to their partner.
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
    """One flow, as the broker sees it."""

    client: int
    #: The routing id of the side that sends the DATs; None while it is the handler to come.
    giver: int | None
    total: int
    key: str
    expires: float
    handler: int | None = None
    #: Credit that the giver has, as of what passed here: it can never have more.
    credit: int = 0
    is_open: bool = False
    #: The sides whose EOT came.
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
            make_key: returns a new random word.
            most_credit: BOTs that ask for more are refused.
        """
        self.counters = FlowCounters()
        self._make_key = make_key
        self._most_credit = most_credit
        self._entries: dict[int, Association] = {}
        #: Flows that wait for their handler, by the client's routing id; oldest first.
        self._pending: dict[int, Association] = {}

    def __len__(self) -> int:
        """Return the number of flows, waiting ones included."""
        return sum(rid == entry.client for rid, entry in self._entries.items())

    def __contains__(self, rid: int) -> bool:
        """Return whether a peer has a flow."""
        return rid in self._entries

    @property
    def is_waiting(self) -> bool:
        """True while some flow waits for its handler."""
        return bool(self._pending)

    # --- the way of a message ---

    def receive(self, rid: int, data: bytes, now: float) -> list[Effect]:
        """Take a message of the peer with this routing id."""
        try:
            attributes, seqno, at = message.read_head(data)
            kind = machine.kind_of(attributes)
        except MalformedMessage:
            self.counters.malformed += 1
            return []
        entry = self._entries.get(rid)
        if "cid" in attributes:
            try:
                return self._claimed(rid, entry, attributes, data, now)
            except MalformedMessage as error:
                self.counters.malformed += 1
                return [] if entry is None else self._abort(entry, str(error))
        if entry is None:
            if kind == "BOT":
                return self._begin(rid, attributes, data, now)
            self.counters.unknown += 1
            return []
        if kind == "BOT":
            return self._abort(entry, "BOT comes once, first")
        if not entry.is_open:
            if kind == "EOT":  # a client whose BOT waits gave up: it may say nothing else
                self.counters.aborted += 1
                return [Send(rid, _eot(1)), *self._erase(entry)]
            return self._abort(entry, f"{kind} came before the flow was open")
        entry.seqnos[rid] = seqno
        return self._routed(rid, entry, kind, attributes, data)

    def _routed(
        self, rid: int, entry: Association, kind: str, attributes: Attributes, data: bytes
    ) -> list[Effect]:
        """Hold a message of an open flow against the rules, and pass it on."""
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
            self.counters.unknown += 1  # its direction is erased
            return []
        if kind == "DAT":
            if rid != entry.giver:
                return self._abort(entry, "DAT goes from the giver to the taker")
            entry.credit -= 1
            if entry.credit < 0:
                return self._abort(entry, "DAT needs credit, and its sender has none")
        else:
            if rid == entry.giver:
                return self._abort(entry, "PAY goes from the taker to the giver")
            credit = attributes.get("credit")
            if type(credit) is not int or credit < 1:
                return self._abort(entry, f"PAY of {credit!r} is no credit")
            entry.credit += credit
            if entry.credit > entry.total:
                return self._abort(entry, f"PAY exceeds the total credit of {entry.total:,}")
        self.counters.routed += 1
        return [Send(partner, data)]

    # --- initiation ---

    def _begin(self, rid: int, attributes: Attributes, data: bytes, now: float) -> list[Effect]:
        """A client wants a flow: keep its routing id as cid and let the factory work."""
        try:
            direction = machine.reverse(attributes.get("direction"))
            credit = machine.checked_credit(attributes.get("credit"))
            about = {**attributes, "direction": direction, "cid": rid, "cid_key": ""}
            bot = Message.decode(data).with_object(about)
            assert bot.prefix  # its label may have grown beyond what can be sent
        except MalformedMessage as error:
            return self._refusal(rid, str(error))
        if credit > self._most_credit:
            return self._refusal(rid, f"credit {credit:,} exceeds {self._most_credit:,}")
        if len(self._pending) >= PENDING_LIMIT:
            return self._refusal(rid, f"{PENDING_LIMIT:,} flows wait already; try again later")
        giver = rid if direction == "inject" else None
        entry = Association(rid, giver, credit, self._make_key(), now + PENDING_TIME)
        self._entries[rid] = self._pending[rid] = entry
        return [CallFactory(rid, bot.with_object({**about, "cid_key": entry.key}))]

    def _claimed(
        self,
        rid: int,
        entry: Association | None,
        attributes: Attributes,
        data: bytes,
        now: float,
    ) -> list[Effect]:
        """A message with a cid: its sender is the handler of that client, if it has the key."""
        cid, about = attributes["cid"], machine.without(attributes, _OWN)
        waiting = self._pending.get(cid) if type(cid) is int else None
        if entry is not None and entry.handler == rid and entry.client == cid:
            stripped = _rewritten(data, about)
            if machine.kind_of(about) == "BOT" or not entry.is_open:
                return self._abort(entry, "BOT comes once, first")
            return self.receive(rid, stripped, now)
        if entry is not None:
            return self._abort(entry, f"cid {str(cid)[:20]!r} is another flow's")
        if waiting is None:
            return self._refusal(rid, f"cid {str(cid)[:20]!r} names no flow that waits")
        if attributes.get("cid_key") != waiting.key:
            return self._refusal(rid, "a handler answers with cid and cid_key as they came")
        return self._answered(rid, waiting, about, data)

    def _answered(
        self, rid: int, entry: Association, about: Attributes, data: bytes
    ) -> list[Effect]:
        """Take the answer of a handler to a BOT."""
        kind, forward = machine.kind_of(about), _rewritten(data, about)
        turned = machine.OPPOSITE.get(str(about.get("direction")))
        back = _rewritten(data, {**about, "direction": turned}) if kind == "BOT" else forward
        del self._pending[entry.client]
        entry.handler = rid
        self._entries[rid] = entry
        if kind == "EOT":
            self.counters.refused += 1
            return [Send(entry.client, forward), *self._erase(entry)]
        if kind != "BOT":
            return self._abort(entry, f"{kind} came before the flow was open")
        expected = "inject" if entry.giver == entry.client else "extract"
        if about.get("direction") != expected:
            return self._abort(entry, f"the handler's BOT does not say {expected!r}")
        try:
            credit = machine.checked_credit(about.get("credit"))
        except MalformedMessage as error:
            return self._abort(entry, f"the handler's BOT: {error}")
        if credit > entry.total:
            return self._abort(entry, f"BOT raises the credit {entry.total:,} to {credit:,}")
        entry.total = credit
        entry.is_open = True
        if entry.giver is None:
            entry.giver = rid
        self.counters.opened += 1
        entry.seqnos = {rid: 0, entry.client: 0}
        return [Send(entry.client, forward), Send(rid, back)]

    # --- ends ---

    def refuse(self, cid: int, reason: str) -> list[Effect]:
        """The factory does not take a flow; no effect when it is answered already."""
        entry = self._pending.get(cid)
        return [] if entry is None else [*self._refusal(cid, reason), *self._erase(entry)]

    def down(self, rid: int, reason: str) -> list[Effect]:
        """A peer is lost: its partner gets EOT."""
        if (entry := self._entries.get(rid)) is None:
            return []
        return self._abort(entry, f"the other side is lost: {reason}", lost=rid)

    def expire(self, now: float) -> list[Effect]:
        """Refuse flows whose handlers did not answer in time."""
        effects: list[Effect] = []
        for cid, entry in list(self._pending.items()):
            if entry.expires > now:
                break  # the rest is younger
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
        """Answer with EOT; the peer has no flow."""
        self.counters.refused += 1
        gone = () if rid in self._entries else (Forget(rid),)
        return [Send(rid, _eot(0, reason)), *gone]

    def _abort(self, entry: Association, reason: str, lost: int | None = None) -> list[Effect]:
        """End a flow on both sides."""
        self.counters.aborted += 1
        effects: list[Effect] = []
        for rid in (entry.client, entry.handler):
            # Who was told EOT already waits for nothing else, unless it began and has no echo.
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
    """Return a message with other attributes."""
    return Message.decode(data).with_object(attributes).encode()


def _eot(seqno: int, reason: str = "") -> bytes:
    about = {"flow": "EOT", "reason": reason[:_REASON_LENGTH]} if reason else {"flow": "EOT"}
    return encode_flow(object_text(about).encode(), min(seqno, 2**64 - 1))
