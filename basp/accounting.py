"""The account of every message that leaves for another node.

For each destination, at all times and exactly::

    sent = confirmed + lost + in flight

``confirmed`` counts what the destination reported as arrived there, whether delivered to an
actor or turned into a dead letter. When a node or the last path to it is lost, what is in
flight becomes lost: it may hold messages that arrived but were not confirmed (*lost or
unconfirmed*), never fewer than were lost.

Dispatches carry an epoch of six bits. It rises when a path changes and when messages
are written off, so a report that comes late cannot confirm what was already counted as
lost. Reports are cumulative for each epoch: one that is lost is healed by the next.

A destination that reports an epoch which has not begun, or more of one than was sent in it, was
deceived on the way and takes what is sent for late: the next epoch behind it begins at once.
Numbers wrap, so only the last line of a report, where the destination is now, says so. One that
is in an epoch of which nothing is in flight any more was deceived too, or has missed its end.

An epoch has room for 2^24 messages; with more the next one begins by itself.

What is counted is messages: a dispatch that carries several of them counts as these.

Payload of a ``delivery_report``: the CBOR array
``[[epoch, delivered, dead letters, given up], …]``. What the destination gave up, because it
did not come in time, will never be delivered: it is lost at once. Between nodes that have
agreed on it, lines ``[actor, [position, bytes]]`` tell of *credit*: how far what is sent to an
actor there may go, see ``callboard.proxies.ledger.credit``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from callboard.basp.cbor.plain import is_natural, read_plain, write_plain
from callboard.basp.errors import MalformedPayload
from callboard.basp.header import (
    EPOCH_COUNT,
    MAX_ACTOR,
    POSITION_MASK,
    SEQUENCE_BITS,
    SEQUENCE_COUNT,
)
from callboard.basp.node_id import NodeId, node_id_text
from callboard.basp.routing.path_order import FAR_EPOCHS
from callboard.support.dataclass import dataclass

#: Epochs whose messages may be under way at once. Half of the numbers, so that one is used
#: again only long after its last message.
OPEN_EPOCH_LIMIT: Final = EPOCH_COUNT // 2
# What a report may name: every epoch once.
_REPORT_LIMIT: Final = EPOCH_COUNT
#: Lines of credit in one report.
CREDIT_LINES: Final = 1024

#: Actor, position, bytes.
CreditLine = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class _Sent:
    """Messages that were sent, and what became of them."""

    sent: int = 0
    confirmed: int = 0
    dead_letters: int = 0
    lost: int = 0

    @property
    def in_flight(self) -> int:
        """Messages neither confirmed nor lost."""
        return self.sent - self.confirmed - self.lost


@dataclass(slots=True, eq=False)
class _Epoch(_Sent):
    """Messages of one epoch; ``sent`` is known when it is over."""

    number: int = 0


class Account(_Sent):
    """What was sent to one node.

    Attributes:
        sent: messages handed to a link; the sender adds to it directly, for a dispatch that
            carries several as many, at most `room`.
        confirmed: reported as arrived, dead letters included.
        dead_letters: reported as arrived for an actor that had ended.
        lost: written off, or given up by the destination.
        offset: the next dispatch has the position ``offset + sent & POSITION_MASK``, or so
            much behind it as it carries messages more than one.
        is_missed: whether the destination, as it said last, is in an epoch that is closed.
    """

    def __init__(self) -> None:
        """Open an account with nothing sent."""
        super().__init__()
        self.offset = 0
        self.is_missed = False
        # Value of ``sent`` when the current epoch began.
        self._base = 0
        self._current = _Epoch()
        self._open: deque[_Epoch] = deque()

    @property
    def epoch(self) -> int:
        """Number of the current epoch."""
        self._begin_full_ones()
        return self._current.number

    @property
    def sent_in_epoch(self) -> int:
        """Messages sent in the current epoch."""
        self._begin_full_ones()
        return self.sent - self._base

    @property
    def room(self) -> int:
        """Messages that one dispatch may carry: it does not reach into the next epoch."""
        return SEQUENCE_COUNT - (self.offset + self.sent & SEQUENCE_COUNT - 1)

    def next_epoch(self) -> int:
        """Begin an epoch because the path changed; earlier messages stay in flight.

        An epoch in which nothing was sent goes on. Returns messages written off because too
        many epochs were open, normally 0.
        """
        sent = self.sent_in_epoch
        return self._begin_next(sent) if sent else 0

    def expire(self, epoch: int) -> int:
        """Write off what is left of an epoch that is over, and of those before.

        For the driver to call when an old path had time enough to deliver everything. The
        current epoch, and one that is closed, are left alone. Returns how many messages that
        are.
        """
        numbers = [over.number for over in self._open]
        if epoch not in numbers:
            return 0
        ended = [self._open.popleft() for _ in range(numbers.index(epoch) + 1)]
        written_off = sum(over.in_flight for over in ended)
        self.lost += written_off
        return written_off

    def write_off(self) -> int:
        """Count everything in flight as lost; return how many messages that are."""
        written_off = self.next_epoch()
        rest = self.in_flight
        self._open.clear()
        self.lost += rest
        return written_off + rest

    def lose_unsent(self, count: int) -> None:
        """Count messages as lost that waited here and got no position."""
        self.sent += count
        self.lost += count
        self._base += count
        self.offset = self.offset - count & POSITION_MASK

    def is_ahead(self, epoch: int) -> bool:
        """Return whether an epoch is one that has not begun, or is too far behind to be one."""
        return 0 < (epoch - self.epoch) % EPOCH_COUNT < EPOCH_COUNT - FAR_EPOCHS

    def is_closed(self, epoch: int) -> bool:
        """Return whether nothing is in flight of an epoch before the current one."""
        is_open = any(over.number == epoch for over in self._open)
        return epoch != self.epoch and not is_open and not self.is_ahead(epoch)

    def confirm(self, epoch: int, delivered: int, dead_letters: int, given_up: int) -> int:
        """Take the cumulative numbers of one epoch; those of a closed one are ignored.

        Returns how many messages are lost that were not before.
        """
        if self.is_ahead(epoch):
            return self.write_off() + self._begin_next(self.sent_in_epoch, epoch)
        if epoch == self.epoch:
            found = self._current
            found.sent = self.sent - self._base
        else:
            over = next((over for over in self._open if over.number == epoch), None)
            if over is None:
                return 0
            found = over
        # No report can tell of more than was sent, whatever it says.
        arrived = min(delivered + dead_letters, found.sent - found.lost)
        dead_letters = min(dead_letters, arrived)
        if arrived > found.confirmed:
            self.confirmed += arrived - found.confirmed
            found.confirmed = arrived
        if dead_letters > found.dead_letters:
            self.dead_letters += dead_letters - found.dead_letters
            found.dead_letters = dead_letters
        lost = max(0, min(given_up, found.sent - found.confirmed) - found.lost)
        self.lost += lost
        found.lost += lost
        if found is not self._current:
            if not found.in_flight:
                self._open.remove(found)
        elif delivered + dead_letters + given_up > found.sent:
            self._begin_next(found.sent)  # none of which is in flight
        return lost

    def _begin_full_ones(self) -> None:
        """Begin the epochs that follow full ones; senders only count."""
        while self.sent - self._base > SEQUENCE_COUNT:
            self._begin_next(SEQUENCE_COUNT)

    def _begin_next(self, sent: int, number: int | None = None) -> int:
        """Begin the epoch after one with ``sent`` messages; return messages written off.

        It follows the current one, or a later one of that number.
        """
        over = self._current
        over.sent = sent
        if over.in_flight:
            self._open.append(over)
        self._base += sent
        number = over.number if number is None else number
        self._current = _Epoch(number=(number + 1) % EPOCH_COUNT)
        self.offset = (self._current.number << SEQUENCE_BITS) - self._base & POSITION_MASK
        if len(self._open) < OPEN_EPOCH_LIMIT:
            return 0
        written_off = self._open.popleft().in_flight
        self.lost += written_off
        return written_off


@dataclass(slots=True)
class Arrivals:
    """What became of one node's dispatches of one epoch; the receiver adds to it directly."""

    delivered: int = 0
    dead_letters: int = 0
    given_up: int = 0
    #: Sum that the last report told.
    reported: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.delivered + self.dead_letters + self.given_up


