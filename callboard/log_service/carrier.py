"""Carrying what the writers of one node append to a log of another: in groups.

    writers ──packed──> outbox ──group, ask──> the node's intake ──receipts──> all their writers

A single writer's append is sent at once. Of many writers, `UNDER_WAY` groups are on their way:
while one is synced, the writers of the other are woken and append again. Who has just got a
receipt is likely to append again at once, so the next group waits until its share of writers
has, or for half as long as the last one took. So each message, each turn of the intake and each
sync serves many appends, and none of them waits for a slow writer.
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

#: Groups that are sent before the first of them is answered.
UNDER_WAY: Final = 2
#: Appends of one group.
MEMBERS: Final = 256
#: Seconds by which the deadlines of a group's appends may differ.
_APART: Final = 1.0
#: Of the time that a group took, what the next one is waited for, and seconds at most.
_GATHERED: Final = 0.5
_LONGEST: Final = 0.002
#: Seconds until a link that was full is tried again.
_PAUSE: Final = 0.02
#: Bytes of the head of a group.
_HEAD: Final = 3


class WaitingAppend(Future[int]):
    """Records of one append that have no receipt yet, and the future of their offset.

    Attributes:
        number: of the first one; None while it is to get the next one.
        attempt: the link over which it was sent last; 0 for none.
        era: what was known of numbers then: a failure of an earlier era sets none back.
        is_over: whether it was given up; it fails as soon as no lock is held.
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
        """Wait for records until a time."""
        super().__init__()
        self.rows = rows
        self.is_published = is_published
        self.number = number
        self.is_given = number is not None
        self.until = until
        self.attempt = self.era = 0
        self.is_over = False


class Appender(Protocol):
    """A writer whose appends are carried."""

    def is_current(self, attempt: int) -> bool:
        """Return whether what was sent with this attempt was not given up since."""

    def take(self, parcel: "Parcel", error: BaseException | None, told: Any) -> bool:
        """Take an answer; return whether it is the receipt that the append waits for."""

    def forget(self, waiting: WaitingAppend) -> None:
        """Forget an append that has its receipt."""

    def unsent(self, waiting: WaitingAppend, error: CallboardError) -> None:
        """Let an append fail that cannot be sent."""


class Parcel(NamedTuple):
    """An append on its way; `packed` is None where it travels alone."""

    appender: Appender
    waiting: WaitingAppend
    attempt: int
    append: ProducerAppend
    packed: bytes | None


