"""Actors of callboard itself: what they may use of the runtime beyond `Actor`.

A user's actor has the methods of `Actor` and no more. The actors that rooms above are made of
(the core of topics, stores, brokers, modules) also need a clock, mail from threads that do not
run handlers, and a last word when they end. They derive from `SystemActor`.

A constructor of a user that such an actor calls for others may block for long, and would hold
up all who ask that actor. So it is an errand: code of users that is called in a turn of its
own. It waits in the run queue as an actor does, and if it blocks, the runner goes on without
that thread.
"""

import contextvars
import threading
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from callboard.actors.actor import Actor, Promise
from callboard.actors.cell import ActorHost, Cell
from callboard.actors.dispatch import handler
from callboard.actors.errors import NotSpawnable
from callboard.actors.events import Counters
from callboard.actors.exit_reason import ExitReason
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef, Asker, Home, Running, Sender
from callboard.actors.runner.loop import RunnerLoop, current_task_cleared
from callboard.actors.runner.runner import Runner
from callboard.actors.runner.timers import Timer
from callboard.actors.supervision.succession import Succession
from callboard.actors.waits.shutdown import Shutdown
from callboard.support.dataclass import dataclass

A = TypeVar("A", bound=Actor)
C = TypeVar("C", bound=Cell)

#: Errands of a node that may be under way at once: each one that blocks holds a thread.
ERRAND_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class CallBack:
    """To an actor of callboard itself: call this function in a turn."""

    function: Callable[[], object]


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


class ActorContext(Running, Protocol):
    """One actor, as its own code and the rooms above see it from inside the runtime.

    It can be given as the sender of a message: `ref.target.post(message, context)`.
    """

    @property
    def runner(self) -> Runner:
        """The runner whose thread runs the actor: the node's, or its own if it is detached."""

    @property
    def attention(self) -> bool:
        """Whether a handler that takes several things in one turn should return now."""

    @property
    def scheduled(self) -> bool:
        """Whether the actor has a turn to come, or has it now."""

    @property
    def depth(self) -> int:
        """Messages that wait in the mailbox."""

    @property
    def sender_node(self) -> bytes:
        """The id of the node that the handled message came from; empty for this one."""

    def post(self, message: Any, sender: Sender | None = None) -> None:
        """Append a message to the actor's mailbox; from any thread, never blocks."""


@dataclass(slots=True, eq=False)
class Errand:
    """A call whose outcome is the answer to an ask."""

    _runtime: ActorHost
    _promise: Promise
    _function: Callable[[], object]

    def run(self) -> None:
        """Call the function and answer; called by the runner."""
        current_task_cleared(self._runtime.runner.loop, None)
        contextvars.Context().run(self._call)

    def _call(self) -> None:
        under_way: set[Any] = self._runtime.errands
        if len(under_way) >= ERRAND_LIMIT:
            text = f"{ERRAND_LIMIT} constructors are under way here, the limit; ask again later"
            self._promise.set_exception(NotSpawnable(text))
            return
        under_way.add(self)
        try:
            self._promise.set_result(self._function())
        except BaseException as error:  # noqa: BLE001  # the failure of __init__ is the asker's
            self._promise.set_exception(error)
        finally:
            under_way.discard(self)


def attached(cls: type[A], context: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> A:
    """Make an actor whose `context` is there before its `__init__` runs."""
    actor: Any = cls.__new__(cls)
    actor._cell = actor.context = context
    actor.__init__(*args, **kwargs)
    return actor  # type: ignore[no-any-return]


class SystemActor(Actor):
    """An actor of callboard itself; its context is there before `__init__` runs."""

    remote_methods: ClassVar[frozenset[str] | set[str] | None] = frozenset()

    #: This actor from inside the runtime: mail to itself, the clock, its runner.
    context: ActorContext

    @classmethod
    def attach(cls, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Self:
        """Make the actor of a cell, with its context."""
        actor = attached(cls, cell, args, kwargs)
        if cls.on_end is not SystemActor.on_end:
            cell.open_aside().on_end = actor.on_end
        return actor

    @property
    def runtime(self) -> NodeContext:
        """The node that this actor lives on, from inside."""
        host: Any = self._cell.runtime
        context: NodeContext = host
        return context

    @property
    def is_told(self) -> bool:
        """Whether somebody sent the current message: what the runtime says has no sender.

        So a `Down` that is told says nothing, and its fields may be anything.
        """
        return self._cell.sender is not None

    def now(self) -> float:
        """Return the monotonic time of the node in seconds."""
        return self._cell.runtime.now()

    def post_self(self, message: Any) -> None:
        """Send a message to this actor without a sender; from any thread, never blocks."""
        self._cell.post(message, None)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in a turn of this actor, behind all mail that is there."""
        self.post_self(CallBack(partial(function, *args)))

    @handler
    def call_back(self, order: CallBack) -> Any:
        """Call what a thread, a timer or a future wants called; its result is the answer."""
        return order.function()

    def answer_apart(self, function: Callable[[], object]) -> None:
        """Answer the current ask with what code of a user returns, or raises; it may block."""
        runtime = self._cell.runtime
        runtime.schedule(Errand(runtime, self.promise(), function))

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Do what has to be done before others learn that this actor has ended.

        Called once, on the thread of the actor's turn, also when the node shuts down; not when
        `__init__` raised. An exception is logged, and the actor ends all the same.
        """
