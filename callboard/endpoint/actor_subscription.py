"""Actors that take topics: `endpoint.subscribe(ref, topics)`, and `@topic` on a handler.

    hubs ──> hub of this node ──> subscription: a queue ──> mailbox of the actor

A message goes into the actor's mailbox while that has room. A bounded mailbox that is full
holds the queue of the subscription up, and that has bounds too: what is beyond them is dropped,
counted and told. An actor on another node, whose mailbox is not seen from here, has some
messages under way and confirms each by having handled it.

A subscription ends with its actor. Where a supervisor starts that again, it waits meanwhile and
goes on with the next incarnation: see `Succession`. It works in turns of the hub.
"""

import inspect
import logging
import typing
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from callboard.endpoint.events import SubscriptionOverflow
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Item, RunReceiver
from callboard.endpoint.machine.topic import Topic, checked_topic, topic_texts
from callboard.endpoint.message_queue import QUEUE_LIMIT
from callboard.kernel import errors
from callboard.kernel.activation import Cell, HandlerDoor, HandlerEntry, hints_of, types_of
from callboard.kernel.actors import ActorRef, frozen_message
from callboard.kernel.checks import checked_ref
from callboard.kernel.context import CallBack
from callboard.kernel.events import Unexpected
from callboard.kernel.twins import Closing
from callboard.model.data import thawed
from callboard.support.text import describe

_LOG: Final = logging.getLogger("callboard.endpoint")

F = TypeVar("F", bound=Callable[..., Any])
OnFull = Literal["drop_oldest", "drop_newest", "wait"]

#: Bytes that may wait for one actor, beside the limit in messages.
QUEUE_BYTES: Final = 64 << 20

#: Messages that an actor on another node may have under way.
WINDOW: Final = 64

#: Seconds that a link is not read while publishers are slowed for a subscription.
PAUSE: Final = 0.05

#: Seconds between two events about one subscription that drops all the time.
REPORT_INTERVAL: Final = 1.0


@frozen_message("callboard.TopicMessage")
class TopicMessage:
    """A published message, as a subscribed actor gets it.

    Attributes:
        topic: that it was published on.
        value: of the data model of topics: a list has become a tuple.
    """

    topic: str
    value: Any


