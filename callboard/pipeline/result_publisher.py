"""Publishing of results: wait for subscribers, apply back-pressure, count outcomes.

At the start, all messages of a run must have a subscriber, because subscribers arrive one by
one. Later it is enough that some have one: a program that subscribes to a part must not stop
the rest. If the messages no longer have subscribers, it waits again. After that wait, messages
without a subscriber count as unheard.

A handed message is under way until all nodes with a subscriber have confirmed it. A node
confirms in the order of sending. So a run is complete when each node has confirmed as much as
had been sent to it once the run was sent. What a broken link has lost stays unconfirmed,
because it may or may not have arrived.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, runtime_checkable

from callboard import locks
from callboard.backoff import is_reached
from callboard.kernel.errors import CallboardError
from callboard.model.errors import EndpointError
from callboard.topics.machine.run import encode_pair

#: Seconds between checks for subscribers and for room.
_POLL_SECONDS: Final = 0.05

#: Timeout for the hub to report that all messages are sent, in seconds.
_ANSWER: Final = 5.0

#: Callback with a topic and the number of messages without a subscriber: before each wait and,
#: with a negative number, after a wait that did not help.
OnSilence = Callable[[str, int], None]


@runtime_checkable
class ResultPublisher(Protocol):
    """A publisher that knows the subscribers, such as the hub of an endpoint."""

    def offer(
        self,
        messages: Sequence[tuple[str, Any]],
        *,
        whole: bool = False,
        origins: frozenset[object] = frozenset(),
    ) -> list[int]:
        """Publish messages with a subscriber, or all or none; return the others' indices."""

    def has_room(self) -> bool:
        """Return whether a message can be published without waiting."""


@runtime_checkable
class Confirmed(Protocol):
    """A publisher that knows how much each node was sent and has confirmed: a hub."""

    node: Any

    def receivers_of(self, topic: str) -> Any:
        """Return a future that resolves after all published messages are sent."""


class InFlight:
    """Unconfirmed runs of messages; for any thread."""

    def __init__(self, hub: Confirmed) -> None:
        """Start without runs."""
        self._hub = hub
        self._lock = locks.lock("outlet of a pipeline", 281)
        #: For each run: number of messages, and the total sent to each node including it.
        self._runs: deque[tuple[int, dict[bytes, int]]] = deque()
        self._fresh = 0  # messages of the last run, which may not be sent yet
        #: Messages to each node that were lost before the first of these runs.
        self._lost = {node: account.lost for node, account in hub.node.accounts().items()}
        self._broken = 0

    def add(self, count: int) -> None:
        """Add a run that was offered; earlier runs are sent."""
        with self._lock:
            self._settle()
            self._fresh = count

    def count(self) -> int:
        """Return the number of unconfirmed messages."""
        is_sent = False
        with suppress(CallboardError):  # the hub is being closed
            self._hub.receivers_of("").result(_ANSWER)
            is_sent = True
        with self._lock:
            self._settle(is_sent=is_sent)
            return self._broken + self._fresh + sum(count for count, _ in self._runs)

    def _settle(self, *, is_sent: bool = True) -> None:
        """Remove confirmed runs; register the last run if it is sent."""
        accounts = self._hub.node.accounts()
        if self._fresh and is_sent:
            sent = {
                node: account_of_node.sent + account_of_node.waiting
                for node, account_of_node in accounts.items()
            }
            self._runs.append((self._fresh, sent))
            self._fresh = 0
        while self._runs:
            count, sent = self._runs[0]
            missing = 0
            for node, total in sent.items():
                # A node without an account has left, and its unconfirmed messages are lost.
                account = accounts.get(node)
                confirmed = 0 if account is None else account.confirmed
                if account is not None and confirmed + account.lost < total:
                    return
                missing_at_node = max(0, total - confirmed - self._lost.get(node, 0))
                self._lost[node] = self._lost.get(node, 0) + missing_at_node
                missing += missing_at_node
            self._broken += count if missing else 0
            self._runs.popleft()


class MessagePublisher(Protocol):
    """A publisher of messages, such as an `Endpoint`."""

    def publish_batch(self, *batch: tuple[str, Any]) -> None:
        """Publish pairs of topic and value."""


