"""Credit at the sender: messages to an actor with a bounded mailbox wait for credit.

The messages of a new proxy pass through this class. When the actor's node reports an unbounded
mailbox, further messages go directly to `outgoing`. Messages to system actors and to nodes of
an earlier release always do. If the mailbox has bounds, a message without credit
(`callboard.proxies.ledger.credit`) waits in the proxy. It gets its position only afterwards, so
waiting does not affect order and path epochs.

A sender waits in the same way as for a full local mailbox. A thread waits until the queue has
room, at most until its ask expires. A handler does not wait: its message is accepted, and its
actor gets no turns for a while. If the queue has reached twice its size, the handler gets
`MailboxFull`. Code on an event loop outside actors cannot wait in `tell` and `ask`, so its
messages are queued up to a bound that protects the process.

Kill commands, monitors, downs and answers need no credit. `stop` waits in the queue.
"""

from collections.abc import Iterable
from dataclasses import field
from functools import partial
from typing import ClassVar, Final

from callboard.actors.errors import MailboxFull, NodeClosed, NodeUnreachable
from callboard.actors.mailbox import PARKED_MESSAGES, PARKED_OCTETS, SendTurn, may_wait
from callboard.actors.reference import AnySender, Sender, current_cell
from callboard.actors.runtime import Runtime
from callboard.actors.values import Message
from callboard.backoff import Backoff
from callboard.basp.accounting import CreditLine
from callboard.basp.control import pack_announce
from callboard.basp.header import FIRST_ACTOR
from callboard.basp.node_id import NodeId
from callboard.proxies.errors import LinkFull
from callboard.proxies.events import MessagesLost
from callboard.proxies.ledger.credit import NO_BOUND, Credit
from callboard.proxies.lifetime.lifetimes import Lifetimes
from callboard.proxies.lifetime.proxy import Proxy, Queue
from callboard.proxies.link.stream import WAITING_LIMIT
from callboard.proxies.messages import AskCredit
from callboard.proxies.route_table import RouteTable
from callboard.proxies.traffic.outgoing import Outgoing
from callboard.proxies.traffic.unrouted import Unrouted
from callboard.support.dataclass import dataclass

#: Bytes of memory for messages of threads while the bounds are unknown: some 1,000 small
#: messages.
UNKNOWN_LIMIT: Final = 256 * 1024

#: Seconds from the first waiting message to the first request for credit; the pause doubles
#: with each request, up to a second.
FIRST_REQUEST_SECONDS: Final = 0.05
REQUEST_SECONDS_LIMIT: Final = 1.0

#: Seconds for a node to answer an announce while it reports messages. After that the actor is
#: treated as unbounded: a node of an earlier release never answers.
ANSWER_TIME: Final = 3.0

#: Longest pause, in seconds, of a handler that used the overdraft: the remote actor may be
#: waiting for this one, and neither node could detect the deadlock.
LONGEST_HOLD: Final = 1.0


