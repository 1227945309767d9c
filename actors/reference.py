"""References to actors, which users hold, send, compare and print.

A ref leads to a `Target`: the cell of a local actor, or the proxy of a remote one. The target
receives each message with its `Sender`: an asker, which wants the outcome, or a sender that
does not. The watchers of a target receive its end as a `Down`.
"""

import functools
from collections.abc import Callable, Coroutine, Hashable
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from callboard.actors.asking.overdue import ASK_SECONDS, UNLIMITED_SECONDS
from callboard.actors.asking.reply import MessageSender
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
from callboard.actors.future import Asked, Future
from callboard.actors.values import Answer, Message
from callboard.arguments import limit as checked_limit
from callboard.support.calls import Action, Arguments, Callback, Keywords
from callboard.support.dataclass import dataclass
from callboard.support.seconds import MAX_SECONDS
from callboard.support.text import safe_repr

if TYPE_CHECKING:
    from callboard.actors.streams.stream import Stream

    class ActorAddress:
        """Thespian's class, which has no types; a checker would accept any attribute of it."""

    from typing_extensions import TypeVar as OptionalTypeVar  # known to every checker

    A_co = OptionalTypeVar("A_co", covariant=True, default=Any)
else:
    from thespian.actors import ActorAddress

    A_co = TypeVar("A_co", covariant=True)

R = TypeVar("R")
P = ParamSpec("P")

#: Default timeout of an ask in seconds.
DEFAULT_TIMEOUT = ASK_SECONDS

#: Default seconds after which the generator of a reader that takes nothing is closed.
IDLE_SECONDS: Final = 300.0

#: An inherited limit applies if it ends an ask by more than these seconds before its deadline.
LIMIT_MARGIN = 1.0


class Query(Generic[R]):
    """Base class for messages that ask for an answer of a type.

    `class Total(Query[int])` is answered by an int. The class has no behavior; checkers take
    the type of `ref.ask(Total())` from it.
    """

    __slots__ = ()


class StreamQuery(Generic[R]):
    """Base class for messages whose answers stream: `ref.stream(Pages())` reads them.

    `class Pages(StreamQuery[str])` is answered by a generator of str. The class has no
    behavior; checkers take the type of the items from it.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A method call as a message, sent by `ref.call` and `ref.proxy()`."""

    method: str
    args: Arguments = ()
    kwargs: Keywords | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Base class of messages about the end of another actor."""

    ref: "ActorRef"
    reason: ExitReason | str
    detail: str = ""


class Down(Ended):
    """A monitored actor ended. Sent exactly once for each monitor.

    Attributes:
        ref: the actor that ended.
        reason: an `ExitReason` (equal to its text).
        detail: text of the error, for people.
    """

    __slots__ = ()


Watcher = Callable[[Down], object]


class Home(RetryHost, Protocol):
    """The interface of a runtime for its refs."""

    #: The name of the node.
    name: str
    #: The 18 bytes that name the node.
    node_id: bytes

    def ref_text(self, ref: "ActorRef", /) -> str:
        """Return a ref as text."""

    def ref_of(self, node: bytes, number: int, /) -> "ActorRef":
        """Return the ref of an actor by node and number."""

    def reply_ref(self, asker: "Asker", /) -> "ActorRef":
        """Return the one-shot address of an asker."""

    #: The object that actors see as `self.node`.
    node: Any

    def record_late_answer(self) -> None:
        """Count an answer that no asker receives."""


class AnySender(Protocol):
    """The common interface of senders; see `callboard.actors.asking.reply`."""

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
        """The key with which the caller can give up the ask."""

    def encoded(self, value: Answer, /) -> Action | None:
        """Serialize an answer in its current state, and return a function that sends it."""

    def reference(self, runtime: Home, /) -> "ActorRef | None":
        """Return the value of `self.sender` while the message is handled."""


class Teller(AnySender, Protocol):
    """The sender of a message that wants no answer: an actor's cell, or a substitute."""

    @property
    def expects(self) -> Literal[False]:
        """False, which distinguishes it from an asker."""

    @property
    def deadline(self) -> None:
        """None, as the sender does not wait for an answer."""

    @property
    def runtime(self) -> Home:
        """The runtime of the sender."""

    @property
    def number(self) -> int:
        """The number under which the sender can be reached."""


