"""Accounts for every message that is sent to another node.

For each destination, always and exactly::

    sent = confirmed + lost + in flight

``confirmed`` counts messages that the destination has reported as arrived, whether delivered to
an actor or turned into dead letters. When a node, or the last path to it, is lost, all messages
in flight count as lost. Some of them may have arrived without being confirmed (*lost or
unconfirmed*), so the number is never too low.

Dispatches carry an epoch of six bits. It advances when a path changes and when messages are
written off, so that a late report cannot confirm messages that were already counted as lost.
Reports are cumulative for each epoch: the next report makes up for a lost one.

If a destination reports an epoch that has not begun, or more messages than were sent in an
epoch, another node has forged or repeated frames. The destination would then treat new messages
as late. The epoch after the reported one then begins at once. Because epoch numbers are reused,
this check uses only the last line of a report, which has the present epoch of the destination.
If the present epoch of the destination is closed here (none of its messages is in flight), the
destination was deceived, too, or has not learned that the epoch ended.

An epoch has room for 2^24 messages; the next one begins after these.

All numbers count messages; a dispatch that carries several messages counts as several.

Payload of a ``delivery_report``: the CBOR array
``[[epoch, delivered, dead letters, given up], …]``. Messages that the destination gave up,
because they did not arrive in time, will never be delivered, so they are lost at once. Between
nodes that have agreed on it, lines ``[actor, [position, bytes]]`` grant *credit* for messages
to an actor, see ``callboard.proxies.ledger.credit``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

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
from callboard.cbor.plain import is_natural, read_plain, write_plain
from callboard.support.dataclass import dataclass

#: Epochs that may have messages in flight at the same time. Half of the numbers, so that a
#: number is reused only long after its last message.
OPEN_EPOCH_LIMIT: Final = EPOCH_COUNT // 2
# Lines of a report: every epoch once.
_REPORT_LIMIT: Final = EPOCH_COUNT
#: Lines of credit in one report.
CREDIT_LINES: Final = 1024

#: Actor, position, bytes.
CreditLine = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class _Sent:
    """Counts of sent messages and their outcomes."""

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
    """Counts of one epoch; ``sent`` is set when the epoch ends."""

    number: int = 0


class Account(_Sent):
    """The account of one destination node.

    Attributes:
        sent: messages passed to a link. The sender adds to it directly: 1, or the number of
            messages that a dispatch carries, at most `room`.
        confirmed: messages reported as arrived, including dead letters.
        dead_letters: messages reported as arrived for an actor that had ended.
        lost: messages written off, or given up by the destination.
        offset: a dispatch with one message has the position ``offset + sent &
            POSITION_MASK``; one with n messages has the position n - 1 after that.
        is_missed: whether the last report of the destination names a closed epoch as the
            present one.
    """

    def __init__(self) -> None:
        """Start with all counts at 0."""
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
        """Messages that one dispatch may carry without reaching into the next epoch."""
        return SEQUENCE_COUNT - (self.offset + self.sent & SEQUENCE_COUNT - 1)

    def next_epoch(self) -> int:
        """Start an epoch after a change of path; earlier messages stay in flight.

        An epoch without messages continues instead. Returns the number of messages written off
        because too many epochs were open, normally 0.
        """
        sent = self.sent_in_epoch
        return self._begin_next(sent) if sent else 0

    def expire(self, epoch: int) -> int:
        """Write off the messages in flight of a past epoch and of all epochs before it.

        The driver calls this when an old path has had enough time to deliver everything. The
        current epoch and closed epochs are ignored. Returns the number of messages.
        """
        numbers = [past.number for past in self._open]
        if epoch not in numbers:
            return 0
        ended = [self._open.popleft() for _ in range(numbers.index(epoch) + 1)]
        written_off = sum(past.in_flight for past in ended)
        self.lost += written_off
        return written_off

    def write_off(self) -> int:
        """Count all messages in flight as lost; return their number."""
        written_off = self.next_epoch()
        rest = self.in_flight
        self._open.clear()
        self.lost += rest
        return written_off + rest

    def lose_unsent(self, count: int) -> None:
        """Count queued messages without a position as sent and lost."""
        self.sent += count
        self.lost += count
        self._base += count
        self.offset = self.offset - count & POSITION_MASK

    def is_ahead(self, epoch: int) -> bool:
        """Return whether an epoch has not begun yet, or is implausibly old."""
        return 0 < (epoch - self.epoch) % EPOCH_COUNT < EPOCH_COUNT - FAR_EPOCHS

    def is_closed(self, epoch: int) -> bool:
        """Return whether a past epoch has ended without messages in flight."""
        is_open = any(past.number == epoch for past in self._open)
        return epoch != self.epoch and not is_open and not self.is_ahead(epoch)

    def confirm(self, epoch: int, delivered: int, dead_letters: int, given_up: int) -> int:
        """Apply the cumulative counts of one epoch; ignore those of a closed epoch.

        Returns the number of newly lost messages.
        """
        if self.is_ahead(epoch):
            return self.write_off() + self._begin_next(self.sent_in_epoch, epoch)
        if epoch == self.epoch:
            counts = self._current
            counts.sent = self.sent - self._base
        else:
            past = next((past for past in self._open if past.number == epoch), None)
            if past is None:
                return 0
            counts = past
        # Never count more than was sent, whatever the report claims.
        arrived = min(delivered + dead_letters, counts.sent - counts.lost)
        dead_letters = min(dead_letters, arrived)
        if arrived > counts.confirmed:
            self.confirmed += arrived - counts.confirmed
            counts.confirmed = arrived
        if dead_letters > counts.dead_letters:
            self.dead_letters += dead_letters - counts.dead_letters
            counts.dead_letters = dead_letters
        lost = max(0, min(given_up, counts.sent - counts.confirmed) - counts.lost)
        self.lost += lost
        counts.lost += lost
        if counts is not self._current:
            if not counts.in_flight:
                self._open.remove(counts)
        elif delivered + dead_letters + given_up > counts.sent:
            self._begin_next(counts.sent)  # none of these is in flight
        return lost

    def _begin_full_ones(self) -> None:
        """Start the epochs that follow full ones; senders only increment ``sent``."""
        while self.sent - self._base > SEQUENCE_COUNT:
            self._begin_next(SEQUENCE_COUNT)

    def _begin_next(self, sent: int, number: int | None = None) -> int:
        """End the epoch, which has ``sent`` messages, and start the next one.

        The next epoch follows ``number``, by default the current one. Returns the number of
        messages written off.
        """
        past = self._current
        past.sent = sent
        if past.in_flight:
            self._open.append(past)
        self._base += sent
        number = past.number if number is None else number
        self._current = _Epoch(number=(number + 1) % EPOCH_COUNT)
        self.offset = (self._current.number << SEQUENCE_BITS) - self._base & POSITION_MASK
        if len(self._open) < OPEN_EPOCH_LIMIT:
            return 0
        written_off = self._open.popleft().in_flight
        self.lost += written_off
        return written_off


@dataclass(slots=True)
class Arrivals:
    """Counts of the messages that arrived from one node in one epoch, kept by the receiver."""

    delivered: int = 0
    dead_letters: int = 0
    given_up: int = 0
    #: Total of the last report.
    reported: int = 0

    @property
    def total(self) -> int:
        """Number of messages of the epoch."""
        return self.delivered + self.dead_letters + self.given_up


class Accounts:
    """All accounts of one node.

    Attributes:
        accounts: accounts by destination node; created by :meth:`account`.
        arrivals: arrivals by source node, then by epoch; created by :meth:`arrivals_of`.
        expected: returns the epoch that is expected of a source now, None if unknown; set by
            the driver.
    """

    def __init__(self) -> None:
        """Start without accounts."""
        self.accounts: dict[bytes, Account] = {}
        self.arrivals: dict[bytes, dict[int, Arrivals]] = {}
        self.expected: Callable[[bytes], int | None] = lambda _: None
        self._latest_epoch: dict[bytes, int] = {}
        # Sums over the accounts that were closed.
        self._closed_confirmed = 0
        self._closed_lost = 0

    def account(self, destination: bytes) -> Account:
        """Return the account of a destination; cache it, ``sent += 1`` is the hot path."""
        return self.accounts.setdefault(destination, Account())

    def arrivals_of(self, source: bytes, epoch: int) -> Arrivals:
        """Return the arrivals of one source and epoch; cache them while both stay the same."""
        epochs = self.arrivals.get(source)
        if epochs is None:
            epochs = self.arrivals[source] = {}
        arrivals = epochs.get(epoch)
        if arrivals is None:
            self._forget_old_epochs(source, epochs, epoch)
            arrivals = epochs[epoch] = Arrivals()
        return arrivals

    def reports(
        self, credit: Mapping[bytes, Sequence[CreditLine]] | None = None
    ) -> list[tuple[NodeId, bytes]]:
        """Return reports of all changes; call this often, and at a clean end.

        The last line of each report is the epoch that is expected now.

        Args:
            credit: lines of credit to add to the report, by node.
        """
        reports = []
        credit = credit or {}
        for source, epochs in self.arrivals.items():
            changed = [
                epoch
                for epoch, arrivals in epochs.items()
                if arrivals.total != arrivals.reported
            ]
            if not changed:
                continue
            latest = self.expected(source)
            if latest is not None:
                changed = [epoch for epoch in changed if epoch != latest] + [latest]
            lines: list[Sequence[object]] = []
            for epoch in changed:
                arrivals = self.arrivals_of(source, epoch)
                arrivals.reported = arrivals.total
                lines.append(
                    [epoch, arrivals.delivered, arrivals.dead_letters, arrivals.given_up]
                )
            lines += _credit_lines(credit.get(source, ()))
            reports.append((NodeId(source), write_plain(lines)))
        return reports

    def repeat_report(self, source: bytes) -> None:
        """Report all counts to ``source`` again, since reports may have been lost."""
        latest = self.expected(source)
        if latest is not None:
            self.arrivals_of(source, latest)
        for arrivals in self.arrivals.get(source, {}).values():
            arrivals.reported = -1

    def receive_report(self, node: NodeId, payload: bytes) -> int:
        """Apply the ``delivery_report`` of ``node``; return the number of newly lost messages.

        Raises:
            MalformedPayload: the payload is malformed; nothing was counted.
        """
        return self.take_report(node, read_report(node, payload)[0])

    def take_report(self, node: NodeId, lines: list[list[int]]) -> int:
        """Apply the lines of a report; return the number of newly lost messages."""
        account = self.accounts.get(node)
        if account is None:
            return 0
        account.is_missed = bool(lines) and account.is_closed(lines[-1][0])
        past_lines = [line for line in lines[:-1] if not account.is_ahead(line[0])]
        return sum(account.confirm(*line) for line in past_lines + lines[-1:])

    def path_moved(self, node: bytes) -> int:
        """Start an epoch for ``node``; return the messages written off, normally 0."""
        account = self.accounts.get(node)
        return 0 if account is None else account.next_epoch()

    def node_lost(self, node: bytes) -> int:
        """Write off all messages in flight to ``node``; return their number."""
        account = self.accounts.get(node)
        return 0 if account is None else account.write_off()

    def forget_arrivals(self, node: bytes) -> None:
        """Drop the arrivals of a node that has been unreachable for long."""
        self.arrivals.pop(node, None)
        self._latest_epoch.pop(node, None)

    def close(self, node: bytes) -> None:
        """Drop the account of a lost node; the totals still include it.

        If the node returns after all, its account starts with epoch 0. By then it must have
        dropped the arrivals of this node.
        """
        account = self.accounts.get(node)
        if account is not None and not account.in_flight:
            del self.accounts[node]
            self._closed_confirmed += account.confirmed
            self._closed_lost += account.lost

    def totals(self) -> tuple[int, int, int, int]:
        """Return sent, confirmed, lost and in flight, for all past and present destinations."""
        accounts = self.accounts.values()
        closed = self._closed_confirmed + self._closed_lost
        sent = closed + sum(account.sent for account in accounts)
        confirmed = self._closed_confirmed + sum(account.confirmed for account in accounts)
        lost = self._closed_lost + sum(account.lost for account in accounts)
        return sent, confirmed, lost, sent - confirmed - lost

    def _forget_old_epochs(
        self, source: bytes, epochs: dict[int, Arrivals], epoch: int
    ) -> None:
        """Drop epochs that the source has closed, because it will reuse their numbers."""
        latest = self._latest_epoch.get(source, epoch)
        if (epoch - latest) % EPOCH_COUNT < OPEN_EPOCH_LIMIT:
            latest = epoch
        self._latest_epoch[source] = latest
        for old in [old for old in epochs if (latest - old) % EPOCH_COUNT >= OPEN_EPOCH_LIMIT]:
            del epochs[old]


def _credit_lines(credit: Iterable[CreditLine]) -> list[Sequence[object]]:
    """Return lines of credit in the form that is encoded."""
    return [(actor, rest) for actor, *rest in credit]


def write_credit(credit: Iterable[CreditLine]) -> bytes:
    """Encode a ``delivery_report`` with only lines of credit, at most ``CREDIT_LINES``."""
    return write_plain(_credit_lines(credit))


def read_report(node: NodeId, payload: bytes) -> tuple[list[list[int]], list[CreditLine]]:
    """Decode the ``delivery_report`` of ``node``; return its lines and its lines of credit.

    Raises:
        MalformedPayload: the payload is malformed.
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
    """Return whether an item of a report is a valid line."""
    return (
        len(line) == 4 and is_natural(line[0], EPOCH_COUNT) and all(map(is_natural, line[1:]))
    )


def _is_credit(line: list[object]) -> bool:
    """Return whether an item of a report is a valid line of credit."""
    actor, rest = line
    return (
        is_natural(actor, MAX_ACTOR + 1)
        and type(rest) is list
        and len(rest) == 2
        and all(map(is_natural, rest))
    )