@dataclass(eq=False, repr=False)
class CreditSender:
    """Sends the messages of a node to remote actors whose mailboxes are, or may be, bounded.

    `dispatch` may be called from any thread; everything else runs on the thread with the
    runner's role.
    """

    _runtime: Runtime
    _routes: RouteTable
    _outgoing: Outgoing
    _unrouted: Unrouted
    #: The highest position granted to this node.
    _base: int = 0
    #: Messages that may wait for credit are not batched.
    batches: ClassVar[None] = None
    #: The proxies of the node.
    lifetimes: Lifetimes = field(init=False)

    def __post_init__(self) -> None:
        self._lock = self._routes.lock
        self._next_hops = self._routes.router.next_hops
        self._unrouted.on_short = self._tend

    def make(self, node: bytes, number: int, sightings: int) -> Proxy:
        """Create a proxy. The caller must hold the lock."""
        proxy = Proxy(self._outgoing, self._runtime, node, number, sightings)
        if number >= FIRST_ACTOR and not self._is_unable(node):
            self._begin(proxy)
        return proxy

    def _is_unable(self, node: bytes) -> bool:
        """Return whether a node has stated its abilities without credit among them."""
        abilities = self._routes.abilities.get(node)
        return abilities is not None and "credit" not in abilities

    def _begin(self, proxy: Proxy) -> Credit:
        """Start the credit of a proxy; the caller must hold the lock."""
        credit = proxy.credit = Credit(self._base, PARKED_MESSAGES, PARKED_OCTETS)
        proxy.outbound = self
        return credit

    def announce(self, proxy: Proxy) -> None:
        """Announce a proxy to the host of its actor, which answers with credit."""
        if proxy.number >= FIRST_ACTOR:
            me, node = self._routes.node_id, proxy.node
            self._routes.send_to(node, pack_announce(me, node, proxy.number, proxy.sightings))

    # --- messages ---

    def dispatch(
        self,
        proxy: Proxy,
        message: Message,
        sender: Sender | None,
        payload: bytes | None = None,
        *,
        at_once: bool = False,
        has_waited: bool = False,
        is_handed: bool = False,
    ) -> None:
        """Send a message to a proxy's actor, or let it wait for credit.

        `is_handed` is set for a message that a nested call deferred, and that is sent next.

        Raises:
            NotSerializable: the message contains something that cannot be serialized.
            MessageTooLarge: the message is larger than the receiver accepts.
            LinkFull: the next hop does not read, or too many messages wait.
            MailboxFull: too many messages wait, and the sender must not wait.
        """
        if payload is None:
            payload = self._outgoing.encode(message)
        if not is_handed and not has_waited and self._outgoing.is_deferring:
            again = partial(
                self.dispatch, proxy, message, sender, payload, at_once=at_once, is_handed=True
            )
            self._outgoing.defer(again, proxy, message, sender)
            return
        if has_waited or self._may_send(proxy, message, sender, payload):
            self._outgoing.dispatch(
                proxy,
                message,
                sender,
                payload,
                at_once=at_once,
                has_waited=has_waited,
                is_handed=is_handed,
            )

    def enqueue_after_pending(self, proxy: Proxy, command: object) -> bool:
        """Queue a command after the waiting messages of a proxy; False if there are none."""
        return self._outgoing.enqueue_after_pending(proxy, command)

    def encode(self, message: Message) -> bytes:
        """Serialize a message."""
        return self._outgoing.encode(message)

    def offer(
        self,
        proxy: Proxy,
        message: Message,
        sender: Sender | None,
        payload: bytes,
        turn: SendTurn,
    ) -> bool:
        """Send a message, or queue it for credit; return False if the queue has no room."""
        if not self._outgoing.has_room(proxy, payload, turn):
            return False
        with self._lock:
            queue = self._queue_of(proxy, len(payload))
            if queue is not None:
                if not queue.pressure.fits(len(queue), len(payload)):
                    turn.enter(queue.pressure)
                    return False
                queue.put(message, sender, payload)
        if queue is None:
            self._outgoing.dispatch(proxy, message, sender, payload)
        elif not queue.is_tended:
            self._runtime.post(self._tend, proxy)
        return True

    def ensure_watched(self, proxy: Proxy) -> None:
        """Ensure that a monitor of a proxy's actor is notified of its end."""
        self._outgoing.ensure_watched(proxy)

    def can(self, node: bytes, ability: str) -> bool:
        """Return whether a node has stated an ability."""
        return self._outgoing.can(node, ability)

    def give_up(self, proxy: Proxy, asker: AnySender) -> None:
        """Cancel an ask at a proxy's node."""
        self._outgoing.give_up(proxy, asker)

    def _may_send(
        self, proxy: Proxy, message: Message, sender: Sender | None, payload: bytes
    ) -> bool:
        """Return whether a message may be sent now; if not, it was queued or refused."""
        while True:
            with self._lock:
                queue = self._queue_of(proxy, len(payload))
                if queue is None:
                    return True
                fits = queue.pressure.fits(len(queue), len(payload))
                is_taken = fits or self._may_pile(proxy, queue, len(payload))
                if is_taken:
                    queue.put(message, sender, payload)
                room = None if is_taken or not may_wait() else queue.pressure.room()
            if is_taken:
                self._wait_in(proxy, queue)
                return False
            if room is None:
                self._refuse(queue, proxy, sender)
                return False
            room.asked = proxy.ref
            if not queue.pressure.wait(room, sender, self._runtime.now):
                return False

    def _queue_of(self, proxy: Proxy, size: int) -> Queue | None:
        """Return the queue for a message, None if it need not wait.

        The caller must hold the lock.
        """
        credit, queue = proxy.credit, proxy.waiting
        if credit is None or proxy.down is not None or proxy.node not in self._next_hops:
            return None
        if queue is None and credit.take(size):
            return None
        return self._unrouted.begin_to_wait(proxy)

    def _may_pile(self, proxy: Proxy, queue: Queue, size: int) -> bool:
        """Return whether a message over the bounds is queued because its sender must not wait.

        While the bounds are unknown, which takes one round trip, messages are queued as well.
        """
        if proxy.credit is None or not proxy.credit.is_known:
            return queue.weight <= (UNKNOWN_LIMIT if may_wait() else 2 * WAITING_LIMIT)
        if may_wait():
            return False
        if current_cell.get() is not None:
            return queue.pressure.fits(len(queue), size, 2)
        return queue.weight <= WAITING_LIMIT

    def _wait_in(self, proxy: Proxy, queue: Queue) -> None:
        """Request credit for waiting messages; pause an actor that has filled the queue."""
        if not queue.is_tended:
            self._runtime.post(self._tend, proxy)
        cell, credit = current_cell.get(), proxy.credit
        if cell is None or credit is None or not credit.is_known:
            return
        if not queue.pressure.fits(len(queue), 0) and cell.block_on(proxy):
            queue.pressure.waiters.append(cell.unblock)
            queue.pressure.make_room(len(queue))
            self._runtime.call_later(LONGEST_HOLD, cell.unblock)

    def _refuse(self, queue: Queue, proxy: Proxy, sender: Sender | None) -> None:
        """Refuse a message without room in the queue.

        Raises:
            MailboxFull: the message is not an ask, so that only the caller can be informed.
        """
        self._runtime.counters.overflows += 1
        error = MailboxFull(
            f"the mailbox of {proxy.ref} is full, and {len(queue):,} messages wait "
            "here for room in it; send less, or raise its bounds"
        )
        if sender is None or not sender.expects:
            raise error
        sender.set_exception(error)

    # --- credit ---

    def apply_credit(self, node: NodeId, lines: Iterable[CreditLine]) -> None:
        """Apply credit that a node grants to the proxies of its actors."""
        for number, up_to, octets in lines:
            proxy = self.lifetimes.proxy_of(node, number)
            if proxy is None:
                continue
            if up_to == NO_BOUND:
                self.serve_without(proxy)
                continue
            with self._lock:
                credit = proxy.credit or self._begin(proxy)
                is_new = credit.granted(up_to, octets)
                self._base = max(self._base, credit.up_to)
            if is_new:
                self._ask(proxy)
            self._unrouted.send_waiting(proxy)

    def end_credit(self, node: bytes) -> None:
        """Stop using credit for a node that has stated its abilities without it."""
        for proxy in self.lifetimes.proxies_of(node) if self._is_unable(node) else ():
            self.serve_without(proxy)

    def is_owed(self, proxy: Proxy) -> bool:
        """Return whether messages of a proxy were sent before its bounds were known.

        The caller must hold the lock. Such a proxy must be kept, because a new proxy could send
        the same number of messages without credit again.
        """
        credit, node = proxy.credit, proxy.node
        if credit is None or credit.is_known or not credit.has_sent or proxy.down is not None:
            return False
        if node not in self._routes.abilities:  # a release before credit never reports bounds
            self._runtime.post(self._outgoing.can, node, "credit")
        return node in self._next_hops and not self._is_unable(node)

    def unanswered(self, proxy: Proxy) -> None:
        """Stop using credit for a proxy whose announce was refused."""
        if proxy.credit is not None and not proxy.credit.is_known:
            self.serve_without(proxy)

    def serve_without(self, proxy: Proxy) -> None:
        """Send the waiting messages of a proxy, and use no credit from now on."""
        with self._lock:
            proxy.credit, proxy.outbound = None, self._outgoing
        self._unrouted.send_waiting(proxy)

    def _tend(self, proxy: Proxy) -> None:
        """Request credit repeatedly while messages wait for it."""
        with self._lock:
            queue, credit = proxy.waiting, proxy.credit
            if queue is None or credit is None:
                return
            is_short, credit.is_short = credit.is_short, False
            is_tended, queue.is_tended = queue.is_tended, True
            confirmed = self._routes.accounts.account(proxy.node).confirmed
        if is_short and credit.is_known:
            self._ask(proxy)
        if not is_tended:
            check = _CreditCheck(proxy, queue, credit.grants, self._runtime.now(), confirmed)
            self._runtime.call_later(check.backoff.next_pause(), self._check_credit, check)

    def _check_credit(self, check: "_CreditCheck") -> None:
        """Request credit if none arrived since the last check."""
        proxy = check.proxy
        with self._lock:
            credit, node = proxy.credit, proxy.node
            if proxy.waiting is not check.queue or credit is None:
                return
            has_path = node in self._next_hops
            has_come = self._routes.accounts.account(node).confirmed > check.confirmed
        if proxy.down is not None:
            self.lose(proxy)
            return
        is_late = self._runtime.now() >= check.since + ANSWER_TIME
        if has_path and not credit.is_known:
            if proxy.unwatched or self._is_unable(node) or (is_late and has_come):
                self.serve_without(proxy)  # the actor's node does not report bounds
                return
            # Only neighbors state their abilities without being asked.
            self._outgoing.can(node, "credit")
            self.announce(proxy)
        elif has_path and credit.grants == check.grants:
            self._ask(proxy)
        if credit.grants != check.grants:
            check.grants = credit.grants
            check.backoff.reset()
        self._runtime.call_later(check.backoff.next_pause(), self._check_credit, check)

    def _ask(self, proxy: Proxy) -> None:
        """Report this node's position to the actor's node, in order after the sent messages."""
        with self._lock:
            credit = proxy.credit
        if credit is not None:
            try:
                proxy.command(AskCredit(proxy.number, credit.sent))
            except LinkFull:
                pass  # the next check reports it again

    # --- losses ---

    def lose(self, proxy: Proxy) -> None:
        """Drop the messages that wait for credit of an ended actor, and report the loss."""
        lost = self._lose(proxy, proxy.ended_error())
        if lost:
            name = self._routes.names.get(proxy.node, "")
            self._runtime.report(MessagesLost(proxy.node, name, lost))

    def node_lost(self, node: bytes, error: NodeUnreachable | NodeClosed) -> int:
        """Drop the messages that wait for credit of a lost node; return their number.

        If the bounds were not known yet and the node can be dialed again, messages wait for
        that.
        """
        lost = 0
        for proxy in self.lifetimes.proxies_of(node):
            if proxy.credit is not None and proxy.credit.is_known:
                lost += self._lose(proxy, error)
                with self._lock:
                    self._begin(proxy)
            elif proxy.waiting is not None:
                self._unrouted.dial_or_refuse(proxy)
        return lost

    def _lose(self, proxy: Proxy, error: Exception) -> int:
        """Count waiting messages as lost, and fail their asks; return their number."""
        with self._lock:
            queue = self._unrouted.end_wait(proxy)
            lost = queue.message_count
            if lost:
                self._routes.accounts.account(proxy.node).lose_unsent(lost)
        for _, sender, _ in queue:
            if sender is not None and sender.expects:
                sender.set_exception(error)
        queue.pressure.release()
        return lost


@dataclass(slots=True, eq=False)
class _CreditCheck:
    """Repeated check for credit of one queue.

    Attributes:
        grants: the number of grants at the last check.
        since: when the first message began to wait.
        confirmed: messages that the node had confirmed by then.
    """

    proxy: Proxy
    queue: Queue
    grants: int
    since: float
    confirmed: int
    backoff: Backoff = field(
        default_factory=partial(Backoff, FIRST_REQUEST_SECONDS, REQUEST_SECONDS_LIMIT)
    )
