"""References to actors: what users hold, send, compare and print.

A ref leads to a `Target` (the cell of a local actor, or the proxy of a remote one) and gives it
messages together with their `Sender`: an asker, which wants the outcome, or a teller, which
does not. What ends a target's life is told to its watchers as a `Down`.
"""

import functools
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from callboard.actors.asking.overdue import ASK_SECONDS, UNLIMITED_SECONDS
from callboard.actors.asking.retry import (
    FIRST_PAUSE,
    RetriedAsk,
    Retries,
    RetryHost,
    RetryTarget,
)
from callboard.actors.envelope import INSTRUMENTATION, Envelope, Priority
from callboard.actors.errors import NoSuchMethod, WrongArgument, WrongValue
from callboard.actors.exit_reason import ExitReason
from callboard.actors.future import Future
from callboard.actors.seconds import limit as checked_limit
from callboard.support.dataclass import dataclass
from callboard.support.seconds import MAX_SECONDS
from callboard.support.text import safe_repr

if TYPE_CHECKING:

    class ActorAddress:
        """Thespian's, which ships no types: without this a checker would take any name."""

    from typing_extensions import TypeVar as OptionalTypeVar  # known to every checker

    A_co = OptionalTypeVar("A_co", covariant=True, default=Any)
else:
    from thespian.actors import ActorAddress

    A_co = TypeVar("A_co", covariant=True)

R = TypeVar("R")
P = ParamSpec("P")

#: Seconds that an ask may take unless it says otherwise.
DEFAULT_TIMEOUT = ASK_SECONDS

#: Seconds by which a limit has to come before an ask's own deadline to count.
LIMIT_MARGIN = 1.0


class Query(Generic[R]):
    """Base class for messages that are questions.

    `class Total(Query[int])` is answered by an int. The class carries no behavior;
    checkers take the type of `ref.ask(Total())` from it.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A method call on its way to an actor: what `ref.call` and `ref.proxy()` send."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """What an actor is told of the end of another one."""

    ref: "ActorRef[Any]"
    reason: ExitReason | str
    detail: str = ""


class Down(Ended):
    """A monitored actor ended. Sent exactly once for each monitor.

    Attributes:
        ref: the actor that ended.
        reason: why, an `ExitReason` (equal to its text).
        detail: the text of the error, for people.
    """

    __slots__ = ()


Watcher = Callable[[Down], object]


class Home(RetryHost, Protocol):
    """What a ref uses of the runtime that it belongs to."""

    #: The name of the node.
    name: str
    #: The 18 bytes that name the node.
    node_id: bytes

    def ref_text(self, ref: "ActorRef[Any]", /) -> str:
        """Return the text of a ref."""

    def ref_of(self, node: bytes, number: int, /) -> "ActorRef[Any]":
        """Return the ref of an actor by its node and number."""

    def reply_ref(self, asker: "Asker", /) -> "ActorRef[Any]":
        """Return the one-shot address of an asker."""

    #: The object that actors see as `self.node`.
    node: Any

    def note_late_answer(self) -> None:
        """Count an answer that no asker takes."""


class AnySender(Protocol):
    """What all senders have; see `callboard.actors.asking.reply`."""

    @property
    def node(self) -> bytes:
        """The id of the node that the message came from; empty for this one."""

    @property
    def sent_id(self) -> int:
        """The message id under which the ask left this node; 0 if it did not."""

    @property
    def is_done(self) -> bool:
        """Whether the ask has an outcome."""

    @property
    def wants_reply(self) -> bool:
        """Whether a caller waits for the outcome."""

    @property
    def origin(self) -> object:
        """The key under which the caller gives the ask up."""

    def encoded(self, value: Any, /) -> Callable[[], object] | None:
        """Serialize an answer as it is now, and return what sends it."""

    def reference(self, runtime: Home, /) -> "ActorRef[Any] | None":
        """Return what `self.sender` is while the message is handled."""


class Teller(AnySender, Protocol):
    """The sender of a message that wants no answer: an actor's cell, or what stands for one."""

    @property
    def expects(self) -> Literal[False]:
        """Tells a teller from an asker."""

    @property
    def deadline(self) -> None:
        """A teller sets no time."""

    @property
    def runtime(self) -> Home:
        """The runtime that it sends from."""

    @property
    def number(self) -> int:
        """Its number there, under which it can be reached."""


