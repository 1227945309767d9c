"""The way of messages to the owners of a type's slots, from one node.

Messages of a slot keep their order. One that is refused by a node which is no owner, or that
finds no owner, waits with all behind it until a newer table is known. When a slot has another
owner, a marker goes the old way first: what was sent there has been taken or refused by then.

A node that gives a slot away passes on what it held meanwhile. These messages have a line of
their own, which waits for nothing but the new owner, and goes before what the node itself
sends. Markers of others wait behind that line only. So a marker waits for lines of passing
messages, these wait for an owner that serves the slot, and nothing waits in a circle. A slot is
given on only when all that its former owner passed on has come: one line at a time is enough.

A node may become the owner while messages are on their way to it: then it would refuse the
first ones and take the later. So each says which **attempt** it is of. Who refuses one of a
sender's for a slot refuses all of that attempt; the next attempt begins behind a marker.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Final, Literal

from callboard import locks
from callboard.entity.errors import EntityUnavailable
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
from callboard.kernel.activation import TAKES_NO_MORE, AskBatch, Envelope, Home
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import NodeContext
from callboard.kernel.errors import (
    ActorDown,
    CallboardError,
    NodeClosed,
    NodeUnreachable,
    NotPermitted,
)
from callboard.kernel.reply import Future, Reply, Sender, due_of
from callboard.kernel.shutdown import Phase
from callboard.kernel.topology import ENTITIES
from callboard.lease.errors import OutcomeUnknown, StateCorrupt, StateVersion
from callboard.support import reentry
from callboard.support.dataclass import dataclass
from callboard.support.reentry import HandOver

#: Messages that wait for the owner of a slot, and seconds that one which was told does.
WAITING_LIMIT: Final = 1_000
TOLD_SECONDS: Final = 10.0

#: Seconds that a former owner has for a marker which is no member any more: it closes, or is
#: dead, and then nothing comes back.
GONE_SECONDS: Final = 0.5

#: Seconds until a marker is sent again that has no answer.
MARKER_SECONDS: Final = 0.5

#: Seconds until a node is tried again that refused a message: it may be about to own the slot.
RETRY_SECONDS: Final = 0.005

#: Seconds before the end of an ask's time in which it is refused, as nothing has happened.
REFUSED_BEFORE: Final = 0.02

#: Seconds between looks for an owner.
FIRST_LOOK: Final = 0.02
LONGEST_LOOK: Final = 0.25


_NO_OWNER: Final = "no owner was found in the time of the ask"


def _unavailable(type_name: str, key: str, why: str) -> EntityUnavailable:
    """Return the error of a message that found no owner."""
    return EntityUnavailable(f"{entity_text(type_name, key)}: {why}; nothing happened")


@dataclass(slots=True, eq=False)
class Waiting(Reply):
    """A message on its way to an entity.

    Where it goes to an owner, who may be another one by then, it stands for the asker. It has
    no time of its own: when that of the ask is over, nobody waits for this either.
    """

    expects: ClassVar[Literal[True]] = True
    #: The asker's own is looked after where it was made.
    deadline: ClassVar[None] = None

    number: int
    key: str
    slot: int
    message: Any
    sender: Sender | None
    is_urgent: bool
    #: When it was told; what was asked has a deadline instead.
    since: float
    #: Whether this node's host held it while it gave the slot away.
    is_passing: bool = False
    #: The attempt in which it was sent, by what, and to which node.
    attempt: int = 0
    sending: "TypeSender | None" = None
    node: bytes = b""
    #: The id of the ask; 0 while it has not left this node.
    message_id: int = 0
    #: Whether there was an outcome since it was sent.
    is_answered: bool = False

    @property
    def sent_id(self) -> int:
        """The message id under which the ask left this node; 0 if it did not."""
        return self.message_id

    @property
    def is_asked(self) -> bool:
        """Whether it was asked, and not told, maybe by an actor on another node."""
        sender = self.sender
        return sender is not None and sender.expects and sender.wants_reply

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for its answer any more."""
        return self.is_asked and self.sender is not None and self.sender.is_done

    @property
    def is_done(self) -> bool:
        """Whether there was an answer, or nobody waits for one."""
        return self.is_answered or (self.sender is not None and self.sender.is_done)

    def set_result(self, value: Any) -> bool:
        """Answer, unless the message was refused."""
        if self.is_answered:
            return False
        self.is_answered = True
        sender = self.sender
        if value.__class__ is not NotOwner and sender is not None and sender.expects:
            sender.set_result(value)
        elif self.sending is not None:
            self.sending.done(self, self.node, value, None, has_left=True)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Let the ask fail, or the message go again."""
        if self.is_answered or self.sending is None:
            return False
        self.is_answered = True
        self.sending.done(self, self.node, None, error, has_left=self.message_id != 0)
        return True

    def mark_handled(self) -> None:
        """The answer will come later: nothing to note here."""

    def reference(self, runtime: Home) -> ActorRef[Any]:
        """Return a one-shot address that answers this."""
        return runtime.reply_ref(self)


class _ToldOutcome(Future[Any]):
    """The outcome of a message that was told; no code of users waits for it.

    So it may fail under the lock of the sender, where the message cannot be sent: one that has
    to wait is in its line again before the next one is sent.
    """

    __slots__ = ()

    #: For `callboard.checked_locks`.
    is_internal: ClassVar[bool] = True


class TypeSender:
    """Messages of one node to the entities of a type."""

    def __init__(
        self,
        runtime: NodeContext,
        type_name: str,
        here: Callable[[Waiting], bool],
        others: Callable[[], Iterable[bytes]],
        is_host: Callable[[], bool],
    ) -> None:
        """Make one that knows no table.

        Args:
            runtime: of the node.
            type_name: of the entities.
            here: gives a message to this node's own host; False if it does not serve the slot.
            others: returns the nodes in reach.
            is_host: tells whether this node hosts the type.
        """
        self._runtime, self.type_name = runtime, type_name
        self._here, self._others, self._is_host = here, others, is_host
        self.table = Table()
        self.lock = self._lock = locks.collecting_lock("messages to entities", 520)
        self._guard = self._lock.guard
        self._is_inside = locks.owner_test(self._guard)
        self._hand_over = HandOver(self._guard, runtime.post, runtime.counters)
        #: What was handed over, and goes before anything else does.
        self._handed = self._hand_over.calls
        self._queues: dict[int, deque[Waiting]] = {}
        #: What the host held while it gave a slot away, and cannot go yet.
        self._passing: dict[int, deque[Waiting]] = {}
        #: The node that such messages went to, and has not said yet that it has them all.
        self._handing: dict[int, bytes] = {}
        self._when_idle: list[Callable[[], object]] = []
        #: The node that the last message of a slot went to: it may still be on its way there.
        self._former: dict[int, bytes] = {}
        #: Slots whose marker goes the old way.
        self._marked: set[int] = set()
        #: Nodes that refused messages of a slot, and may have more of these on their way.
        self._refusing: dict[int, set[bytes]] = {}
        #: By slot, how often its messages were refused.
        self._attempts: dict[int, int] = {}
        self._number = 0
        self._pause = FIRST_LOOK
        self._is_looking = False
        #: Nodes that have said, since the table was taken, that they host no such entities.
        self._hostless: set[bytes] = set()
        #: What gathers messages for nodes, while the table stays.
        self._carrying: dict[bytes, AskBatch] = {}
        #: That of the node which owns a slot, and which the last message of it went to.
        self._settled: dict[int, AskBatch] = {}
        runtime.shutdown.on(Phase.ENDED, self._end)

    @property
    def has_lines(self) -> bool:
        """Whether messages for any slot wait that go before what comes now."""
        return bool(self._passing)

    def is_in_line(self, slot: int) -> bool:
        """Return whether messages for a slot wait that go before what comes now."""
        return slot in self._passing

    def is_waiting(self, slot: int) -> bool:
        """Return whether something for a slot may still be on its way, so that others wait."""
        return slot in self._queues or slot in self._former or slot in self._passing

    @property
    def waiting(self) -> int:
        """How many messages wait for their owners."""
        with self._lock:
            return sum(
                len(q) for lines in (self._queues, self._passing) for q in lines.values()
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
        """Send a message, or let it wait for its owner; from any thread.

        `is_handed`: it was handed over by a call inside this one, and its turn has come.
        """
        now = 0.0 if sender.__class__ is Future else self._runtime.now()
        guard = self._guard
        if (
            (self._handed and not is_handed)
            or self._is_inside()
            or not (is_handed or guard.acquire(blocking=False) or reentry.wait(guard))
        ):
            send = partial(self.send, key, slot, message, sender, is_urgent=is_urgent)
            self._hand_over.add(
                partial(send, is_handed=True), partial(self._refuse_late, message, sender)
            )
            return
        if is_handed:
            guard.acquire()
        try:  # in half of the time that `with` takes: each message comes here
            self._number = number = self._number + 1
            waiting = Waiting(number, key, slot, message, sender, is_urgent, now)
            carrying = self._settled.get(slot)
            if (
                carrying is not None
                and not (self._queues or self._marked or self._refusing or self._passing)
                # What was gathered in this turn is not sent yet, so there is a path.
                and (carrying.size > 0 or self._runtime.is_reachable(carrying.node))
            ):  # as nearly always: where the last one went, and nothing has changed
                self._dispatch(waiting, carrying)
                return
            if slot not in self._queues and self._go(waiting):
                return
            if not self._has_ended and self._wait(waiting, self._queues):
                return
        finally:
            if self._lock.calls:
                self._lock.release()
            else:
                guard.release()
        if self._has_ended:
            self._refuse(waiting, "", self._closed())
        else:
            self._refuse(waiting, f"{WAITING_LIMIT:,} messages wait for its owner, the limit")

    def _refuse_late(self, message: Any, sender: Sender | None, error: BaseException) -> None:
        """Fail an ask, or count a message, that was handed over and cannot be sent."""
        if sender is not None and sender.expects:
            sender.set_exception(error)
        self._runtime.dead_letter(
            self._runtime.ref_of(self._runtime.node_id, 0), message, sender
        )

    def send_marker(self, slot: int, passed: Callable[[], object]) -> None:
        """Call back once all that this node has sent for a slot is with its owner."""
        with self._lock:
            marker = self._numbered("", slot, passed)
            if slot in self._queues or not self._go(marker):
                self._wait(marker, self._queues)

    def pass_on(
        self, key: str, slot: int, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Send what the host held, before all that this node sends itself."""
        with self._lock:
            waiting = self._numbered(
                key, slot, message, sender, is_urgent=is_urgent, is_passing=True
            )
            if slot in self._passing or not self._pass(waiting):
                self._wait(waiting, self._passing)

    def hold(
        self, key: str, slot: int, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> bool:
        """Let a message of another node wait until this node serves its slot.

        Returns:
            False if the slot is not about to be this node's, or the limit is reached.
        """
        with self._lock:
            if self.table.node_of(slot) != self._runtime.node_id:
                return False
            if len(self._passing.get(slot, ())) >= WAITING_LIMIT:
                return False
            waiting = self._numbered(
                key, slot, message, sender, is_urgent=is_urgent, is_passing=True
            )
            return self._wait(waiting, self._passing)

    def pass_marker(self, slot: int, passed: Callable[[], object]) -> None:
        """Call back once all that this node passes on for a slot is with its owner."""
        with self._lock:
            if slot in self._passing or slot in self._handing:
                marker = self._numbered("", slot, passed, is_passing=True)
                if slot in self._passing or not self._pass(marker):
                    self._wait(marker, self._passing)
                return
        self._lock.after(passed)

    def end_passing(self, slots: Iterable[int]) -> None:
        """Take note that nothing more of some slots is to be passed on."""
        with self._lock:
            for slot in slots:
                if slot in self._handing or slot in self._passing:
                    self.pass_marker(slot, partial(self._handed_over, slot))

    def when_idle(self, told: Callable[[], object]) -> None:
        """Call back, once, when nothing waits here and what was passed on has come."""
        with self._lock:
            self._when_idle.append(told)
        self._tell_idle()

    def ask_markers(
        self, slots: Iterable[int], nodes: Iterable[bytes], passed: Callable[[], object]
    ) -> None:
        """Call back once some nodes have passed on all that they had for some slots."""
        asked = {(slot, node) for slot in slots for node in nodes}
        if not asked:
            passed()

        def answered(way: tuple[int, bytes]) -> None:
            asked.discard(way)
            if not asked:
                passed()

        for way in sorted(asked):
            self._ask_marker(*way, partial(self._runtime.post, answered, way))

    def _numbered(
        self,
        key: str,
        slot: int,
        message: Any,
        sender: Sender | None = None,
        *,
        is_urgent: bool = False,
        is_passing: bool = False,
    ) -> Waiting:
        """Return what is to be sent, with its place in the order; needs the lock."""
        self._number += 1
        now = self._runtime.now()
        return Waiting(self._number, key, slot, message, sender, is_urgent, now, is_passing)

    def _wait(self, waiting: Waiting, lines: dict[int, deque[Waiting]]) -> bool:
        """Let something wait in its line; False if that is full. Needs the lock."""
        line = lines.setdefault(waiting.slot, deque())
        if waiting.key and not waiting.is_passing and len(line) >= WAITING_LIMIT:
            return False
        line.append(waiting)
        # Where an owner is known, it is no sooner found by asking.
        self._look(pause=FIRST_LOOK if self.table.node_of(waiting.slot) else 0.0)
        return True

    def adopt(self, table: Table, *, is_certain: bool = False) -> None:
        """Take a newer table, or one that is certain, and send what waited for it."""
        with self._lock:
            if table.version > self.table.version or (is_certain and table != self.table):
                before, self.table = self.table.nodes, table
                self._hostless.clear()
                self._carrying.clear()
                self._settled.clear()
                for node in sorted(before - table.nodes):
                    forget = self._forget_owner
                    self._runtime.call_later(GONE_SECONDS, forget, bytes.fromhex(node))
        self.flush()

    def flush(self) -> None:
        """Send what waits and can go."""
        with self._lock:
            self._flush(self._passing, self._pass)
            self._flush(self._queues, self._go)
        self._tell_idle()

    def _flush(self, lines: dict[int, deque[Waiting]], go: Callable[[Waiting], bool]) -> None:
        """Send what can go of all lines of a kind; needs the lock."""
        for slot in list(lines):
            line, first = lines[slot], None
            while line:
                first = line.popleft()
                if self._is_stale(first):
                    continue
                if not go(first):
                    line.appendleft(first)
                if line and line[0] is first:  # or it never left this node
                    break
            if not line:
                del lines[slot]
                if (
                    first and first.key and slot in self._handing
                ):  # no marker stands behind it yet
                    self.pass_marker(slot, partial(self._handed_over, slot))

    def _tell_idle(self) -> None:
        """Tell who waits for that when nothing waits and what was passed on has come."""
        with self._lock:
            if self._queues or self._passing or self._handing:
                return
            told, self._when_idle = self._when_idle, []
        for each in told:
            each()

    def _is_stale(self, waiting: Waiting) -> bool:
        """Return whether a message has waited for too long; it is refused then."""
        if waiting.is_over or not waiting.key:
            return waiting.is_over
        now = self._runtime.now()
        if not waiting.is_asked and now - waiting.since > TOLD_SECONDS:
            self._refuse(waiting, "it has no owner")
            return True
        sender = waiting.sender
        deadline = None if sender is None else sender.deadline
        if deadline is not None and deadline - REFUSED_BEFORE <= now:
            self._refuse(waiting, _NO_OWNER)
            return True
        if deadline is None and sender is not None and due_of(sender, waiting.since) <= now:
            self._refuse(waiting, _NO_OWNER)  # of another node, which waits for it no more
            return True
        return False

    def _go(self, waiting: Waiting) -> bool:
        """Send a message of this node to its owner; False if it has to wait.

        Needs the lock.
        """
        slot = waiting.slot
        if slot in self._marked or slot in self._refusing or slot in self._passing:
            return False
        former = self._former.get(slot)
        # Our host may hold what comes for a slot that it gives away, whatever the table.
        if former is None and self._here(waiting):
            return True
        node = self.table.node_of(slot)
        if former is not None and former != node:
            self._mark(slot, former)
            return False
        return self._go_to(waiting, node)

    def _pass(self, waiting: Waiting) -> bool:
        """Pass a message, or a marker, on to the owner; False if it has to wait.

        Needs the lock.
        """
        if waiting.slot in self._refusing:
            return False
        return self._go_to(waiting, self.table.node_of(waiting.slot))

    def _go_to(self, waiting: Waiting, node: bytes) -> bool:
        """Send a message, or a marker, to an owner; False if that does not take it now.

        Needs the lock.
        """
        slot = waiting.slot
        if node == self._runtime.node_id or not node:
            return self._here(waiting)
        if not self._runtime.is_reachable(node):
            return False
        if not waiting.key:
            self._ask_marker(slot, node, partial(self._marker_came, waiting))
            return True
        carrying = self._carrying.get(node) or self._carry(node)
        if waiting.is_passing:
            self._handing[slot] = node
            self._former.setdefault(slot, node)  # messages of this node may be among them
        else:
            self._former[slot] = node
            self._settled[slot] = carrying
        self._dispatch(waiting, carrying)
        return True

    def _dispatch(self, waiting: Waiting, carrying: AskBatch) -> None:
        """Send a message to a node, with others of this turn if it may go with them."""
        sender, told_by = waiting.sender, None
        asker: Waiting | Future[Any] = waiting
        if self._attempts:
            waiting.attempt = self._attempts.get(waiting.slot, 0)
        if sender.__class__ is Future or waiting.is_asked:
            waiting.sending, waiting.node = self, carrying.node
            waiting.message_id, waiting.is_answered = 0, False
        else:
            if sender is not None:
                told_by = sender.reference(self._runtime)
            asker = _ToldOutcome(carrying.ref)
            self._runtime.set_deadline(asker, TOLD_SECONDS)
            asker.on_done(partial(self._told, waiting, carrying.node))
        if not carrying.take(waiting, told_by, asker):
            self._send_alone(waiting, carrying.ref, told_by, asker)

    def _send_alone(
        self,
        waiting: Waiting,
        ref: ActorRef[Any],
        told_by: ActorRef[Any] | None,
        asker: Waiting | Future[Any],
    ) -> None:
        """Send a message that cannot go with others."""
        message, is_asked = waiting.message, asker is waiting
        envelope = message if message.__class__ is Envelope else None
        wrapped: Any = EntityMessage(
            self.type_name,
            waiting.key,
            message if envelope is None else envelope.message,
            is_asked,
            told_by,
            waiting.is_urgent,
            waiting.attempt,
        )
        if envelope is not None:
            trace, deadline = envelope.trace, envelope.deadline
            key, chain = envelope.key, envelope.chain
            wrapped = Envelope(wrapped, trace, deadline, key=key, chain=chain)
        try:
            ref.target.post(wrapped, asker)
        except Exception as error:  # noqa: BLE001 - it cannot travel: the sender's matter
            asker.set_exception(error)

    def _carry(self, node: bytes) -> AskBatch:
        """Return what gathers messages for a node."""
        ref = self._runtime.ref_of(node, ENTITIES)
        made = self._carrying[node] = AskBatch(
            partial(EntityMessages, self.type_name), node, ref
        )
        return made

    def _told(self, waiting: Waiting, node: bytes, future: Future[Any]) -> None:
        """Take the outcome of what was told."""
        error = future.exception()
        value = None if error is not None else future.result()
        self.done(waiting, node, value, error, has_left=future.sent_id != 0)

    def done(
        self,
        waiting: Waiting,
        node: bytes,
        value: Any,
        error: BaseException | None,
        *,
        has_left: bool,
    ) -> None:
        """Take the outcome of a message that was sent to an owner."""
        # A node that drained, too, may have taken what it did not answer.
        is_lost = isinstance(error, NodeUnreachable | NodeClosed)
        if is_lost:
            self._runtime.post(self._ask_others)  # another one may own the slot
        if isinstance(value, NotOwner):
            self._refused(waiting, node)
            if isinstance(value.table, EntityTable) and value.table.type_name == self.type_name:
                self.take(value.table)
        elif isinstance(error, ActorDown) or str(error).endswith(TAKES_NO_MORE):
            self._wait_again(waiting)  # the node has no entities (any more): nothing happened
        elif is_lost and not has_left:
            self._wait_again(waiting)  # it never left this node
        elif waiting.sender is None or not waiting.sender.expects:
            if error is not None:
                self._refuse(waiting, str(error))
        elif is_lost:
            text = f"{entity_text(self.type_name, waiting.key)}: its node was lost ({error})"
            unknown = OutcomeUnknown(f"{text}; perhaps it took the message")
            self._lock.after(waiting.sender.set_exception, unknown)
        elif error is not None:  # it may have been refused while it was sent
            self._lock.after(waiting.sender.set_exception, error)
        else:
            self._lock.after(waiting.sender.set_result, value)

    def take(self, told: EntityTable) -> None:
        """Take a table from another node.

        Versions begin again where the only host of a type was replaced, and a false one may be
        as high as it likes. So an earlier one is taken while no member of the one that is known
        is in reach: whom it makes owners refuses what it does not own.
        """
        is_newer = told.is_sound and told.version > self.table.version
        if is_newer or (told.is_sound and self._is_deserted()):
            try:
                self.adopt(Table.read(told.text), is_certain=not is_newer)
            except (StateCorrupt, StateVersion):
                return

    def _is_deserted(self) -> bool:
        """Return whether no member of the table that is known is in reach, and is a host."""
        nodes = {bytes.fromhex(node) for node in self.table.nodes} - self._hostless
        if self._runtime.node_id in nodes and self._is_host():
            return False
        return not any(map(self._runtime.is_reachable, nodes - {self._runtime.node_id}))

    def _wait_again(self, waiting: Waiting) -> None:
        """Put a message that was refused where it was, before what was sent later."""
        if self._has_ended:
            self._refuse(waiting, "", self._closed())
            return
        with self._lock:
            lines = self._passing if waiting.is_passing else self._queues
            line = lines.setdefault(waiting.slot, deque())
            place = sum(each.number < waiting.number for each in line)
            line.insert(place, waiting)
            self._look()

    def _refused(self, waiting: Waiting, node: bytes) -> None:
        """Begin another attempt behind all that a node was sent of this one."""
        slot = waiting.slot
        with self._lock:
            if waiting.attempt == self._attempts.get(slot, 0):
                self._attempts[slot] = waiting.attempt + 1
            refusing = self._refusing.setdefault(slot, set())
            if node not in refusing:
                refusing.add(node)
                taken = partial(self._refusals_came, slot, node)
                self._ask_marker(slot, node, taken, is_refused=True)
            self._wait_again(waiting)

    def _marker_came(self, waiting: Waiting) -> None:
        """Take a marker's answer; one that overtook what was refused meanwhile goes again."""
        with self._lock:
            lines = self._passing if waiting.is_passing else self._queues
            line = lines.get(waiting.slot, ())
            if any(each.number < waiting.number for each in line):
                self._wait_again(waiting)
                return
        waiting.message()

    def _handed_over(self, slot: int) -> None:
        """Take note that the owner of a slot has all that was passed on."""
        with self._lock:
            if slot not in self._passing:
                self._handing.pop(slot, None)
        self._runtime.post(self.flush)

    def _mark(self, slot: int, node: bytes) -> None:
        """Wait until a former owner has taken or refused all that was sent to it."""
        self._marked.add(slot)
        self._ask_marker(slot, node, partial(self._marker_passed, slot, node))

    def _forget_owner(self, node: bytes) -> None:
        """Wait no longer for markers of a former owner that is no member any more."""
        if node.hex() in self.table.nodes:
            return
        with self._lock:
            slots = [slot for slot, former in self._former.items() if former == node]
            for slot in [slot for slot, owner in self._handing.items() if owner == node]:
                del self._handing[slot]
        for slot in slots:
            self._marker_passed(slot, node)
        self._tell_idle()

    def _marker_passed(self, slot: int, node: bytes) -> None:
        """Send to the owner of a slot what waited for the former one."""
        with self._lock:
            if self._former.get(slot) != node:
                return
            self._marked.discard(slot)
            del self._former[slot]
            self._settled.pop(slot, None)
        self._runtime.post(self.flush)

    def _refusals_came(self, slot: int, node: bytes) -> None:
        """Send again what was refused, all of it: at once if another node is the owner."""
        with self._lock:
            refusing = self._refusing.get(slot, set())
            refusing.discard(node)
            if not refusing:
                self._refusing.pop(slot, None)
            is_owner = self.table.node_of(slot) == node
        if is_owner:  # it does not know the newest table yet
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
        """Send a marker to a node, behind all that was sent there.

        It is sent again while there is no answer: it may have been on a way that broke off,
        and the messages before it, too.
        """
        came: Future[None] = Future()
        came.on_done(lambda _: passed())
        marker = EntityMarker(self.type_name, slot, is_refused)
        self._lock.after(self._send_marker, marker, node, came)

    def _send_marker(
        self, marker: EntityMarker, node: bytes, came: Future[None], waited: float = 0.0
    ) -> None:
        """Send a marker, and later again unless an answer to one of them came."""
        if came.done() or self._runtime.is_closed:
            return

        ref = self._runtime.ref_of(node, ENTITIES)
        future: Future[Any] = Future(ref)
        self._runtime.set_deadline(future, TOLD_SECONDS - waited)
        future.on_done(lambda _: came.set_result(None))
        ref.target.post(marker, future)
        waited += MARKER_SECONDS
        if waited < TOLD_SECONDS:
            again = self._send_marker
            self._runtime.call_later(MARKER_SECONDS, again, marker, node, came, waited)

    def _look(self, pause: float = 0.0) -> None:
        """Look for owners, after a pause, until nothing waits; needs the lock."""
        if not self._is_looking:
            self._is_looking, self._pause = True, FIRST_LOOK
            if pause:
                self._runtime.post(self._runtime.call_later, pause, self._look_now)
            else:
                self._runtime.post(self._look_now)

    def _look_now(self) -> None:
        """Ask the nodes in reach for the table, and come again while something waits."""
        self.flush()
        with self._lock:
            self._is_looking = bool(self._queues or self._passing)
            if not self._is_looking or self._runtime.is_closed:
                return
            pause = min(self._pause, max(0.0, self._next_end() - self._runtime.now()))
            self._pause = min(2 * self._pause, LONGEST_LOOK)
        self._ask_others()
        self._runtime.call_later(pause, self._look_now)

    def _next_end(self) -> float:
        """Return when the next of the messages that wait first is refused; needs the lock."""
        lines = (*self._queues.values(), *self._passing.values())
        senders = [line[0].sender for line in lines if line]
        ends = [each.deadline for each in senders if each is not None and each.deadline]
        return min(ends, default=math.inf) - REFUSED_BEFORE

    def _ask_others(self) -> None:
        """Ask the nodes in reach for the table."""
        for node in self._others():
            ref = self._runtime.ref_of(node, ENTITIES)
            future: Future[Any] = Future(ref)
            self._runtime.set_deadline(future, 2.0)
            future.on_done(partial(self._told_table, node))
            ref.target.post(AskEntityTable(self.type_name), future)

    def _told_table(self, node: bytes, future: Future[Any]) -> None:
        """Take what a node answered that was asked for the table."""
        error = future.exception()
        found = None if error is not None else future.result()
        if isinstance(error, ActorDown) or (error is None and found is None):
            self._hostless.add(node)
        if isinstance(found, EntityTable) and found.type_name == self.type_name:
            self._hostless.discard(node)
            self.take(found)
        elif isinstance(error, NotPermitted) and not self.table.version:
            with self._lock:  # nobody else will tell a leaf
                queues, self._queues = self._queues, {}
            for waiting in (each for queue in queues.values() for each in queue if each.key):
                self._refuse(waiting, str(error), error)

    def error_of_unsent(self, key: str, slot: int, asker: Any) -> EntityUnavailable | None:
        """Return why an ask whose time is over was never sent; None if it was."""
        with self._lock:
            line = self._queues.get(slot, ())
            found = next((each for each in line if each.sender is asker), None)
        if found is None:
            return None
        self._runtime.dead_letter(
            self._runtime.ref_of(self._runtime.node_id, 0), found.message, asker
        )
        return _unavailable(self.type_name, key, _NO_OWNER)

    @property
    def _has_ended(self) -> bool:
        """Whether the node has ended, so that nothing goes anywhere."""
        return self._runtime.shutdown.phase is Phase.ENDED

    def _closed(self) -> NodeClosed:
        """Return the error of a message that a closed node does not send."""
        return NodeClosed(f"{self._runtime.name} was closed before it sent this")

    def _end(self) -> None:
        """Fail what waits for an owner: the node has ended."""
        with self._lock:
            lines = [*self._queues.values(), *self._passing.values()]
            self._queues, self._passing = {}, {}
        for waiting in (each for line in lines for each in line if each.key):
            self._refuse(waiting, "", self._closed())

    def _refuse(self, waiting: Waiting, why: str, error: CallboardError | None = None) -> None:
        """Fail a message that found no owner, as soon as this thread has no lock."""
        sender = waiting.sender
        if sender is not None and sender.expects:
            told = error or _unavailable(self.type_name, waiting.key, why)
            self._lock.after(sender.set_exception, told)
        nobody = self._runtime.ref_of(self._runtime.node_id, 0)
        self._lock.after(self._runtime.dead_letter, nobody, waiting.message, sender)
