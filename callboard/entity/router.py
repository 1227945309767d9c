"""Routes one node's messages for the entities of a type to the owners of their slots.

Messages of a slot keep their order. A message waits in the queue of its slot while no owner is
known or reachable, or after a node refused it because it is not the owner; later messages queue
after it until a newer table is known. When the owner of a slot changes, the router first sends
a **marker** to the former owner and waits for its answer. When the answer arrives, the former
owner has accepted or refused all messages that were sent to it. Without the marker, a later
message could reach the new owner before an earlier one that the former owner still refuses or
forwards.

A node that gives a slot away **forwards** the messages that it held during the move. Forwarded
messages have a separate queue. They wait only for the new owner, and are sent before this
node's own messages. Markers of other nodes wait only for this queue. So markers wait for
forwarded messages, and forwarded messages wait for an owner that serves the slot; a deadlock is
not possible. An owner gives a slot away again only after it has received all messages that its
predecessor forwarded, so one queue for each slot is enough.

A node may become the owner while messages are on their way to it. It would then refuse the
first ones and accept the later ones, out of order. So each message carries the number of its
**attempt**. A node that refuses one message of a sender for a slot refuses all of that attempt;
the router starts the next attempt after a marker.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Final, Literal

from callboard import locks
from callboard.backoff import Backoff
from callboard.entity.errors import EntityUnavailable
from callboard.entity.machine.sent_slot import SENT_SLOTS, SentSlot, SentSlotEvent
from callboard.entity.machine.table import Table
from callboard.entity.messages import (
    AskEntityTable,
    EntityMarker,
    EntityMessage,
    EntityMessages,
    EntityTable,
    NotOwner,
)
from callboard.entity.reference import entity_text
from callboard.kernel.activation import AskBatch, Envelope, Home, NodeDraining
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import NodeContext
from callboard.kernel.errors import (
    ActorDown,
    CallboardError,
    NodeClosed,
    NodeUnreachable,
    NotPermitted,
)
from callboard.kernel.reply import Asker, Future, Reply, Sender, due_of
from callboard.kernel.shutdown import Phase
from callboard.kernel.topology import ENTITIES
from callboard.lease.errors import OutcomeUnknown, StateCorrupt, StateVersion
from callboard.support import reentry
from callboard.support.dataclass import dataclass
from callboard.support.reentry import HandOver
from callboard.transitions import next_state

#: Messages that may wait for the owner of one slot.
WAITING_LIMIT: Final = 1_000

#: Seconds that a message sent with `tell` waits for an owner; an ask waits until its deadline.
TELL_SECONDS: Final = 10.0

#: Seconds to wait for a marker from an owner that has left the table: it is closing, or dead
#: and will never answer.
GONE_SECONDS: Final = 0.5

#: Seconds until an unanswered marker is sent again.
MARKER_SECONDS: Final = 0.5

#: Seconds until a refusing node is tried again that should own the slot by the newest table.
RETRY_SECONDS: Final = 0.005

#: Seconds before its deadline at which a waiting ask is refused: the caller should learn that
#: nothing happened, and not that the time is over.
REFUSED_BEFORE: Final = 0.02

#: Seconds between lookups of owners: at first, and at most.
FIRST_LOOKUP_SECONDS: Final = 0.02
LONGEST_LOOKUP_SECONDS: Final = 0.25


#: The states that each message asks for; a global is read faster than a member of its class.
_IDLE: Final = SentSlot.IDLE
_SENT: Final = SentSlot.SENT

_NO_OWNER: Final = "no owner was found in the time of the ask"


def _unavailable(type_name: str, key: str, reason: str) -> EntityUnavailable:
    """Return the error of a message without an owner."""
    return EntityUnavailable(f"{entity_text(type_name, key)}: {reason}; nothing happened")


@dataclass(slots=True, eq=False)
class PendingMessage(Reply):
    """A message to an entity that is not handled yet.

    While another node handles the message, this object is also the reply to it. The router
    keeps the object, because the owner may change before the message is handled, and then the
    router sends it again. It has no deadline: the node on which the ask was made watches the
    deadline.
    """

    expects: ClassVar[Literal[True]] = True
    #: The sender's deadline is watched where the ask was made.
    deadline: ClassVar[None] = None

    number: int
    key: str
    slot: int
    message: Any
    sender: Sender | None
    is_urgent: bool
    #: When a message without a deadline was sent.
    since: float
    #: Whether this node's host held it while it gave the slot away.
    is_forwarded: bool = False
    #: The attempt in which it was sent, the router that sent it, and the node it was sent to.
    attempt: int = 0
    router: "TypeRouter | None" = None
    node: bytes = b""
    #: The id of the ask; 0 while it has not left this node.
    message_id: int = 0
    #: Whether it has an outcome since it was last sent.
    is_answered: bool = False

    @property
    def sent_id(self) -> int:
        """The message id under which the ask left this node; 0 if it did not."""
        return self.message_id

    @property
    def is_ask(self) -> bool:
        """Whether its sender waits for an answer: an ask, as opposed to a tell."""
        sender = self.sender
        return sender is not None and sender.expects and sender.wants_reply

    @property
    def is_abandoned(self) -> bool:
        """Whether it is an ask whose caller has stopped waiting."""
        return self.is_ask and self.sender is not None and self.sender.is_done

    @property
    def is_done(self) -> bool:
        """Whether it was answered, or its caller has stopped waiting."""
        return self.is_answered or (self.sender is not None and self.sender.is_done)

    def set_result(self, value: Any) -> bool:
        """Pass an answer to the sender, or a refusal by a former owner to the router."""
        if self.is_answered:
            return False
        self.is_answered = True
        sender = self.sender
        if value.__class__ is not NotOwner and sender is not None and sender.expects:
            sender.set_result(value)
        elif self.router is not None:
            self.router.handle_outcome(self, self.node, value, None, has_left=True)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Report a failure to the router, which fails the ask or sends the message again."""
        if self.is_answered or self.router is None:
            return False
        self.is_answered = True
        self.router.handle_outcome(self, self.node, None, error, has_left=self.message_id != 0)
        return True

    def mark_handled(self) -> None:
        """Do nothing: the answer is sent later."""

    def reference(self, runtime: Home) -> ActorRef:
        """Return a one-shot ref that answers this message."""
        return runtime.reply_ref(self)


