"""Subscribers: queues of messages on topics with given prefixes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from callboard.arguments import limit
from callboard.closing import Closing, refuse_loop, refuse_running_loop
from callboard.kernel.errors import WrongArgument
from callboard.kernel.reply import waiting
from callboard.kernel.shutdown import Phase
from callboard.model.data import thawed
from callboard.support.items import Items
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item, PeerEvent
from callboard.topics.machine.status import SC, EndpointInfo, Error, Status
from callboard.topics.machine.topic import Topic, topic_text
from callboard.topics.message_queue import MessageQueue

T = TypeVar("T")

#: Most messages that one call may request.
READ_LIMIT: Final = 1 << 20


class QueueReader(Closing, Generic[T]):
    """Base class of Broker's subscribers, which read a queue.

    `get` distinguishes its arguments by type: a float is a timeout in seconds, an int a number
    of messages.
    """

    def __init__(self, hub: Hub, closed: Callable[[Any], object]) -> None:
        self._hub = hub
        self._queue: MessageQueue[T] = MessageQueue()
        self._on_closed = closed
        self._is_closed = False
        #: Cancels the callback that closes the queue with its node, if the node ends first.
        self._forget_end = hub.runtime.shutdown.on(Phase.ENDED, self._queue.close)

    @overload
    def get(self) -> T: ...
    @overload
    def get(self, timeout: float, /) -> T | None: ...
    @overload
    def get(self, count: int, timeout: float | None = None, /) -> list[T]: ...
    def get(self, *args: Any) -> T | None | list[T]:
        """Return the next message, or several.

        - `get()` waits for one;
        - `get(2.5)` waits at most 2.5 seconds, and returns None if none arrived;
        - `get(10)` waits for ten and returns them as a list;
        - `get(10, 2.5)` returns up to ten that arrive within 2.5 seconds.

        Raises:
            WouldBlock: the queue is empty, on the thread of a running event loop.
            WouldDeadlock: the queue is empty, in a handler, which would block its node.
            EOFError: the subscriber was closed and all messages were read.
        """
        count, timeout = _parse_arguments(args) if args else (None, None)
        if count is None:
            try:
                return self._output(self._queue.pop())
            except IndexError:
                self._refuse_blocking()
            item = self._queue.get(timeout)
            return None if item is None else self._output(item)
        items: list[T] = []
        deadline = None if timeout is None else _now() + timeout
        try:
            while len(items) < count:
                left = None if deadline is None else max(0.0, deadline - _now())
                if not self._queue.available():
                    self._refuse_blocking()
                item = self._queue.get(left)
                if item is None:
                    break
                items.append(item)
        except BaseException:  # the subscriber was closed; its messages can still be read
            self._queue.put_back(items)
            raise
        return [self._output(item) for item in items]

    async def aget(self, *args: Any) -> Any:
        """Awaitable twin of `get`."""
        count, timeout = _parse_arguments(args)
        items: list[T] = []
        try:
            async with asyncio.timeout(timeout):
                if count is None:
                    return self._output(await self._queue.aget())
                while len(items) < count:
                    items.append(await self._queue.aget())
        except TimeoutError:
            if count is None:
                return None
        except BaseException:  # the reader was cancelled, or the subscriber closed
            self._queue.put_back(items)
            raise
        return [self._output(item) for item in items]

    def poll(self) -> list[T]:
        """Return the messages that have arrived, without waiting."""
        return [self._output(item) for item in self._queue.poll()]

    def available(self) -> int:
        """Return the number of waiting messages."""
        return self._queue.available()

    def fd(self) -> int:
        """Return a file descriptor that is readable while messages wait."""
        return self._queue.fd()

    @property
    def dropped(self) -> int:
        """Messages dropped from the full queue (above 262,144, oldest first)."""
        return self._queue.dropped

    def __aiter__(self) -> AsyncIterator[T]:
        return Items(self.aget, ends=(EOFError,))

    def _output(self, item: T) -> T:
        return item

    def _refuse_blocking(self) -> None:
        refuse_running_loop("get()", "aget(…), or use `async for`,")

    # --- the end ---

    def close(self) -> None:
        """Stop receiving; messages that have arrived can still be read. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._forget_end()
            self._detach()
            self._on_closed(self)
            self._queue.close()

    def reset(self) -> None:
        """Close the subscriber, under Broker's name."""
        self.close()

    async def aclose(self) -> None:
        """Awaitable twin of `close`, which never blocks."""
        self.close()

    def _detach(self) -> None:
        """Disconnect the queue from its source."""


def _now() -> float:
    """Return seconds; 0 in simulated time, which does not advance between two messages."""
    return time.monotonic() if waiting.get() is None else 0.0


