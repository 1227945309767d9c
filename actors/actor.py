"""The base class of users' actors."""

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
from callboard.actors.thespian.shape import ThespianActor
from callboard.actors.thespian.system import ThespianContext
from callboard.actors.values import Answer, Message
from callboard.arguments import period as checked_period
from callboard.arguments import seconds as checked
from callboard.support.calls import Arguments, Keywords

A = TypeVar("A", bound="Actor")
P = ParamSpec("P")

# The runtime sends these as signals.
ALWAYS_FIT.update((ActorExitRequest, ChildActorExited))

RESERVED: Final = frozenset(
    "me sender deadline node parent send spawn promise monitor link unlink sleep after every "  # noqa: SIM905
    "become unbecome stash unstash_all "
    "attach cell_class with_options handle_thespian_style stop_self".split()
)


class Actor(ThespianActor):
    """An actor: its state is used only by its own handlers, which run one message at a time.

    Mark methods with `@handler` to handle messages by their type. Other code calls public
    methods with `ref.call`. Thespian's `receiveMessage` and `receiveMsg_TYPE` work, too. In a
    handler, `self.me` is the ref of this actor, and `self.sender` that of the sender of the
    current message.

    An exception in a handler ends the actor with reason `error`; its supervisor may restart it.

    A method `on_stop(self, reason)`, which may be a coroutine, is called once before the end.
    """

    #: Receive an `Exit` message when a linked actor ends, instead of ending too.
    trap_exit: ClassVar[bool] = False
    #: The methods that `ref.call` may call; None allows all public methods of users' classes.
    remote_methods: ClassVar[frozenset[str] | set[str] | None] = None

    #: Run on a separate thread, where handlers may block and call `.result()`.
    detached: ClassVar[bool] = False
    #: Bounds of the mailbox; None for no bounds.
    mailbox: ClassVar[Mailbox | None] = None

    #: Limit of `@handler(concurrent=True)` coroutines that run at the same time.
    concurrent_limit: ClassVar[int] = 100

    cell_class: ClassVar[type[Cell]] = Cell

    _cell: Cell

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Check the new class and its mixins. Its base classes that are actors were checked when
        # they were defined, and callboard's own classes may use these names.
        before_actor = [
            kind
            for kind in cls.__mro__[: cls.__mro__.index(Actor)]
            if (kind is cls or not issubclass(kind, Actor))
            and not kind.__module__.startswith("callboard.actors.")
            and not vars(kind).get("_is_framework", False)
        ]
        names = {name for kind in before_actor for name in RESERVED & vars(kind).keys()}
        if names:
            redefined = ", ".join(sorted(names))
            msg = f"{cls.__qualname__} redefines {redefined}, which every actor has; rename it"
            raise ReservedName(msg)
        check_handlers(cls)
        check_class(cls)

    @classmethod
    def attach(cls, cell: Cell, args: Arguments, kwargs: Keywords) -> Self:
        """Create the actor of a cell.

        The cell is attached before `__init__` runs, so that `__init__` can use the runtime.
        """
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
        """Return this class with options for one spawn; other options remain unchanged.

        In `spawn(Counter.with_options(trap_exit=True), 40)` the argument 40 goes to `__init__`.
        """
        options = Keywords(trap_exit=trap_exit, mailbox=mailbox, detached=detached)
        check_options(cls.__qualname__, options)
        changed = {name: value for name, value in options.items() if value is not None}
        _, defaults = options_of(cls)
        return ClassWithOptions(cls, replace(defaults, **changed))  # type: ignore[return-value]

    # --- identity ---

    @property
    def me(self) -> ActorRef:
        """The ref of this actor."""
        return self._cell.ref

    @property
    def sender(self) -> ActorRef | None:
        """The sender of the current message; None if it was sent from outside of actors.

        For an ask, the sender is a one-shot address: the first message sent to it is the
        answer.
        """
        sender = self._cell.sender
        return None if sender is None else sender.reference(self._cell.runtime)

    @property
    def deadline(self) -> float | None:
        """Seconds left to answer the current message; None without a limit.

        Asks that the handler makes have the same limit, unless they set their own `timeout`.
        """
        sender = self._cell.sender
        if sender is None or sender.deadline is None:
            return None
        return max(0.0, sender.deadline - self._cell.runtime.now())

    @property
    def parent(self) -> ActorRef | None:
        """The actor that spawned this one; None if it was spawned from outside of actors."""
        parent = self._cell.parent
        return None if parent is None else parent.ref

    @property
    def node(self) -> Any:
        """The node of this actor."""
        return self._cell.runtime.node

    # --- messages ---

    def send(self, targetAddr: ActorAddress, msg: object) -> None:  # Thespian's names
        """Send a message to another actor, with this actor as its sender."""
        if isinstance(targetAddr, ActorRef):
            if INSTRUMENTATION.used:
                if (trace := INSTRUMENTATION.current()) is not None:
                    msg = Envelope(msg, trace)
                if INSTRUMENTATION.has_outboxes:
                    post, cell = targetAddr.target.post, current_cell.get()
                    if cell is not None and cell.outbox and cell.outbox(post, msg, self._cell):
                        return
            targetAddr.target.post(msg, self._cell)
        else:
            raise InvalidActorAddress(targetAddr, "not the address of an actor of this node")

    def promise(self) -> "Promise":
        """Answer the current ask later, instead of with the result of the handler."""
        return Promise(self._cell.promise())

    def after(self, seconds: float, msg: object) -> Reminder:
        """Send a message to this actor after `seconds`; `cancel()` of the result revokes it.

        Raises:
            InvalidSeconds: `seconds` is not a number of seconds. A negative number means now.
        """
        return Reminder(self._cell, checked(seconds, "seconds"), msg)

    def every(self, seconds: float, msg: object) -> Reminder:
        """Send a message to this actor every `seconds`, until `cancel()` or its end.

        Raises:
            InvalidSeconds: `seconds` is not a number above 0.
        """
        seconds = checked_period(seconds, "every")
        return Reminder(self._cell, seconds, msg, period=seconds)

    def sleep(self, seconds: float) -> Future[None]:
        """Return a future to await; only this actor pauses.

        Raises:
            InvalidSeconds: `seconds` is not a number of seconds. A negative number means now.
        """
        delay = checked(seconds, "seconds")
        pause = Pause(self._cell.warn_unawaited_pause)
        self._cell.runner.call_later(delay, Pause.end, ref(pause))
        return pause

    # --- behavior ---

    def become(self, handlers: Handlers) -> None:
        """Handle messages with other handlers, starting with the next message.

        Args:
            handlers: a class whose `@handler` methods are called with this actor as `self`; an
                object with `@handler` methods of its own; or a dictionary of message class →
                function of the message.

        Raises:
            InvalidHandler: the argument has no handlers.
        """
        self._cell.become(handlers)

    def unbecome(self) -> None:
        """Handle messages with the handlers of this class again."""
        self._cell.become(type(self))

    def stash(self) -> None:
        """Set the current message aside until `unstash_all`; its handler's result is ignored.

        Messages that are still stashed at the end of the actor become dead letters.

        Raises:
            MailboxFull: the stash has reached its limit.
        """
        self._cell.stash()

    def unstash_all(self) -> None:
        """Handle the stashed messages next, in the order of their arrival."""
        self._cell.unstash_all()

    # --- other actors ---

    def spawn(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> ActorRef[A]:
        """Spawn a child, which ends when this actor ends."""
        # The type `Callable[P, A]` lets checkers verify the arguments of `__init__`.
        plain_class: type[A] = actor_class  # type: ignore[assignment]
        return self._cell.runtime.start_actor(plain_class, args, kwargs, parent=self._cell)

    def monitor(self, ref: ActorRef) -> Monitor:
        """Receive a `Down` message when the actor ends or is lost, or now if it has ended."""
        return self._cell.watch(checked_ref(ref, "self.monitor()"))

    def link(self, ref: ActorRef) -> None:
        """Link two actors: if one of them ends abnormally, so does the other.

        With `trap_exit = True` this actor receives an `Exit` message instead of ending.
        """
        checked_ref(ref, "self.link()").target.link(self._cell.ref)
        self._cell.link(ref)

    def unlink(self, ref: ActorRef) -> None:
        """Undo `link`."""
        self._cell.unlink(ref)
        ref.target.unlink(self._cell.ref)

    def stop_self(self, reason: ExitReason = ExitReason.NORMAL, detail: str = "") -> None:
        """End this actor after the current handler returns."""
        self._cell.end = self._cell.end or (reason, detail)

    # --- Thespian's styles ---

    @property
    def _myRef(self) -> ThespianContext:  # Thespian's name
        """The object that Thespian's own methods (`createActor`, `wakeupAfter` …) use."""
        return ThespianContext(self._cell)

    def handle_thespian_style(self, message: Message) -> bool:
        """Pass a message to a handler in Thespian's style; return False if there is none."""
        if isinstance(message, ActorExitRequest):
            self.stop_self()
            with contextlib.suppress(Exception):
                self._receive(message)
            return True
        return self._receive(message)

    def _receive(self, message: Message) -> bool:
        """Call Thespian's handler for a message; return False if there is none."""
        method = self._thespian_method(message)
        if method is None:
            return False
        result = method(message, self.sender or self._cell.runtime.nobody)
        if isinstance(result, Coroutine):
            self._cell.start_task(result, None)
        return True

    def _thespian_method(self, message: Message) -> Callable[[Any, ActorAddress], Any] | None:
        """Return the method that Thespian would call for a message; None if there is none."""
        names = [f"receiveMsg_{kind.__name__}" for kind in type(message).__mro__]
        for name in [*names, "receiveUnrecognizedMessage"]:
            method = getattr(self, name, None)
            if method is not None:
                return method  # type: ignore[no-any-return]
        if type(self).receiveMessage is not ThespianActor.receiveMessage:
            return self.receiveMessage
        return None


class Promise:
    """The pending answer to an ask; `set_result` or `set_exception` sends it, once."""

    __slots__ = ("_asker",)

    def __init__(self, asker: Asker | None) -> None:
        self._asker = asker

    def set_result(self, value: Answer) -> bool:
        """Send the answer.

        Return False if the current message was not an ask, or if the ask was answered before.
        """
        return self._asker is not None and self._asker.set_result(value)

    def set_exception(self, error: BaseException) -> bool:
        """Send an error as the answer.

        Return False if the current message was not an ask, or if the ask was answered before.

        The asker receives a `CallboardError` unchanged. Any other exception is converted to a
        `RemoteError` with its type and text, even if the asker is on this node.
        """
        if not isinstance(error, CallboardError):
            error = remote_error(error)
        return self._asker is not None and self._asker.set_exception(error)