class Asker(AnySender, Protocol):
    """The sender that wants an outcome: the future of an ask, or the proxy of a remote one."""

    @property
    def expects(self) -> Literal[True]:
        """True, which distinguishes it from a sender that wants no answer."""

    @property
    def deadline(self) -> float | None:
        """When the ask expires, on the runner's clock; `EXPIRED` if it has; None if never."""

    def set_result(self, value: Any, /) -> bool:
        """Accept the answer; return False if there was an outcome."""

    def set_exception(self, error: BaseException, /) -> bool:
        """Accept an error as the outcome; return False if there was one."""

    def mark_handled(self) -> None:
        """Record that the message was handled; the answer may follow later."""


#: The sender of a message; None for an anonymous message.
Sender = Teller | Asker


class Awaited(Protocol):
    """An actor that another actor waits for."""

    @property
    def ref(self) -> "ActorRef":
        """The actor's ref."""

    def waits_for(self, other: "Running", /) -> bool:
        """Return whether this actor is `other`, or waits for it directly or through others."""


class Running(Teller, Awaited, Protocol):
    """The actor whose handler runs, as code called by the handler sees it."""

    @property
    def actor(self) -> Any:
        """The actor itself; None after its end."""

    @property
    def sender(self) -> "Sender | None":
        """The sender of the message that is being handled."""

    @property
    def chain_name(self) -> str:
        """The name of the actor in the chain of waiting asks; empty if it is not part of it."""

    @property
    def outbox(self) -> "Callable[[Callable[..., Any], Any, Any], bool] | None":
        """The function that withholds sends of the running handler; None if there is none.

        Called with the function that posts the message, the message, and its sender. It returns
        whether it withholds the message.
        """

    def refuse_wait(self, awaited: object, /) -> bool:
        """Raise if waiting on this thread would never end; return whether it may block.

        Raises:
            WouldDeadlock: this thread has to run the actor that would be waited for.
        """

    def may_block_here(self) -> bool:
        """Return whether this is the actor's own thread, which it may block."""

    def block_on(self, target: Awaited, /) -> bool:
        """Suspend this actor until `unblock`; return False if `target` waits for this actor."""

    def unblock(self) -> None:
        """Resume this actor."""


#: The actor whose handler runs; None outside of actors. A coroutine handler runs in a copy of
#: the context, so the value is also right after an await, and in tasks that the handler starts.
current_cell: ContextVar[Running | None] = ContextVar("callboard_current_cell", default=None)


class Target(RetryTarget, Protocol):
    """The target of a ref: the cell of a local actor, or the proxy of a remote one."""

    def post(self, message: Message, sender: Sender | None, /) -> None:
        """Send a message. Can be called from any thread; never blocks."""

    def post_urgent(self, message: Message, sender: Sender | None, /) -> None:
        """Send a message that is handled before those without priority."""

    async def apost(
        self, message: Message, sender: Sender | None, /, *, is_urgent: bool = False
    ) -> None:
        """Send a message when there is room for it."""

    def give_up(self, asker: Asker, /) -> None:
        """Cancel a coroutine handler whose asker no longer waits."""

    def error_of_unsent(self, asker: Asker, /) -> BaseException | None:
        """Return the error of an expired ask that was never sent; None if it was sent."""

    def stop(self) -> None:
        """End the actor after the messages that it has received."""

    def kill(self) -> None:
        """End the actor before its next message."""

    def monitor(self, key: Hashable, watcher: Watcher, /) -> None:
        """Call `watcher` once, when the actor ends or is lost."""

    def demonitor(self, key: Hashable, /) -> None:
        """Remove a watcher."""

    def link(self, other: "ActorRef", /) -> None:
        """Notify the actor when `other` ends."""

    def unlink(self, other: "ActorRef", /) -> None:
        """Undo `link`."""