def _parse_arguments(args: tuple[Any, ...]) -> tuple[int | None, float | None]:
    """Return the count and the timeout of a `get`."""
    match args:
        case ():
            return None, None
        case (bool(), *_):
            pass
        case (int() as count,) if 0 <= count <= READ_LIMIT:
            return count, None
        case (float() as timeout,) if timeout >= 0.0:
            return None, limit(timeout)
        case (int() as count, float() | int() as timeout) if (
            0 <= count <= READ_LIMIT and timeout >= 0
        ):
            return count, limit(timeout)
    msg = (
        f"get{args!r}: pass a number of messages (int, at most {READ_LIMIT:,}), a timeout in "
        "seconds (float), or both in this order"
    )
    raise WrongArgument(msg)


class SubscriberPlace(NamedTuple):
    """Arguments for a subscriber: a hub, topics, a callback on close, and its publisher.

    The subscriber does not hear that publisher; None stands for the whole node.
    """

    hub: Hub
    topics: tuple[str, ...]
    closed: Callable[[Any], object]
    publisher: object = None


class Subscriber(QueueReader[Item]):
    """Messages as `(topic, value)`, ordered by publisher. Created by an endpoint."""

    def __init__(self, internal_subscriber: SubscriberPlace) -> None:
        """Use `Endpoint.make_subscriber`; a subclass passes its argument on."""
        hub, topics, closed, publisher = internal_subscriber
        super().__init__(hub, closed)
        self._subscribed = hub.add_receiver(self._queue, topics, publisher=publisher)

    def add_topic(self, topic: str | Topic, block: bool = False) -> None:  # noqa: FBT001, FBT002
        """Subscribe to another topic; `block`: wait until it is in effect here.

        Raises:
            WouldBlock: `block` on the thread of a running event loop.
        """
        done = self._hub.add_receiver(self._queue, [topic_text(topic)])
        if block:
            refuse_loop("add_topic(block=True)", "aadd_topic(…)")
            done.result()

    async def aadd_topic(self, topic: str | Topic, block: bool = True) -> None:  # noqa: FBT001, FBT002
        """Awaitable twin of `add_topic`."""
        done = self._hub.add_receiver(self._queue, [topic_text(topic)])
        if block:
            await done

    def remove_topic(self, topic: str | Topic, block: bool = False) -> None:  # noqa: FBT001, FBT002
        """Unsubscribe from a topic; messages that have arrived stay.

        Raises:
            WouldBlock: `block` on the thread of a running event loop.
        """
        done = self._hub.remove_receiver(self._queue, [topic_text(topic)])
        if block:
            refuse_loop("remove_topic(block=True)", "aremove_topic(…)")
            done.result()

    async def aremove_topic(self, topic: str | Topic, block: bool = True) -> None:  # noqa: FBT001, FBT002
        """Awaitable twin of `remove_topic`."""
        done = self._hub.remove_receiver(self._queue, [topic_text(topic)])
        if block:
            await done

    def _output(self, item: Item) -> Item:
        value = thawed(item[1])
        return item if value is item[1] else (item[0], value)

    def _detach(self) -> None:
        self._hub.remove_receiver(self._queue)


class SafeSubscriber(Subscriber):
    """A subscriber with immutable values: tuples, frozen sets and tables."""

    def _output(self, item: Item) -> Item:
        return item


def notice_of(event: PeerEvent) -> Status | Error:
    """Return a peer event for users: Broker's code and its text."""
    context = EndpointInfo.of(event.endpoint, event.address, wire=event.wire)
    if isinstance(event.kind, SC):
        return Status(event.kind, context)
    return Error(event.kind, context)


class StatusSubscriber(QueueReader[Status | Error]):
    """Errors and, if selected, changes of the peers. Created by an endpoint."""

    def __init__(
        self,
        hub: Hub,
        closed: Callable[[Any], object],
        *,
        receive_statuses: bool,
        discovered_first: bool,
    ) -> None:
        """Do not call this; use `Endpoint.make_status_subscriber`."""
        super().__init__(hub, closed)
        self._takes_statuses = receive_statuses
        self._discovered_first = discovered_first
        hub.on_peer_event(self._on_peer_event)

    def _on_peer_event(self, event: PeerEvent) -> None:
        notice = notice_of(event)
        is_implied_by_peering = event.is_direct and not self._discovered_first
        if isinstance(notice, Error) or (self._takes_statuses and not is_implied_by_peering):
            self._queue.take([notice])

    def _detach(self) -> None:
        self._hub.off_peer_event(self._on_peer_event)
