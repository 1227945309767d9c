"""Batches the appends of all writers of one node to one log of another node.

    writers ──packed──> outbox ──group, ask──> the node's intake ──receipts──> all their writers

The append of a single writer is sent immediately. With several writers, up to `UNDER_WAY`
groups are in flight: while the intake syncs one group, the writers of the other receive their
receipts and append again. A writer that has just got a receipt is likely to append again soon,
so the next group waits until its share of the writers have appended, but at most half as long
as the last group took. Thus each message, each turn of the intake and each sync serves many
appends, and a slow writer delays the others only by that bounded wait.
"""

from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from callboard import locks
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import Node
from callboard.kernel.errors import CallboardError, LinkFull
from callboard.kernel.reply import Future
from callboard.log_service.append import (
    AppendedRow,
    AppendToLog,
    ProducerAppend,
    group_of,
    pack_append,
)

#: Groups that may be in flight at the same time.
UNDER_WAY: Final = 2
#: Appends in one group.
MEMBERS: Final = 256
#: Seconds by which the deadlines of the appends in one group may differ: the group is one ask
#: with one timeout.
_APART: Final = 1.0
#: Wait for the next group to fill: this fraction of the last group's round trip, and at most
#: `_LONGEST` seconds.
_GATHERED: Final = 0.5
_LONGEST: Final = 0.002
#: Seconds before sending again over a link that was full.
_PAUSE: Final = 0.02
#: Bytes of the CBOR head of a group: an array of up to 65,535 items.
_HEAD: Final = 3


class WaitingAppend(Future[int]):
    """An append that waits for its receipt; resolves to the offset of its first record.

    Attributes:
        number: number of the first record; None until one is assigned.
        attempt: the writer's link attempt on which it was sent last; 0 if never sent.
        era: the writer's numbering era when it was sent. A refusal returns its number only in
            the same era, else it would reset numbers that were assigned since.
        is_over: whether its time has expired; it fails as soon as no lock is held.
    """

    __slots__ = (
        "attempt", "era", "is_given", "is_over", "is_published", "number", "rows", "until",
    )  # fmt: skip

    def __init__(
        self,
        rows: list[AppendedRow],
        number: int | None,
        until: float,
        *,
        is_published: bool,
    ) -> None:
        """Hold records until a deadline on the node's clock."""
        super().__init__()
        self.rows = rows
        self.is_published = is_published
        self.number = number
        self.is_given = number is not None
        self.until = until
        self.attempt = self.era = 0
        self.is_over = False


class Appender(Protocol):
    """A writer whose appends are batched."""

    def is_current(self, attempt: int) -> bool:
        """Return whether appends of this link attempt are still to be sent."""

    def take(self, parcel: "PendingAppend", error: BaseException | None, reply: Any) -> bool:
        """Handle a reply; return whether it is the receipt of the append."""

    def forget(self, waiting: WaitingAppend) -> None:
        """Remove an append that has its receipt from the queue."""

    def unsent(self, waiting: WaitingAppend, error: CallboardError) -> None:
        """Fail an append that cannot be sent."""


class PendingAppend(NamedTuple):
    """An append waiting to be sent; `packed` is None if it must not be in a group."""

    appender: Appender
    waiting: WaitingAppend
    attempt: int
    append: ProducerAppend
    packed: bytes | None