class Accounts:
    """All accounts of one node.

    Attributes:
        accounts: by destination node; made by :meth:`account`.
        arrivals: by source node, then by epoch; made by :meth:`arrivals_of`.
        expected: the epoch that is expected of a source now, if that is known; for the driver
            to say.
    """

    def __init__(self) -> None:
        """Make an empty book."""
        self.accounts: dict[bytes, Account] = {}
        self.arrivals: dict[bytes, dict[int, Arrivals]] = {}
        self.expected: Callable[[bytes], int | None] = lambda _: None
        self._latest_epoch: dict[bytes, int] = {}
        # Sums over the accounts that were closed.
        self._closed_confirmed = 0
        self._closed_lost = 0

    def account(self, destination: bytes) -> Account:
        """Return the account of a destination; keep it, ``sent += 1`` is the hot path."""
        return self.accounts.setdefault(destination, Account())

    def arrivals_of(self, source: bytes, epoch: int) -> Arrivals:
        """Return the arrivals of one source and epoch; keep it while both stay the same."""
        epochs = self.arrivals.get(source)
        if epochs is None:
            epochs = self.arrivals[source] = {}
        found = epochs.get(epoch)
        if found is None:
            self._forget_old_epochs(source, epochs, epoch)
            found = epochs[epoch] = Arrivals()
        return found

    def reports(
        self, credit: Mapping[bytes, Sequence[CreditLine]] | None = None
    ) -> list[tuple[NodeId, bytes]]:
        """Make the reports of what changed; call it often, and at a clean end.

        The epoch that is expected now is the last line of each.

        Args:
            credit: lines to be told again behind it, by node.
        """
        made = []
        credit = credit or {}
        for source, epochs in self.arrivals.items():
            changed = [epoch for epoch, one in epochs.items() if one.total != one.reported]
            if not changed:
                continue
            latest = self.expected(source)
            if latest is not None:
                changed = [epoch for epoch in changed if epoch != latest] + [latest]
            lines: list[Sequence[object]] = []
            for epoch in changed:
                one = self.arrivals_of(source, epoch)
                one.reported = one.total
                lines.append([epoch, one.delivered, one.dead_letters, one.given_up])
            lines += _credit_lines(credit.get(source, ()))
            made.append((NodeId(source), write_plain(lines)))
        return made

    def repeat_report(self, source: bytes) -> None:
        """Report everything to ``source`` again: a path to it is back, reports may be lost."""
        latest = self.expected(source)
        if latest is not None:
            self.arrivals_of(source, latest)
        for arrivals in self.arrivals.get(source, {}).values():
            arrivals.reported = -1

    def receive_report(self, node: NodeId, payload: bytes) -> int:
        """Take the ``delivery_report`` of ``node``; return how many messages it says are lost.

        Raises:
            MalformedPayload: the payload has another layout; nothing was counted.
        """
        return self.take_report(node, read_report(node, payload)[0])

    def take_report(self, node: NodeId, lines: list[list[int]]) -> int:
        """Take the lines of a report that were read; return how many messages are lost."""
        account = self.accounts.get(node)
        if account is None:
            return 0
        account.is_missed = bool(lines) and account.is_closed(lines[-1][0])
        known = [line for line in lines[:-1] if not account.is_ahead(line[0])]
        return sum(account.confirm(*line) for line in known + lines[-1:])

    def path_moved(self, node: bytes) -> int:
        """Begin an epoch for ``node``; return messages written off, normally 0."""
        account = self.accounts.get(node)
        return 0 if account is None else account.next_epoch()

    def node_lost(self, node: bytes) -> int:
        """Write off what is in flight to ``node``; return how many messages that are."""
        account = self.accounts.get(node)
        return 0 if account is None else account.write_off()

    def forget_arrivals(self, node: bytes) -> None:
        """Drop the arrivals of a node that is out of reach for long."""
        self.arrivals.pop(node, None)
        self._latest_epoch.pop(node, None)

    def close(self, node: bytes) -> None:
        """Drop the account of a node that was lost; it goes on to count in the totals.

        Begins with epoch 0 again if the node comes back after all: its arrivals from here
        must have been forgotten there by then.
        """
        account = self.accounts.get(node)
        if account is not None and not account.in_flight:
            del self.accounts[node]
            self._closed_confirmed += account.confirmed
            self._closed_lost += account.lost

    def totals(self) -> tuple[int, int, int, int]:
        """Sum sent, confirmed, lost and in flight over all destinations there ever were."""
        accounts = self.accounts.values()
        closed = self._closed_confirmed + self._closed_lost
        sent = closed + sum(account.sent for account in accounts)
        confirmed = self._closed_confirmed + sum(account.confirmed for account in accounts)
        lost = self._closed_lost + sum(account.lost for account in accounts)
        return sent, confirmed, lost, sent - confirmed - lost

    def _forget_old_epochs(
        self, source: bytes, epochs: dict[int, Arrivals], epoch: int
    ) -> None:
        """Drop epochs that the source has closed, so that their numbers can be used again."""
        latest = self._latest_epoch.get(source, epoch)
        if (epoch - latest) % EPOCH_COUNT < OPEN_EPOCH_LIMIT:
            latest = epoch
        self._latest_epoch[source] = latest
        for old in [old for old in epochs if (latest - old) % EPOCH_COUNT >= OPEN_EPOCH_LIMIT]:
            del epochs[old]


