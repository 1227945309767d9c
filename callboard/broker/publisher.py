"""Publishers: one topic, with back-pressure.

Published messages wait in the endpoint for its core. When too many wait, or a peer reads too
slowly, a publisher has no room, and `publish` blocks.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from callboard import locks
from callboard.closing import Closing, twin
from callboard.support import after_fork
from callboard.topics.hub import Hub
from callboard.topics.input_queue import INPUT_LIMIT

#: Seconds over which the send rate is measured.
RATE_SPAN: Final = 1.0


class Publisher(Closing):
    """Publishes on one topic. Created by an endpoint; its methods are thread-safe."""

    def __init__(
        self,
        hub: Hub,
        topic: str,
        closed: Callable[[Any], object],
        origins: frozenset[object] = frozenset(),
    ) -> None:
        """Do not call this; use `Endpoint.make_publisher`."""
        self.topic = topic
        self._hub = hub
        self._origins = origins
        self._on_closed = closed
        self._is_closed = False
        self._drops = False
        self._sent: deque[tuple[float, int]] = deque()
        self._pipe: tuple[int, int] | None = None
        self._lock = locks.lock("publisher", 320)

    # --- sending ---

    def publish(self, data: Any) -> None:
        """Publish a value; block until there is room.

        Raises:
            EndpointError: the value is not valid in the data model.
            WouldBlock: there is no room, on the thread of a running event loop.
            EOFError: the publisher was closed.
        """
        self._refuse_closed()
        self._send(data)
        self._count(1)

    def publish_batch(self, *batch: Any) -> None:
        """Publish several values in order, all or none."""
        self._refuse_closed()
        self._send(*batch)
        self._count(len(batch))

    def _send(self, *batch: Any) -> None:
        """Publish for the endpoint: see `Endpoint.publish`."""
        pairs = ((self.topic, data) for data in batch)
        publishing, origins = self._hub.publishing, self._origins
        if publishing.listeners.publishers <= origins:
            publishing.publish_batch(*pairs)
        else:
            publishing.publish_as(origins, *pairs)

    async def _room(self) -> None:
        """Wait for room; raise if the publisher is closed."""
        self._refuse_closed()
        while not self._hub.has_room():
            await self._hub.inputs.room()

    apublish = twin(publish, after=_room)
    apublish_batch = twin(publish_batch, after=_room)

    # --- inspection ---

    def capacity(self) -> int:
        """Return the number of messages that may wait."""
        return INPUT_LIMIT

    def buffered(self) -> int:
        """Return the number of waiting messages of this endpoint."""
        return len(self._hub.inputs)

    def free_capacity(self) -> int:
        """Return the number of messages that can be published without blocking."""
        return max(0, INPUT_LIMIT - len(self._hub.inputs)) if self._hub.has_room() else 0

    def demand(self) -> int:
        """Return the number of messages for which the endpoint has room."""
        return self.free_capacity()

    def send_rate(self) -> int:
        """Return the number of messages sent in the last second."""
        with self._lock:
            self._forget_old(time.monotonic())
            return sum(count for _, count in self._sent)

    def fd(self) -> int:
        """Return a file descriptor that is readable while there is room."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe()
                after_fork.register(self, Publisher._drop_copy)
                for end in self._pipe:
                    os.set_blocking(end, False)
                os.write(self._pipe[1], b"x")
                self._hub.inputs.room_listeners.append(self._room_changed)
                if not self._hub.has_room():
                    os.read(self._pipe[0], 1)
            return self._pipe[0]

    # --- the end ---

    def drop_all_on_destruction(self) -> None:
        """Discard waiting messages of the topic when the publisher is closed."""
        self._drops = True

    def close(self) -> None:
        """Stop publishing. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._drops:
            self._drop_waiting()
        with self._lock:
            pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self._hub.inputs.room_listeners.remove(self._room_changed)
            for end in pipe:
                os.close(end)
        self._on_closed(self)

    def reset(self) -> None:
        """Close the publisher, under Broker's name."""
        self.close()

    def _drop_copy(self) -> None:
        """Drop the pipe in a forked process."""
        after_fork.drop(*(self._pipe or ()))

    def _drop_waiting(self) -> None:
        """Remove messages that the core has not accepted yet."""
        inputs = self._hub.inputs.entries
        for item in list(inputs):
            if isinstance(item, tuple) and item[0] == self.topic:  # not a command to send
                with suppress(ValueError, IndexError):  # the core has just accepted it
                    inputs.remove(item)

    def _room_changed(self, has_room: bool) -> None:  # noqa: FBT001
        with self._lock:
            if self._pipe is not None and has_room:
                os.write(self._pipe[1], b"x")
            elif self._pipe is not None:
                with suppress(BlockingIOError):
                    os.read(self._pipe[0], 16)

    def _count(self, count: int) -> None:
        now = time.monotonic()
        with self._lock:
            if self._sent and now - self._sent[-1][0] < RATE_SPAN / 10:
                self._sent[-1] = (self._sent[-1][0], self._sent[-1][1] + count)
            else:
                self._forget_old(now)
                self._sent.append((now, count))

    def _forget_old(self, now: float) -> None:
        while self._sent and now - self._sent[0][0] > RATE_SPAN:
            self._sent.popleft()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            msg = f"the publisher of {self.topic} was closed; create a new one"
            raise EOFError(msg)