class AppendBatcher:
    """Sends appends to one log of another node, in order; may be used from any thread."""

    def __init__(
        self, node: Node, ref: ActorRef, log: str, timeout: float, largest: int
    ) -> None:
        """Send appends to an intake.

        Args:
            node: the node of the writers.
            ref: the intake.
            log: name of the log.
            timeout: seconds to wait for a reply whose append has already expired.
            largest: limit of a group in bytes; 0 if the intake does not support groups.
        """
        self._runtime = node.context
        self._now = node.context.now
        self._ref, self._log, self._timeout = ref, log, timeout
        self._largest = largest
        self._outbox: deque[PendingAppend] = deque()
        #: Held while a group is formed and sent: two threads that did this at the same time
        #: could send groups in the wrong order.
        self._sending = locks.Turn()
        self._lock = locks.lock("appends to be sent", 465)
        #: Groups in flight, and the appends in them.
        self._groups = self._members = 0
        #: The next group is sent once it has this many appends, or at this time.
        self._share, self._until = 0, 0.0

    def put(
        self, appender: Appender, waiting: WaitingAppend, attempt: int, append: ProducerAppend
    ) -> None:
        """Queue an append; `ship` sends it."""
        packed = pack_append(append) if self._largest else None
        if packed is not None and len(packed) > self._largest - _HEAD:
            packed = None
        self._outbox.append(PendingAppend(appender, waiting, attempt, append, packed))

    def ship(self) -> None:
        """Send queued appends that are due. The caller must not hold a writer's lock."""
        while self._is_due() and self._sending.take():
            try:  # a thread that does not get the turn relies on the thread that holds it
                if (parcels := self._group()) and not self._send(parcels):
                    return
            finally:
                self._sending.end()

    def _is_due(self) -> bool:
        """Return whether the next group should be sent now."""
        waiting = len(self._outbox)
        if not waiting or not self._largest:
            return waiting > 0
        if self._groups >= UNDER_WAY:
            return False
        return waiting >= self._share or self._now() >= self._until

    def _group(self) -> list[PendingAppend]:
        """Pop the parcels of the next group; drop parcels that were queued anew."""
        outbox, parcels, room = self._outbox, list[PendingAppend](), self._largest - _HEAD
        while outbox and len(parcels) < MEMBERS:
            parcel = outbox[0]
            if parcel.appender.is_current(parcel.attempt):
                size = self._largest if parcel.packed is None else len(parcel.packed)
                if parcels and (
                    size > room or parcel.waiting.until - parcels[0].waiting.until > _APART
                ):
                    break
                room -= size
                parcels.append(parcel)
            outbox.popleft()
        return parcels

    def _send(self, parcels: list[PendingAppend]) -> bool:
        """Send parcels as one ask; return False if the link is full."""
        question: Any
        if len(parcels) == 1:
            producer, epoch, number, rows, is_published = parcels[0].append
            plain = [tuple(row) for row in rows]
            question = AppendToLog(self._log, producer, epoch, number, plain, is_published)
        else:
            question = group_of(self._log, [parcel.packed or b"" for parcel in parcels])
        left = parcels[0].waiting.until - self._now()
        left = (
            left if left > 0 else self._timeout
        )  # expired, but its number must not be skipped
        self._count(1, len(parcels))
        try:
            answer = self._ref.ask(question, left)
        except LinkFull as error:  # only on the runner's thread, which must not block
            self._count(-1, -len(parcels))
            late = [parcel for parcel in parcels if parcel.waiting.until <= self._now()]
            self._outbox.extendleft(parcel for parcel in parcels[::-1] if parcel not in late)
            for parcel in late:
                parcel.appender.unsent(parcel.waiting, error)
            self._runtime.call_later(_PAUSE, self.ship)
            return False
        except CallboardError as error:  # larger than the message limit, or the node is closed
            self._count(-1, -len(parcels))
            if len(parcels) > 1:
                alone = (parcel._replace(packed=None) for parcel in parcels[::-1])
                self._outbox.extendleft(alone)
            else:
                parcels[0].appender.unsent(parcels[0].waiting, error)
            return True
        answer.on_done(partial(self._answered, parcels, self._now()))
        return True

    def _count(self, groups: int, members: int) -> None:
        with self._lock:
            self._groups += groups
            self._members += members

    def _gather(self, answered: int, took: float) -> None:
        """Set how many appends the next group waits for, if several writers append."""
        appending = answered + self._members + len(self._outbox)
        self._share = 0
        if self._largest and appending > 1:
            pause = min(_GATHERED * took, _LONGEST)
            self._share, self._until = -(-appending // UNDER_WAY), self._now() + pause
            self._runtime.call_later(pause, self.ship)

    def _answered(
        self, parcels: list[PendingAppend], sent_at: float, answer: Future[Any]
    ) -> None:
        """Handle the reply to a group, and send the next one."""
        self._count(-1, -len(parcels))
        self._gather(len(parcels), self._now() - sent_at)
        error = answer.exception()
        replies: Any = None if error is not None else answer.result()
        if len(parcels) == 1:
            replies = [replies]
        elif type(replies) is not list or len(replies) != len(parcels):
            replies = [None] * len(parcels)
        self._notify(parcels, error, replies)
        self.ship()

    def _notify(
        self, parcels: list[PendingAppend], error: BaseException | None, replies: list[Any]
    ) -> None:
        """Pass each reply to its writer.

        All replies are recorded before the first future is resolved. A thread woken by its
        future appends again and needs the lock of its writer, which `take` holds.
        """
        receipts = [
            (parcel, reply)
            for parcel, reply in zip(parcels, replies, strict=True)
            if parcel.appender.take(parcel, error, reply)
        ]
        for parcel, offset in receipts:
            parcel.waiting.set_result(offset)
        for parcel, _ in receipts:
            parcel.appender.forget(parcel.waiting)


_LOCK: Final = locks.lock("carriers of appends", 455)
_CARRIERS: Final[
    "WeakKeyDictionary[Node, WeakValueDictionary[tuple[bytes, str, float, int], AppendBatcher]]"
] = WeakKeyDictionary()


def carrier_of(
    node: Node, peer: bytes, log: str, timeout: float, largest: int, ref: ActorRef
) -> AppendBatcher:
    """Return the carrier from a node to a log of another node, shared by its writers."""
    key = peer, log, timeout, largest
    with _LOCK:
        carriers = _CARRIERS.setdefault(node, WeakValueDictionary())
        carrier = carriers.get(key)
        if carrier is None:
            carrier = carriers[key] = AppendBatcher(node, ref, log, timeout, largest)
    return carrier