def _credit_lines(credit: Iterable[CreditLine]) -> list[Sequence[object]]:
    """Return lines of credit as they are written."""
    return [(actor, rest) for actor, *rest in credit]


def write_credit(credit: Iterable[CreditLine]) -> bytes:
    """Write a ``delivery_report`` that tells of credit alone; at most ``CREDIT_LINES``."""
    return write_plain(_credit_lines(credit))


def read_report(node: NodeId, payload: bytes) -> tuple[list[list[int]], list[CreditLine]]:
    """Read the ``delivery_report`` of ``node``; return its lines, and those of credit.

    Raises:
        MalformedPayload: the payload has another layout.
    """
    lines = read_plain(payload)
    if type(lines) is list and all(type(line) is list for line in lines):
        counts = [line for line in lines if len(line) != 2]
        credit = [line for line in lines if len(line) == 2]
        if (
            len(counts) <= _REPORT_LIMIT
            and len(credit) <= CREDIT_LINES
            and all(map(_is_line, counts))
            and all(map(_is_credit, credit))
        ):
            return counts, [(actor, *rest) for actor, rest in credit]
    msg = (
        f"delivery report of node {node_id_text(node)} must be an array of at most "
        f"{_REPORT_LIMIT} [epoch, delivered, dead letters, given up] and {CREDIT_LINES:,} "
        "[actor, [position, bytes]]"
    )
    raise MalformedPayload(msg)


def _is_line(line: list[object]) -> bool:
    """Return whether an item of a report has the layout of a line."""
    return (
        len(line) == 4 and is_natural(line[0], EPOCH_COUNT) and all(map(is_natural, line[1:]))
    )


def _is_credit(line: list[object]) -> bool:
    """Return whether an item of a report has the layout of a line of credit."""
    actor, rest = line
    return (
        is_natural(actor, MAX_ACTOR + 1)
        and type(rest) is list
        and len(rest) == 2
        and all(map(is_natural, rest))
    )
