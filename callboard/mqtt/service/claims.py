"""Ownership of persistent sessions in a cluster of routers: the rules, without a network.

When a client connects, its router claims the session from all other routers. The router that
has the session offers it, or answers where it is. A handover takes two steps, so that the
session never exists twice and is never lost, whichever message is lost or router crashes::

    new router                                 router that has the session
    ClaimSession          ------------------>  closes the old connection, keeps the session
                          <------------------  SessionOffer: all of the session
    stores a copy, durable
    ConfirmSession        ------------------>  gives the session up, durable
                          <------------------  Verdict.YES: messages since the offer
    the client is admitted
    SettleSession         ------------------>  forgets that it had the session

An offer is void as soon as the client reconnects to the router that made it. A copy must not be
used until its confirmation is answered: its router asks again, even after a restart, and
answers its client *server busy*. Routers that have left the cluster are not asked.

Stamps order connects in the whole cluster; see `Stamps`. A claim that is older than the last
connect is late, and changes nothing. If a partition has led to two sessions of one client, the
one that was used last stays. The other ends when the client connects again.

The decisions are generators. They yield an order for all other routers, and are sent the
answers, None for each router that did not answer. Between two steps the driver makes the
machine's records durable.
"""

import enum
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Final

from callboard.commitlog import LogCorrupt
from callboard.kernel.actors import frozen_message, message
from callboard.mqtt.access.admission import Admission
from callboard.mqtt.journal.handover import Handover
from callboard.mqtt.router.link import LinkEnding
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.record import EncodedRecords
from callboard.mqtt.router.session import Offer, Session
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass


@frozen_message("callboard.mqtt.ClaimSession")
class ClaimSession:
    """Claims the session of a client that connects to the sender.

    Attributes:
        client_id: the client id of the client.
        is_clean: whether the client wants a new session.
        stamp: the stamp of this claim.
        held: the stamp of the sender's own session; 0 if it has none.
        user: the authenticated user; None without authentication, or from older routers.
    """

    client_id: str
    is_clean: bool
    stamp: int
    held: int = 0
    user: str | None = None


@frozen_message("callboard.mqtt.ConfirmSession")
class ConfirmSession:
    """The session of an offer is durable at the sender, with the stamp of the offer."""

    client_id: str
    offer: str
    stamp: int


@frozen_message("callboard.mqtt.SettleSession")
class SettleSession:
    """The sender knows that the offered session is its own; not answered."""

    client_id: str
    offer: str


Order = ClaimSession | ConfirmSession | SettleSession


@frozen_message("callboard.mqtt.NoSession")
class NoSession:
    """The client does not have a session at this router, or it was ended."""


@frozen_message("callboard.mqtt.SessionBusy")
class SessionBusy:
    """The session cannot be offered at the moment; the client may try again."""

    stamp: int


@frozen_message("callboard.mqtt.SessionRefused")
class SessionRefused:
    """The session belongs to another user."""


@frozen_message("callboard.mqtt.SessionElsewhere")
class SessionElsewhere:
    """The session stays at its router; the client should connect to this address."""

    address: str
    stamp: int


@frozen_message("callboard.mqtt.SessionOffer")
class SessionOffer:
    """All of a session, to be confirmed."""

    offer: str
    stamp: int
    records: EncodedRecords


@message("callboard.mqtt.Verdict")
class Verdict(enum.Enum):
    """The answer to a confirmation."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@frozen_message("callboard.mqtt.SessionConfirmed")
class SessionConfirmed:
    """The answer to a confirmation; with a yes, the messages since the offer."""

    verdict: Verdict
    records: EncodedRecords = ()


Answer = (
    NoSession
    | SessionBusy
    | SessionRefused
    | SessionElsewhere
    | SessionOffer
    | SessionConfirmed
    | None
)


_log = logging.getLogger("callboard.mqtt")

#: The most bytes of messages in a session that is handed over; a frame between nodes holds
#: 16 MiB.
HEAVIEST: Final = 6 << 20

#: Seconds after a start in which other routers may not be connected yet.
SETTLING: Final = 10.0


class SessionPolicy(enum.Enum):
    """The treatment of a persistent session whose client connects to another router.

    Attributes:
        TAKE_OVER: the session moves there.
        REFER: the session stays, and the client gets the address of its router.
    """

    TAKE_OVER = "take over"
    REFER = "refer"


ADMITTED: Final = Admission()
BUSY: Final = Admission(ReasonCode.SERVER_BUSY)
NOT_YOURS: Final = Admission(
    ReasonCode.NOT_AUTHORIZED, "the client id belongs to another user; use another one"
)

Steps = Generator[Order, list[Answer], Admission]


class Stamps:
    """Numbers that increase over all routers of a cluster, even if their clocks differ.

    They are nanoseconds since 1970, or greater if another router's numbers were greater.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last = 0

    def make(self) -> int:
        """Return a number above all that were made or seen here."""
        self._last = max(self._last + 1, self._clock())
        return self._last

    def now(self) -> int:
        """Return nanoseconds since 1970."""
        return self._clock()

    def see(self, stamp: int) -> None:
        """Continue above another router's number."""
        self._last = max(self._last, stamp)


