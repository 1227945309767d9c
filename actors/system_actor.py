"""Base class of callboard's own actors, with access to the runtime beyond `Actor`.

A user's actor has only the methods of `Actor`. The actors of higher layers (the core of topics,
stores, brokers, modules) also need a clock, messages from threads that do not run handlers, and
a hook that runs when they end. They derive from `SystemActor`.

If such an actor called the constructor of a user's class in its own turn, and the constructor
blocked, all askers of the actor would have to wait. So an errand calls user code in a separate
turn. An errand waits in the run queue like an actor. If it blocks, the runner continues on
another thread.
"""

import contextvars
import threading
from collections.abc import Callable, Hashable, Mapping
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
from callboard.actors.values import Event, Message
from callboard.actors.waits.shutdown import Shutdown
from callboard.support.calls import Action, Arguments, Callback, Keywords
from callboard.support.dataclass import dataclass

A = TypeVar("A", bound=Actor)
C = TypeVar("C", bound=Cell)

#: Errands that a node runs at the same time; each one that blocks occupies a thread.
ERRAND_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class CallBack:
    """Asks a system actor to call a function in one of its turns."""

    function: Action


class NodeContext(Home, Protocol):
    """The internal view of a node. Functions may be called from any thread, unless noted."""

    # --- identity ---

    #: The name of the node.
    name: str
    #: The 18 bytes that name the node.
    node_id: bytes
    #: The object that actors see as `self.node`.
    node: Any

    # --- time, turns and randomness ---

    #: Returns the monotonic time in seconds; all code of a node reads the time here.
    now: Callable[[], float]
    #: Calls `callback(*args)` soon on the node's thread: (callback, *args).
    post: Callable[..., None]
    #: Calls on the node's thread after some seconds: (delay, callback, *args).
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

    #: The successors of actors that supervisors restart.
    succession: Succession

    #: Starts children of supervisors on other nodes: (class, args, kwargs, node); None without
    #: other nodes.
    spawn_elsewhere: Callable[..., Future[ActorRef]] | None

    def start_actor(
        self,
        actor_class: type[A],
        args: Arguments = (),
        kwargs: Keywords | None = None,
        *,
        number: int | None = None,
    ) -> ActorRef[A]:
        """Create an actor of callboard itself and return its ref; see `SystemActor`.

        Its `__init__` runs on the calling thread.
        """

    def place(self, make: Callable[[int], C], /) -> C:
        """Create a cell without an actor, and register it under a free number."""

    # --- refs and pending asks ---

    def ref_of(self, node: bytes, number: int, /) -> ActorRef:
        """Return the ref of an actor by node and number, local or remote, living or ended."""

    def reply_ref(self, asker: Asker, /) -> ActorRef:
        """Return the one-shot address of an asker."""

    def is_reachable(self, node: bytes, /) -> bool:
        """Return whether a path leads to another node."""

    def set_deadline(
        self, future: Future, timeout: float, limit: float | None = None, /
    ) -> bool:
        """Fail an ask after `timeout` seconds, or at `limit` if that is clearly earlier."""

    def dead_letter(self, ref: ActorRef, message: Message, sender: Sender | None, /) -> None:
        """Count a message that no handler will receive."""

    # --- events ---

    #: The counters of the node.
    counters: Counters

    def report(self, event: Event, /) -> None:
        """Report an event to all subscribers of the node."""

    def warn_once(self, key: Hashable, text: str, /) -> None:
        """Log a mistake of the program, the first time only."""

    # --- the end ---

    #: Whether the end of the node has begun.
    is_closed: bool
    #: An event that is set after the node's last thread has ended.
    stopped: threading.Event
    #: The shutdown sequence of the node.
    shutdown: Shutdown