class Callee(Generic[A_co]):
    """Base class of refs and groups, whose actors' methods can be called.

    A_co is the class of the actors.
    """

    __slots__ = ()

    def ask(
        self,
        message: Message,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        backoff: float = FIRST_PAUSE,
        *,
        priority: Priority = "normal",
    ) -> Future:
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
        message: Message,
        timeout: float | None = ...,
        retries: int = ...,
        backoff: float = ...,
        *,
        priority: Priority = ...,
    ) -> Any: ...
    async def aask(
        self,
        message: Message,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        backoff: float = FIRST_PAUSE,
        *,
        priority: Priority = "normal",
    ) -> Any:
        """Send a message and return its answer: `ask` as a coroutine, for tasks.

        For example `group.create_task(ref.aask(m))`. The message is sent when the task starts.
        Cancelling the task gives up the ask.
        """
        future = self.ask(message, timeout, retries, backoff, priority=priority)
        try:
            return await future
        finally:
            future.cancel()  # no effect if it is done

    def stream(
        self, query: StreamQuery[R], buffer: int = 256, *, idle: float = IDLE_SECONDS
    ) -> "Stream[R]":
        """Return the items of the actor's generator, for `async for`, or `for` on a thread.

        The stream is opened when its first item is read, and closed when the loop is left.

        Args:
            query: the message; its handler is a generator.
            buffer: limit of the items that each end holds. Each end also holds at most 1 MiB
                of items, unless a single item is larger.
            idle: seconds after which the generator of a reader that takes nothing is closed.

        Raises:
            WrongArgument: `query` is not a `StreamQuery`, or `buffer` is not a count.
            WrongValue: `buffer` is out of range.
            InvalidSeconds: `idle` is not a number of seconds above 0.
        """
        from callboard.actors.streams.stream import Stream  # most programs have none

        message: Message = query
        if not isinstance(message, StreamQuery):
            name = type(message).__name__
            msg = f"stream() takes a StreamQuery, and {name} is not one; use ask({name}(…))"
            raise WrongArgument(msg)
        return Stream(self.ask, query, buffer, idle)

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
    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
        """Call a public method of the actor: `ref.call(Counter.add, 1)`.

        The method runs in the actor, in order with its messages; only its name is sent. The
        future fails like one of `ask`, or with `NoSuchMethod`. For a group, one member is
        called; with routing `hash`, use `at(key).call(…)`.

        Raises:
            TypeError: `method` is not a function of a class.
        """
        if not hasattr(method, "__name__"):
            msg = f"call() takes a method such as Counter.add, not {method!r}; by its name: "
            msg += "ref.proxy().add(1)"
            raise WrongArgument(msg)
        return self.ask(Call(method.__name__, args, kwargs or None))


def refuse_priority(priority: object) -> None:
    """Check the priority of a message.

    Raises:
        WrongValue: the priority is neither `normal` nor `high`.
    """
    if priority not in ("normal", "high"):
        msg = f"priority={safe_repr(priority):.80}: a message has priority 'normal' or 'high'"
        raise WrongValue(msg)


def checked_ref(ref: object, call: str) -> "ActorRef":
    """Check an argument that has to be a ref, and return it.

    Args:
        ref: the argument.
        call: name of the called function, for the error text.

    Raises:
        WrongArgument: the argument is not a ref.
    """
    if isinstance(ref, ActorRef):
        return ref
    msg = f"{call} takes a ref, as spawn() and find() return it, not {safe_repr(ref):.100}"
    raise WrongArgument(msg)


