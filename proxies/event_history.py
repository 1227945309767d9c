"""The recent history of a node, for later inspection: events, losses, failures, restarts.

All tables are bounded, and hold no message of a user: for lost messages they record the type
and a count. Losses that agree in kind, receiver, message type and sender are one row. An event
about a row is reported at most once a second.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields, replace
from typing import Any, Final

from callboard import locks
from callboard.actors.cell import Cell
from callboard.actors.envelope import Envelope, trace_id
from callboard.actors.events import (
    ActorFailed,
    ActorRestarted,
    ActorStarted,
    ActorStopped,
    DeadLetter,
    Expired,
    MailboxOverflow,
    RestartsExhausted,
    Unexpected,
)
from callboard.actors.reference import ActorRef, Down, Sender
from callboard.actors.runtime import Runtime
from callboard.actors.values import Answer, Event, Message
from callboard.proxies.events import MessagesLost, NodeDown
from callboard.proxies.messages import frozen_message
from callboard.support.calls import Arguments
from callboard.support.dataclass import dataclass
from callboard.support.text import class_name, sendable

#: Events, rows of losses, failures, restarts and ended actors that are kept, the latest.
EVENTS: Final = 1_000
ROWS: Final = 500

#: Seconds between two events about losses of one row.
LOSS_INTERVAL: Final = 1.0

#: Seconds for which starts and ends of actors are recorded after a read, as each is an event.
FOLLOWED: Final = 10.0

#: Characters of one text in an event.
TEXT: Final = 500


@frozen_message("callboard.EventInfo")
class EventInfo:
    """An event of a node: number, age in seconds, class, and its fields as texts.

    If it belongs to a message with a trace context, `trace` is the id of the trace.
    """

    number: int
    age: float
    kind: str
    values: dict[str, str] = field(default_factory=dict)


@frozen_message("callboard.EventPage")
class EventPage:
    """Events of a node, in order.

    Attributes:
        last: the number to request next.
        missed: events after the requested number that have been dropped.
    """

    events: list[EventInfo]
    last: int
    missed: int = 0


@frozen_message("callboard.LossInfo")
class LossInfo:
    """Messages that were not handled.

    Attributes:
        kind: `dead letter`, `overflow`, `expired` (an ask that timed out in the mailbox), `no
            handler`, `lost or unconfirmed` (on the way to another node).
        address: the text of the receiver's ref, or the name of its node.
        actor_class: the actor class of the receiver, or `an actor of NODE`, or "" if unknown.
        name: registered name of the receiver, or "".
        message: the type of the messages, or "".
        sender: the class of the actor that sent them, or its node, or "".
        count: number of messages.
        age: seconds since the latest loss.
        end: why the receiver has ended, or "".
    """

    kind: str
    address: str
    actor_class: str
    name: str
    message: str
    sender: str
    count: int
    age: float
    end: str = ""


@frozen_message("callboard.FailureInfo")
class FailureInfo:
    """An actor that failed, `age` seconds ago, with the text of its error."""

    address: str
    actor_class: str
    name: str
    text: str
    age: float


@frozen_message("callboard.RestartInfo")
class RestartInfo:
    """A child that its supervisor restarted.

    Attributes:
        child: its name at the supervisor.
        address: the address of its latest incarnation, or "".
        supervisor: the text of its ref.
        restarts: how often, as long as it is recorded.
        reason: why it ended the last time.
        age: seconds since then.
        gave_up: whether the supervisor has given up.
    """

    child: str
    address: str
    supervisor: str
    restarts: int
    reason: str
    age: float
    gave_up: bool = False


@dataclass(slots=True)
class _Loss:
    """A row of losses; `unreported` of them are not reported as an event yet."""

    row: LossInfo
    count: int = 0
    latest_at: float = 0.0
    reported_at: float = float("-inf")
    unreported: int = 0
    #: Trace of the latest message.
    trace: str = ""


_KINDS: Final[dict[type, str]] = {Unexpected: "no handler", Expired: "expired"}


@dataclass(eq=False, repr=False)
class EventHistory:
    """The recent history of one node. Callable from any thread."""

    _runtime: Runtime
    #: Names of other nodes.
    _node_names: Mapping[bytes, str]
    #: Returns the registered names of an actor.
    _names_of: Callable[[ActorRef], Collection[str]]

    def __post_init__(self) -> None:
        """Start recording."""
        runtime = self._runtime
        # Reentrant, because a finalizer that runs while the lock is held may also lose a
        # message.
        self._lock = locks.lock("recent events of a node", 990, reentrant=True)
        self._events: deque[tuple[int, float, str, dict[str, str]]] = deque(maxlen=EVENTS)
        self._number = 0
        self._losses: dict[Arguments, _Loss] = {}
        self._failures: deque[tuple[float, FailureInfo]] = deque(maxlen=ROWS)
        self._restarts: dict[tuple[Any, str], tuple[float, RestartInfo]] = {}
        #: Number, class, name and exit reason of actors that have ended.
        self._ended: deque[tuple[int, str, Collection[str], str]] = deque(maxlen=ROWS)
        self._followed_until = 0.0
        self._stop_following: Callable[[], None] = lambda: None
        runtime.recorder = self.record
        runtime.on_dead_letter.append(self._dead_letter)
        runtime.on_end.append(self._record_end)

    # --- recording ---

    def record(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, DeadLetter):  # recorded by `_dead_letter` already
            return
        if isinstance(event, ActorStarted | ActorStopped):
            if self._runtime.now() > self._followed_until:
                return
        elif isinstance(event, Unexpected | Expired):
            self._lose(_KINDS[type(event)], event.ref, event.message, None)
            return
        elif isinstance(event, MailboxOverflow):
            self._lose("overflow", event.ref, None, None, event.count)
            return
        elif isinstance(event, ActorFailed):
            facts = self._describe(event.ref)
            failure = FailureInfo(*facts[:3], event.detail[:TEXT], 0.0)
            self._failures.append((self._runtime.now(), failure))
        elif isinstance(event, ActorRestarted | RestartsExhausted):
            self._record_restart(event)
        elif isinstance(event, MessagesLost):
            self._lose_on_the_way(event.node_id, event.count)
        elif isinstance(event, NodeDown) and event.lost:
            self._lose_on_the_way(event.node_id, event.lost)
        values = {
            event_field.name: self._text(getattr(event, event_field.name))
            for event_field in _fields(event)
        }
        self._keep(type(event).__name__, values | _traced(trace_id()))

    def _keep(self, kind: str, values: dict[str, str]) -> None:
        with self._lock:
            self._number += 1
            self._events.append((self._number, self._runtime.now(), kind, values))

    def _text(self, value: Answer) -> str:
        """Return a field of an event as text."""
        if isinstance(value, bytes):
            return self._node_names.get(value) or value.hex()
        if isinstance(value, str | int | float | ActorRef):
            return sendable(str(value)[:TEXT])
        if isinstance(value, tuple):
            return ", ".join(map(self._text, value))[:TEXT]
        return "" if value is None else class_name(value)

    def _record_end(self, cell: Any, down: Down) -> None:
        """Record class and names of an actor that has ended, as messages to it may follow."""
        if cell.actor is not None:
            names = self._names_of(down.ref)
            self._ended.append((cell.number, type(cell.actor).__qualname__, names, down.reason))

    def _dead_letter(self, ref: ActorRef, message: Message, sender: Sender | None) -> None:
        self._lose("dead letter", ref, message, sender)

    def _lose(
        self,
        kind: str,
        ref: ActorRef,
        message: Message,
        sender: Sender | None,
        count: int = 1,
    ) -> None:
        """Record messages that were not handled."""
        lost = message.message if type(message) is Envelope else message
        type_name = "" if message is None else class_name(lost)
        origin = self.origin_of(sender)
        key = (kind, ref.node_id, ref.actor_id, type_name, origin)
        with self._lock:
            loss = self._losses.get(key)
            if loss is None:
                facts = self._describe(ref)
                row = LossInfo(kind, *facts[:3], type_name, origin, 0, 0.0, facts[3])
                loss = self._add(key, _Loss(row))
            self._count(loss, count)

    def _lose_on_the_way(self, node: bytes, count: int) -> None:
        """Record messages to a node that were lost or not confirmed."""
        with self._lock:
            name = self._node_names.get(node, "")
            row = LossInfo("lost or unconfirmed", name or node.hex(), "", name, "", "", 0, 0.0)
            loss = self._losses.get((node,)) or self._add((node,), _Loss(row))
            loss.count += count
            loss.latest_at = self._runtime.now()

    def _add(self, key: Arguments, loss: _Loss) -> _Loss:
        if len(self._losses) >= ROWS:
            del self._losses[next(iter(self._losses))]
        self._losses[key] = loss
        return loss

    def _count(self, loss: _Loss, count: int) -> None:
        """Count lost messages in a row, and report an event if the last one is a second old."""
        loss.count += count
        loss.unreported += count
        loss.latest_at, loss.trace = self._runtime.now(), trace_id()
        if loss.latest_at - loss.reported_at >= LOSS_INTERVAL:
            self._report(loss)

    def _report(self, loss: _Loss) -> None:
        """Report the losses of a row that no event has reported yet."""
        loss.reported_at = loss.latest_at
        count, loss.unreported = loss.unreported, 0
        names = ("address", "actor_class", "name", "message", "sender", "end")
        values = {name: getattr(loss.row, name) for name in names if getattr(loss.row, name)}
        values |= _traced(loss.trace)
        kinds = {"dead letter": "DeadLetter", "overflow": "MailboxOverflow"}
        kinds |= {name: kind.__name__ for kind, name in _KINDS.items()}
        self._keep(kinds[loss.row.kind], values | {"count": str(count)})

    def origin_of(self, sender: Sender | None) -> str:
        """Return the sender of a message: the class of an actor here, or another node."""
        if isinstance(sender, Cell):
            return "" if sender.actor is None else type(sender.actor).__qualname__
        node = b"" if sender is None else sender.node
        if not node:
            return ""
        return f"node {self._node_names.get(node) or node.hex()}"

    def _describe(self, ref: ActorRef) -> tuple[str, str, str, str]:
        """Return the address, the class, the name and the exit reason of an actor, if known."""
        actor = getattr(ref.target, "actor", None)
        if actor is not None:
            return str(ref), type(actor).__qualname__, ", ".join(self._names_of(ref)), ""
        if not ref.is_local:
            node = self._node_names.get(ref.node_id) or ref.node_id.hex()[:12]
            return str(ref), f"an actor of {node}", "", ""
        for number, kind, names, reason in reversed(self._ended):
            if number == ref.actor_id:
                return str(ref), kind, ", ".join(names), str(reason)
        return str(ref), "", "", ""

    def _record_restart(self, event: ActorRestarted | RestartsExhausted) -> None:
        """Record that a supervisor restarted a child, or has given up."""
        key = (event.supervisor, event.child)
        with self._lock:
            former = self._restarts.pop(key, None)
            row = None if former is None else former[1]
            supervisor = "" if event.supervisor is None else str(event.supervisor)
            if isinstance(event, RestartsExhausted):
                reason = "" if row is None else row.reason
                often = 0 if row is None else row.restarts
                new = RestartInfo(event.child, "", supervisor, often, reason, 0.0, gave_up=True)
            else:
                reason = f"{event.reason}: {event.detail}" if event.detail else event.reason
                address = str(event.ref)
                new = RestartInfo(
                    event.child, address, supervisor, event.restarts, reason[:TEXT], 0.0
                )
            if len(self._restarts) >= ROWS:
                del self._restarts[next(iter(self._restarts))]
            self._restarts[key] = (self._runtime.now(), new)

    # --- reading ---

    def follow(self) -> None:
        """Record the starts and ends of actors as events for a while."""
        runtime = self._runtime
        is_new = self._followed_until == 0.0
        self._followed_until = runtime.now() + FOLLOWED
        if is_new:
            self._stop_following = runtime.listen(lambda _: None)
            runtime.call_later(FOLLOWED, self._find_followers)

    def _find_followers(self) -> None:
        """Stop recording starts and ends of actors if they were not requested for a while."""
        left = self._followed_until - self._runtime.now()
        if left > 0.0:
            self._runtime.call_later(left, self._find_followers)
        else:
            self._followed_until = 0.0
            self._stop_following()

    def events(self, after: int, limit: int) -> EventPage:
        """Return the events after a number; if there are too many, the latest of them."""
        now = self._runtime.now()
        with self._lock:
            for loss in self._losses.values():
                if loss.unreported:
                    self._report(loss)
            matching = [event for event in self._events if event[0] > after]
            first = matching[0][0] if matching else self._number + 1
            missed = max(0, first - 1 - max(after, 0)) if after >= 0 else 0
            chosen = matching[len(matching) - min(limit, len(matching)) :]
            missed += len(matching) - len(chosen) if after >= 0 else 0
        infos = [
            EventInfo(number, now - time, kind, values) for number, time, kind, values in chosen
        ]
        return EventPage(infos, self._number, missed)

    def losses(self) -> list[LossInfo]:
        """Return the losses, the latest first."""
        now = self._runtime.now()
        with self._lock:
            rows = sorted(self._losses.values(), key=lambda loss: -loss.latest_at)
            return [
                replace(loss.row, count=loss.count, age=now - loss.latest_at) for loss in rows
            ]

    def failures(self) -> list[FailureInfo]:
        """Return the actors that failed, the latest first."""
        now, rows = self._runtime.now(), list(self._failures)
        return [replace(failure, age=now - time) for time, failure in reversed(rows)]

    def restarts(self) -> list[RestartInfo]:
        """Return the children that were restarted, the latest first."""
        now = self._runtime.now()
        with self._lock:
            rows = list(self._restarts.values())
        return [replace(restart, age=now - time) for time, restart in reversed(rows)]


def _traced(trace: str) -> dict[str, str]:
    """Return the fields of an event about its trace."""
    return {"trace": trace} if trace else {}


def _fields(event: Event) -> Arguments:
    """Return the fields of an event."""
    return fields(event) if hasattr(event, "__dataclass_fields__") else ()  # type: ignore[arg-type]
