"""What clients did and what they were told: operations with their begin and their end.

A history judges a service from outside. Each operation has the moments at which its client
began it and heard of its end; what the service did with it happened somewhere between the two.
An operation without an answer may have happened at any later time, or never. Checkers (`check`)
find out whether a promise explains all that the clients saw.

The order of moments is the order in which the test saw them; times are only shown.
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
from callboard.support.text import shown

#: How an operation ended: it is `open` while nothing is known, for ever if nothing ever is.
Outcome = Literal["open", "answered", "failed", "unknown"]

#: Columns of the bars in a drawing.
_BAR: Final = 32

T = TypeVar("T")


class HistoryViolation(CallboardError, AssertionError):
    """A history contradicts a promise; the text draws the shortest part that shows it."""


@dataclass(slots=True, eq=False)
class Operation:
    """One operation of one client.

    Attributes:
        client: who did it; operations of one client may overlap.
        name: what was done, a word that the model knows: `read`, `write`, `add`.
        value: with what.
        key: on what: models judge each key by itself.
        began: its place among all begins and ends.
        begin: seconds at which it began.
        ended: its place, None while there is no answer.
        end: seconds at which its client heard of its end.
        outcome: `answered`; `failed`, so it certainly did not happen; `unknown` or `open`, so
            it may happen at any time after its begin, or never.
        answer: what its client was told.
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
        """Return what was done and what was answered."""
        value = "" if self.value is None else f" {shown(self.value, 40)}"
        told = {"answered": f" -> {shown(self.answer, 40)}", "failed": " failed"}
        return f"{self.name}{value}{told.get(self.outcome, ' -> ?')}"


class Publishing(Protocol):
    """An endpoint, or what publishes like one."""

    def publish(self, topic: str, value: Any, /) -> object:
        """Publish a value."""


class Polled(Protocol):
    """A subscriber, or what is polled like one."""

    def poll(self) -> Sequence[tuple[str, Any]]:
        """Return what has come: topics and values."""


class Checker(Protocol):
    """A promise that a history can break."""

    def __call__(self, history: "History", /) -> None:
        """Raise `HistoryViolation` where the history breaks the promise."""


