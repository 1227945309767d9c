"""The actor class that users derive from."""

import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, ClassVar, Final, ParamSpec, Self, TypeVar
from weakref import ref

from thespian.actors import (
    ActorAddress,
    ActorExitRequest,
    ChildActorExited,
    InvalidActorAddress,
)

from callboard.actors.cell import Cell, Handlers, Monitor, Reminder
from callboard.actors.dispatch import check_handlers
from callboard.actors.envelope import INSTRUMENTATION, Envelope
from callboard.actors.errors import CallboardError, ReservedName, remote_error
from callboard.actors.exit_reason import ExitReason
from callboard.actors.future import Future, Pause
from callboard.actors.mailbox import (
    ALWAYS_FIT,
    ClassWithOptions,
    Mailbox,
    check_class,
    check_options,
    options_of,
)
from callboard.actors.reference import ActorRef, Asker, checked_ref, current_cell
from callboard.actors.seconds import period as checked_period
from callboard.actors.seconds import seconds as checked
from callboard.actors.thespian.shape import ThespianActor
from callboard.actors.thespian.system import ThespianContext

A = TypeVar("A", bound="Actor")
P = ParamSpec("P")

# The runtime sends them, as it does the signals of its own.
ALWAYS_FIT.update((ActorExitRequest, ChildActorExited))

RESERVED: Final = frozenset(
    "me sender deadline node parent send spawn promise monitor link unlink sleep after every "  # noqa: SIM905
    "become unbecome stash unstash_all "
    "attach cell_class with_options handle_thespian_style stop_self".split()
)