class ActorSubscription(Closing, RunReceiver):
    """Brings topics to an actor until it ends, or `close`. Made by `Endpoint.subscribe`.

    Attributes:
        ref: The actor; the next incarnation once a supervisor has started it again.
        topics: What it takes: every topic that begins with one of these.
        dropped: Messages that it did not get, because too much waited or it had ended.
        is_closed: Whether it takes no more.
    """

    def __init__(
        self,
        hub: Hub,
        ref: ActorRef[Any],
        topics: tuple[str, ...],
        *,
        make: Callable[[str, Any], Any] = TopicMessage,
        limit: int = QUEUE_LIMIT,
        on_full: OnFull = "drop_oldest",
        closed: Callable[[Any], object] = lambda _: None,
        door: type | None = None,
    ) -> None:
        """Use `Endpoint.subscribe`; `door` is the message class of a handler with `@topic`.

        Raises:
            WrongArgument: that is no ref, no limit, or no policy.
            ActorDown: the actor has ended.
        """
        self.ref = checked_ref(ref, "subscribe()")
        if type(limit) is not int or limit < 1:
            msg = f"limit={limit!r}: give the number of messages that may wait, 1 or more"
            raise errors.WrongArgument(msg)
        if on_full not in typing.get_args(OnFull):
            choices = ", ".join(typing.get_args(OnFull))
            msg = f"on_full={on_full!r}: choose one of {choices}"
            raise errors.WrongArgument(msg)
        target = ref.target
        if isinstance(target, Cell) and not target.alive:
            msg = f"{ref} has ended ({target.reason}); subscribe an actor that runs"
            raise errors.ActorDown(msg, str(target.reason), target.detail)
        self.topics = tuple(map(checked_topic, topics))
        self.dropped = 0
        self.is_closed = False
        self._hub, self._make, self._closed_told, self._door = hub, make, closed, door
        self._limit, self._on_full = limit, on_full
        #: What waits, with its size.
        self._queue: deque[tuple[Item, int]] = deque()
        self._bytes = self._under_way = self._untold = self._heirs = 0
        #: Whether the actor has no room; whether it has ended and another one follows.
        self._is_full = self._is_orphan = False
        self._is_holding = self._is_telling = False
        self._succession = hub.runtime.succession
        self._watch(self.ref)
        if door is not None:
            hub.by_door[self.ref, door] = self
        hub.add_receiver(self, self.topics, sees_own=True)

    def __repr__(self) -> str:
        return f"<ActorSubscription of {self.ref} to {', '.join(self.topics)}>"

    @property
    def waiting(self) -> int:
        """Messages that wait because the actor has no room."""
        return len(self._queue)

    def close(self) -> None:
        """End the subscription; waiting messages are dropped. From any thread; never blocks."""
        if not self.is_closed:
            self.is_closed = True
            self._leave()
            self._hub.remove_receiver(self)
            self._hub.relax(self)
            self._closed_told(self)
            self._hub.call_soon(self._drop_all)

    async def aclose(self) -> None:
        """Awaitable twin of `close`, which never waits."""
        self.close()

    # --- what comes, in turns of the hub ---

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Hand a run over, or let it wait."""
        if self.is_closed or self._hand_over(items):
            return
        queue, each = self._queue, size // len(items)
        queue.extend([(item, each) for item in items])
        self._bytes += each * len(items)
        self._drain()
        if self._on_full == "wait" and len(queue) > self._limit // 16:
            self._is_holding = True
            self._hub.hold(self, sender, PAUSE)
        take = queue.popleft if self._on_full == "drop_oldest" else queue.pop
        excess = 0
        while len(queue) > self._limit or (self._bytes > QUEUE_BYTES and len(queue) > 1):
            self._bytes -= take()[1]
            excess += 1
        if excess and not self._is_telling:
            _LOG.warning("%s is slower than its topics: messages are dropped", self)
        self._drop(excess)

    def _hand_over(self, items: list[Item]) -> bool:
        """Hand a whole run over to an actor here that takes everything; its cell wakes once."""
        target = self.ref.target
        if self._queue or self._is_orphan or not isinstance(target, Cell) or target.bounds:
            return False
        messages, make = [], self._make
        for topic, value in items:
            try:
                messages.append(make(topic, thawed(value)))
            except Exception as error:  # noqa: BLE001  # what the user makes of a value
                self._drop_unmade(topic, error)
            if self.is_closed:
                break
        target.post_run(messages)
        return True

    def _drop_unmade(self, topic: str, error: Exception) -> None:
        """Drop a message that could not be made, or not be sent."""
        told = f"a message of {topic[:200]} for {self.ref} was dropped"
        self._hub.runtime.warn_once((self, type(error)), f"{told}: {describe(error)}")
        self._drop(1)

    def _drain(self) -> None:
        """Hand over what the actor has room for."""
        queue = self._queue
        while queue and not (self._is_full or self._is_orphan or self.is_closed):
            (topic, value), size = queue[0]
            try:
                self._offer(self._make(topic, thawed(value)))
            except Exception as error:  # noqa: BLE001  # what the user makes of a value
                self._drop_unmade(topic, error)
            if not self._is_full:
                queue.popleft()
                self._bytes -= size
        if self._is_holding and len(queue) <= self._limit // 32:
            self._is_holding = False
            self._hub.relax(self)

    def _offer(self, message: Any) -> None:
        """Give the actor a message, or take note that it has no room."""
        ref, target = self.ref, self.ref.target
        if isinstance(target, Cell):
            room = target.offer(message)
            if room is not None:
                self._is_full = True
                room.add_done_callback(lambda _: self._hub.call_soon(self._go_on))
        elif self._under_way >= WINDOW:
            self._is_full = True
        else:
            done = ref.ask(message, timeout=None)
            self._under_way += 1
            done.add_done_callback(
                lambda done: self._hub.call_soon(self._confirmed, ref, done.exception())
            )

    def _go_on(self) -> None:
        """Hand over more: there is room."""
        self._is_full = False
        self._drain()

    def _confirmed(self, ref: ActorRef[Any], error: BaseException | None) -> None:
        """Take note that an actor on another node has handled a message, or will not."""
        if ref == self.ref:
            self._under_way -= 1
        # What its handler raised is an answer like any other.
        if isinstance(error, errors.CallboardError) and not isinstance(
            error, errors.RemoteError
        ):
            self._drop(1)
            self._hub.runtime.warn_once((self, type(error)), f"{self!r}: {describe(error)}")
        self._go_on()

    # --- what is dropped ---

    def _drop(self, count: int) -> None:
        """Count messages that the actor does not get, and tell of them."""
        self.dropped += count
        self._untold += count
        self._hub.counters.dropped += count
        if count and not self._is_telling:
            self._tell()

    def _tell(self) -> None:
        """Tell what was dropped since the last event; again after a while if more is."""
        count, self._untold = self._untold, 0
        self._is_telling = bool(count)
        if count:
            self._hub.runtime.report(SubscriptionOverflow(self.ref, self.topics, count))
            self._hub.after(REPORT_INTERVAL, CallBack(self._tell))

    def _drop_all(self) -> None:
        """Drop what waits at the end."""
        count = len(self._queue)
        self._queue.clear()
        self._drop(count)

    # --- the actor and those that take its place ---

    def _watch(self, ref: ActorRef[Any]) -> None:
        """Hear of the end of an actor, and of its heir; from any thread."""
        self._succession.follow(ref, self._passed)
        ref.target.monitor(self, lambda _: self._hub.call_soon(self._ended, ref))

    def _leave(self) -> None:
        """Belong to the actor no more."""
        self._succession.leave(self.ref, self._passed)
        self.ref.target.demonitor(self)
        if self._door is not None:
            self._hub.by_door.pop((self.ref, self._door), None)

    def _ended(self, ref: ActorRef[Any]) -> None:
        """Wait for the next incarnation where there will be one, else close."""
        if ref == self.ref:
            self._is_orphan = True
            if not (self._succession.expects(ref) or self._heirs):
                self.close()

    def _passed(self, successor: ActorRef[Any] | None) -> None:
        """Take note of the next incarnation at once; it may end before the hub's turn."""
        self._heirs += 1
        if successor is not None and not self.is_closed:
            self._watch(successor)
        self._hub.call_soon(self._change_over, successor)

    def _change_over(self, successor: ActorRef[Any] | None) -> None:
        """Go on with the next incarnation; close if there is none."""
        self._heirs -= 1
        if successor is None:
            self.close()
        elif not self.is_closed:
            self._leave()
            self.ref, self._under_way, self._is_orphan = successor, 0, False
            if self._door is not None:
                self._hub.by_door[successor, self._door] = self
            self._go_on()