class Asker(AnySender, Protocol):
    """The sender that wants an outcome: an ask's future, or a remote asker's double."""

    @property
    def expects(self) -> Literal[True]:
        """Tells an asker from a cell that only told."""

    @property
    def deadline(self) -> float | None:
        """When its time is over, on the runner's clock; `EXPIRED` once it is, None if never."""

    def set_result(self, value: Any, /) -> bool:
        """Take the answer; False when there was one."""

    def set_exception(self, error: BaseException, /) -> bool:
        """Take the error instead of an answer; False when there was one."""

    def mark_handled(self) -> None:
        """Take note that the message was handled; the answer may come later."""


#: Where a message came from; None stands for an anonymous one.
Sender = Teller | Asker


class Awaited(Protocol):
    """An actor that another one waits for."""

    @property
    def ref(self) -> "ActorRef[Any]":
        """The actor's ref."""

    def waits_for(self, other: "Running", /) -> bool:
        """Return whether this actor is `other`, or waits for it, directly or through others."""


class Running(Teller, Awaited, Protocol):
    """The actor whose handler runs: what the code below a handler may know of it."""

    @property
    def actor(self) -> Any:
        """The actor itself; None once it has ended."""

    @property
    def sender(self) -> "Sender | None":
        """The sender of the message that is handled."""

    @property
    def chain_name(self) -> str:
        """What names it in the chain of asks that wait for it; empty: it stands in none."""

    @property
    def outbox(self) -> "Callable[[Callable[..., Any], Any, Any], bool] | None":
        """What withholds the sends of its running handler; None where they go at once.

        It is called with what posts the message, the message and its sender, and returns
        whether it has taken them.
        """

    def refuse_wait(self, asked: object, /) -> bool:
        """Raise if waiting on this thread would never end; returns whether it may block.

        Raises:
            WouldDeadlock: it is the thread that has to run the actor asked.
        """

    def may_block_here(self) -> bool:
        """Return whether this is the actor's own thread, which it may block."""

    def block_on(self, target: Awaited, /) -> bool:
        """Take no turn until `unblock`; False if `target` waits for this actor in turn."""

    def unblock(self) -> None:
        """Take turns again."""


#: The actor whose handler runs here, or None outside of actors. A coroutine handler runs in a
#: copy of the context, so the value stays right after an await and inside tasks that the
#: handler starts.
current_cell: ContextVar[Running | None] = ContextVar("callboard_current_cell", default=None)


class Target(RetryTarget, Protocol):
    """Where a ref leads: the cell of a local actor, or the proxy of a remote one."""

    def post(self, message: Any, sender: Sender | None, /) -> None:
        """Hand a message over; from any thread, never blocks."""

    def post_urgent(self, message: Any, sender: Sender | None, /) -> None:
        """Hand over a message that goes before those without priority."""

    async def apost(
        self, message: Any, sender: Sender | None, /, *, is_urgent: bool = False
    ) -> None:
        """Hand a message over as soon as there is room for it."""

    def give_up(self, asker: Asker, /) -> None:
        """Let a coroutine handler stop that works for an asker which has gone."""

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