class Outlet:
    """Publishes runs of messages and counts the outcomes.

    Attributes:
        handed: Messages that had a subscriber.
        unheard: Messages without a subscriber.
    """

    def __init__(
        self,
        publisher: MessagePublisher | None,
        *,
        wait: float = 0.0,
        on_silence: OnSilence = lambda _, __: None,
        origins: frozenset[object] = frozenset(),
    ) -> None:
        """Create an outlet.

        Args:
            publisher: An `Endpoint`, its hub, or a publisher that does not know its
                subscribers; None accepts everything.
            wait: Seconds to wait for subscribers.
            on_silence: Called while it waits for subscribers.
            origins: Where the messages come from; subscriptions of these do not get them.
        """
        self.handed = self.unheard = 0
        self._publisher = publisher
        hub = getattr(publisher, "hub", publisher)
        self._hub: ResultPublisher | None = hub if isinstance(hub, ResultPublisher) else None
        self._under_way = InFlight(hub) if isinstance(hub, Confirmed) else None
        self._wait, self._left = wait, wait
        self._wants_all = True
        self._on_silence, self._origins = on_silence, origins
        self._hurries = threading.Event()
        self._leaves = threading.Event()

    def leave(self) -> None:
        """Stop waiting; messages without a subscriber or room are not sent.

        Can be called from any thread.
        """
        self._leaves.set()

    def leave_on(self, stop: threading.Event) -> None:
        """Wait for an event, and then `leave`."""
        stop.wait()
        self.leave()

    def hurry(self) -> None:
        """Stop the extra wait for room in the mailbox. Publishing itself may still wait.

        Can be called from any thread.
        """
        self._hurries.set()

    def publish(self, messages: Sequence[tuple[str, Any]]) -> bool:
        """Publish messages in order; return False if all of them must stay.

        Raises:
            EndpointError: a value is not valid in the data model; none was published.
        """
        rest = self._offer(messages) if messages else 0
        if rest is None:
            return False
        self.unheard += rest
        self.handed += len(messages) - rest
        if self._under_way is not None and len(messages) > rest:
            self._under_way.add(len(messages) - rest)
        return True

    def under_way(self) -> int:
        """Return the number of handed messages that are not yet confirmed."""
        return 0 if self._under_way is None else self._under_way.count()

    def await_taken(self, seconds: float, stop: threading.Event) -> bool:
        """Wait until all are confirmed, the time is up or the event is set."""
        return is_reached(lambda: not self.under_way(), _POLL_SECONDS, seconds, stop=stop)

    def _offer(self, messages: Sequence[tuple[str, Any]]) -> int | None:
        """Publish messages; return the number without a subscriber, or None if stopped."""
        if self._hub is None:
            if self._publisher is not None:
                self._publisher.publish_batch(*messages)
            return 0
        is_silent = False
        while self._has_room(self._hub):
            wants_all = self._wants_all and self._left > 0
            rest = self._hub.offer(messages, whole=wants_all, origins=self._origins)
            if not rest or (len(rest) < len(messages) and not wants_all):
                self._wants_all, self._left = False, self._wait
                return len(rest)
            if self._left <= 0:
                return len(rest)
            topic = messages[rest[0]][0]
            if not is_silent:
                is_silent = True
                self._on_silence(topic, len(rest))
            start = time.monotonic()
            if self._leaves.wait(min(_POLL_SECONDS, self._left)):
                break
            self._left -= time.monotonic() - start
            if self._left <= 0:
                self._on_silence(topic, -len(rest))
        return None

    def _has_room(self, hub: ResultPublisher) -> bool:
        """Wait until slow subscribers have room; return False if messages must stay."""

        def may_publish() -> bool:
            return hub.has_room() or self._hurries.is_set()

        return is_reached(may_publish, _POLL_SECONDS, stop=self._leaves)


def is_publishable(message: tuple[str, Any]) -> bool:
    """Return whether a topic and a value are valid as a message."""
    try:
        encode_pair(*message)
    except EndpointError:
        return False
    return True
