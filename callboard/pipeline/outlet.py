"""Messages on their way to who takes them: waited for, handed on with back-pressure, counted.

In the first place all messages of a run have to be taken, as subscribers come one by one. Later
it is enough that somebody takes some: who subscribes to a part does not stop the rest. Where
nobody takes any more, it waits again. After that wait, what nobody takes is unheard.

What was handed is under way until each node has confirmed it that takes it. A node confirms in
the order in which it was sent, so a run is taken when every node has confirmed as much as had
been sent to it when the run had gone. What a broken link has lost stays unconfirmed, as it may
or may not have arrived.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, runtime_checkable

from callboard import locks
from callboard.endpoint.machine.run import encode_pair
from callboard.kernel.errors import CallboardError
from callboard.model.errors import EndpointError

#: Seconds between looks whether somebody subscribes, or there is room.
_LOOK: Final = 0.05

#: Seconds that the hub has to say that all has gone.
_ANSWER: Final = 5.0

#: Called with a topic and how many messages nobody takes, before each wait and, with a negative
#: number, when it was in vain.
OnSilence = Callable[[str, int], None]


@runtime_checkable
class Offering(Protocol):
    """What knows who takes messages; the hub of an endpoint is one."""

    def offer(self, messages: Sequence[tuple[str, Any]], *, whole: bool = False) -> list[int]:
        """Publish what somebody takes, or all or nothing; returns the numbers of the rest."""

    def has_room(self) -> bool:
        """Return whether a message that is published goes on without waiting."""


@runtime_checkable
class Confirmed(Protocol):
    """What knows how much each node was sent and has confirmed; a hub is one."""

    node: Any

    def receivers_of(self, topic: str) -> Any:
        """Return a future that is done behind all that was published."""


class UnderWay:
    """Runs of messages, until all nodes have confirmed them; for any thread."""

    def __init__(self, hub: Confirmed) -> None:
        """Begin with none."""
        self._hub = hub
        self._lock = locks.lock("outlet of a pipeline", 281)
        #: How many messages a run has, and what had been sent to each node with it.
        self._runs: deque[tuple[int, dict[bytes, int]]] = deque()
        self._fresh = 0  # offered, and perhaps not sent so far
        #: Of what was sent to each node before the first of these runs, so much was lost.
        self._lost = {node: each.lost for node, each in hub.node.accounts().items()}
        self._broken = 0

    def add(self, count: int) -> None:
        """Count a run that was offered; those before it have gone."""
        with self._lock:
            self._settle()
            self._fresh = count

    def count(self) -> int:
        """Return how many messages are not confirmed."""
        has_gone = False
        with suppress(CallboardError):  # else it is being closed
            self._hub.receivers_of("").result(_ANSWER)
            has_gone = True
        with self._lock:
            self._settle(has_gone=has_gone)
            return self._broken + self._fresh + sum(count for count, _ in self._runs)

    def _settle(self, *, has_gone: bool = True) -> None:
        """Look which runs are over; what was offered last is one where it has gone."""
        accounts = self._hub.node.accounts()
        if self._fresh and has_gone:
            sent = {node: each.sent + each.waiting for node, each in accounts.items()}
            self._runs.append((self._fresh, sent))
            self._fresh = 0
        while self._runs:
            count, sent = self._runs[0]
            missing = 0
            for node, behind in sent.items():
                # A node that is forgotten is one that is gone, with what it had not confirmed.
                account = accounts.get(node)
                confirmed = 0 if account is None else account.confirmed
                if account is not None and confirmed + account.lost < behind:
                    return
                lacks = max(0, behind - confirmed - self._lost.get(node, 0))
                self._lost[node] = self._lost.get(node, 0) + lacks
                missing += lacks
            self._broken += count if missing else 0
            self._runs.popleft()


class Publisher(Protocol):
    """What takes messages; an `Endpoint` is one."""

    def publish_batch(self, *batch: tuple[str, Any]) -> None:
        """Publish pairs of topic and value."""


class Outlet:
    """Publishes runs of messages and counts what became of them.

    Attributes:
        handed: Messages that somebody took.
        unheard: Messages that nobody did.
    """

    def __init__(
        self,
        publisher: Publisher | None,
        *,
        wait: float = 0.0,
        on_silence: OnSilence = lambda _, __: None,
    ) -> None:
        """Begin.

        Args:
            publisher: An `Endpoint`, its hub, or what knows of no subscribers; None takes all.
            wait: Seconds to wait for subscribers.
            on_silence: Told of it.
        """
        self.handed = self.unheard = 0
        self._publisher = publisher
        hub = getattr(publisher, "hub", publisher)
        self._hub: Offering | None = hub if isinstance(hub, Offering) else None
        self._under_way = UnderWay(hub) if isinstance(hub, Confirmed) else None
        self._wait, self._left = wait, wait
        self._wants_all = True
        self._on_silence = on_silence
        self._hurries = threading.Event()
        self._leaves = threading.Event()

    def leave(self) -> None:
        """Wait no more: what nobody takes, or has no room, is to stay; from any thread."""
        self._leaves.set()

    def leave_on(self, stop: threading.Event) -> None:
        """Wait for an event, and then do that."""
        stop.wait()
        self.leave()

    def hurry(self) -> None:
        """Wait no more for room than publishing does by itself; from any thread."""
        self._hurries.set()

    def publish(self, messages: Sequence[tuple[str, Any]]) -> bool:
        """Publish messages in this order; False if they are to stay, and none was published.

        Raises:
            EndpointError: the data model has no such value; nothing was published.
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
        """Return how many of those handed are not confirmed by all who take them."""
        return 0 if self._under_way is None else self._under_way.count()

    def await_taken(self, seconds: float, stop: threading.Event) -> bool:
        """Wait until nothing is under way, for so long or until an event; return whether."""
        deadline = time.monotonic() + seconds
        while self.under_way():
            if time.monotonic() >= deadline or stop.wait(_LOOK):
                return not self.under_way()
        return True

    def _offer(self, messages: Sequence[tuple[str, Any]]) -> int | None:
        """Publish messages; returns how many nobody takes."""
        if self._hub is None:
            if self._publisher is not None:
                self._publisher.publish_batch(*messages)
            return 0
        is_silent = False
        while self._has_room(self._hub):
            wants_all = self._wants_all and self._left > 0
            rest = self._hub.offer(messages, whole=wants_all)
            if not rest or (len(rest) < len(messages) and not wants_all):
                self._wants_all, self._left = False, self._wait
                return len(rest)
            if self._left <= 0:
                return len(rest)
            topic = messages[rest[0]][0]
            if not is_silent:
                is_silent = True
                self._on_silence(topic, len(rest))
            begun = time.monotonic()
            if self._leaves.wait(min(_LOOK, self._left)):
                break
            self._left -= time.monotonic() - begun
            if self._left <= 0:
                self._on_silence(topic, -len(rest))
        return None

    def _has_room(self, hub: Offering) -> bool:
        """Wait until slow subscribers have room; False if what is to go is to stay."""
        while not hub.has_room() and not self._hurries.is_set():
            if self._leaves.wait(_LOOK):
                return False
        return True


def is_publishable(message: tuple[str, Any]) -> bool:
    """Return whether a topic and a value can be a message."""
    try:
        encode_pair(*message)
    except EndpointError:
        return False
    return True