@functools.total_ordering
class ActorRef(Callee[A_co], Asked, ActorAddress):
    """The address of an actor on this node or any other; A_co is the actor's class.

    Refs are equal if they name the same actor, on whichever node they were created. They can be
    keys of dictionaries and parts of messages. A ref does not tell whether the actor still
    lives.
    """

    __slots__ = ("_key", "home", "target")

    target: Target

    def __init__(self, home: Home, node: bytes, number: int, target: Target) -> None:
        """Create a ref; only the runtime does, users get refs from `spawn` and in messages."""
        #: The runtime of this ref.
        self.home = home
        self._key = (node, number)
        self.target = target

    if not TYPE_CHECKING:  # a checker knows the attributes of a ref

        def __getattr__(self, name: str) -> NoReturn:
            remedy = f"ref.proxy().{name}(…), or ref.call with the method"
            msg = (
                f"a ref has no attribute {name!r}; a method of its actor is called by {remedy}"
            )
            raise AttributeError(msg, name=name, obj=self)

    # --- messages ---

    def tell(self, message: Message, *, priority: Priority = "normal") -> None:
        """Send a message without waiting; for a dead actor it becomes a dead letter.

        Args:
            message: any message.
            priority: "high" overtakes all normal messages that wait in the mailbox.

        Raises:
            MailboxFull: the actor is local, and its mailbox has bounds and refuses the message.
            NotSerializable: the actor is remote and the message cannot be serialized.
        """
        cell = current_cell.get()
        if INSTRUMENTATION.used:
            refuse_priority(priority)
            if (trace := INSTRUMENTATION.current()) is not None:
                message = Envelope(message, trace)
            if cell is not None and cell.outbox:
                post = self.target.post if priority == "normal" else self.target.post_urgent
                if cell.outbox(post, message, cell):
                    return
        if priority == "normal":
            self.target.post(message, cell)
        else:
            refuse_priority(priority)
            self.target.post_urgent(message, cell)

    async def atell(self, message: Message, *, priority: Priority = "normal") -> None:
        """Send a message when there is room for it: `tell` for coroutines.

        Waits while a mailbox with `on_full="wait"` or the link to its node is full, in handlers
        as well; waiting coroutines resume one after the other. Limit the wait with
        `asyncio.timeout`. A cancelled call has not sent the message.

        Args:
            message: any message; it may be changed after this call.
            priority: "high" overtakes all normal messages that wait in the mailbox.

        Raises:
            MailboxFull: the mailbox has bounds, and its policy refuses the message.
            NotSerializable: the actor is remote and the message cannot be serialized.
            WouldDeadlock: called in a handler that the actor waits for.
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
        message: Message,
        timeout: float | None = ...,
        retries: int = ...,
        backoff: float = ...,
        *,
        priority: Priority = ...,
    ) -> Future: ...
    def ask(
        self,
        message: Message,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        backoff: float = FIRST_PAUSE,
        *,
        priority: Priority = "normal",
    ) -> Future:
        """Send a message and return the future of its answer.

        Args:
            message: any message; a `Query[R]` is answered by an R.
            timeout: seconds to wait for the answer; None or `math.inf` for no limit. The
                default is 60, or in a handler the rest of the time of the ask that is being
                handled. With `retries` it is the time of each attempt.
            retries: number of repeats if an attempt timed out, the path was lost, or the
                mailbox was full. The message is still handled only once: the receiving node
                caches replies for 60 s, and repeats join a running handler. To a node of an
                earlier release, only unsent or refused messages are repeated.
            backoff: seconds before the first repeat, doubled before each further one.
            priority: "high" overtakes all normal messages that wait in the mailbox.

        Raises:
            InvalidSeconds: `timeout` or `backoff` is not a number of seconds.
            WrongArgument: `retries` is not a count.

        The future fails with `ActorDown`, `AskTimeout`, `MailboxFull`, `NodeUnreachable`,
        `UnexpectedMessage` or `RemoteError`.
        """
        if timeout is not DEFAULT_TIMEOUT or retries or priority != "normal":
            if retries:
                return self._ask_again(message, timeout, retries, backoff, priority)
            return self._ask_in_company(message, timeout, priority)
        home = self.home  # inlines `set_deadline`, as every ask passes here
        deadline = home.now() + DEFAULT_TIMEOUT
        if INSTRUMENTATION.used:
            cell = current_cell.get()
            sender = None if cell is None else cell.sender
            limit = None if sender is None else sender.deadline
            is_limited = limit is not None and limit < deadline - LIMIT_MARGIN
            if (
                is_limited
                or (cell is not None and cell.chain_name)
                or INSTRUMENTATION.may_be_traced() is not None
                or INSTRUMENTATION.chain.get()
            ):
                return self._ask_in_company(message, timeout, priority)
        future: Future = Future(self, deadline)
        future.timeout = DEFAULT_TIMEOUT
        home.fresh_asks.append(future)
        self.target.post(message, future)
        return future

    def _ask_in_company(
        self, message: Message, timeout: float | None, priority: Priority
    ) -> Future:
        """Ask with an own timeout, a trace context, a chain, or a priority."""
        if priority != "normal":
            refuse_priority(priority)
        future: Future = Future(self)
        has_own_time = timeout is not DEFAULT_TIMEOUT
        # Other types, and numbers out of range such as NaN, are checked by a function.
        if has_own_time and not (timeout.__class__ is float and 0.0 <= timeout < MAX_SECONDS):
            timeout = checked_limit(timeout)
        if timeout is not None:
            if has_own_time:  # inlines `set_deadline`
                INSTRUMENTATION.used, future.timeout, home = True, timeout, self.home
                future.deadline = home.now() + timeout
                home.fresh_asks.append(future)
                travels = True
            else:
                cell = current_cell.get()
                sender = None if cell is None else cell.sender
                limit = None if sender is None else sender.deadline
                travels = self.home.set_deadline(future, timeout, limit)
            if travels and not self.is_local:
                message = Envelope(message, None, future.deadline)
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
        # Without a deadline, only the end of the node fails it.
        return future if future.deadline is not None else self.home.shutdown.guard(future)

    def _unlimited(self, message: Message) -> object:
        """Return the message of an ask without a limit."""
        if self.is_local:
            return message
        # Without a deadline, the other node would apply the default timeout.
        return Envelope(message, None, self.home.now() + UNLIMITED_SECONDS)

    def _ask_again(
        self,
        message: Message,
        timeout: float | None,
        retries: int,
        backoff: float,
        priority: Priority,
    ) -> Future:
        """Ask with retries."""
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
        """Return an object that has the methods of the actor: `ref.proxy().add(1)`."""
        return MethodProxy(self)

    def stop(self) -> None:
        """End the actor normally, after the messages that it has received."""
        self.target.stop()

    async def astop(self) -> None:
        """End the actor as `stop` does, and wait until it has ended, with its `on_stop`."""
        ended: Future[Down] = Future(self)
        self.target.monitor(ended, ended.set_result)
        self.target.stop()
        try:
            await self.home.shutdown.guard(ended)
        finally:
            self.target.demonitor(ended)

    def kill(self) -> None:
        """End the actor before its next message; a handler that awaits is cancelled."""
        self.target.kill()

    # --- identity ---

    @property
    def node_id(self) -> bytes:
        """The id of the actor's node, 18 bytes."""
        return self._key[0]

    @property
    def actor_id(self) -> int:
        """The actor's number on its node."""
        return self._key[1]

    @property
    def is_local(self) -> bool:
        """Whether the actor runs, or ran, on the node of this ref."""
        return self._key[0] == self.home.node_id

    @property
    def addressDetails(self) -> str:  # Thespian's name
        """The ref as text, under Thespian's name."""
        return str(self)

    # Thespian's other name for it, and the text with which it compares addresses.
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
    """Return the names in the chain of actors that wait for the running code."""
    chain, cell = INSTRUMENTATION.chain.get(), current_cell.get()
    return (*chain, cell.chain_name) if cell is not None and cell.chain_name else chain


