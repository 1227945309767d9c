"""Input queue of a hub: messages and orders that wait for the core's next turn.

The queue never drops messages. Its bound works by back-pressure: publishing threads wait while
`INPUT_LIMIT` messages are queued, or while a receiver or a peer is too slow. Adapters do not
wait; they check `has_room` and pause reading.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from callboard import locks
from callboard.kernel.context import NodeContext
from callboard.kernel.errors import ResultTimeout, WouldBlock, WouldDeadlock
from callboard.kernel.queue import BackPressure, Mailbox
from callboard.kernel.reply import Future
from callboard.support import after_fork
from callboard.topics.machine.effect import CoreOrder, Ingested, Pair

#: Maximum number of messages in the queue; threads that publish more wait.
INPUT_LIMIT: Final = 16_384

#: Maximum number of seconds that such a thread waits. Then it publishes without room: a node
#: that makes no progress in this time has other problems.
WAIT_FOR_TURN: Final = 5.0

#: Maximum number of entries processed in one turn, so that other actors of the node get turns.
TURN_LENGTH: Final = 8192

#: Messages of adapters after which a turn ends. They are decoded in this turn, and a turn of
#: more than two milliseconds costs the thread its role as the node's runner.
INGESTED_PER_TURN: Final = 100


class InputQueue:
    """Published messages and orders for the core, with back-pressure. Thread-safe.

    Attributes:
        entries: the queued messages and orders.
        wake_pending: whether a turn of the hub that empties the queue is scheduled.
        is_congested: whether publishers must wait although the queue has room.
        room_listeners: called with `has_room()` when congestion begins or ends, on the node's
            thread.
    """

    #: Slots, because each publish reads several of these; see `Runtime`.
    __slots__ = (
        "__weakref__", "_ingested", "_causes", "_lock", "_pressure", "_process", "_runtime",
        "entries", "is_congested", "wake_pending", "room_listeners",
    )  # fmt: skip

    def __init__(self, runtime: NodeContext, process: Callable[[], object]) -> None:
        """Start with an empty queue.

        Args:
            runtime: the node.
            process: schedules the turn of the hub that processes the queue.
        """
        self._runtime, self._process = runtime, process
        self.entries: deque[Pair | CoreOrder] = deque()
        self.wake_pending = self.is_congested = False
        after_fork.own_wake(self)
        #: Slow receivers, and None for slow peers.
        self._causes: set[object] = set()
        self.room_listeners: list[Callable[[bool], None]] = []
        self._pressure = BackPressure(Mailbox(limit=INPUT_LIMIT))
        #: Number of queued messages from adapters; several are in one entry.
        self._ingested, self._lock = 0, locks.lock("room of a hub", 430)

    def __len__(self) -> int:
        return len(self.entries)

    # --- entries, from any thread ---

    def order(self, order: CoreOrder) -> None:
        """Append an order, which the core processes after the messages published before it."""
        if isinstance(order, Ingested):
            with self._lock:
                self._ingested += len(order.pairs)
        self.entries.append(order)
        self.wake()

    def wake(self) -> None:
        """Schedule a turn that processes the queue."""
        if not self.wake_pending:
            self.wake_pending = True
            self._process()

    def pop_turn(self) -> list[Pair | CoreOrder]:
        """Remove and return the entries for one turn. Runs on the node's thread."""
        # Reset this first: a thread that appends after the last `popleft` must see that it has
        # to wake the hub.
        self.wake_pending = False
        pop = self.entries.popleft
        count = min(len(self.entries), TURN_LENGTH)
        if not self._ingested:
            return [pop() for _ in range(count)]
        ingested = 0
        entries: list[Pair | CoreOrder] = []
        while len(entries) < count and ingested < INGESTED_PER_TURN:
            entry = pop()
            entries.append(entry)
            if isinstance(entry, Ingested):
                ingested += len(entry.pairs)
        with self._lock:
            self._ingested -= ingested
        return entries

    # --- back-pressure ---

    def wait_for_room(self) -> None:
        """Block a thread outside of the node until there is room.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        if self._runtime.is_runner_thread() or self._runtime.is_closed:
            # A handler must not wait, because the core has its turn only after the handler
            # returns.
            return
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = (
                f"{len(self.entries):,} messages wait to be sent, and publish() would block "
                "the event loop; await apublish(…) instead"
            )
            raise WouldBlock(msg)
        with suppress(ResultTimeout, WouldDeadlock):  # such as in a nested call
            self.room().result(WAIT_FOR_TURN)

    def has_room(self) -> bool:
        """Return whether a thread can publish without waiting."""
        return not self.is_congested and len(self.entries) + self._ingested < INPUT_LIMIT

    def room(self) -> Future[None]:
        """Return a future that completes when there is room."""
        room = self._pressure.room()
        self.release()
        return self._runtime.shutdown.guard(room)

    def release(self) -> None:
        """Complete the futures of waiting threads if there is room."""
        if self._pressure.waiters and self.has_room():
            self._pressure.release()

    def set_congested(self, is_congested: bool, cause: object = None) -> None:  # noqa: FBT001
        """Make publishing threads wait, or resume them. Runs on the node's thread.

        Args:
            is_congested: whether the threads have to wait.
            cause: the slow receiver, or None for peers that read too slowly.
        """
        (self._causes.add if is_congested else self._causes.discard)(cause)
        is_congested = bool(self._causes)
        if self.is_congested != is_congested:
            self.is_congested = is_congested
            self.release()
            for listener in self.room_listeners:
                listener(not is_congested)