class ActorContext(Running, Protocol):
    """The internal view of an actor, for its own code and for higher layers.

    It can be the sender of a message: `ref.target.post(message, context)`.
    """

    @property
    def runner(self) -> Runner:
        """The runner whose thread runs the actor: the node's, or its own if it is detached."""

    @property
    def attention(self) -> bool:
        """Whether a handler that processes several items in a turn should return now."""

    @property
    def scheduled(self) -> bool:
        """Whether the actor is scheduled for a turn, or running."""

    @property
    def depth(self) -> int:
        """Number of messages in the mailbox."""

    @property
    def sender_node(self) -> bytes:
        """The id of the node that the handled message came from; empty for this one."""

    def post(self, message: Message, sender: Sender | None = None) -> None:
        """Append a message to the actor's mailbox.

        Can be called from any thread; never blocks.
        """


@dataclass(slots=True, eq=False)
class Errand:
    """A call of user code whose outcome answers an ask."""

    _runtime: ActorHost
    _promise: Promise
    _function: Action

    def run(self) -> None:
        """Call the function and answer; called by the runner."""
        current_task_cleared(self._runtime.runner.loop, None)
        contextvars.Context().run(self._call)

    def _call(self) -> None:
        """Call the user code, and answer the ask with its outcome."""
        running: set[Any] = self._runtime.errands
        if len(running) >= ERRAND_LIMIT:
            text = f"{ERRAND_LIMIT} constructors run here already, the limit; ask again later"
            self._promise.set_exception(NotSpawnable(text))
            return
        running.add(self)
        try:
            self._promise.set_result(self._function())
        except BaseException as error:  # noqa: BLE001  # a failure of __init__ is the asker's
            self._promise.set_exception(error)
        finally:
            running.discard(self)


def attached(cls: type[A], context: Any, args: Arguments, kwargs: Keywords) -> A:
    """Create an actor whose `context` is set before its `__init__` runs."""
    actor: Any = cls.__new__(cls)
    actor._cell = actor.context = context
    actor.__init__(*args, **kwargs)
    return actor  # type: ignore[no-any-return]


class SystemActor(Actor):
    """An actor of callboard itself; its context is set before `__init__` runs."""

    remote_methods: ClassVar[frozenset[str] | set[str] | None] = frozenset()

    #: The internal view of this actor: messages to itself, the clock, its runner.
    context: ActorContext

    @classmethod
    def attach(cls, cell: Cell, args: Arguments, kwargs: Keywords) -> Self:
        """Create the actor of a cell, and register its `on_end`."""
        actor = attached(cls, cell, args, kwargs)
        if cls.on_end is not SystemActor.on_end:
            cell.open_rare().on_end = actor.on_end
        return actor

    @property
    def runtime(self) -> NodeContext:
        """The internal view of the node that this actor runs on."""
        host: Any = self._cell.runtime
        context: NodeContext = host
        return context

    @property
    def has_sender(self) -> bool:
        """Whether the current message has a sender; messages of the runtime have none.

        A `Down` with a sender is not from the runtime, so it must be ignored: its fields may be
        forged.
        """
        return self._cell.sender is not None

    def now(self) -> float:
        """Return the monotonic time of the node in seconds."""
        return self._cell.runtime.now()

    def post_self(self, message: Message) -> None:
        """Send a message without a sender to this actor.

        Can be called from any thread; never blocks.
        """
        self._cell.post(message, None)

    def call_soon(self, function: Callback, *args: Any) -> None:
        """Call a function in a turn of this actor, after all messages in its mailbox."""
        self.post_self(CallBack(partial(function, *args)))

    @handler
    def call_back(self, order: CallBack) -> Any:
        """Call the function of a thread, a timer or a future; reply with its result."""
        return order.function()

    def answer_apart(self, function: Action) -> None:
        """Answer the current ask with the outcome of user code, which may block."""
        runtime = self._cell.runtime
        runtime.schedule(Errand(runtime, self.promise(), function))

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Clean up before monitors learn that this actor has ended.

        Called once, on the thread of the actor's turn, even when the node shuts down, but not
        if `__init__` raised. An exception is logged, and the actor still ends.
        """
