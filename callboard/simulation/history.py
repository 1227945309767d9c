"""A history of client operations: what each client called, and what it was answered.

A history tests a service from the outside. Each operation records when its client called it
and when it got the answer; the effect took place at some moment in between. An operation
without an answer may take effect at any later time, or never. Checkers (`check`) decide
whether a guarantee of the service explains everything that the clients observed.

The order of calls and answers is the order in which the test recorded them. Times are only for
display.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any, Final, Literal, Protocol, TypeVar

from callboard.kernel.actors import ActorRef
from callboard.kernel.errors import CallboardError
from callboard.kernel.reply import Future
from callboard.store.store import Store
from callboard.support.dataclass import dataclass
from callboard.support.text import safe_repr

#: The outcome of an operation; `open` until it is known, which may be never.
Outcome = Literal["open", "answered", "failed", "unknown"]

#: Columns of the bars in a drawing.
_BAR: Final = 32

T = TypeVar("T")


class HistoryViolation(CallboardError, AssertionError):
    """A history violates a guarantee; the text draws a short part that shows it."""


@dataclass(slots=True, eq=False)
class Operation:
    """One operation of one client.

    Attributes:
        client: the client; operations of one client may overlap.
        name: name of the operation in the model, such as `read`, `write`, `add`.
        value: argument of the operation.
        key: key of the operation; models check each key separately.
        began: position of the call in the sequence of all calls and answers.
        begin: time of the call, in seconds.
        ended: position of the answer in that sequence; None without one.
        end: time of the answer, in seconds.
        outcome: `answered`; `failed`: it certainly had no effect; `unknown` or `open`: it may
            take effect at any time after the call, or never.
        answer: answer that the client got.
    """

    client: str
    name: str
    value: Any
    key: Any
    began: int
    begin: float
    ended: int | None = None
    end: float = float("inf")
    outcome: Outcome = "open"
    answer: Any = None

    def __str__(self) -> str:
        """Return the call and its answer."""
        value = "" if self.value is None else f" {safe_repr(self.value, 40)}"
        outcomes = {"answered": f" -> {safe_repr(self.answer, 40)}", "failed": " failed"}
        return f"{self.name}{value}{outcomes.get(self.outcome, ' -> ?')}"


class Publishing(Protocol):
    """An endpoint, or another object with its `publish`."""

    def publish(self, topic: str, value: Any, /) -> object:
        """Publish a value."""


class Polled(Protocol):
    """A subscriber, or another object with its `poll`."""

    def poll(self) -> Sequence[tuple[str, Any]]:
        """Return the received messages as topics and values."""


class Checker(Protocol):
    """A guarantee that a history can violate."""

    def __call__(self, history: "History", /) -> None:
        """Raise `HistoryViolation` if the history violates the guarantee."""


class History:
    """Records operations, manually or from asks, and checks them.

    Not thread-safe; a simulation has one thread. With real processes, record each answer where
    it arrives, so that recorded operations are at least as long as the real ones.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        heard: Callable[[], object] | None = None,
    ) -> None:
        """Create an empty history.

        Args:
            now: returns the time; `cluster.history()` uses the clock of the cluster.
            heard: called after each answer with outcome `answered`.
        """
        self.operations: list[Operation] = []
        self._now, self._heard = now, heard
        self._moments = count()

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.operations)

    # --- recorded manually ---

    def begin(
        self, name: str, value: Any = None, *, key: Any = None, client: object = ""
    ) -> Operation:
        """Record a call; `answered`, `failed` or `unknown` ends the operation."""
        return self.started(str(client), name, value, key)

    def started(self, client: str, name: str, value: Any, key: Any) -> Operation:
        """Record a call with positional arguments."""
        operation = Operation(client, name, value, key, next(self._moments), self._now())
        self.operations.append(operation)
        return operation

    def answered(self, operation: Operation, answer: Any = None) -> None:
        """Record the answer to an operation.

        Raises:
            ValueError: the operation has ended already.
        """
        self._end(operation, "answered", answer)

    def failed(self, operation: Operation) -> None:
        """Record that an operation had no effect and never will.

        Raises:
            ValueError: the operation has ended already.
        """
        self._end(operation, "failed", None)

    def unknown(self, operation: Operation) -> None:
        """Record that the client gave up: the operation may take effect later, or never.

        Raises:
            ValueError: the operation has ended already.
        """
        self._end(operation, "unknown", None)

    def _end(self, operation: Operation, outcome: Outcome, answer: Any) -> None:
        """Record the end of an operation."""
        if operation.outcome != "open":
            message = f"{operation} has ended already; end each operation once"
            raise ValueError(message)
        operation.outcome, operation.answer = outcome, answer
        operation.end = self._now()
        operation.ended = next(self._moments)
        self._notify(operation)

    def _notify(self, operation: Operation) -> None:
        """Call `heard` after an answer."""
        if self._heard is not None and operation.outcome == "answered":
            self._heard()

    def operation(
        self,
        name: str,
        value: Any = None,
        *,
        key: Any = None,
        client: object = "",
        refused: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> AbstractContextManager[Operation]:
        """Return a context manager that records its block as an operation.

        The block sets `answer` on the operation. An exception ends it as `failed` or `unknown`.

        Args:
            name: name of the operation.
            value: argument of the operation.
            key: key of the operation.
            client: the client.
            refused: exceptions after which the operation certainly had no effect; after
                others, it may have had one.
        """
        return _HistoryBlock(self, (str(client), name, value, key), refused)

    # --- recorded from callboard ---

    def ask(
        self,
        ref: ActorRef,
        message: Any,
        *,
        key: Any = None,
        operation: str = "",
        value: Any = None,
        client: object = "",
        timeout: float | None = None,
        refused: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> Future[Any]:
        """Ask an actor, and record the ask and its answer; does not wait.

        Args:
            ref: the actor.
            message: the message.
            key: key of the operation.
            operation: name of the operation in the model; the message's class by default.
            value: argument of the operation; the message by default.
            client: the client; the node of the ref by default.
            timeout: timeout of the ask, in seconds.
            refused: exceptions after which the ask certainly had no effect. After others, such
                as a timeout or a lost node, it may have had one.
        """
        recorded = self.started(
            str(client or getattr(ref.home, "name", "")),
            operation or type(message).__name__,
            message if value is None else value,
            key,
        )
        future = ref.ask(message) if timeout is None else ref.ask(message, timeout=timeout)
        future.on_done(partial(self._done, recorded, refused))
        return future

    def follow(
        self,
        operation: Operation,
        future: Future[T],
        *,
        refused: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> Future[T]:
        """End an operation with the outcome of a future; return the future."""
        future.on_done(partial(self._done, operation, refused))
        return future

    def _done(
        self,
        operation: Operation,
        refused: type[BaseException] | tuple[type[BaseException], ...],
        future: Future[Any],
    ) -> None:
        """End an operation as its future ended, unless it was ended manually."""
        if operation.outcome != "open":
            return
        try:
            operation.answer = future.result()
            operation.outcome = "answered"
        except BaseException as error:  # noqa: BLE001 - a cancelled call may have had an effect
            is_refused = isinstance(error, refused) and not future.cancelled()
            operation.outcome = "failed" if is_refused else "unknown"
        operation.end = self._now()
        operation.ended = next(self._moments)
        self._notify(operation)

    def store(self, store: Store, client: object = "") -> "RecordedStore":
        """Return a wrapper of a store that records its calls.

        Args:
            store: master or clone.
            client: the client; the id of the store's node by default.
        """
        return RecordedStore(self, store, str(client or store.node_id))

    # --- messages ---

    def sent(self, value: Any, *, key: Any = None, client: object = "") -> Operation:
        """Record that a message is sent; call `answered` with the result when it is confirmed.

        Args:
            value: the content; messages of one key must have different values.
            key: the topic, queue or pair that it is sent on.
            client: the sender.
        """
        return self.begin("send", value, key=key, client=client)

    def received(self, value: Any, *, key: Any = None, client: object = "") -> Operation:
        """Record that a client received a message."""
        operation = self.begin("receive", value, key=key, client=client)
        self.answered(operation)
        return operation

    def publish(
        self, endpoint: Publishing, topic: str, value: Any, client: object = ""
    ) -> None:
        """Publish to a topic and record it as sent; topics do not confirm deliveries."""
        operation = self.sent(value, key=topic, client=client)
        try:
            endpoint.publish(topic, value)
        except BaseException:
            self.failed(operation)
            raise
        self.unknown(operation)

    def take(self, subscriber: Polled, client: object = "") -> int:
        """Record all messages that a subscriber has received; return their number."""
        messages = subscriber.poll()
        for topic, value in messages:
            self.received(value, key=topic, client=client)
        return len(messages)

    # --- checked ---

    def only(self, *names: str) -> "History":
        """Return the history of the operations with these names, for models without others."""
        selected = History(self._now)
        selected.operations = [
            operation for operation in self.operations if operation.name in names
        ]
        return selected

    def check(self, *checkers: Checker) -> None:
        """Run checkers on the history, in their order.

        Raises:
            HistoryViolation: the history violates a guarantee.
            NotDecided: a checker gave up without a verdict.
        """
        for checker in checkers:
            checker(self)


class _HistoryBlock:
    """Context manager that records its block as an operation."""

    __slots__ = ("_begun", "_history", "_refused", "_what")

    def __init__(
        self,
        history: History,
        call: tuple[str, str, Any, Any],
        refused: type[BaseException] | tuple[type[BaseException], ...],
    ) -> None:
        self._history = history
        self._what = call
        self._refused = refused

    def __enter__(self) -> Operation:
        """Record the call."""
        self._begun = begun = self._history.started(*self._what)
        return begun

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        """Record the end, according to the block's exception."""
        begun = self._begun
        if kind is None:
            self._history.answered(begun, begun.answer)
        elif issubclass(kind, self._refused):
            self._history.failed(begun)
        else:
            self._history.unknown(begun)


class RecordedStore:
    """A store that records its calls as `read`, `write`, `add` and `create` of their keys.

    A write or an add ends when the call returns; a read ends with its answer.
    """

    def __init__(self, history: History, store: Store, client: str) -> None:
        self._history = history
        self._store = store
        self._client = client

    def get(self, key: Any) -> Any:
        """Read a key; None if it does not exist."""
        with self._history.operation("read", key=key, client=self._client) as read:
            read.answer = self._store.get(key)
            return read.answer

    def put(self, key: Any, value: Any) -> None:
        """Write a key."""
        with self._history.operation("write", value, key=key, client=self._client):
            self._store.put(key, value)

    def erase(self, key: Any) -> None:
        """Erase a key; recorded as a write of None."""
        with self._history.operation("write", None, key=key, client=self._client):
            self._store.erase(key)

    def increment(self, key: Any, amount: Any = 1) -> None:
        """Add to a key."""
        with self._history.operation("add", amount, key=key, client=self._client):
            self._store.increment(key, amount)

    def ask_unique(self, key: Any, value: Any) -> Future[bool]:
        """Write a key unless it exists; the future returns whether it was written."""
        operation = self._history.begin("create", value, key=key, client=self._client)
        return self._history.follow(operation, self._store.ask_unique(key, value))


def identity(value: Any) -> Hashable:
    """Return a hashable identity of a value; values of different types are different."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return (type(value), value)


def draw(operations: list[Operation]) -> str:
    """Draw operations, one per line: client, call and answer, a bar, and times.

    The bars show the order of calls and answers, not seconds.
    """
    rows = sorted(operations, key=lambda operation: operation.began)
    moments = sorted(
        {operation.began for operation in rows}
        | {operation.ended for operation in rows if operation.ended is not None}
    )
    column = {moment: index for index, moment in enumerate(moments)}
    scale = (_BAR - 1) / max(len(moments) - 1, 1)
    clients = max((len(operation.client) for operation in rows), default=0)
    texts = [str(operation) for operation in rows]
    width = max(map(len, texts), default=0)
    lines = []
    for operation, text in zip(rows, texts, strict=True):
        first = round(column[operation.began] * scale)
        is_over = operation.ended is not None and operation.outcome == "answered"
        last = (
            round(column[operation.ended] * scale)
            if is_over and operation.ended is not None
            else _BAR - 1
        )
        bar = f"{' ' * first}|{'-' * max(last - first - 1, 0)}{'|' if is_over else '>'}"
        end = f"{operation.end:.6f}" if is_over else "?"
        times = f"{operation.begin:.6f} to {end} s"
        lines.append(
            f"  {operation.client:<{clients}}  {text:<{width}}  {bar:<{_BAR + 1}}  {times}"
        )
    return "\n".join(lines)
