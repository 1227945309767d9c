"""Checkers for message delivery: nothing lost, nothing duplicated, order kept.

They check what `History.sent`, `publish`, `received` and `take` recorded. A message is
identified by its key and value, so each message of a key must have a different value.
"""

from collections.abc import Hashable, Iterable, Iterator

from callboard.simulation.history import History, HistoryViolation, Operation, draw, identity
from callboard.support.text import safe_repr


class MessageLost(HistoryViolation):
    """A confirmed message did not arrive."""


class MessageDoubled(HistoryViolation):
    """A client received a message twice, or one that was never sent."""


class OutOfOrder(HistoryViolation):
    """A client received messages of one sender in the wrong order."""


class NothingLost:
    """Checks that each confirmed message arrived."""

    def __init__(
        self, receivers: Iterable[object] | None = None, *, every: bool = False
    ) -> None:
        """Create the checker.

        Args:
            receivers: clients that must each receive every message. By default these are the
                clients that received any message of the key; there must be at least one.
            every: whether unconfirmed messages must arrive too, for services that deliver all
                messages, such as topics without faults.
        """
        self._receivers = (
            None if receivers is None else [str(receiver) for receiver in receivers]
        )
        self._every = every

    def __call__(self, history: History) -> None:
        """Check a history.

        Raises:
            MessageLost: a message did not arrive.
        """
        received: dict[Hashable, dict[str, set[Hashable]]] = {}
        for operation in _receives(history):
            readers = received.setdefault(identity(operation.key), {})
            readers.setdefault(operation.client, set()).add(identity(operation.value))
        for send in _sends(history).values():
            is_promised = send.outcome == "answered" or self._every
            if not is_promised or send.outcome == "failed":
                continue
            readers = received.get(identity(send.key), {})
            receivers = self._receivers if self._receivers is not None else list(readers)
            missing = [
                operation
                for operation in receivers
                if identity(send.value) not in readers.get(operation, ())
            ]
            if missing or not receivers:
                names = ", ".join(sorted(missing)) or "any client"
                message = f"{_described(send)} did not arrive at {names}:\n{draw([send])}"
                raise MessageLost(message)


class ExactlyOnce(NothingLost):
    """Checks that each confirmed message arrived, once, and that no other ones did."""

    def __call__(self, history: History) -> None:
        """Check a history.

        Raises:
            MessageDoubled: a message arrived twice, or was never sent.
            MessageLost: a message did not arrive.
        """
        at_most_once(history)
        super().__call__(history)


def at_most_once(history: History) -> None:
    """Check that no client received a message twice, or one that was never sent.

    Raises:
        MessageDoubled: a client did.
    """
    sends = _sends(history)
    arrivals: dict[Hashable, Operation] = {}
    for arrival in _receives(history):
        message_key = (identity(arrival.key), identity(arrival.value))
        send = sends.get(message_key)
        if send is None or send.outcome == "failed":
            problem = "was never sent" if send is None else "was refused"
            drawing = draw([arrival] if send is None else [send, arrival])
            message = f"{arrival.client} received a message that {problem}:\n{drawing}"
            raise MessageDoubled(message)
        first = arrivals.setdefault((arrival.client, message_key), arrival)
        if first is not arrival:
            operations = [send, first, arrival]
            message = f"{_described(send)} reached {arrival.client} twice:\n{draw(operations)}"
            raise MessageDoubled(message)


def in_order(history: History) -> None:
    """Check that each client received the messages of each sender in the order of sending.

    Messages may be missing. Repetitions are ignored; only the first arrival of each message
    counts.

    Raises:
        OutOfOrder: a message arrived after one that was sent later.
    """
    sends = _sends(history)
    latest: dict[Hashable, tuple[Operation, Operation]] = {}
    arrived: set[Hashable] = set()
    for received in _receives(history):
        message_key = (identity(received.key), identity(received.value))
        send = sends.get(message_key)
        if send is None or (received.client, message_key) in arrived:
            continue
        arrived.add((received.client, message_key))
        pair = (send.client, received.client, message_key[0])
        previous = latest.get(pair)
        if previous is not None and send.began < previous[0].began:
            message = (
                f"{_described(send)} reached {received.client} after a later one:\n"
                f"{draw([send, *previous, received])}"
            )
            raise OutOfOrder(message)
        latest[pair] = (send, received)


def _sends(history: History) -> dict[Hashable, Operation]:
    """Return the sent messages by key and value.

    Raises:
        ValueError: two messages of a key have the same value.
    """
    sends: dict[Hashable, Operation] = {}
    for operation in history.operations:
        if operation.name == "send":
            message_key = (identity(operation.key), identity(operation.value))
            if sends.setdefault(message_key, operation) is not operation:
                message = (
                    f"{_described(operation)} was sent twice; number the messages of a key"
                )
                raise ValueError(message)
    return sends


def _receives(history: History) -> Iterator[Operation]:
    """Return the received messages, in the order of arrival."""
    return (operation for operation in history.operations if operation.name == "receive")


def _described(operation: Operation) -> str:
    """Return a description of a sent message."""
    topic = "" if operation.key is None else f" on {safe_repr(operation.key, 60)}"
    sender = f" by {operation.client}" if operation.client else ""
    return f"the message {safe_repr(operation.value, 60)} sent{sender}{topic}"
