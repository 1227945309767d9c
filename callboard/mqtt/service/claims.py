"""Which router of a cluster has a client's persistent session: the rules, without a network.

A router that a client comes to claims the session from all others of its cluster. The router
that has it gives it, or says where it is. Giving takes two steps, so that it is nowhere twice
and nowhere lost, whatever message is lost and whichever router crashes in between::

    new router                                 router that has the session
    ClaimSession          ------------------>  ends the old connection, keeps the session
                          <------------------  SessionOffer: all of it
    makes a copy, durable
    ConfirmSession        ------------------>  lets go, durable: from here on it is the other's
                          <------------------  Verdict.YES: what came in meanwhile
    the client is let in
    SettleSession         ------------------>  forgets that it was here

An offer is void as soon as the client is back at the router that made it. A copy whose
confirmation is not answered may not be used: its router asks again, also after a restart,
and its client is told that the server is busy. Routers that the cluster has lost have no say.

Stamps order connects in the whole cluster; see `Stamps`. A claim that is older than the last
connect is late, and changes nothing. Where a partition had made two sessions of one client, the
one that was used last stays, and the other ends when the client connects again.

Generators yield an order for all other routers and are sent their answers, None for each that
did not answer; their driver makes the machine's records durable in between.
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
from callboard.mqtt.router.link import Ending
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.record import EncodedRecords
from callboard.mqtt.router.session import Offer, Session
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass


@frozen_message("callboard.mqtt.ClaimSession")
class ClaimSession:
    """A client connects to another router.

    Attributes:
        client_id: of the client.
        is_clean: whether it wants no session that was before.
        stamp: of this claim.
        held: the stamp of a session that is there; 0 for none.
        user: who the client has proved to be; None where nobody has to, and of older routers.
    """

    client_id: str
    is_clean: bool
    stamp: int
    held: int = 0
    user: str | None = None


@frozen_message("callboard.mqtt.ConfirmSession")
class ConfirmSession:
    """The session of an offer is durable elsewhere, with the stamp that it came with."""

    client_id: str
    offer: str
    stamp: int


@frozen_message("callboard.mqtt.SettleSession")
class SettleSession:
    """The router that took an offer knows that the session is its own; not answered."""

    client_id: str
    offer: str


Order = ClaimSession | ConfirmSession | SettleSession


@frozen_message("callboard.mqtt.NoSession")
class NoSession:
    """There is none here, or it was ended."""


@frozen_message("callboard.mqtt.SessionBusy")
class SessionBusy:
    """It cannot be given at the moment; the client may try again."""

    stamp: int


@frozen_message("callboard.mqtt.SessionRefused")
class SessionRefused:
    """It belongs to another user."""


@frozen_message("callboard.mqtt.SessionElsewhere")
class SessionElsewhere:
    """It is here and stays; the client finds it at this address."""

    address: str
    stamp: int


@frozen_message("callboard.mqtt.SessionOffer")
class SessionOffer:
    """All of it, to be confirmed."""

    offer: str
    stamp: int
    records: EncodedRecords


@message("callboard.mqtt.Verdict")
class Verdict(enum.Enum):
    """What a router says to a confirmation."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@frozen_message("callboard.mqtt.SessionConfirmed")
class SessionConfirmed:
    """The answer to a confirmation; with a yes, what came in behind the offer."""

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

#: Bytes of messages with which a session is still taken over; a message between nodes holds
#: 16 MiB.
HEAVIEST: Final = 6 << 20

#: Seconds after a start in which other routers may not be in reach yet.
SETTLING: Final = 10.0


class SessionPolicy(enum.Enum):
    """What becomes of a persistent session whose client connects to another router.

    Attributes:
        TAKE_OVER: it moves there.
        REFER: it stays, and its client is told where it is.
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
    """Numbers that grow over all routers of a cluster, whatever their clocks say.

    They are nanoseconds since 1970, and more where another router's were more.
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
        """Take note of another router's number."""
        self._last = max(self._last, stamp)


@dataclass(slots=True, eq=False)
class _Pending:
    """A client that is about to get its session here.

    Attributes:
        stamp: of its claim.
        is_adopting: there is a copy of its session, or about to be; no other claim may begin.
        is_over: a later claim of the same client stands above this one.
        user: who the client has proved to be.
    """

    stamp: int
    user: str | None = None
    is_adopting: bool = False
    is_over: bool = False

    def stands_above(self, order: ClaimSession) -> bool:
        """Return whether a claim of another router has to wait."""
        is_rival = self.user != order.user
        return is_rival or self.is_adopting or self.stamp >= order.stamp


