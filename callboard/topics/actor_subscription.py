"""Subscriptions of actors: `endpoint.subscribe(ref, topics)`, and `@topic` on a handler.

    hubs ──> hub of this node ──> subscription: a queue ──> mailbox of the actor

Messages go to the actor's mailbox while it has room. While a bounded mailbox is full, messages
wait in the queue of the subscription. This queue is bounded too: above its limit, messages are
dropped, counted and reported. The mailbox of an actor on another node is not visible here, so a
limited number of messages is sent to it, and its answer to each confirms the processing.

A subscription ends with its actor. If a supervisor restarts the actor, messages wait until the
next incarnation, which keeps the subscription: see `Succession`. All of this happens in turns
of the hub.
"""

import functools
import inspect
import logging
import typing
from collections.abc import Callable
from typing import Any, Final, TypeVar

from callboard.bounded_queue import BoundedQueue, SubscriptionPolicy
from callboard.closing import Closing
from callboard.kernel import errors
from callboard.kernel.activation import Cell, HandlerDoor, HandlerEntry, hints_of, types_of
from callboard.kernel.actors import ActorRef, checked_ref, frozen_message
from callboard.kernel.context import CallBack
from callboard.kernel.events import Unexpected
from callboard.model.data import thawed
from callboard.support.text import describe
from callboard.topics.events import SubscriptionOverflow
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item, RunReceiver
from callboard.topics.machine.topic import Topic, checked_topic, topic_texts
from callboard.topics.message_queue import QUEUE_LIMIT

_log: Final = logging.getLogger("callboard.topics")

F = TypeVar("F", bound=Callable[..., Any])

#: Maximum number of bytes in the queue of one actor, in addition to the limit in messages.
QUEUE_BYTES: Final = 64 << 20

#: Maximum number of unconfirmed messages to an actor on another node.
WINDOW: Final = 64

#: Seconds for which a link is not read while a subscription slows down publishers.
PAUSE: Final = 0.05

#: Seconds between two events of a subscription that drops messages continuously.
REPORT_INTERVAL: Final = 1.0


@frozen_message("callboard.TopicMessage")
class TopicMessage:
    """A published message, as a subscribed actor receives it.

    Attributes:
        topic: the topic on which it was published.
        value: the value in the data model of topics: a list has become a tuple.
    """

    topic: str
    value: Any


