"""What the frontends of a store and its actor share: commands in, results out, a view.

Frontends live on the threads of users. What they write waits here until the actor's turn and
is carried out as one run; reads look at the entries directly, which is right whenever nothing
that was written here still waits. No lock is taken for either.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from callboard.actors.errors import ResultTimeout
from callboard.actors.future import Future
from callboard.endpoint.hub import Hub
from callboard.endpoint.message_queue import MessageQueue
from callboard.store.errors import StoreClosed, StoreError
from callboard.store.machine.change import StoreEvent
from callboard.store.machine.clone import Clone
from callboard.store.machine.command import Action
from callboard.store.machine.master import Master

T = TypeVar("T")

#: Commands that wait for the actor's turn: a thread that writes more waits for it.
INPUT_LIMIT: Final = 16_384

#: Seconds that such a thread waits at most; then clones that are too slow must begin anew.
WAIT_FOR_ROOM: Final = 5.0

#: Events that wait for one watcher; older ones are dropped beyond it.
WATCH_LIMIT: Final = 65_536


class DrainPort:
    """Take what waits."""


_DRAIN: Final = DrainPort()


@dataclass(frozen=True, slots=True)
class SettleWanted:
    """Carry out what waits, and answer when a read sees it (and, in a clone, has a copy)."""

    future: Future[None]


@dataclass(frozen=True, slots=True)
class IdleWanted:
    """Answer when the store is idle."""

    future: Future[bool]


class Port:
    """The place where threads and the actor of one store meet."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.inputs: deque[Action] = deque()
        self.is_poked = False
        #: True while the actor carries out what it took; set before it takes.
        self.is_busy = False
        self.is_congested = False
        self.turn_taken = threading.Condition()
        self.machine: Master | Clone
        #: Where the actor gets its mail; set when it is made.
        self.post: Callable[[object], None]
        self.error: StoreError | None = None
        self.questions: dict[int, Future[bool]] = {}
        self._numbers = itertools.count(1)
        self.watchers: tuple[tuple[str, MessageQueue[StoreEvent]], ...] = ()
        self._lock = threading.Lock()
        self._runtime = hub.runtime

    def now(self) -> float:
        """Return the time as the actor sees it."""
        return self._runtime.now()

    # --- threads of users ---

    def write(self, action: Action) -> None:
        """Let the actor carry out a command; waits while too much waits.

        Raises:
            StoreError: the store is closed, or its backend failed.
        """
        if self.error is not None:
            raise self.error
        self.inputs.append(action)
        if not self.is_poked:
            self.poke()
        if self.is_congested or len(self.inputs) > INPUT_LIMIT:
            self._wait_for_room()

    def poke(self) -> None:
        """Let the actor take what waits, in its next turn."""
        self.is_poked = True
        self.post(_DRAIN)

    def is_settled(self) -> bool:
        """Return whether all that was written here so far can be read."""
        # In this order: the actor says that it is busy before it takes.
        return not self.inputs and not self.is_busy

    def settle(self) -> Future[None]:
        """Return a future that is done when all that was written so far can be read."""
        future: Future[None] = Future(self)
        self.post(SettleWanted(future))
        self._fail_late(future)
        return future

    def idle(self) -> Future[bool]:
        """Return a future that is done when the store is idle."""
        future: Future[bool] = Future(self)
        self.post(IdleWanted(future))
        self._fail_late(future)
        return future

    def question(self) -> tuple[int, Future[bool]]:
        """Return a new request, and the future of its answer."""
        request = next(self._numbers)
        future: Future[bool] = Future(self)
        self.questions[request] = future
        self._fail_late(future)
        return request, future

    def _fail_late(self, future: Future[Any]) -> None:
        """Fail what was asked after the end: nobody will answer."""
        if self.error is not None:
            future.set_exception(self.error)

    def _wait_for_room(self) -> None:
        """Let a thread outside of the node wait until less waits."""
        if self._runtime.is_runner_thread():
            return  # a handler never waits; its node goes on when it returns
        with self.turn_taken:
            self.turn_taken.wait_for(
                lambda: self.error is not None or self._has_room(), WAIT_FOR_ROOM
            )

    def _has_room(self) -> bool:
        """Return whether the actor can take more."""
        return not self.is_congested and len(self.inputs) <= INPUT_LIMIT

    def has_room(self) -> bool:
        """Return whether a write would not wait."""
        return self.error is not None or self._has_room()

    async def within(self, future: Future[T], timeout: float) -> T:
        """Await a future for some time at most, by the node's clock.

        Raises:
            ResultTimeout: the time is over.
        """
        self.expire_in(future, timeout)
        return await future

    def expire_in(self, future: Future[Any], timeout: float) -> None:
        """Fail a future with `ResultTimeout` when the time is over."""

        def arm() -> None:
            error = ResultTimeout(f"{self!r} did not answer within {timeout:g} s")
            timer = self._runtime.call_later(timeout, future.set_exception, error)
            future._add(lambda _: timer.cancel())  # noqa: SLF001

        self._runtime.post(arm)

    def watch(self, prefix: str) -> MessageQueue[StoreEvent]:
        """Return a queue of the changes of keys that start with a text."""
        queue: MessageQueue[StoreEvent] = MessageQueue(WATCH_LIMIT)
        with self._lock:
            self.watchers = (*self.watchers, (prefix, queue))
        return queue

    def unwatch(self, queue: MessageQueue[StoreEvent]) -> None:
        """Stop filling a queue."""
        with self._lock:
            self.watchers = tuple(one for one in self.watchers if one[1] is not queue)

    # --- the actor ---

    def set_congested(self, is_congested: bool) -> None:  # noqa: FBT001
        """Let threads that write wait, or go on."""
        self.is_congested = is_congested
        if not is_congested:
            with self.turn_taken:
                self.turn_taken.notify_all()

    def answer(self, request: int, value: object) -> None:
        """Answer a question, if somebody still wants to know."""
        future = self.questions.pop(request, None)
        if future is not None and isinstance(value, StoreError):
            future.set_exception(value)
        elif future is not None:
            future.set_result(bool(value))

    def tell(self, events: list[StoreEvent]) -> None:
        """Hand changes to those who watch."""
        for prefix, queue in self.watchers:
            wanted = [
                event
                for event in events
                if not prefix or (isinstance(event.key, str) and event.key.startswith(prefix))
            ]
            if wanted:
                queue.take(wanted)

    def close(self, error: StoreError | None = None) -> None:
        """End: all that wait get the error."""
        if self.error is not None:
            return
        self.error = error or StoreClosed(f"the store {self.name!r} was closed")
        questions, self.questions = self.questions, {}
        for future in questions.values():
            future.set_exception(self.error)
        for _, queue in self.watchers:
            queue.close()
        with self.turn_taken:
            self.turn_taken.notify_all()

    def __repr__(self) -> str:
        return f"<store {self.name!r}>"
