"""Messages on their way to who takes them: waited for, handed on with back-pressure, counted.

In the first place all messages of a run have to be taken, as subscribers come one by one. Later
it is enough that somebody takes some: who subscribes to a part does not stop the rest. Where
nobody takes any more, it waits again. After that wait, what nobody takes is unheard.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from callboard.endpoint.machine.run import encode_pair
from callboard.model.errors import EndpointError

#: Seconds between looks whether somebody subscribes, or there is room.
_LOOK: Final = 0.05

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