class History:
    """Records operations, by hand or from asks, and checks them.

    One thread at a time records, as in a simulation; between real processes each answer is
    recorded where it arrives, so recorded operations are at least as long as the real ones.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        heard: Callable[[], object] | None = None,
    ) -> None:
        """Begin an empty history.

        Args:
            now: the clock that its times come from; that of a cluster for `cluster.history()`.
            heard: called when a client has heard of the success of an operation.
        """
        self.operations: list[Operation] = []
        self._now, self._heard = now, heard
        self._moments = count()

    def __len__(self) -> int:
        """Return how many operations there are."""
        return len(self.operations)

    # --- by hand ---

    def begin(
        self, name: str, value: Any = None, *, key: Any = None, client: object = ""
    ) -> Operation:
        """Record that a client begins an operation; one of the next three ends it."""
        return self.started(str(client), name, value, key)

    def started(self, client: str, name: str, value: Any, key: Any) -> Operation:
        """Record that an operation begins."""
        begun = Operation(client, name, value, key, next(self._moments), self._now())
        self.operations.append(begun)
        return begun

    def answered(self, operation: Operation, answer: Any = None) -> None:
        """Record that the client of an operation was told of its success.

        Raises:
            ValueError: the operation has ended before.
        """
        self._end(operation, "answered", answer)

    def failed(self, operation: Operation) -> None:
        """Record that an operation certainly did not happen, and never will.

        Raises:
            ValueError: the operation has ended before.
        """
        self._end(operation, "failed", None)

    def unknown(self, operation: Operation) -> None:
        """Record that the client gave up: the operation may happen later, or never.

        Raises:
            ValueError: the operation has ended before.
        """
        self._end(operation, "unknown", None)

    def _end(self, operation: Operation, outcome: Outcome, answer: Any) -> None:
        """End an operation, once."""
        if operation.outcome != "open":
            message = f"{operation} has ended before; an operation ends once"
            raise ValueError(message)
        operation.outcome, operation.answer = outcome, answer
        operation.end = self._now()
        operation.ended = next(self._moments)
        self._tell(operation)

    def _tell(self, operation: Operation) -> None:
        """Tell who wants to know that a client has heard of a success."""
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
        """Record what a block does; it sets `answer` on what it gets.

        Args:
            name: what is done.
            value: with what.
            key: on what.
            client: who does it.
            refused: errors that mean that it did not happen. Behind others it may have.
        """
        return _Block(self, (str(client), name, value, key), refused)

    # --- from what callboard does ---

    def ask(
        self,
        ref: ActorRef[Any],
        message: Any,
        *,
        key: Any = None,
        operation: str = "",
        value: Any = None,
        client: object = "",
        timeout: float | None = None,
        refused: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> Future[Any]:
        """Ask an actor, and record the ask with its answer; nothing waits for it.

        Args:
            ref: whom to ask.
            message: what.
            key: on what it works; its class's name by default is the operation.
            operation: what the ask does, in the words of the model.
            value: with what; the message by default.
            client: who asks; the node of the ref by default.
            timeout: of the ask.
            refused: errors by which the actor says that it did nothing. Behind others, such as
                a lost node or a time that is over, it may have.
        """
        begun = self.started(
            str(client or getattr(ref.home, "name", "")),
            operation or type(message).__name__,
            message if value is None else value,
            key,
        )
        asked = ref.ask(message) if timeout is None else ref.ask(message, timeout=timeout)
        asked.on_done(partial(self._done, begun, refused))
        return asked

    def follow(
        self,
        operation: Operation,
        future: Future[T],
        *,
        refused: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> Future[T]:
        """Let a future end an operation: of a call, of a store's `ask_unique`, of any other."""
        future.on_done(partial(self._done, operation, refused))
        return future

    def _done(
        self,
        operation: Operation,
        refused: type[BaseException] | tuple[type[BaseException], ...],
        future: Future[Any],
    ) -> None:
        """End an operation as its future ended, unless it has ended by hand."""
        if operation.outcome != "open":
            return
        try:
            operation.answer = future.result()
            operation.outcome = "answered"
        except BaseException as error:  # noqa: BLE001 - what was cancelled may have happened
            is_refused = isinstance(error, refused) and not future.cancelled()
            operation.outcome = "failed" if is_refused else "unknown"
        operation.end = self._now()
        operation.ended = next(self._moments)
        self._tell(operation)

    def store(self, store: Store, client: object = "") -> "RecordedStore":
        """Return a store whose calls are recorded, each key for itself.

        Args:
            store: master or clone.
            client: who calls it; the id of the node that has it by default.
        """
        return RecordedStore(self, store, str(client or store.node_id))

    # --- messages ---

    def sent(self, value: Any, *, key: Any = None, client: object = "") -> Operation:
        """Record that a message is sent; `answered` on what it returns tells of its receipt.

        Args:
            value: what is in it, another one for each message of a key.
            key: the topic, queue or pair that it is sent on.
            client: who sends it.
        """
        return self.begin("send", value, key=key, client=client)

    def received(self, value: Any, *, key: Any = None, client: object = "") -> Operation:
        """Record that a client got a message."""
        got = self.begin("receive", value, key=key, client=client)
        self.answered(got)
        return got

    def publish(
        self, endpoint: Publishing, topic: str, value: Any, client: object = ""
    ) -> None:
        """Publish to a topic, and record that it was sent; no receipt says that it arrived."""
        sent = self.sent(value, key=topic, client=client)
        try:
            endpoint.publish(topic, value)
        except BaseException:
            self.failed(sent)
            raise
        self.unknown(sent)

    def take(self, subscriber: Polled, client: object = "") -> int:
        """Record what a subscriber has got by now; returns how many messages it was."""
        got = subscriber.poll()
        for topic, value in got:
            self.received(value, key=topic, client=client)
        return len(got)

    # --- what came of it ---

    def only(self, *names: str) -> "History":
        """Return the history of operations with these names, for models that know no others."""
        part = History(self._now)
        part.operations = [each for each in self.operations if each.name in names]
        return part

    def check(self, *checkers: Checker) -> None:
        """Judge the history by each checker.

        Raises:
            HistoryViolation: it breaks a promise; the first one in their order.
            NotDecided: a checker gave up, which is no verdict.
        """
        for checker in checkers:
            checker(self)