@dataclass(eq=False)
class Claims:
    """One router's part in it; begins with what the machine has.

    Attributes:
        machine: has the sessions.
        policy: what becomes of sessions that are here.
        stamps: orders connects; the machine's own come from there too.
        address: tells where clients find this router.
        make_name: gives names for offers, each only once.
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

    # --- what others ask ---

    def answer(self, order: Order) -> Answer:
        """Answer another router; the answer goes out when the records are durable."""
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
        """Return why a session is not given: it is newer than the claim, or another user's.

        Where a partition has let two users make it, the one that was used last stays.
        """
        if session.stamp >= order.stamp:
            return SessionBusy(session.stamp)
        is_older = session.stamp < order.held
        if not is_older and not self._sessions.permits(session.client_id, order.user):
            return SessionRefused()
        return None

    def _offer(self, session: Session) -> SessionOffer | NoSession:
        """End the connection of a session and offer all of it."""
        if session.connection is not None:
            ending = Ending(ReasonCode.SESSION_TAKEN_OVER, has_will=True)
            self._sessions.disconnect(session.connection, ending)
            if self._sessions.graveyard.get(session.client_id) is not session:
                return NoSession()  # the last that its client had sent was to end it
        session.offer = Offer(self.make_name(), self.machine.logs.number)
        records = self._handover.export(session)
        return SessionOffer(session.offer.name, session.stamp, records)

    def confirmed(self, order: ConfirmSession) -> SessionConfirmed:
        """Let go of a session whose copy is elsewhere, if the offer still holds."""
        client_id = order.client_id
        handed = self._sessions.handed.get(client_id)
        if handed is not None and handed.offer == order.offer:
            return SessionConfirmed(Verdict.YES, handed.records)
        if handed is not None and handed.stamp >= order.stamp:
            return SessionConfirmed(Verdict.NO)  # it went elsewhere with another offer
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
        """Forget that a session was here."""
        handed = self._sessions.handed.get(order.client_id)
        if handed is not None and handed.offer == order.offer:
            self._sessions.forget_handed(order.client_id)

    # --- clients of ours ---

    def claim(self, client_id: str, *, is_clean: bool, user: str | None = None) -> Steps:
        """Decide about a client that connects here, and has proved to be a user."""
        if not self._sessions.permits(client_id, user):
            return NOT_YOURS
        if (pending := self._pending.get(client_id)) is not None:
            if pending.is_adopting or pending.user != user:
                return BUSY
            pending.is_over = True  # its own connection before this one
        with self._begun(client_id, user) as mine:
            return (yield from self._claim(mine, client_id, is_clean=is_clean))

    @contextmanager
    def _begun(self, client_id: str, user: str | None = None) -> Iterator[_Pending]:
        """Note for as long as it takes that a client is about to get its session here."""
        mine = self._pending[client_id] = _Pending(self.stamps.make(), user)
        try:
            yield mine
        finally:
            if self._pending.get(client_id) is mine:
                del self._pending[client_id]

    def _claim(self, mine: _Pending, client_id: str, *, is_clean: bool) -> Steps:
        """Ask the other routers, and decide by what they answer."""
        if client_id in self._sessions.adopted and not is_clean:
            mine.is_adopting = True
            if not (yield from self._resolve(client_id)):
                return BUSY
            mine.is_adopting = False
        own = self._sessions.get(client_id)
        held = 0 if own is None else own.stamp
        answers = yield ClaimSession(client_id, is_clean, mine.stamp, held, mine.user)
        self._see(answers)
        if any(isinstance(answer, SessionRefused) for answer in answers):
            return NOT_YOURS
        if mine.is_over or any(isinstance(answer, SessionBusy) for answer in answers):
            return BUSY
        if is_clean:
            return ADMITTED
        if None in answers:
            return BUSY
        found = [a for a in answers if isinstance(a, SessionElsewhere | SessionOffer)]
        if not found:
            return ADMITTED
        newest = max(found, key=lambda answer: answer.stamp)
        if self._sessions.get(client_id) is not None:
            # It was used before the other one, which would have ended else.
            self._sessions.give_up(client_id)
        if isinstance(newest, SessionElsewhere):
            return Admission(ReasonCode.USE_ANOTHER_SERVER, newest.address)
        return (yield from self._adopt(mine, client_id, newest))

    def _see(self, answers: list[Answer]) -> None:
        """Take note of the stamps in answers."""
        for each in answers:
            if isinstance(each, SessionBusy | SessionElsewhere | SessionOffer):
                self.stamps.see(each.stamp)

    def _adopt(self, mine: _Pending, client_id: str, offer: SessionOffer) -> Steps:
        """Make a copy of an offered session, and have it confirmed."""
        mine.is_adopting = True
        try:
            self._handover.adopt(offer.records, client_id, offer.offer)
        except LogCorrupt as error:
            _log.error("a session cannot be taken over: %s", error)
            return BUSY
        return ADMITTED if (yield from self._resolve(client_id)) else BUSY

    def resolve(self, client_id: str) -> Steps:
        """Find out whether a copy is our own by now, without its client."""
        if client_id in self._pending or client_id not in self._sessions.adopted:
            return BUSY
        with self._begun(client_id) as mine:
            mine.is_adopting = True
            return ADMITTED if (yield from self._resolve(client_id)) else BUSY

    def _resolve(self, client_id: str) -> Generator[Order, list[Answer], bool]:
        """Return whether a copy is our own; one that never will be is dropped."""
        offer, session = self._sessions.adopted[client_id], self._sessions.get(client_id)
        if session is None:
            return False
        answers = yield ConfirmSession(client_id, offer, session.stamp)
        if self._sessions.adopted.get(client_id) != offer:
            return False  # it has expired
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
        """Whether the router that a copy is from may not be in reach yet."""
        return client_id in self._recovered and self.machine.effects.now < self._settled_at