class Callee(Generic[A_co]):
    """What methods of actors can be called on; A_co is the actors' class."""

    __slots__ = ()

    def ask(
        self,
        message: object,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        backoff: float = FIRST_PAUSE,
        *,
        priority: Priority = "normal",
    ) -> Future[Any]:
        """Send a message and return the future of its answer."""
        raise NotImplementedError

    @overload
    async def aask(
        self,
        message: Query[R],
        timeout: float | None = ...,
        retries: int = ...,
        backoff: float = ...,
        *,
        priority: Priority = ...,
    ) -> R: ...
    @overload
    async def aask(
        self,
        message: object,
        timeout: float | None = ...,
        retries: int = ...,
        backoff: float = ...,
        *,
        priority: Priority = ...,
    ) -> Any: ...
    async def aask(
        self,
        message: object,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        backoff: float = FIRST_PAUSE,
        *,
        priority: Priority = "normal",
    ) -> Any:
        """Send a message and return its answer: `ask` as a coroutine, for tasks.

        `group.create_task(ref.aask(m))` works; the message is sent when the task begins, and
        to cancel the task gives the ask up.
        """
        future = self.ask(message, timeout, retries, backoff, priority=priority)
        try:
            return await future
        finally:
            future.cancel()  # no effect once it is done

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
        future fails as that of `ask` does, or with `NoSuchMethod`. Of a group it is called on
        one member; with routing `hash`, use `at(key).call(…)`.

        Raises:
            TypeError: `method` is not a function of a class.
        """
        if not hasattr(method, "__name__"):
            msg = f"call() takes a method such as Counter.add, not {method!r}; by its name: "
            msg += "ref.proxy().add(1)"
            raise WrongArgument(msg)
        return self.ask(Call(method.__name__, args, kwargs or None))


def refuse_priority(priority: object) -> None:
    """Refuse what is no priority.

    Raises:
        WrongValue: it is neither of the two.
    """
    if priority not in ("normal", "high"):
        msg = f"priority={safe_repr(priority):.80}: a message has priority 'normal' or 'high'"
        raise WrongValue(msg)


def checked_ref(ref: object, call: str) -> "ActorRef[Any]":
    """Return what was given as a ref.

    Args:
        ref: anything.
        call: that it was given to, for the error.

    Raises:
        WrongArgument: it is not a ref.
    """
    if isinstance(ref, ActorRef):
        return ref
    msg = f"{call} takes a ref, as spawn() and find() return it, not {safe_repr(ref):.100}"
    raise WrongArgument(msg)


@functools.total_ordering
class ActorRef(Callee[A_co], ActorAddress):
    """The address of an actor on this node or any other; A_co is the actor's class.

    Refs are equal when they name the same actor, whichever node they came from; they can be
    keys of dictionaries and travel inside messages. A ref says nothing about whether the actor
    still lives.
    """

    __slots__ = ("_key", "home", "target")

    def __init__(self, home: Home, node: bytes, number: int, target: Target) -> None:
        """Only the runtime makes refs; users get them from `spawn` and in messages."""
        #: The runtime that this ref belongs to.
        self.home = home
        self._key = (node, number)
        self.target = target

    if not TYPE_CHECKING:  # who checks types knows what a ref has

        def __getattr__(self, name: str) -> NoReturn:
            remedy = f"ref.proxy().{name}(…), or ref.call with the method"
            msg = (
                f"a ref has no attribute {name!r}; a method of its actor is called by {remedy}"
            )
            raise AttributeError(msg, name=name, obj=self)

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
        if INSTRUMENTATION.used:
            refuse_priority(priority)
            if (trace := INSTRUMENTATION.current()) is not None:
                message = Envelope(message, trace)
            post = self.target.post if priority == "normal" else self.target.post_urgent
            cell = current_cell.get()
            if cell is not None and cell.outbox and cell.outbox(post, message, cell):
                return
        if priority == "normal":
            self.target.post(message, current_cell.get())
        else:
            refuse_priority(priority)
            self.target.post_urgent(message, current_cell.get())

    async def atell(self, message: object, *, priority: Priority = "normal") -> None:
        """Send a message as soon as there is room for it: `tell` for coroutines.

        Waits while a mailbox with `on_full="wait"` is full, on this node or another, and while
        the link there is, in handlers as well; one coroutine after the other goes on. For how
        long is up to `asyncio.timeout`. Cancelled, it has not sent the message.

        Args:
            message: any message; it may be changed once this has returned.
            priority: "high" goes before all normal messages that wait in the mailbox.

        Raises:
            MailboxFull: the mailbox has bounds, and refuses the message by its policy.
            NotSerializable: the actor is remote and the message cannot travel.
            WouldDeadlock: in a handler for which the actor waits.
        """
        refuse_priority(priority)
        if INSTRUMENTATION.used:
            if (trace := INSTRUMENTATION.current()) is not None:
                message = Envelope(message, trace)
            post = self.target.post_urgent if priority == "high" else self.target.post
            cell = current_cell.get()
            if cell is not None and cell.outbox and cell.outbox(post, message, cell):
                return
        await self.target.apost(message, current_cell.get(), is_urgent=priority == "high")

    @overload
    def ask(
        self,
        message: Query[R],
        timeout: float | None = ...,
        retries: int = ...,
        backoff: float = ...,
        *,
        priority: Priority = ...,
    ) -> Future[R]: ...
    @overload
    def ask(
        self,
        message: object,
        timeout: float | None = ...,
        retries: int = ...,
        backoff: float = ...,
        *,
        priority: Priority = ...,
    ) -> Future[Any]: ...
    def ask(
        self,
        message: object,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        backoff: float = FIRST_PAUSE,
        *,
        priority: Priority = "normal",
    ) -> Future[Any]:
        """Send a message and return the future of its answer.

        Args:
            message: any message; a `Query[R]` is answered by an R.
            timeout: seconds that the answer may take; None or `math.inf` for no limit. Left
                out it is 60, or in a handler what is left of the time of the ask that is
                handled. With `retries` it is the time of each attempt.
            retries: how often the message is sent again when an attempt ran out of time, the
                path was lost, or the mailbox was full. It is handled once all the same: the
                receiving node keeps answers for 60 s, and repeats join the work under way. To
                a node of an earlier release only what was not sent, or refused, is repeated.
            backoff: seconds before the first repeat; twice as long before each further one.
            priority: "high" goes before all normal messages that wait in the mailbox.

        Raises:
            InvalidSeconds: the timeout or backoff is not a time.
            WrongArgument: `retries` is not a number of repeats.

        The future fails with `ActorDown`, `AskTimeout`, `MailboxFull`, `NodeUnreachable`,
        `UnexpectedMessage` or `RemoteError`.
        """
        if timeout is not DEFAULT_TIMEOUT or retries or priority != "normal":
            if retries:
                return self._ask_again(message, timeout, retries, backoff, priority)
            return self._ask_in_company(message, timeout, priority)
        home = self.home  # as `set_deadline`, without the call
        deadline = home.now() + DEFAULT_TIMEOUT
        if INSTRUMENTATION.used:
            cell = current_cell.get()
            sender = None if cell is None else cell.sender
            limit = None if sender is None else sender.deadline
            is_limited = limit is not None and limit < deadline - LIMIT_MARGIN
            if (
                is_limited
                or (cell is not None and cell.chain_name)
                or INSTRUMENTATION.looks() is not None
                or INSTRUMENTATION.chain.get()
            ):
                return self._ask_in_company(message, timeout, priority)
        future: Future[Any] = Future(self, deadline)
        future.timeout = DEFAULT_TIMEOUT
        home.fresh_asks.append(future)
        self.target.post(message, future)
        return future

    def _ask_in_company(
        self, message: object, timeout: float | None, priority: Priority
    ) -> Future[Any]:
        """Ask with a deadline of its own, a trace context, or a priority."""
        if priority != "normal":
            refuse_priority(priority)
        future: Future[Any] = Future(self)
        has_own_time = timeout is not DEFAULT_TIMEOUT
        # NaN is not between, nor is what is no plain time: it is checked.
        if has_own_time and not (timeout.__class__ is float and 0.0 <= timeout < MAX_SECONDS):
            timeout = checked_limit(timeout)
        if timeout is not None:
            if has_own_time:  # as `set_deadline`, without the call
                INSTRUMENTATION.used, future.timeout, home = True, timeout, self.home
                future.deadline = home.now() + timeout
                home.fresh_asks.append(future)
                has_sender = True
            else:
                cell = current_cell.get()
                sender = None if cell is None else cell.sender
                limit = None if sender is None else sender.deadline
                has_sender = self.home.set_deadline(future, timeout, limit)
            if has_sender and not self.is_local:
                message = Envelope(message, None, future.deadline)  # it travels, too
        else:
            message = self._unlimited(message)
        begun = (
            None if INSTRUMENTATION.spans is None else INSTRUMENTATION.begin_ask(self, message)
        )
        trace = INSTRUMENTATION.current() if begun is None else begun.trace
        if begun is not None:
            future.on_done(begun.end)
        chain, cell = INSTRUMENTATION.chain.get(), current_cell.get()
        name = "" if cell is None else cell.chain_name
        if name:
            chain = (*chain, name)
        if trace is not None or chain:
            plain = message.message if isinstance(message, Envelope) else message
            deadline = message.deadline if isinstance(message, Envelope) else future.deadline
            message = Envelope(plain, trace, deadline, chain=chain)
        post = self.target.post_urgent if priority == "high" else self.target.post
        if cell is None or not cell.outbox or not cell.outbox(post, message, future):
            post(message, future)
        # Without a deadline it ends with the node at the latest.
        return future if future.deadline is not None else self.home.shutdown.guard(future)

    def _unlimited(self, message: object) -> object:
        """Return what an ask without a time sends."""
        if self.is_local:
            return message
        # Without a deadline the other node would take it for an ask with the default.
        return Envelope(message, None, self.home.now() + UNLIMITED_SECONDS)

    def _ask_again(
        self,
        message: object,
        timeout: float | None,
        retries: int,
        backoff: float,
        priority: Priority,
    ) -> Future[Any]:
        """Ask, and send the message again when no answer comes."""
        refuse_priority(priority)
        limit = None
        cell = current_cell.get()
        if timeout is DEFAULT_TIMEOUT and cell is not None and cell.sender is not None:
            limit = cell.sender.deadline
        target = self.target
        post = target.post_urgent if priority == "high" else target.post
        if INSTRUMENTATION.used:
            post = functools.partial(_post_when_held, post)
        plan = Retries(retries, backoff, checked_limit(timeout), limit)
        INSTRUMENTATION.used = True
        begun = INSTRUMENTATION.begin_ask(self, message)
        trace = INSTRUMENTATION.current() if begun is None else begun.trace
        future = RetriedAsk(self, message, trace, plan, post, waiting_actors())
        if begun is not None:
            future.on_done(begun.end)
        return future

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
        """Whether the actor lives (or lived) on the node that this ref belongs to."""
        return self._key[0] == self.home.node_id

    @property
    def addressDetails(self) -> str:  # Thespian's name
        """The ref as text, under Thespian's name."""
        return str(self)

    # Thespian's other name of it, and the text by which it compares addresses.
    actorAddressString = _aaddr = addressDetails

    def __str__(self) -> str:
        return self.home.ref_text(self)

    def __repr__(self) -> str:
        return f"<ActorRef {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorRef) and self._key == other._key

    def __lt__(self, other: object) -> bool:
        return self._key < other._key if isinstance(other, ActorRef) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __copy__(self) -> "ActorRef[A_co]":
        return self

    def __deepcopy__(self, _: object) -> "ActorRef[A_co]":
        return self

    def __reduce__(self) -> str:
        msg = "an ActorRef is bound to its node; send str(ref) and use node.ref(text)"
        raise TypeError(msg)


