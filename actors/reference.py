"""References to actors: what users hold, send, compare and print."""

import functools
from collections.abc import Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from actors.answers import Asker, Sender
from actors.current import current_cell
from actors.envelope import COMPANY, Envelope, Priority
from actors.errors import NoSuchMethod
from actors.future import Future
from actors.monitors import Watcher
from actors.signals import Call, Query

if TYPE_CHECKING:

    class ActorAddress:
        """Thespian's, which ships no types: without this a checker would take any name."""

    from actors.runtime import Runtime
else:
    from thespian.actors import ActorAddress

A_co = TypeVar("A_co", covariant=True)
R = TypeVar("R")
P = ParamSpec("P")

DEFAULT_TIMEOUT = 60.0
"""Seconds that an ask may take unless it says otherwise."""

LIMIT_MARGIN = 1.0
"""Seconds by which a limit has to come before an ask's own deadline to count."""


class Target(Protocol):
    """Where a ref leads: the cell of a local actor, or the proxy of a remote one."""

    def post(self, message: Any, sender: Sender | None, /) -> None:
        """Hand a message over; from any thread, never blocks."""

    def post_urgent(self, message: Any, sender: Sender | None, /) -> None:
        """Hand over a message that goes before those without priority."""

    def stop(self) -> None:
        """End the actor behind earlier messages."""

    def kill(self) -> None:
        """End the actor before its next message."""

    def monitor(self, key: object, watcher: Watcher, /) -> None:
        """Call `watcher` once when the actor ends or is lost."""

    def demonitor(self, key: object, /) -> None:
        """Forget a watcher."""

    def link(self, other: "ActorRef[Any]", /) -> None:
        """Let the actor be told when `other` ends."""

    def unlink(self, other: "ActorRef[Any]", /) -> None:
        """Undo `link`."""


