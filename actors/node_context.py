"""A node as code of callboard sees it: clock, calls in time, actors, events, and the end.

What stands behind it is the node's `Runtime` itself: this is the part of it on which packages
are built, and no other object.
"""

import threading
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol, TypeVar

from callboard.actors.actor import Actor
from callboard.actors.cell import Cell
from callboard.actors.events import Counters
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef, Asker, Home, Sender
from callboard.actors.runner.loop import RunnerLoop
from callboard.actors.runner.timers import Timer
from callboard.actors.supervision.succession import Succession
from callboard.actors.waits.shutdown import Shutdown

A = TypeVar("A", bound=Actor)
C = TypeVar("C", bound=Cell)


class NodeContext(Home, Protocol):
    """One node from inside. What is said of no thread may be called from any."""

    # --- who it is ---

    #: The name of the node.
    name: str
    #: The 18 bytes that name the node.
    node_id: bytes
    #: The object that actors see as `self.node`.
    node: Any

    # --- time, turns and chance ---

    #: Returns the monotonic time in seconds; all code of a node reads the time here.
    now: Callable[[], float]
    #: Calls `callback(*args)` soon on the node's thread: (callback, *args).
    post: Callable[..., None]
    #: Calls on the node's thread in so many seconds: (delay, callback, *args).
    call_later: Callable[..., Timer]
    #: Returns whether this is a thread that runs the node's handlers and callbacks.
    is_runner_thread: Callable[[], bool]
    #: The node's source of randomness.
    random: Random
    #: The event loop on which coroutine handlers run.
    loop: RunnerLoop

    # --- actors ---

    @property
    def contexts(self) -> Mapping[int, Any]:
        """The actors of this node by their numbers, each as an `ActorContext`."""

    #: Who takes the place of actors that supervisors start again.
    succession: Succession

    #: Starts children of supervisors on other nodes: (class, args, kwargs, where); None without
    #: other nodes.
    spawn_elsewhere: Callable[..., Future[ActorRef[Any]]] | None

    def start_actor(
        self,
        actor_class: type[A],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        number: int | None = None,
    ) -> ActorRef[A]:
        """Make an actor of callboard itself and return its ref; see `SystemActor`.

        Its `__init__` runs on the calling thread.
        """

    def place(self, make: Callable[[int], C], /) -> C:
        """Give an activation a number, and make it reachable under that."""

    # --- refs, and asks that wait ---

    def ref_of(self, node: bytes, number: int, /) -> ActorRef[Any]:
        """Return the ref of an actor by its node and number, local or remote, alive or not."""

    def reply_ref(self, asker: Asker, /) -> ActorRef[Any]:
        """Return the one-shot address of an asker."""

    def is_reachable(self, node: bytes, /) -> bool:
        """Return whether a path leads to another node."""

    def set_deadline(
        self, future: Future[Any], timeout: float, limit: float | None = None, /
    ) -> bool:
        """Let an ask fail after `timeout` seconds, or at `limit` if that is clearly earlier."""

    def dead_letter(self, ref: ActorRef[Any], message: Any, sender: Sender | None, /) -> None:
        """Count a message that no handler will take."""

    # --- what happens ---

    #: What the node counts, in messages.
    counters: Counters

    def report(self, event: object, /) -> None:
        """Hand an event to all subscribers of the node."""

    def warn_once(self, key: object, text: str, /) -> None:
        """Log a mistake of the program for the first time."""

    # --- the end ---

    #: Whether the end of the node has begun.
    is_closed: bool
    #: An event that is set once the node's last thread has ended.
    stopped: threading.Event
    #: What ends with the node, and in which order.
    shutdown: Shutdown