class _TellOutcome(Future[Any]):
    """The outcome of a message without a waiting caller; no user code runs on it.

    No user code is called with it, so the router may fail it while it holds its own lock, if
    the message cannot be sent. The message is then back in its queue before the next one is
    sent.
    """

    __slots__ = ()

    #: For `callboard.checked_locks`.
    is_internal: ClassVar[bool] = True


class TypeRouter:
    """Routes one node's messages to the entities of a type."""

    def __init__(
        self,
        runtime: NodeContext,
        type_name: str,
        deliver_here: Callable[[PendingMessage], bool],
        nodes: Callable[[], Iterable[bytes]],
        is_host: Callable[[], bool],
    ) -> None:
        """Create a router without a table.

        Args:
            runtime: the runtime of the node.
            type_name: the type name of the entities.
            deliver_here: delivers a message to this node's own host; returns False if the host
                does not serve the slot.
            nodes: returns the reachable nodes.
            is_host: returns whether this node hosts the type.
        """
        self._runtime, self.type_name = runtime, type_name
        self._deliver_here, self._nodes, self._is_host = deliver_here, nodes, is_host
        self.table = Table()
        #: The owner of each slot by the table; empty for none.
        self._owners = self.table.owners
        self.lock = self._lock = locks.collecting_lock("messages to entities", 520)
        self._guard = self._lock.guard
        self._is_inside = locks.owner_test(self._guard)
        self._hand_over = HandOver(self._guard, runtime.post, runtime.counters)
        #: Sends that nested calls have deferred; they are carried out before later ones.
        self._handed = self._hand_over.calls
        self._queues: dict[int, deque[PendingMessage]] = {}
        #: By slot: forwarded messages that cannot be sent yet; they are sent before new ones.
        self.forwarded: dict[int, deque[PendingMessage]] = {}
        #: By slot: the node to which messages were forwarded, until it has received all of
        #: them.
        self._forwarded_to: dict[int, bytes] = {}
        self._when_idle: list[Callable[[], object]] = []
        #: The state of each slot: see `callboard.entity.machine.sent_slot`.
        self._states: dict[int, SentSlot] = {}
        #: By slot: the node to which the last message was sent, which may not have received it
        #: yet.
        self._last_nodes: dict[int, bytes] = {}
        #: Nodes that refused messages of a slot; more messages may be on their way to them.
        self._refusing: dict[int, set[bytes]] = {}
        #: By slot: the number of the current attempt, increased by refusals.
        self._attempts: dict[int, int] = {}
        self._number = 0
        self._backoff = Backoff(FIRST_LOOKUP_SECONDS, LONGEST_LOOKUP_SECONDS)
        self._is_looking_up = False
        #: Nodes that answered, since the table was adopted, that they host no such entities.
        self._hostless: set[bytes] = set()
        #: By node: gathers the messages of one turn; valid for the current table.
        self._batches: dict[bytes, AskBatch] = {}
        runtime.shutdown.on(Phase.ENDED, self._end)

    def is_waiting(self, slot: int) -> bool:
        """Return whether a message of a slot waits or may still be on its way."""
        return slot in self._queues or slot in self._last_nodes or slot in self.forwarded

    @property
    def waiting(self) -> int:
        """Number of messages that wait for their owners."""
        with self._lock:
            return sum(
                len(q) for queues in (self._queues, self.forwarded) for q in queues.values()
            )

    def send(
        self,
        key: str,
        slot: int,
        message: Any,
        sender: Sender | None,
        *,
        is_urgent: bool,
        is_handed: bool = False,
    ) -> None:
        """Send a message, or queue it for its owner. Can be called from any thread.

        `is_handed` is set for a call that was deferred by a nested call, and is carried out
        now.
        """
        now = 0.0 if sender.__class__ is Future else self._runtime.now()
        guard = self._guard
        if (
            (self._handed and not is_handed)
            or self._is_inside()
            or not (is_handed or guard.acquire(False) or reentry.wait(guard))  # noqa: FBT003
        ):
            send = partial(self.send, key, slot, message, sender, is_urgent=is_urgent)
            self._hand_over.add(
                partial(send, is_handed=True), partial(self._refuse_late, message, sender)
            )
            return
        if is_handed:
            guard.acquire()
        # Takes half the time of a `with` block, which matters because every message runs this.
        try:
            self._number = number = self._number + 1
            pending = PendingMessage(number, key, slot, message, sender, is_urgent, now)
            if slot not in self._queues and self._send_own(pending):
                return
            if not self._has_ended and self._enqueue(pending, self._queues):
                return
        finally:
            if self._lock.calls:
                self._lock.release()
            else:
                guard.release()
        if self._has_ended:
            self._refuse(pending, "", self._closed())
        else:
            self._refuse(pending, f"{WAITING_LIMIT:,} messages wait for its owner, the limit")

    def _refuse_late(self, message: Any, sender: Sender | None, error: BaseException) -> None:
        """Fail an ask, or count a dead letter, if a deferred send cannot be carried out."""
        if sender is not None and sender.expects:
            sender.set_exception(error)
        self._runtime.dead_letter(
            self._runtime.ref_of(self._runtime.node_id, 0), message, sender
        )

    def send_marker(self, slot: int, passed: Callable[[], object]) -> None:
        """Call `passed` when the owner has received all that this node has sent for a slot."""
        with self._lock:
            marker = self._new_message("", slot, passed)
            if slot in self._queues or not self._send_own(marker):
                self._enqueue(marker, self._queues)

    def forward(
        self, key: str, slot: int, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Forward a message that the host held, before this node's own messages."""
        with self._lock:
            pending = self._new_message(
                key, slot, message, sender, is_urgent=is_urgent, is_forwarded=True
            )
            if slot in self.forwarded or not self._send_forwarded(pending):
                self._enqueue(pending, self.forwarded)

    def hold(
        self, key: str, slot: int, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> bool:
        """Hold a message from another node until this node serves its slot.

        Returns:
            False if this node will not own the slot, or the limit is reached.
        """
        with self._lock:
            if self.table.node_of(slot) != self._runtime.node_id:
                return False
            if len(self.forwarded.get(slot, ())) >= WAITING_LIMIT:
                return False
            pending = self._new_message(
                key, slot, message, sender, is_urgent=is_urgent, is_forwarded=True
            )
            return self._enqueue(pending, self.forwarded)

    def forward_marker(self, slot: int, passed: Callable[[], object]) -> None:
        """Call `passed` when the owner has received all that this node forwards for a slot."""
        with self._lock:
            if slot in self.forwarded or slot in self._forwarded_to:
                marker = self._new_message("", slot, passed, is_forwarded=True)
                if slot in self.forwarded or not self._send_forwarded(marker):
                    self._enqueue(marker, self.forwarded)
                return
        self._lock.after(passed)

    def end_forwarding(self, slots: Iterable[int]) -> None:
        """End the forwarding for some slots, after which no message is forwarded."""
        with self._lock:
            for slot in slots:
                if slot in self._forwarded_to or slot in self.forwarded:
                    self.forward_marker(slot, partial(self._forwarding_done, slot))

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Call back once, when no message waits and all forwarded ones have arrived."""
        with self._lock:
            self._when_idle.append(callback)
        self._notify_idle()

    def ask_markers(
        self, slots: Iterable[int], nodes: Iterable[bytes], passed: Callable[[], object]
    ) -> None:
        """Call back when some nodes have forwarded everything they had for some slots."""
        missing = {(slot, node) for slot in slots for node in nodes}
        if not missing:
            passed()

        def answered(marker: tuple[int, bytes]) -> None:
            missing.discard(marker)
            if not missing:
                passed()

        for marker in sorted(missing):
            self._ask_marker(*marker, partial(self._runtime.post, answered, marker))

    def _new_message(
        self,
        key: str,
        slot: int,
        message: Any,
        sender: Sender | None = None,
        *,
        is_urgent: bool = False,
        is_forwarded: bool = False,
    ) -> PendingMessage:
        """Return a message or marker with its number in the order.

        The caller must hold the lock.
        """
        self._number += 1
        now = self._runtime.now()
        number = self._number
        return PendingMessage(number, key, slot, message, sender, is_urgent, now, is_forwarded)

    def _enqueue(
        self, pending: PendingMessage, queues: dict[int, deque[PendingMessage]]
    ) -> bool:
        """Queue a message; return False if the queue is full. The caller must hold the lock."""
        queue = queues.setdefault(pending.slot, deque())
        if pending.key and not pending.is_forwarded and len(queue) >= WAITING_LIMIT:
            return False
        queue.append(pending)
        # If the table has an owner, asking other nodes at once would not find one sooner.
        has_owner = self.table.node_of(pending.slot)
        self._schedule_lookup(pause=FIRST_LOOKUP_SECONDS if has_owner else 0.0)
        return True

    def adopt(self, table: Table, *, is_certain: bool = False) -> None:
        """Use a table if it is newer, or known to be current, and send waiting messages."""
        with self._lock:
            if table.version > self.table.version or (is_certain and table != self.table):
                former_nodes, self.table = self.table.nodes, table
                self._owners = table.owners
                self._hostless.clear()
                self._batches.clear()
                for node in sorted(former_nodes - table.nodes):
                    forget = self._forget_owner
                    self._runtime.call_later(GONE_SECONDS, forget, bytes.fromhex(node))
        self.flush()

    def flush(self) -> None:
        """Send the queued messages that can be sent."""
        with self._lock:
            self._flush(self.forwarded, self._send_forwarded)
            self._flush(self._queues, self._send_own)
        self._notify_idle()

    def _flush(
        self, queues: dict[int, deque[PendingMessage]], send: Callable[[PendingMessage], bool]
    ) -> None:
        """Send the messages of all queues of one kind, until one must wait.

        The caller must hold the lock.
        """
        for slot in list(queues):
            queue, first = queues[slot], None
            while queue:
                first = queue.popleft()
                if self._is_stale(first):
                    continue
                if not send(first):
                    queue.appendleft(first)
                if queue and queue[0] is first:  # the message must wait, or could not be sent
                    break
            if not queue:
                del queues[slot]
                # The last message was not a marker, so no marker is in flight.
                if first and first.key and slot in self._forwarded_to:
                    self.forward_marker(slot, partial(self._forwarding_done, slot))

    def _notify_idle(self) -> None:
        """Call the idle callbacks if no message waits and all forwarded ones have arrived."""
        with self._lock:
            if self._queues or self.forwarded or self._forwarded_to:
                return
            callbacks, self._when_idle = self._when_idle, []
        for callback in callbacks:
            callback()

    def _is_stale(self, pending: PendingMessage) -> bool:
        """Drop a message if it has waited too long; return whether it was dropped."""
        if pending.is_abandoned or not pending.key:
            return pending.is_abandoned
        now = self._runtime.now()
        if not pending.is_ask and now - pending.since > TELL_SECONDS:
            self._refuse(pending, "it has no owner")
            return True
        sender = pending.sender
        deadline = None if sender is None else sender.deadline
        if deadline is not None and deadline - REFUSED_BEFORE <= now:
            self._refuse(pending, self._why_unsent(pending.slot))
            return True
        if deadline is None and sender is not None and due_of(sender, pending.since) <= now:
            # An ask of another node whose deadline has passed.
            self._refuse(pending, self._why_unsent(pending.slot))
            return True
        return False

    def _send_own(self, pending: PendingMessage) -> bool:
        """Send a message of this node to its owner; return False if it must wait.

        The caller must hold the lock.
        """
        slot = pending.slot
        state = self._states.get(slot, _IDLE)
        if (state is not _SENT and state is not _IDLE) or slot in self.forwarded:
            return False
        # The host of this node may accept the message even if the table names another owner,
        # because it holds messages for a slot that it gives away.
        if state is _IDLE and self._deliver_here(pending):
            return True
        node = self._owners[slot]
        if state is _SENT and (former := self._last_nodes[slot]) != node:
            self._mark(slot, former)
            return False
        return self._send_to(pending, node, state)

    def _send_forwarded(self, pending: PendingMessage) -> bool:
        """Send a forwarded message or marker to the owner; return False if it must wait.

        The caller must hold the lock.
        """
        if pending.slot in self._refusing:
            return False
        slot = pending.slot
        return self._send_to(pending, self.table.node_of(slot), self._states.get(slot, _IDLE))

    def _enter(self, slot: int, event: SentSlotEvent) -> None:
        """Change the state of a slot by an event; the caller must hold the lock."""
        state, name = self._states.get(slot, _IDLE), (self.type_name, slot)
        self._states[slot] = next_state(SENT_SLOTS, state, event, name)

    # Every message to another node passes here, so the work is inline.
    def _send_to(  # noqa: C901
        self, pending: PendingMessage, node: bytes, state: SentSlot
    ) -> bool:
        """Send a message or marker to a node; return False if it must wait.

        If the message may be batched, it is added to this turn's batch for the node. The caller
        must hold the lock.

        Args:
            pending: the message or marker.
            node: the receiving node; empty for none.
            state: the state of its slot.
        """
        slot = pending.slot
        batch = self._batches.get(node)
        # If the batch is not empty, it was opened in this turn, and the node is reachable.
        if batch is None or not batch.size:
            if node == self._runtime.node_id or not node:
                return self._deliver_here(pending)
            if not self._runtime.is_reachable(node):
                return False
        if not pending.key:
            self._ask_marker(slot, node, partial(self._marker_answered, pending))
            return True
        if pending.is_forwarded:
            self._forwarded_to[slot] = node
            self._last_nodes.setdefault(slot, node)
            self._enter(slot, SentSlotEvent.FORWARDED)
        elif state is not _SENT:
            self._last_nodes[slot] = node
            self._enter(slot, SentSlotEvent.SENT)
        if batch is None:
            batch = self._open_batch(node)
        sender, sender_ref = pending.sender, None
        asker: PendingMessage | Future[Any] = pending
        if self._attempts:
            pending.attempt = self._attempts.get(slot, 0)
        if sender.__class__ is Future or pending.is_ask:
            pending.router, pending.node = self, node
            pending.message_id, pending.is_answered = 0, False
        else:
            if sender is not None:
                sender_ref = sender.reference(self._runtime)
            asker = _TellOutcome(batch.ref)
            self._runtime.set_deadline(asker, TELL_SECONDS)
            asker.on_done(partial(self._tell_done, pending, node))
        if not batch.take(pending, sender_ref, asker):
            self._send_alone(pending, batch.ref, sender_ref, asker)
        return True

    def _send_alone(
        self,
        pending: PendingMessage,
        ref: ActorRef,
        sender_ref: ActorRef | None,
        asker: PendingMessage | Future[Any],
    ) -> None:
        """Send a message that cannot be batched, in a single frame."""
        message, is_ask = pending.message, asker is pending
        envelope = message if message.__class__ is Envelope else None
        wrapped: Any = EntityMessage(
            self.type_name,
            pending.key,
            message if envelope is None else envelope.message,
            is_ask,
            sender_ref,
            pending.is_urgent,
            pending.attempt,
        )
        if envelope is not None:
            trace, deadline = envelope.trace, envelope.deadline
            key, chain = envelope.key, envelope.chain
            wrapped = Envelope(wrapped, trace, deadline, key=key, chain=chain)
        try:
            ref.target.post(wrapped, asker)
        except Exception as error:  # noqa: BLE001 - not serializable: the sender gets the error
            asker.set_exception(error)

    def _open_batch(self, node: bytes) -> AskBatch:
        """Open the batch for a node."""
        ref = self._runtime.ref_of(node, ENTITIES)
        batch = self._batches[node] = AskBatch(
            partial(EntityMessages, self.type_name), node, ref
        )
        return batch

    def _tell_done(self, pending: PendingMessage, node: bytes, future: Future[Any]) -> None:
        """Handle the outcome of a message sent with `tell`."""
        error = future.exception()
        value = None if error is not None else future.result()
        self.handle_outcome(pending, node, value, error, has_left=future.sent_id != 0)

    def handle_outcome(
        self,
        pending: PendingMessage,
        node: bytes,
        value: Any,
        error: BaseException | None,
        *,
        has_left: bool,
    ) -> None:
        """Handle the outcome of a message that was sent to an owner."""
        # This includes NodeClosed: a draining node may have handled a message without answering
        # it.
        is_lost = isinstance(error, NodeUnreachable | NodeClosed)
        if is_lost:
            self._runtime.post(self._ask_others)  # another node may own the slot by now
        if isinstance(value, NotOwner):
            self._refused(pending, node)
            if isinstance(value.table, EntityTable) and value.table.type_name == self.type_name:
                self.receive_table(value.table)
        elif isinstance(error, ActorDown | NodeDraining):
            # The node handled nothing, because it does not host the type or is draining.
            self._requeue(pending)
        elif is_lost and not has_left:
            self._requeue(pending)  # the message never left this node
        elif pending.sender is None or not pending.sender.expects:
            if error is not None:
                self._refuse(pending, str(error))
        elif is_lost:
            text = f"{entity_text(self.type_name, pending.key)}: its node was lost ({error})"
            unknown = OutcomeUnknown(f"{text}; the message may have been handled")
            self._lock.after(pending.sender.set_exception, unknown)
        # This includes a message that was refused while it was being sent.
        elif error is not None:
            self._lock.after(pending.sender.set_exception, error)
        else:
            self._lock.after(pending.sender.set_result, value)

    def receive_table(self, table: EntityTable) -> None:
        """Handle a table received from another node.

        A table with a lower version is used only while no member of the known table is
        reachable. Such tables exist, because versions start again when the only host of a type
        is replaced, and because a forged table may have had any version. Without this rule the
        router would wait for dead owners for ever. A wrong table does no harm, because a node
        refuses messages for slots that it does not own.
        """
        is_newer = table.is_sound and table.version > self.table.version
        if is_newer or (table.is_sound and self._is_deserted()):
            try:
                self.adopt(Table.read(table.text), is_certain=not is_newer)
            except (StateCorrupt, StateVersion):
                return

    def _is_deserted(self) -> bool:
        """Return whether no member of the known table is reachable and hosts the type."""
        nodes = {bytes.fromhex(node) for node in self.table.nodes} - self._hostless
        if self._runtime.node_id in nodes and self._is_host():
            return False
        return not any(map(self._runtime.is_reachable, nodes - {self._runtime.node_id}))

    def _requeue(self, pending: PendingMessage) -> None:
        """Put a message back into its queue, before later messages."""
        if self._has_ended:
            self._refuse(pending, "", self._closed())
            return
        with self._lock:
            queues = self.forwarded if pending.is_forwarded else self._queues
            queue = queues.setdefault(pending.slot, deque())
            index = sum(queued.number < pending.number for queued in queue)
            queue.insert(index, pending)
            self._schedule_lookup()

    def _refused(self, pending: PendingMessage, node: bytes) -> None:
        """Handle a refusal: start the next attempt, after a marker to the refusing node."""
        slot = pending.slot
        with self._lock:
            if pending.attempt == self._attempts.get(slot, 0):
                self._attempts[slot] = pending.attempt + 1
            self._enter(slot, SentSlotEvent.REFUSED)
            refusing = self._refusing.setdefault(slot, set())
            if node not in refusing:
                refusing.add(node)
                complete = partial(self._refusals_complete, slot, node)
                self._ask_marker(slot, node, complete, is_refused=True)
            self._requeue(pending)

    def _marker_answered(self, pending: PendingMessage) -> None:
        """Handle the answer to a marker.

        Send the marker again if earlier messages wait again.
        """
        with self._lock:
            queues = self.forwarded if pending.is_forwarded else self._queues
            queue = queues.get(pending.slot, ())
            if any(queued.number < pending.number for queued in queue):
                self._requeue(pending)
                return
        pending.message()

    def _forwarding_done(self, slot: int) -> None:
        """End the forwarding of a slot: its owner has all forwarded messages."""
        with self._lock:
            if slot not in self.forwarded:
                self._forwarded_to.pop(slot, None)
        self._runtime.post(self.flush)

    def _mark(self, slot: int, node: bytes) -> None:
        """Wait until a former owner has accepted or refused everything that was sent to it."""
        self._enter(slot, SentSlotEvent.OWNER_CHANGED)
        self._ask_marker(slot, node, partial(self._marker_passed, slot, node))

    def _forget_owner(self, node: bytes) -> None:
        """Stop waiting for markers from a former owner that has left the table."""
        if node.hex() in self.table.nodes:
            return
        with self._lock:
            slots = [slot for slot, former in self._last_nodes.items() if former == node]
            for slot in [slot for slot, owner in self._forwarded_to.items() if owner == node]:
                del self._forwarded_to[slot]
        for slot in slots:
            self._marker_passed(slot, node)
        self._notify_idle()

    def _marker_passed(self, slot: int, node: bytes) -> None:
        """Send the queue of a slot, because the former owner has answered the marker."""
        with self._lock:
            if self._last_nodes.get(slot) != node:
                return
            self._enter(slot, SentSlotEvent.MARKER_PASSED)
            del self._last_nodes[slot]
        self._runtime.post(self.flush)

    def _refusals_complete(self, slot: int, node: bytes) -> None:
        """Send the refused messages again, at once if another node is the owner."""
        with self._lock:
            refusing = self._refusing[slot]
            refusing.discard(node)
            if not refusing:
                del self._refusing[slot]
                self._enter(slot, SentSlotEvent.COMPLETE)
            is_owner = self.table.node_of(slot) == node
        if is_owner:  # the owner has not read the newest table yet
            self._runtime.call_later(RETRY_SECONDS, self.flush)
        else:
            self._runtime.post(self.flush)

    def _ask_marker(
        self,
        slot: int,
        node: bytes,
        passed: Callable[[], object],
        *,
        is_refused: bool = False,
    ) -> None:
        """Send a marker to a node, after all messages that were sent to the node.

        The marker is repeated until it is answered, because it may be lost when a link breaks,
        together with the messages before it.
        """
        arrived: Future[None] = Future()
        arrived.on_done(lambda _: passed())
        marker = EntityMarker(self.type_name, slot, is_refused)
        self._lock.after(self._send_marker, marker, node, arrived)

    def _send_marker(
        self, marker: EntityMarker, node: bytes, arrived: Future[None], waited: float = 0.0
    ) -> None:
        """Send a marker, and again after a pause until one of them is answered."""
        if arrived.done() or self._runtime.is_closed:
            return

        ref = self._runtime.ref_of(node, ENTITIES)
        future: Future[Any] = Future(ref)
        self._runtime.set_deadline(future, TELL_SECONDS - waited)
        future.on_done(lambda _: arrived.set_result(None))
        ref.target.post(marker, future)
        waited += MARKER_SECONDS
        if waited < TELL_SECONDS:
            again = self._send_marker
            self._runtime.call_later(MARKER_SECONDS, again, marker, node, arrived, waited)

    def _schedule_lookup(self, pause: float = 0.0) -> None:
        """Schedule requests for the table, which are repeated while messages wait.

        The caller must hold the lock.
        """
        if not self._is_looking_up:
            self._is_looking_up = True
            self._backoff.reset()
            if pause:
                self._runtime.post(self._runtime.call_later, pause, self._look_up)
            else:
                self._runtime.post(self._look_up)

    def _look_up(self) -> None:
        """Ask the reachable nodes for the table, and repeat while messages wait."""
        self.flush()
        with self._lock:
            self._is_looking_up = bool(self._queues or self.forwarded)
            if not self._is_looking_up or self._runtime.is_closed:
                return
            left = max(0.0, self._next_end() - self._runtime.now())
            pause = min(self._backoff.next_pause(), left)
        self._ask_others()
        self._runtime.call_later(pause, self._look_up)

    def _next_end(self) -> float:
        """Return when the next waiting message must be refused.

        The caller must hold the lock.
        """
        queues = (*self._queues.values(), *self.forwarded.values())
        senders = [queue[0].sender for queue in queues if queue]
        ends = [asker.deadline for asker in senders if asker is not None and asker.deadline]
        return min(ends, default=math.inf) - REFUSED_BEFORE

    def _ask_others(self) -> None:
        """Ask the reachable nodes for the table."""
        for node in self._nodes():
            ref = self._runtime.ref_of(node, ENTITIES)
            future: Future[Any] = Future(ref)
            self._runtime.set_deadline(future, 2.0)
            future.on_done(partial(self._table_answered, node))
            ref.target.post(AskEntityTable(self.type_name), future)

    def _table_answered(self, node: bytes, future: Future[Any]) -> None:
        """Handle the answer from a node to a request for the table."""
        error = future.exception()
        table = None if error is not None else future.result()
        if isinstance(error, ActorDown) or (error is None and table is None):
            self._hostless.add(node)
        if isinstance(table, EntityTable) and table.type_name == self.type_name:
            self._hostless.discard(node)
            self.receive_table(table)
        elif isinstance(error, NotPermitted) and not self.table.version:
            with self._lock:  # a leaf can ask no other node
                queues, self._queues = self._queues, {}
            for pending in (
                queued for queue in queues.values() for queued in queue if queued.key
            ):
                self._refuse(pending, str(error), error)

    def error_of_unsent(self, key: str, slot: int, asker: Asker) -> EntityUnavailable | None:
        """Return the error of an expired ask that was never sent; None if it was sent."""
        with self._lock:
            queue = self._queues.get(slot, ())
            unsent = next((queued for queued in queue if queued.sender is asker), None)
        if unsent is None:
            return None
        self._runtime.dead_letter(
            self._runtime.ref_of(self._runtime.node_id, 0), unsent.message, asker
        )
        return _unavailable(self.type_name, key, self._why_unsent(slot))

    def _why_unsent(self, slot: int) -> str:
        """Return why messages to a slot were not sent."""
        owner = self.table.node_of(slot)
        if not owner or owner == self._runtime.node_id or self._runtime.is_reachable(owner):
            return _NO_OWNER
        members = self.table.members.values()
        addresses = (member.address for member in members if member.node == owner.hex())
        address = next(filter(None, addresses), "ITS ADDRESS")
        return (
            f"its owner, node {owner.hex()[:12]}, is not linked with {self._runtime.name}: call"
            f" node.connect({address!r}), or join=[{address!r}] when the node is made"
        )

    @property
    def _has_ended(self) -> bool:
        """Whether the node has ended, so that no message can be sent."""
        return self._runtime.shutdown.phase is Phase.ENDED

    def _closed(self) -> NodeClosed:
        """Return the error of a message that was not sent before the node closed."""
        return NodeClosed(f"{self._runtime.name} was closed before it sent this")

    def _end(self) -> None:
        """Fail the queued messages, because the node has ended."""
        with self._lock:
            queues = [*self._queues.values(), *self.forwarded.values()]
            self._queues, self.forwarded = {}, {}
        for pending in (queued for queue in queues for queued in queue if queued.key):
            self._refuse(pending, "", self._closed())

    def _refuse(
        self, pending: PendingMessage, reason: str, error: CallboardError | None = None
    ) -> None:
        """Fail a message that has no owner. Its sender is notified without any lock."""
        sender = pending.sender
        if sender is not None and sender.expects:
            failure = error or _unavailable(self.type_name, pending.key, reason)
            self._lock.after(sender.set_exception, failure)
        no_actor = self._runtime.ref_of(self._runtime.node_id, 0)
        self._lock.after(self._runtime.dead_letter, no_actor, pending.message, sender)