class ActorRef(ActorAddress, Generic[A_co]):
    """The address of an actor on this node or any other; A_co is the actor's class.

    Refs are equal when they name the same actor, whichever node they came from; they can be
    keys of dictionaries and travel inside messages. A ref says nothing about whether the actor
    still lives.
    """

    __slots__ = ("_home", "_key", "target")

    def __init__(self, home: "Runtime", node: bytes, number: int, target: Target) -> None:
        """Only the runtime makes refs; users get them from `spawn` and in messages."""
        self._home = home
        self._key = (node, number)
        self.target = target

    # --- messages ---

    def tell(self, message: object, *, priority: Priority = "normal") -> None:
        """Send a message without waiting. Never raises for a dead actor: that is a dead letter.

        Args:
            message: any message.
            priority: "high" goes before all normal messages that wait in the mailbox.

        Raises:
            MailboxFull: the actor is local, and its mailbox has bounds and refuses the message.
            NotSerializable: the actor is remote and the message cannot travel.
        """
        if COMPANY.used and (trace := COMPANY.trace.get()) is not None:
            message = Envelope(message, trace)
        if priority == "normal":
            self.target.post(message, current_cell.get())
        else:
            self.target.post_urgent(message, current_cell.get())

    @overload
    def ask(
        self, message: Query[R], timeout: float | None = ..., *, priority: Priority = ...
    ) -> Future[R]: ...
    @overload
    def ask(
        self, message: object, timeout: float | None = ..., *, priority: Priority = ...
    ) -> Future[Any]: ...
    def ask(
        self,
        message: object,
        timeout: float | None = DEFAULT_TIMEOUT,
        *,
        priority: Priority = "normal",
    ) -> Future[Any]:
        """Send a message and return the future of its answer.

        Args:
            message: any message; a `Query[R]` is answered by an R.
            timeout: seconds that the answer may take; None for no limit. Left out it is 60, or
                in a handler what is left of the time of the ask that is handled.
            priority: "high" goes before all normal messages that wait in the mailbox.

        The future fails with `ActorDown`, `AskTimeout`, `MailboxFull`, `NodeUnreachable`,
        `UnexpectedMessage` or `RemoteError`.
        """
        if timeout is not DEFAULT_TIMEOUT or priority != "normal":
            return self._ask_in_company(message, timeout, priority)
        home = self._home  # as `set_deadline`, without the call
        deadline = home.now() + DEFAULT_TIMEOUT
        if COMPANY.used:
            cell = current_cell.get()
            sender = None if cell is None else cell.sender
            limit = None if sender is None else sender.deadline
            is_limited = limit is not None and limit < deadline - LIMIT_MARGIN
            if is_limited or COMPANY.trace.get() is not None:
                return self._ask_in_company(message, timeout, priority)
        future: Future[Any] = Future(self, deadline)
        future.timeout = DEFAULT_TIMEOUT
        home.fresh_asks.append(future)
        self.target.post(message, future)
        return future

    def _ask_in_company(
        self, message: object, timeout: float | None, priority: Priority
    ) -> Future[Any]:
        """Ask with a deadline of somebody's, a trace context, or a priority."""
        future: Future[Any] = Future(self)
        if timeout is not DEFAULT_TIMEOUT:
            if timeout is not None:
                COMPANY.used = True
                self._home.set_deadline(future, timeout)
                message = self._with_deadline(message, future)
        elif (cell := current_cell.get()) is None or cell.sender is None:
            self._home.set_deadline(future, timeout)
        elif self._home.set_deadline_within(future, timeout, cell.sender.deadline):
            message = self._with_deadline(message, future)
        trace = COMPANY.trace.get()
        if trace is not None:
            plain = message.message if isinstance(message, Envelope) else message
            message = Envelope(plain, trace, future.deadline)
        if priority == "high":
            self.target.post_urgent(message, future)
        else:
            self.target.post(message, future)
        return future

    def _with_deadline(self, message: object, future: Future[Any]) -> object:
        """Let a deadline that somebody has set travel to another node."""
        return message if self.is_local else Envelope(message, deadline=future.deadline)

    @overload
    def call(
        self,
        method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Future[R]: ...
    @overload
    def call(
        self, method: Callable[Concatenate[A_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]: ...
    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a public method of the actor: `ref.call(Counter.add, 1)`.

        The method runs in the actor, serial with its messages; only its name travels. The
        future fails as that of `ask` does, or with `NoSuchMethod`.

        Raises:
            TypeError: `method` is no function of a class.
        """
        if not hasattr(method, "__name__"):
            msg = f"call() takes a method such as Counter.add, not {method!r}; by its name: "
            msg += "ref.proxy().add(1)"
            raise TypeError(msg)
        return self.ask(Call(method.__name__, args, kwargs or None))

    def proxy(self) -> "MethodProxy":
        """Return an object whose methods call those of the actor: `ref.proxy().add(1)`."""
        return MethodProxy(self)

    def stop(self) -> None:
        """End the actor normally, behind the messages that it was sent before."""
        self.target.stop()

    def kill(self) -> None:
        """End the actor before its next message; a handler that awaits is cancelled."""
        self.target.kill()

    # --- identity ---

    @property
    def node_id(self) -> bytes:
        """The 18 bytes that name the actor's node."""
        return self._key[0]

    @property
    def actor_id(self) -> int:
        """The actor's number on its node."""
        return self._key[1]

    @property
    def is_local(self) -> bool:
        """True when the actor lives (or lived) on the node that this ref belongs to."""
        return self._key[0] == self._home.node_id

    @property
    def home(self) -> "Runtime":
        """The runtime that this ref belongs to."""
        return self._home

    @property
    def addressDetails(self) -> str:  # noqa: N802  # Thespian's name
        """The ref as text, under Thespian's name."""
        return str(self)

    @property
    def actorAddressString(self) -> str:  # noqa: N802  # Thespian's name
        """The ref as text, under Thespian's name."""
        return str(self)

    @property
    def _aaddr(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self._home.ref_text(self)

    def __repr__(self) -> str:
        return f"<ActorRef {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorRef) and self._key == other._key

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return self._key < other._key if isinstance(other, ActorRef) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self._key <= other._key if isinstance(other, ActorRef) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self._key > other._key if isinstance(other, ActorRef) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self._key >= other._key if isinstance(other, ActorRef) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __copy__(self) -> "ActorRef[A_co]":
        return self

    def __deepcopy__(self, _: object) -> "ActorRef[A_co]":
        return self

    def __reduce__(self) -> str:
        msg = "an ActorRef is bound to its node; send str(ref) and use node.ref(text)"
        raise TypeError(msg)


class ReplyRef(ActorRef[Any]):
    """The one-shot address of an asker: the first message to it is the answer."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"reply to {self._key[1]:#x}"


class ReplyTarget:
    """Leads from a reply ref to its asker."""

    __slots__ = ("_asker", "_runtime")

    def __init__(self, runtime: "Runtime", asker: Asker) -> None:
        self._runtime = runtime
        self._asker = asker

    def post(self, message: Any, sender: Sender | None) -> None:
        """Answer with the message; a second answer is dropped and counted."""
        if isinstance(message, Envelope):
            message = message.message
        if not self._asker.set_result(message):
            self._runtime.counters.late_answers += 1

    def post_urgent(self, message: Any, sender: Sender | None) -> None:
        """Answer with the message: there is nothing that it could overtake."""
        self.post(message, sender)

    def stop(self) -> None:
        """An asker cannot be stopped."""

    def kill(self) -> None:
        """An asker cannot be killed."""

    def monitor(self, key: object, watcher: Watcher) -> None:
        """An asker is never monitored."""

    def demonitor(self, key: object) -> None:
        """An asker is never monitored."""

    def link(self, other: ActorRef[Any]) -> None:
        """An asker is never linked."""

    def unlink(self, other: ActorRef[Any]) -> None:
        """An asker is never linked."""


class MethodProxy:
    """Calls an actor's methods by attribute: each call returns a future."""

    __slots__ = ("_ref",)

    def __init__(self, ref: ActorRef[Any]) -> None:
        self._ref = ref

    def __getattr__(self, name: str) -> Callable[..., Future[Any]]:
        if name.startswith("_"):
            msg = f"{name!r} is not public; only public methods can be called"
            raise NoSuchMethod(msg)
        return functools.partial(_send_call, self._ref, name)


def _send_call(ref: ActorRef[Any], name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
    return ref.ask(Call(name, args, kwargs or None))