@dataclass(slots=True, eq=False)
class _Pending:
    """A client that is about to get its session at this router.

    Attributes:
        stamp: the stamp of its claim.
        is_adopting: a copy of its session exists, or is being made; other claims must wait.
        is_over: whether a later claim of the same client has replaced this one.
        user: the authenticated user.
    """

    stamp: int
    user: str | None = None
    is_adopting: bool = False
    is_over: bool = False

    def stands_above(self, order: ClaimSession) -> bool:
        """Return whether a claim of another router is refused for this one."""
        is_rival = self.user != order.user
        return is_rival or self.is_adopting or self.stamp >= order.stamp


@dataclass(eq=False)
class Claims:
    """The claims of one router; starts with the sessions of its machine.

    Attributes:
        machine: has the sessions.
        policy: the policy for sessions that this router has.
        stamps: orders connects; the machine uses the same stamps.
        address: returns the address where clients reach this router.
        make_name: returns unique names for offers.
    """

    machine: RouterMachine
    policy: SessionPolicy
    stamps: Stamps
    address: Callable[[], str]
    make_name: Callable[[], str]
    _pending: dict[str, _Pending] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._sessions = self.machine.sessions
        self._handover = Handover(self.machine)
        self._settled_at = self.machine.effects.now + SETTLING
        self._recovered = set(self._sessions.adopted)
        for session in self._sessions.graveyard.values():
            self.stamps.see(session.stamp)

    # --- orders of other routers ---

    def answer(self, order: Order) -> Answer:
        """Answer another router; the answer must be sent after the records are durable."""
        match order:
            case ClaimSession():
                return self.asked(order)
            case ConfirmSession():
                return self.confirmed(order)
            case SettleSession():
                self.settled(order)
        return None

    def asked(self, order: ClaimSession) -> Answer:
        """Answer another router's claim."""
        client_id = order.client_id
        self.stamps.see(order.stamp)
        pending = self._pending.get(client_id)
        if pending is not None and pending.stands_above(order):
            return SessionBusy(pending.stamp)
        session = self._sessions.caught_up(client_id)
        if session is not None and (refusal := self._refusal(session, order)) is not None:
            return refusal
        if pending is not None:
            pending.is_over = True
        handed = self._sessions.handed.get(client_id)
        if handed is not None and handed.stamp < order.held:
            self._sessions.forget_handed(client_id)
        if session is None:
            return NoSession()
        connection = session.connection
        if connection is not None and connection.link.is_local:
            return SessionBusy(session.stamp)
        if client_id in self._sessions.adopted and not order.is_clean:
            return SessionBusy(session.stamp)
        if session.stamp < order.held or order.is_clean or not session.expiry:
            self._sessions.give_up(client_id)
            return NoSession()
        if self.policy is SessionPolicy.REFER or self._handover.weight_of(session) > HEAVIEST:
            return SessionElsewhere(self.address(), session.stamp)
        return self._offer(session)

    def _refusal(self, session: Session, order: ClaimSession) -> Answer:
        """Return the refusal if a session is newer than the claim, or another user's.

        If two users created it on two sides of a partition, the one that was used last stays.
        """
        if session.stamp >= order.stamp:
            return SessionBusy(session.stamp)
        is_older = session.stamp < order.held
        if not is_older and not self._sessions.permits(session.client_id, order.user):
            return SessionRefused()
        return None

    def _offer(self, session: Session) -> SessionOffer | NoSession:
        """Close the connection of a session, and offer all of it."""
        if session.connection is not None:
            ending = LinkEnding(ReasonCode.SESSION_TAKEN_OVER, has_will=True)
            self._sessions.disconnect(session.connection, ending)
            if self._sessions.graveyard.get(session.client_id) is not session:
                return NoSession()  # the client's last packets have ended the session
        session.offer = Offer(self.make_name(), self.machine.logs.number)
        records = self._handover.export(session)
        return SessionOffer(session.offer.name, session.stamp, records)

    def confirmed(self, order: ConfirmSession) -> SessionConfirmed:
        """Hand over a session that another router has copied, if the offer is still valid."""
        client_id = order.client_id
        handed = self._sessions.handed.get(client_id)
        if handed is not None and handed.offer == order.offer:
            return SessionConfirmed(Verdict.YES, handed.records)
        if handed is not None and handed.stamp >= order.stamp:
            return SessionConfirmed(Verdict.NO)  # another router has it, by another offer
        session = self._sessions.get(client_id)
        if session is None or client_id in self._sessions.adopted:
            return SessionConfirmed(Verdict.UNKNOWN)
        offer = session.offer
        if offer is not None and offer.name == order.offer:
            if self._handover.weight_of(session) > HEAVIEST:
                session.offer = None
                return SessionConfirmed(Verdict.NO)
            return SessionConfirmed(Verdict.YES, self._handover.hand_over(session).records)
        if session.stamp < order.stamp:
            self._sessions.give_up(client_id)
            return SessionConfirmed(Verdict.UNKNOWN)
        return SessionConfirmed(Verdict.NO)

    def settled(self, order: SettleSession) -> None:
        """Forget that this router had a session."""
        handed = self._sessions.handed.get(order.client_id)
        if handed is not None and handed.offer == order.offer:
            self._sessions.forget_handed(order.client_id)

    # --- clients of this router ---

    def claim(self, client_id: str, *, is_clean: bool, user: str | None = None) -> Steps:
        """Decide about a client that connects to this router and has authenticated."""
        if not self._sessions.permits(client_id, user):
            return NOT_YOURS
        if (pending := self._pending.get(client_id)) is not None:
            if pending.is_adopting or pending.user != user:
                return BUSY
            pending.is_over = True  # an earlier connection of the same client
        with self._begun(client_id, user) as pending:
            return (yield from self._claim(pending, client_id, is_clean=is_clean))

    @contextmanager
    def _begun(self, client_id: str, user: str | None = None) -> Iterator[_Pending]:
        """Register a pending claim while the block runs."""
        pending = self._pending[client_id] = _Pending(self.stamps.make(), user)
        try:
            yield pending
        finally:
            if self._pending.get(client_id) is pending:
                del self._pending[client_id]

    def _claim(self, pending: _Pending, client_id: str, *, is_clean: bool) -> Steps:
        """Ask the other routers, and decide by their answers."""
        if client_id in self._sessions.adopted and not is_clean:
            pending.is_adopting = True
            if not (yield from self._resolve(client_id)):
                return BUSY
            pending.is_adopting = False
        own = self._sessions.get(client_id)
        stamp = 0 if own is None else own.stamp
        answers = yield ClaimSession(client_id, is_clean, pending.stamp, stamp, pending.user)
        self._see(answers)
        if any(isinstance(answer, SessionRefused) for answer in answers):
            return NOT_YOURS
        if pending.is_over or any(isinstance(answer, SessionBusy) for answer in answers):
            return BUSY
        if is_clean:
            return ADMITTED
        if None in answers:
            return BUSY
        candidates = [a for a in answers if isinstance(a, SessionElsewhere | SessionOffer)]
        if not candidates:
            return ADMITTED
        newest = max(candidates, key=lambda answer: answer.stamp)
        if self._sessions.get(client_id) is not None:
            # It is older than the other router's session, which would have ended otherwise.
            self._sessions.give_up(client_id)
        if isinstance(newest, SessionElsewhere):
            return Admission(ReasonCode.USE_ANOTHER_SERVER, newest.address)
        return (yield from self._adopt(pending, client_id, newest))

    def _see(self, answers: list[Answer]) -> None:
        """Continue above the stamps of answers."""
        for answer in answers:
            if isinstance(answer, SessionBusy | SessionElsewhere | SessionOffer):
                self.stamps.see(answer.stamp)

    def _adopt(self, pending: _Pending, client_id: str, offer: SessionOffer) -> Steps:
        """Copy an offered session, and have the copy confirmed."""
        pending.is_adopting = True
        try:
            self._handover.adopt(offer.records, client_id, offer.offer)
        except LogCorrupt as error:
            _log.error("a session cannot be taken over: %s", error)
            return BUSY
        return ADMITTED if (yield from self._resolve(client_id)) else BUSY

    def resolve(self, client_id: str) -> Steps:
        """Find out whether a copy has become our own, while its client is away."""
        if client_id in self._pending or client_id not in self._sessions.adopted:
            return BUSY
        with self._begun(client_id) as pending:
            pending.is_adopting = True
            return ADMITTED if (yield from self._resolve(client_id)) else BUSY

    def _resolve(self, client_id: str) -> Generator[Order, list[Answer], bool]:
        """Return whether a copy is our own now; drop a copy that never will be."""
        offer, session = self._sessions.adopted[client_id], self._sessions.get(client_id)
        if session is None:
            return False
        answers = yield ConfirmSession(client_id, offer, session.stamp)
        if self._sessions.adopted.get(client_id) != offer:
            return False  # the copy has expired
        verdicts = {a.verdict: a for a in answers if isinstance(a, SessionConfirmed)}
        if Verdict.YES in verdicts:
            try:
                self._handover.add_late(session, verdicts[Verdict.YES].records)
            except LogCorrupt as error:
                _log.error("late messages of a session cannot be read: %s", error)
        elif Verdict.NO in verdicts:
            self._sessions.give_up(client_id)
            return False
        elif None in answers or self._may_come(client_id):
            return False
        self._recovered.discard(client_id)
        self._handover.own(session)
        yield SettleSession(client_id, offer)
        return True

    def _may_come(self, client_id: str) -> bool:
        """Return whether the router that offered a copy may not be connected yet."""
        return client_id in self._recovered and self.machine.effects.now < self._settled_at