class ActorSubscription(Closing, RunReceiver):
    """The subscription of an actor, which lasts until the actor ends or `close` is called.

    Attributes:
        ref: The actor; after a restart by a supervisor, its next incarnation.
        topics: Prefixes of its topics.
        dropped: Number of messages dropped because the queue was full or the actor had ended.
        is_closed: Whether the subscription has ended.
    """

    def __init__(
        self,
        hub: Hub,
        ref: ActorRef,
        topics: tuple[str, ...],
        *,
        make: Callable[[str, Any], Any] = TopicMessage,
        limit: int = QUEUE_LIMIT,
        on_full: SubscriptionPolicy = "drop_oldest",
        closed: Callable[[Any], object] = lambda _: None,
        handler_type: type | None = None,
    ) -> None:
        """Create a subscription; users call `Endpoint.subscribe` instead.

        `handler_type` is the message class of a handler with `@topic`.

        Raises:
            WrongArgument: the ref, the limit or the policy is invalid.
            ActorDown: the actor has ended.
        """
        self.ref = checked_ref(ref, "subscribe()")
        if type(limit) is not int or limit < 1:
            msg = f"limit={limit!r}: pass the maximum number of waiting messages, 1 or more"
            raise errors.WrongArgument(msg)
        if on_full not in typing.get_args(SubscriptionPolicy):
            choices = ", ".join(typing.get_args(SubscriptionPolicy))
            msg = f"on_full={on_full!r}: choose one of {choices}"
            raise errors.WrongArgument(msg)
        target = ref.target
        if isinstance(target, Cell) and not target.alive:
            msg = f"{ref} has ended ({target.reason}); subscribe a running actor"
            raise errors.ActorDown(msg, str(target.reason), target.detail)
        self.topics = tuple(map(checked_topic, topics))
        self.dropped = 0
        self.is_closed = False
        self._hub, self._make, self._on_close, self._handler_type = (
            hub,
            make,
            closed,
            handler_type,
        )
        self._limit, self._on_full = limit, on_full
        #: Messages that wait because the actor has no room.
        self._queue = BoundedQueue[Item](limit, QUEUE_BYTES)
        #: Number of unconfirmed messages to an actor on another node.
        self._unconfirmed = 0
        #: Number of dropped messages since the last event.
        self._unreported = 0
        #: Number of incarnations announced by `_succeeded` that have not had their turn yet.
        self._successors = 0
        #: `_is_full`: whether the actor has no room. `_is_orphan`: whether the actor has ended
        #: and a successor is expected.
        self._is_full = self._is_orphan = False
        #: `_is_holding`: whether publishers are slowed down. `_is_reporting`: whether an event
        #: was reported within the interval.
        self._is_holding = self._is_reporting = False
        self._succession = hub.runtime.succession
        self._watch(self.ref)
        if handler_type is not None:
            hub.by_handler[self.ref, handler_type] = self
        hub.add_receiver(self, self.topics, sees_own=True)

    def __repr__(self) -> str:
        return f"<ActorSubscription of {self.ref} to {', '.join(self.topics)}>"

    @property
    def waiting(self) -> int:
        """Number of messages that wait because the actor has no room."""
        return len(self._queue)

    def close(self) -> None:
        """End the subscription; waiting messages are dropped.

        Can be called from any thread; never blocks.
        """
        if not self.is_closed:
            self.is_closed = True
            self._leave()
            self._hub.remove_receiver(self)
            self._hub.relax(self)
            self._on_close(self)
            self._hub.call_soon(self._drop_all)

    async def aclose(self) -> None:
        """Awaitable twin of `close`, which never blocks."""
        self.close()

    # --- received messages, in turns of the hub ---

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Deliver a run to the actor, or queue it."""
        if self.is_closed or self._deliver_run(items):
            return
        queue, item_size = self._queue, size // len(items)
        queue.extend(items, item_size)
        self._drain()
        if self._on_full == "wait" and len(queue) > self._limit // 16:
            self._is_holding = True
            self._hub.hold(self, sender, PAUSE)
        excess = queue.trim(self._on_full, minimum=1)
        if excess and not self._is_reporting:
            _log.warning("%s is slower than its topics: messages are dropped", self)
        self._drop(excess)

    def _deliver_run(self, items: list[Item]) -> bool:
        """Deliver a whole run to a local actor with an unbounded mailbox, with one wake-up.

        Returns False, and delivers nothing, if messages wait already, if the mailbox is
        bounded, or if the actor is on another node.
        """
        target = self.ref.target
        if self._queue or self._is_orphan or not isinstance(target, Cell) or target.bounds:
            return False
        messages, make = [], self._make
        for topic, value in items:
            try:
                messages.append(make(topic, thawed(value)))
            except Exception as error:  # noqa: BLE001  # `make` is a function of the user
                self._drop_failed(topic, error)
            if self.is_closed:
                break
        target.post_run(messages)
        return True

    def _drop_failed(self, topic: str, error: Exception) -> None:
        """Drop a message that could not be created or sent."""
        text = f"a message of {topic[:200]} for {self.ref} was dropped: {describe(error)}"
        self._hub.runtime.warn_once((self, type(error)), text)
        self._drop(1)

    def _drain(self) -> None:
        """Deliver queued messages while the actor has room."""
        queue = self._queue
        while queue and not (self._is_full or self._is_orphan or self.is_closed):
            topic, value = queue.first
            try:
                self._deliver(self._make(topic, thawed(value)))
            except Exception as error:  # noqa: BLE001  # `make` is a function of the user
                self._drop_failed(topic, error)
            if not self._is_full:
                queue.popleft()
        if self._is_holding and len(queue) <= self._limit // 32:
            self._is_holding = False
            self._hub.relax(self)

    def _deliver(self, message: Any) -> None:
        """Send the actor a message.

        If it has no room, set `_is_full`, and continue when it has.
        """
        ref, target = self.ref, self.ref.target
        if isinstance(target, Cell):
            room = target.offer(message)
            if room is not None:
                self._is_full = True
                room.add_done_callback(lambda _: self._hub.call_soon(self._resume))
        elif self._unconfirmed >= WINDOW:
            self._is_full = True
        else:
            answer = ref.ask(message, timeout=None)
            self._unconfirmed += 1
            answer.add_done_callback(
                lambda answer: self._hub.call_soon(self._confirmed, ref, answer.exception())
            )

    def _resume(self) -> None:
        """Continue to deliver: the actor has room."""
        self._is_full = False
        self._drain()

    def _confirmed(self, ref: ActorRef, error: BaseException | None) -> None:
        """Handle the answer of an actor on another node: it processed a message, or failed."""
        if ref == self.ref:
            self._unconfirmed -= 1
        # An error that the actor's handler raised (`RemoteError`) confirms the message as well.
        if isinstance(error, errors.CallboardError) and not isinstance(
            error, errors.RemoteError
        ):
            self._drop(1)
            self._hub.runtime.warn_once((self, type(error)), f"{self!r}: {describe(error)}")
        self._resume()

    # --- dropped messages ---

    def _drop(self, count: int) -> None:
        """Count dropped messages and report them."""
        self.dropped += count
        self._unreported += count
        self._hub.counters.dropped += count
        if count and not self._is_reporting:
            self._report()

    def _report(self) -> None:
        """Report the messages dropped since the last event; check again after the interval."""
        count, self._unreported = self._unreported, 0
        self._is_reporting = bool(count)
        if count:
            self._hub.runtime.report(SubscriptionOverflow(self.ref, self.topics, count))
            self._hub.after(REPORT_INTERVAL, CallBack(self._report))

    def _drop_all(self) -> None:
        """Drop the queue, because the subscription has ended."""
        self._drop(len(self._queue.clear()))

    # --- the actor and its successors ---

    def _watch(self, ref: ActorRef) -> None:
        """Monitor an actor and its succession; may be called from any thread."""
        self._succession.follow(ref, self._succeeded)
        ref.target.monitor(self, lambda _: self._hub.call_soon(self._ended, ref))

    def _leave(self) -> None:
        """Stop monitoring the actor."""
        self._succession.leave(self.ref, self._succeeded)
        self.ref.target.demonitor(self)
        if self._handler_type is not None:
            self._hub.by_handler.pop((self.ref, self._handler_type), None)

    def _ended(self, ref: ActorRef) -> None:
        """Handle the end of the actor: wait for a successor, or close if none is expected."""
        if ref == self.ref:
            self._is_orphan = True
            if not (self._succession.expects(ref) or self._successors):
                self.close()

    def _succeeded(self, successor: ActorRef | None) -> None:
        """Handle the next incarnation of the actor. Runs on the thread that has started it.

        The successor is monitored here, and not in the hub's turn: if it ended before that
        turn, this subscription would miss the successor's successor.
        """
        self._successors += 1
        if successor is not None and not self.is_closed:
            self._watch(successor)
        self._hub.call_soon(self._change_over, successor)

    def _change_over(self, successor: ActorRef | None) -> None:
        """Continue with the next incarnation, or close the subscription if there is none."""
        self._successors -= 1
        if successor is None:
            self.close()
        elif not self.is_closed:
            self._leave()
            self.ref, self._unconfirmed, self._is_orphan = successor, 0, False
            if self._handler_type is not None:
                self._hub.by_handler[successor, self._handler_type] = self
            self._resume()


def topic(
    *topics: str | Topic, limit: int = QUEUE_LIMIT, on_full: SubscriptionPolicy = "drop_oldest"
) -> Callable[[F], F]:
    """Subscribe a method of an actor class to topics: `@topic("/home")`.

    The method has the parameters `(self, value)` or `(self, topic, value)`; with the annotation
    `TopicMessage`, a single parameter receives topic and value. A value of another type than
    annotated is counted and logged instead of handled. The method may be a coroutine. Each
    actor of the class is subscribed on its node until it ends; see `Endpoint.subscribe`.

    Args:
        topics: prefixes of the topics.
        limit: maximum number of messages that wait while the actor's mailbox is full.
        on_full: policy above the limit; see `Endpoint.subscribe`.

    Raises:
        WrongArgument: there is no topic, or an argument is not a topic.
        InvalidTopic: a topic is invalid.
        InvalidHandler: the method has other parameters.
    """
    if not topics or not all(isinstance(prefix, str | Topic) for prefix in topics):
        msg = 'topic() takes the topics of a handler: write @topic("/home/kitchen")'
        raise errors.WrongArgument(msg)
    texts = topic_texts(topics)

    def mark(function: F) -> F:
        required = [
            parameter
            for parameter in list(inspect.signature(function).parameters.values())[1:]
            if parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        if not 1 <= len(required) <= 2:
            name = function.__qualname__
            msg = f"{name} takes topics: declare it as (self, value) or (self, topic, value)"
            raise errors.InvalidHandler(msg)
        kind = type("TopicMessage", (TopicMessage,), {"__slots__": ()})

        def opened(cell: Cell) -> None:
            hub = Hub.of(_node_of(cell))
            # After a restart, the subscription of the former incarnation continues.
            if (getattr(cell.parent, "former", None), kind) not in hub.by_handler:
                ActorSubscription(
                    hub,
                    cell.ref,
                    texts,
                    make=kind,
                    limit=limit,
                    on_full=on_full,
                    handler_type=kind,
                )

        return HandlerDoor(kind, _entry_of, opened).mark(function)

    return mark


def _node_of(cell: Cell) -> Any:
    """Return the node of an actor with `@topic`.

    Raises:
        WrongArgument: the actor is not on a node.
    """
    node = getattr(cell.runtime, "node", None)
    if node is None:
        msg = "an actor with @topic needs a callboard.Node; spawn it with node.spawn(…)"
        raise errors.WrongArgument(msg)
    return node


def _entry_of(function: Callable[..., Any]) -> HandlerEntry:
    """Return the handler entry of a method with `@topic`."""
    required = list(inspect.signature(function).parameters.values())[1:3]
    takes_topic = len(required) == 2 and required[1].default is inspect.Parameter.empty
    name = required[takes_topic].name
    kinds = _kinds_of(function, name)
    is_coroutine = inspect.iscoroutinefunction(function)

    @functools.wraps(function)
    def call(actor: Any, message: TopicMessage) -> Any:
        __tracebackhide__ = True  # inspection names the handler, not this wrapper
        value = message if kinds == (TopicMessage,) else message.value
        if kinds and not isinstance(value, kinds):
            _refuse(actor, function, message)
            return _nothing() if is_coroutine else None
        return function(actor, message.topic, value) if takes_topic else function(actor, value)

    entry = HandlerEntry(call)
    entry.is_coroutine = is_coroutine
    return entry


async def _nothing() -> None:
    """Replace the call of a coroutine handler whose value was refused."""


def _kinds_of(function: Callable[..., Any], name: str) -> tuple[type, ...]:
    """Return the types of values that a handler accepts; empty for any type."""
    try:
        hint = hints_of(function, name).get(name, Any)
        kinds = set(types_of(hint, function.__qualname__))
    except errors.InvalidHandler:  # the annotation cannot be checked at run time
        return ()
    # An int is accepted as a float; published lists and sets arrive as tuples and frozensets.
    received_as = {float: int, list: tuple, set: frozenset}
    kinds |= {received_as[kind] for kind in kinds if kind in received_as}
    return () if object in kinds else tuple(kinds)


def _refuse(actor: Any, function: Callable[..., Any], message: TopicMessage) -> None:
    """Count and report a value whose type the handler does not accept."""
    runtime, kind = actor.node.context, type(message.value).__qualname__
    runtime.counters.unexpected += 1
    runtime.report(Unexpected(actor.me, message))
    runtime.warn_once(
        (function, kind),
        f"{function.__qualname__} does not take {kind}, which was published on "
        f"{message.topic[:200]}: not handled; change the annotation, or publish another type",
    )