class Actor(ThespianActor):
    """An actor: state that only its own handlers touch, one message at a time.

    Mark methods with `@handler` to take messages by their type; public methods can be called
    from anywhere with `ref.call`. Thespian's `receiveMessage` and `receiveMsg_TYPE` work as
    well. Inside, `self.me` is this actor's ref, `self.sender` that of the current message's
    sender.

    An exception in a handler ends the actor with reason `error`; what follows is its
    supervisor's matter.
    """

    #: Receive an `Exit` message when a linked actor ends, instead of ending too.
    trap_exit: ClassVar[bool] = False
    #: Narrows what `ref.call` may call; None allows all public methods of the user's classes.
    remote_methods: ClassVar[frozenset[str] | set[str] | None] = None

    #: Run on a thread of its own, where handlers may block and wait for `.result()`.
    detached: ClassVar[bool] = False
    #: Bounds of the mailbox; None takes everything.
    mailbox: ClassVar[Mailbox | None] = None

    #: How many `@handler(concurrent=True)` may be under way at once.
    concurrent_limit: ClassVar[int] = 100

    cell_class: ClassVar[type[Cell]] = Cell

    _cell: Cell

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Mixins may stand there too; actor classes were checked when they were made, and those
        # of this room, and what calls itself so, are the framework.
        before_actor = [
            kind
            for kind in cls.__mro__[: cls.__mro__.index(Actor)]
            if (kind is cls or not issubclass(kind, Actor))
            and not kind.__module__.startswith("callboard.actors.")
            and not vars(kind).get("_is_framework", False)
        ]
        taken = sorted({name for kind in before_actor for name in RESERVED & vars(kind).keys()})
        if taken:
            names = ", ".join(taken)
            msg = f"{cls.__qualname__} redefines {names}, which every actor has; rename it"
            raise ReservedName(msg)
        check_handlers(cls)
        check_class(cls)

    @classmethod
    def attach(cls, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Self:
        """Make the actor of a cell: the runtime is there before `__init__` runs."""
        actor = cls.__new__(cls)
        actor._cell = cell
        actor.__init__(*args, **kwargs)  # type: ignore[misc]
        return actor

    @classmethod
    def with_options(
        cls,
        *,
        trap_exit: bool | None = None,
        mailbox: Mailbox | None = None,
        detached: bool | None = None,
    ) -> type[Self]:
        """Return this class with options for one spawn; what is left out is the class's own.

        `spawn(Counter.with_options(trap_exit=True), 40)`: what follows goes to `__init__`.
        """
        given = dict[str, Any](trap_exit=trap_exit, mailbox=mailbox, detached=detached)
        check_options(cls.__qualname__, given)
        changed = {name: value for name, value in given.items() if value is not None}
        _, options = options_of(cls)
        return ClassWithOptions(cls, replace(options, **changed))  # type: ignore[return-value]

    # --- identity ---

    @property
    def me(self) -> ActorRef[Any]:
        """This actor's own ref."""
        return self._cell.ref

    @property
    def sender(self) -> ActorRef[Any] | None:
        """The sender of the current message; None if it was sent from outside any actor.

        For an ask it is a one-shot address: the first message to it is the answer.
        """
        sender = self._cell.sender
        return None if sender is None else sender.reference(self._cell.runtime)

    @property
    def deadline(self) -> float | None:
        """Seconds that are left for the answer to the current message; None without a limit.

        Asks made while it is handled may take no longer, unless they are given a `timeout`.
        """
        sender = self._cell.sender
        if sender is None or sender.deadline is None:
            return None
        return max(0.0, sender.deadline - self._cell.runtime.now())

    @property
    def parent(self) -> ActorRef[Any] | None:
        """The actor that spawned this one; None if it was spawned from outside."""
        parent = self._cell.parent
        return None if parent is None else parent.ref

    @property
    def node(self) -> Any:
        """The node that this actor lives on."""
        return self._cell.runtime.node

    # --- messages ---

    def send(self, targetAddr: ActorAddress, msg: object) -> None:  # Thespian's names
        """Send a message to another actor, with this one as its sender."""
        if isinstance(targetAddr, ActorRef):
            if INSTRUMENTATION.used:
                if (trace := INSTRUMENTATION.current()) is not None:
                    msg = Envelope(msg, trace)
                post = targetAddr.target.post
                cell = current_cell.get()
                if cell is not None and cell.outbox and cell.outbox(post, msg, self._cell):
                    return
            targetAddr.target.post(msg, self._cell)
        else:
            raise InvalidActorAddress(targetAddr, "not the address of an actor of this node")

    def promise(self) -> "Promise":
        """Answer the current ask later: what the handler returns is then not the answer."""
        return Promise(self._cell.promise())

    def after(self, seconds: float, msg: object) -> Reminder:
        """Send a message to this actor in `seconds`; `cancel()` of the result takes it back.

        Raises:
            InvalidSeconds: that is not a time. A time below 0 is now.
        """
        return Reminder(self._cell, checked(seconds, "seconds"), msg)

    def every(self, seconds: float, msg: object) -> Reminder:
        """Send a message to this actor every so many seconds, until `cancel()` or its end.

        Raises:
            InvalidSeconds: that is not a time of more than 0.
        """
        seconds = checked_period(seconds, "every")
        return Reminder(self._cell, seconds, msg, period=seconds)

    def sleep(self, seconds: float) -> Future[None]:
        """Return a future to await: only this actor pauses.

        Raises:
            InvalidSeconds: that is not a time. A time below 0 is now.
        """
        delay = checked(seconds, "seconds")
        pause = Pause(self._cell.note_unawaited_pause)
        self._cell.runner.call_later(delay, Pause.end, ref(pause))
        return pause

    # --- behavior ---

    def become(self, handlers: Handlers) -> None:
        """Handle messages with other handlers, from the next message on.

        Args:
            handlers: a class whose `@handler` methods are called with this actor as `self`; an
                object with `@handler` methods of its own; or a dictionary of message class →
                function of the message.

        Raises:
            InvalidHandler: it has no handlers.
        """
        self._cell.become(handlers)

    def unbecome(self) -> None:
        """Handle messages with the handlers of this class again."""
        self._cell.become(type(self))

    def stash(self) -> None:
        """Put the current message aside until `unstash_all`; what its handler returns is void.

        What is still there when the actor ends goes to the dead letters.

        Raises:
            MailboxFull: the stash holds as many messages as it may.
        """
        self._cell.stash()

    def unstash_all(self) -> None:
        """Handle the stashed messages next, in the order of their arrival."""
        self._cell.unstash_all()

    # --- other actors ---

    def spawn(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> ActorRef[A]:
        """Spawn a child: it ends when this actor ends."""
        # The type that it is given tells checkers of the parameters of its `__init__`.
        plain_class: type[A] = actor_class  # type: ignore[assignment]
        return self._cell.runtime.start_actor(plain_class, args, kwargs, parent=self._cell)

    def monitor(self, ref: ActorRef[Any]) -> Monitor:
        """Receive a `Down` message when the actor ends, is lost, or is dead already."""
        return self._cell.watch(checked_ref(ref, "self.monitor()"))

    def link(self, ref: ActorRef[Any]) -> None:
        """End together: if one of the two ends abnormally, so does the other.

        With `trap_exit = True` this actor receives an `Exit` message instead.
        """
        checked_ref(ref, "self.link()").target.link(self._cell.ref)
        self._cell.link(ref)

    def unlink(self, ref: ActorRef[Any]) -> None:
        """Undo `link`."""
        self._cell.unlink(ref)
        ref.target.unlink(self._cell.ref)

    def stop_self(self, reason: ExitReason = ExitReason.NORMAL, detail: str = "") -> None:
        """End this actor when the current handler returns."""
        self._cell.end = self._cell.end or (reason, detail)

    # --- Thespian's styles ---

    @property
    def _myRef(self) -> ThespianContext:  # Thespian's name
        """What Thespian's own methods (`createActor`, `wakeupAfter` …) work on."""
        return ThespianContext(self._cell)

    def handle_thespian_style(self, message: Any) -> bool:
        """Offer a message to Thespian's kinds of handlers; False when there are none for it."""
        if isinstance(message, ActorExitRequest):
            self.stop_self()
            with contextlib.suppress(Exception):
                self._receive(message)
            return True
        return self._receive(message)

    def _receive(self, message: Any) -> bool:
        """Call the handler of Thespian's kind for a message; False when there is none."""
        method = self._thespian_method(message)
        if method is None:
            return False
        result = method(message, self.sender or self._cell.runtime.nobody)
        if isinstance(result, Coroutine):
            self._cell.start_task(result, None)
        return True

    def _thespian_method(self, message: Any) -> Callable[[Any, ActorAddress], Any] | None:
        names = [f"receiveMsg_{kind.__name__}" for kind in type(message).__mro__]
        for name in [*names, "receiveUnrecognizedMessage"]:
            method = getattr(self, name, None)
            if method is not None:
                return method  # type: ignore[no-any-return]
        if type(self).receiveMessage is not ThespianActor.receiveMessage:
            return self.receiveMessage
        return None


class Promise:
    """An answer that a handler owes; `set_result` or `set_exception` gives it, once."""

    __slots__ = ("_asker",)

    def __init__(self, asker: Asker | None) -> None:
        self._asker = asker

    def set_result(self, value: Any) -> bool:
        """Answer; False when there was no ask or an answer was given already."""
        return self._asker is not None and self._asker.set_result(value)

    def set_exception(self, error: BaseException) -> bool:
        """Let the ask fail; False when there was no ask or an answer was given already.

        The asker gets a `CallboardError` as it is and anything else as a `RemoteError` with
        its type and text, on this node as on every other.
        """
        if not isinstance(error, CallboardError):
            error = remote_error(error)
        return self._asker is not None and self._asker.set_exception(error)