def waiting_actors() -> tuple[str, ...]:
    """Return the named actors that wait for what the running code asks."""
    chain, cell = INSTRUMENTATION.chain.get(), current_cell.get()
    return (*chain, cell.chain_name) if cell is not None and cell.chain_name else chain


def _post_when_held(post: Callable[..., object], message: Any, sender: Sender | None) -> None:
    """Post a message, or let it wait in the outbox of the handler that runs."""
    cell = current_cell.get()
    if cell is None or not cell.outbox or not cell.outbox(post, message, sender):
        post(message, sender)


class ReplyRef(ActorRef[Any]):
    """The one-shot address of an asker: the first message to it is the answer."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"reply to {self._key[1]:#x}"


class NoActor:
    """Where a ref leads that has no actor behind it: it takes messages, and never ends."""

    __slots__ = ()

    def post(self, message: Any, sender: Sender | None) -> None:
        """Take a message."""

    def post_urgent(self, message: Any, sender: Sender | None) -> None:
        """Take a message: there is nothing that it could overtake."""
        self.post(message, sender)

    async def apost(
        self, message: Any, sender: Sender | None, *, is_urgent: bool = False
    ) -> None:
        """Take a message: there always is room."""
        (self.post_urgent if is_urgent else self.post)(message, sender)

    def keeps_answers(self) -> bool:
        """Return that nothing is handled twice."""
        return True

    def give_up(self, asker: Asker) -> None:
        """No handler works for anybody."""

    def stop(self) -> None:
        """There is no actor to be ended."""

    def kill(self) -> None:
        """There is no actor to be ended."""

    def monitor(self, key: object, watcher: Watcher) -> None:
        """There is no end to be told of."""

    def demonitor(self, key: object) -> None:
        """Nothing is kept."""

    def link(self, other: ActorRef[Any]) -> None:
        """There is nothing to link with."""

    def unlink(self, other: ActorRef[Any]) -> None:
        """There is nothing to unlink."""


class ReplyTarget(NoActor):
    """Leads from a reply ref to its asker."""

    __slots__ = ("_asker", "_runtime")

    def __init__(self, runtime: Home, asker: Asker) -> None:
        self._runtime = runtime
        self._asker = asker

    def post(self, message: Any, sender: Sender | None) -> None:
        """Answer with the message; a second answer is dropped and counted."""
        if isinstance(message, Envelope):
            message = message.message
        if not self._asker.set_result(message):
            self._runtime.note_late_answer()


class MethodProxy:
    """Calls an actor's methods by attribute: each call returns a future."""

    __slots__ = ("_ref",)

    def __init__(self, ref: ActorRef[Any]) -> None:
        self._ref = ref

    def __getattr__(self, name: str) -> Callable[..., Future[Any]]:
        if name.startswith("_"):
            msg = f"{name!r} is not public; only public methods can be called"
            raise NoSuchMethod(msg)
        return lambda *args, **kwargs: self._ref.ask(Call(name, args, kwargs or None))
