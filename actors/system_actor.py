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
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from callboard.actors.actor import Actor, Promise
from callboard.actors.cell import ActorHost, Cell
from callboard.actors.dispatch import handler
from callboard.actors.errors import NotSpawnable
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import Running, Sender
from callboard.actors.runner.loop import current_task_cleared
from callboard.actors.runner.runner import Runner
from callboard.dataclass import dataclass

C = TypeVar("C", bound=Actor)

#: Errands of a node that may be under way at once: each one that blocks holds a thread.
ERRAND_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class CallBack:
    """To an actor of callboard itself: call this function in a turn."""

    function: Callable[[], object]


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


def attached(cls: type[C], context: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> C:
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
    def runtime(self) -> ActorHost:
        """The runtime of the node that this actor lives on."""
        return self._cell.runtime

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