def _post_when_held(post: Callback, message: Message, sender: Sender | None) -> None:
    """Post a message, or withhold it in the outbox of the running handler."""
    cell = current_cell.get()
    if cell is None or not cell.outbox or not cell.outbox(post, message, sender):
        post(message, sender)


class ReplyRef(ActorRef):
    """The one-shot address of an asker: the first message to it is the answer."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"reply to {self._key[1]:#x}"


class NoActor:
    """Base class of targets without an actor; it accepts messages, and never ends."""

    __slots__ = ()

    def post(self, message: Message, sender: Sender | None) -> None:
        """Accept a message."""

    def post_urgent(self, message: Message, sender: Sender | None) -> None:
        """Accept a message, without a queue that it could overtake."""
        self.post(message, sender)

    async def apost(
        self, message: Message, sender: Sender | None, *, is_urgent: bool = False
    ) -> None:
        """Accept a message, as there always is room."""
        (self.post_urgent if is_urgent else self.post)(message, sender)

    def keeps_answers(self) -> bool:
        """Return True, as nothing is handled twice."""
        return True

    def error_of_unsent(self, _: Asker) -> BaseException | None:
        """Return None, as a message needs not wait here."""
        return None

    def give_up(self, asker: Asker) -> None:
        """Do nothing, as no handler runs."""

    def stop(self) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Do nothing."""

    def monitor(self, key: Hashable, watcher: Watcher) -> None:
        """Do nothing, as the target never ends."""

    def demonitor(self, key: Hashable) -> None:
        """Do nothing, as the target never ends."""

    def link(self, other: ActorRef) -> None:
        """Do nothing."""

    def unlink(self, other: ActorRef) -> None:
        """Do nothing."""


class NoReply(MessageSender):
    """The sender of a message that wants no answer, if it is not an actor of this node.

    Attributes:
        runtime: the runtime of the node that handles the message.
    """

    __slots__ = ("_ref", "runtime")

    expects: Final = False
    deadline: Final = None
    #: For messages that are sent on: this node has no actor that sent them.
    number: Final = 0

    def __init__(self, runtime: Home, ref: ActorRef | None) -> None:
        """Name the sender by its ref, for `self.sender`; None if it is not an actor."""
        self.runtime, self._ref = runtime, ref

    def reference(self, _: Home) -> ActorRef | None:
        """Return the ref of the sender."""
        return self._ref


class ReplyTarget(NoActor):
    """Target of a reply ref: its asker."""

    __slots__ = ("_asker", "_runtime")

    def __init__(self, runtime: Home, asker: Asker) -> None:
        self._runtime = runtime
        self._asker = asker

    def post(self, message: Message, sender: Sender | None) -> None:
        """Answer with the message; count a second answer, and drop it."""
        if isinstance(message, Envelope):
            message = message.message
        if not self._asker.set_result(message):
            self._runtime.record_late_answer()


class MethodProxy:
    """Calls an actor's methods as its own; each call returns a future."""

    __slots__ = ("_ref",)

    def __init__(self, ref: ActorRef) -> None:
        self._ref = ref

    def __getattr__(self, name: str) -> Callable[..., Future]:
        if name.startswith("_"):
            msg = f"{name!r} is not public; only public methods can be called"
            raise NoSuchMethod(msg)
        return lambda *args, **kwargs: self._ref.ask(Call(name, args, kwargs or None))