class _Block:
    """A block whose begin and end are those of an operation."""

    __slots__ = ("_begun", "_history", "_refused", "_what")

    def __init__(
        self,
        history: History,
        what: tuple[str, str, Any, Any],
        refused: type[BaseException] | tuple[type[BaseException], ...],
    ) -> None:
        self._history = history
        self._what = what
        self._refused = refused

    def __enter__(self) -> Operation:
        """Begin the operation."""
        self._begun = begun = self._history.started(*self._what)
        return begun

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        """End it as the block ended."""
        begun = self._begun
        if kind is None:
            self._history.answered(begun, begun.answer)
        elif issubclass(kind, self._refused):
            self._history.failed(begun)
        else:
            self._history.unknown(begun)


class RecordedStore:
    """A store whose calls are recorded as `read`, `write`, `add` and `create` of their keys.

    A write and an add end when the call returns, and a read when it has its answer.
    """

    def __init__(self, history: History, store: Store, client: str) -> None:
        self._history = history
        self._store = store
        self._client = client

    def get(self, key: Any) -> Any:
        """Read a key; None where it is not there."""
        with self._history.operation("read", key=key, client=self._client) as read:
            read.answer = self._store.get(key)
            return read.answer

    def put(self, key: Any, value: Any) -> None:
        """Write a key."""
        with self._history.operation("write", value, key=key, client=self._client):
            self._store.put(key, value)

    def erase(self, key: Any) -> None:
        """Write that a key is not there."""
        with self._history.operation("write", None, key=key, client=self._client):
            self._store.erase(key)

    def increment(self, key: Any, amount: Any = 1) -> None:
        """Add to a key."""
        with self._history.operation("add", amount, key=key, client=self._client):
            self._store.increment(key, amount)

    def ask_unique(self, key: Any, value: Any) -> Future[bool]:
        """Write a key unless it is there; the future says whether it was written."""
        begun = self._history.begin("create", value, key=key, client=self._client)
        return self._history.follow(begun, self._store.ask_unique(key, value))


def identity(value: Any) -> Hashable:
    """Return what a value is known by: values of two types differ, and lists have a text."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return (type(value), value)


def draw(operations: list[Operation]) -> str:
    """Return operations as text, a line each: who, what, when, and a bar beside the others.

    The bars show the order of begins and ends, not seconds.
    """
    rows = sorted(operations, key=lambda each: each.began)
    moments = sorted(
        {each.began for each in rows} | {each.ended for each in rows if each.ended is not None}
    )
    place = {moment: index for index, moment in enumerate(moments)}
    scale = (_BAR - 1) / max(len(moments) - 1, 1)
    clients = max((len(each.client) for each in rows), default=0)
    texts = [str(each) for each in rows]
    width = max(map(len, texts), default=0)
    lines = []
    for each, text in zip(rows, texts, strict=True):
        first = round(place[each.began] * scale)
        is_over = each.ended is not None and each.outcome == "answered"
        last = (
            round(place[each.ended] * scale) if is_over and each.ended is not None else _BAR - 1
        )
        bar = f"{' ' * first}|{'-' * max(last - first - 1, 0)}{'|' if is_over else '>'}"
        end = f"{each.end:.6f}" if is_over else "?"
        times = f"{each.begin:.6f} to {end} s"
        lines.append(f"  {each.client:<{clients}}  {text:<{width}}  {bar:<{_BAR + 1}}  {times}")
    return "\n".join(lines)