def topic(
    *topics: str | Topic, limit: int = QUEUE_LIMIT, on_full: OnFull = "drop_oldest"
) -> Callable[[F], F]:
    """Subscribe a method of an actor class to topics: `@topic("/home")`.

    It takes the value, `(self, value)`; or `(self, topic, value)`; or the whole, where its
    parameter is annotated with `TopicMessage`. A value that is not of the annotated type is
    counted and logged, and not handled. It may be a coroutine. Each actor of the class is
    subscribed on its node while it lives; see `Endpoint.subscribe`.

    Args:
        topics: every topic that begins with one of these.
        limit: messages that may wait while the actor's mailbox is full.
        on_full: what happens beyond that; see `Endpoint.subscribe`.

    Raises:
        WrongArgument: there is no topic.
        InvalidTopic: one is no topic.
        InvalidHandler: the method takes something else.
    """
    if not topics or not all(isinstance(one, str | Topic) for one in topics):
        msg = 'topic() takes the topics of a handler: write @topic("/home/kitchen")'
        raise errors.WrongArgument(msg)
    texts = topic_texts(topics)

    def mark(function: F) -> F:
        required = [
            one
            for one in list(inspect.signature(function).parameters.values())[1:]
            if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        if not 1 <= len(required) <= 2:
            name = function.__qualname__
            msg = f"{name} takes topics: declare it as (self, value) or (self, topic, value)"
            raise errors.InvalidHandler(msg)
        kind = type("TopicMessage", (TopicMessage,), {"__slots__": ()})

        def opened(cell: Cell) -> None:
            hub = Hub.of(_node_of(cell))
            # The subscription of the one whose place it takes goes on with it.
            if (getattr(cell.parent, "former", None), kind) not in hub.by_door:
                ActorSubscription(
                    hub, cell.ref, texts, make=kind, limit=limit, on_full=on_full, door=kind
                )

        return HandlerDoor(kind, _entry_of, opened).mark(function)

    return mark


def _node_of(cell: Cell) -> Any:
    """Return the node of an actor that takes topics.

    Raises:
        WrongArgument: it has none.
    """
    node = getattr(cell.runtime, "node", None)
    if node is None:
        msg = "an actor with @topic lives on a callboard.Node, and this system is none"
        raise errors.WrongArgument(msg)
    return node


def _entry_of(function: Callable[..., Any]) -> HandlerEntry:
    """Return the entry of a handler that takes topics."""
    required = list(inspect.signature(function).parameters.values())[1:3]
    takes_topic = len(required) == 2 and required[1].default is inspect.Parameter.empty
    name = required[takes_topic].name
    kinds = _kinds_of(function, name)
    is_coroutine = inspect.iscoroutinefunction(function)

    def call(actor: Any, found: TopicMessage) -> Any:
        given = found if kinds == (TopicMessage,) else found.value
        if kinds and not isinstance(given, kinds):
            _refuse(actor, function, found)
            return _nothing() if is_coroutine else None
        return function(actor, found.topic, given) if takes_topic else function(actor, given)

    entry = HandlerEntry(call)
    entry.is_coroutine = is_coroutine
    return entry


async def _nothing() -> None:
    """Stand in the place of a coroutine handler."""


def _kinds_of(function: Callable[..., Any], name: str) -> tuple[type, ...]:
    """Return the classes of values that a handler takes; none for all of them."""
    try:
        hint = hints_of(function, name).get(name, Any)
        kinds = set(types_of(hint, function.__qualname__))
    except errors.InvalidHandler:  # the annotation says nothing that can be checked
        return ()
    # What arrives of an int, a list or a set is one of the second.
    also = {float: int, list: tuple, set: frozenset}
    kinds |= {also[kind] for kind in kinds if kind in also}
    return () if object in kinds else tuple(kinds)


def _refuse(actor: Any, function: Callable[..., Any], found: TopicMessage) -> None:
    """Count a value that is not of the type which its handler takes."""
    runtime, kind = actor.node.context, type(found.value).__qualname__
    runtime.counters.unexpected += 1
    runtime.report(Unexpected(actor.me, found))
    runtime.warn_once(
        (function, kind),
        f"{function.__qualname__} does not take {kind}, which came on {found.topic[:200]}: "
        "not handled; annotate what it takes, or publish that",
    )