class AppendCarrier:
    """Sends appends to one log of a node in their order; any thread may hand them over."""

    def __init__(
        self, node: Node, ref: ActorRef[Any], log: str, timeout: float, largest: int
    ) -> None:
        """Carry appends to an intake; in groups of up to so many bytes, 0 for none."""
        self._runtime = node.context
        self._now = node.context.now
        self._ref, self._log, self._timeout = ref, log, timeout
        self._largest = largest
        self._outbox: deque[Parcel] = deque()
        #: Held while a group is taken and sent, so that groups keep the order.
        self._sending = locks.Turn()
        self._lock = locks.lock("appends to be sent", 465)
        #: Groups that are under way, and appends in them.
        self._groups = self._members = 0
        #: Appends that the next group waits for, and until when.
        self._share, self._until = 0, 0.0

    def put(
        self, appender: Appender, waiting: WaitingAppend, attempt: int, append: ProducerAppend
    ) -> None:
        """Take an append; `ship` sends it."""
        packed = pack_append(append) if self._largest else None
        if packed is not None and len(packed) > self._largest - _HEAD:
            packed = None
        self._outbox.append(Parcel(appender, waiting, attempt, append, packed))

    def ship(self) -> None:
        """Send what waits, if it is time; the caller holds no lock of a writer."""
        while self._is_due() and self._sending.take():
            try:  # a thread that finds it taken leaves this to the one that has it
                if (parcels := self._group()) and not self._send(parcels):
                    return
            finally:
                self._sending.end()

    def _is_due(self) -> bool:
        """Return whether what waits is to be sent now."""
        waiting = len(self._outbox)
        if not waiting or not self._largest:
            return waiting > 0
        if self._groups >= UNDER_WAY:
            return False
        return waiting >= self._share or self._now() >= self._until

    def _group(self) -> list[Parcel]:
        """Take the next parcels that travel together, without those that are sent anew."""
        outbox, parcels, room = self._outbox, list[Parcel](), self._largest - _HEAD
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

    def _send(self, parcels: list[Parcel]) -> bool:
        """Ask the intake; return whether the link has room."""
        question: Any
        if len(parcels) == 1:
            producer, epoch, number, rows, is_published = parcels[0].append
            plain = [tuple(row) for row in rows]
            question = AppendToLog(self._log, producer, epoch, number, plain, is_published)
        else:
            question = group_of(self._log, [each.packed or b"" for each in parcels])
        left = parcels[0].waiting.until - self._now()
        left = left if left > 0 else self._timeout  # it was given up, and keeps its number
        self._count(1, len(parcels))
        try:
            answer = self._ref.ask(question, left)
        except LinkFull as error:  # told only where the thread must not wait: the runner's
            self._count(-1, -len(parcels))
            late = [each for each in parcels if each.waiting.until <= self._now()]
            self._outbox.extendleft(each for each in parcels[::-1] if each not in late)
            for each in late:
                each.appender.unsent(each.waiting, error)
            self._runtime.call_later(_PAUSE, self.ship)
            return False
        except CallboardError as error:  # larger than a message, or its node is closed
            self._count(-1, -len(parcels))
            if len(parcels) > 1:
                self._outbox.extendleft(each._replace(packed=None) for each in parcels[::-1])
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
        """Let the next group wait for its share of those who append, if they are several."""
        appending = answered + self._members + len(self._outbox)
        self._share = 0
        if self._largest and appending > 1:
            pause = min(_GATHERED * took, _LONGEST)
            self._share, self._until = -(-appending // UNDER_WAY), self._now() + pause
            self._runtime.call_later(pause, self.ship)

    def _answered(self, parcels: list[Parcel], sent: float, answer: Future[Any]) -> None:
        """Take an answer, and send what waited for it."""
        self._count(-1, -len(parcels))
        self._gather(len(parcels), self._now() - sent)
        error = answer.exception()
        told: Any = None if error is not None else answer.result()
        if len(parcels) == 1:
            told = [told]
        elif type(told) is not list or len(told) != len(parcels):
            told = [None] * len(parcels)
        self._tell(parcels, error, told)
        self.ship()

    def _tell(
        self, parcels: list[Parcel], error: BaseException | None, told: list[Any]
    ) -> None:
        """Hand outcomes to writers.

        All are noted before the first thread is woken: it wants the lock of its writer next.
        """
        receipts = [
            (parcel, each)
            for parcel, each in zip(parcels, told, strict=True)
            if parcel.appender.take(parcel, error, each)
        ]
        for parcel, offset in receipts:
            parcel.waiting.set_result(offset)
        for parcel, _ in receipts:
            parcel.appender.forget(parcel.waiting)


_LOCK: Final = locks.lock("carriers of appends", 455)
_CARRIERS: Final[
    "WeakKeyDictionary[Node, WeakValueDictionary[tuple[bytes, str, float, int], AppendCarrier]]"
] = WeakKeyDictionary()


def carrier_of(
    node: Node, peer: bytes, log: str, timeout: float, largest: int, ref: ActorRef[Any]
) -> AppendCarrier:
    """Return what carries the appends of a node to a log of another."""
    key = peer, log, timeout, largest
    with _LOCK:
        carriers = _CARRIERS.setdefault(node, WeakValueDictionary())
        carrier = carriers.get(key)
        if carrier is None:
            carrier = carriers[key] = AppendCarrier(node, ref, log, timeout, largest)
    return carrier
