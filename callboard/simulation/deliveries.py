"""Whether messages arrived as they were promised: none lost, none twice, in their order.

These checkers look at what `History.sent`, `publish`, `received` and `take` recorded. A message
is known by its key and its value, so the values of a key differ.
"""

from collections.abc import Hashable, Iterable, Iterator

from callboard.simulation.history import History, HistoryViolation, Operation, draw, identity
from callboard.support.text import shown


class MessageLost(HistoryViolation):
    """A message that was acknowledged did not arrive."""


class MessageDoubled(HistoryViolation):
    """A client got a message twice, or one that nobody sent."""


class OutOfOrder(HistoryViolation):
    """A client got messages of one sender in another order than they were sent in."""


class NothingLost:
    """Acknowledged is never lost: each message with a receipt arrived."""

    def __init__(
        self, receivers: Iterable[object] | None = None, *, every: bool = False
    ) -> None:
        """Say who has to get it, and what.

        Args:
            receivers: each of them has to get each message; by default each client that got any
                message of the key, and somebody at least.
            every: messages without a receipt have to arrive as well, for services that promise
                it to all, such as topics without faults.
        """
        self._receivers = None if receivers is None else [str(each) for each in receivers]
        self._every = every

    def __call__(self, history: History) -> None:
        """Judge a history.

        Raises:
            MessageLost: a message did not arrive.
        """
        got: dict[Hashable, dict[str, set[Hashable]]] = {}
        for each in _receives(history):
            readers = got.setdefault(identity(each.key), {})
            readers.setdefault(each.client, set()).add(identity(each.value))
        for sent in _sends(history).values():
            is_promised = sent.outcome == "answered" or self._every
            if not is_promised or sent.outcome == "failed":
                continue
            readers = got.get(identity(sent.key), {})
            wanted = self._receivers if self._receivers is not None else list(readers)
            lacking = [
                each for each in wanted if identity(sent.value) not in readers.get(each, ())
            ]
            if lacking or not wanted:
                whom = ", ".join(sorted(lacking)) or "anybody"
                message = f"{_told(sent)} did not come to {whom}:\n{draw([sent])}"
                raise MessageLost(message)


class ExactlyOnce(NothingLost):
    """Each message with a receipt arrived, none came twice, and none from nowhere."""

    def __call__(self, history: History) -> None:
        """Judge a history.

        Raises:
            MessageDoubled: a message came twice, or nobody sent it.
            MessageLost: one did not arrive.
        """
        at_most_once(history)
        super().__call__(history)


def at_most_once(history: History) -> None:
    """Check that no client got a message twice, and none that nobody sent.

    Raises:
        MessageDoubled: one did.
    """
    sends = _sends(history)
    seen: dict[Hashable, Operation] = {}
    for got in _receives(history):
        known = (identity(got.key), identity(got.value))
        sent = sends.get(known)
        if sent is None or sent.outcome == "failed":
            what = "nobody sent" if sent is None else "was refused"
            drawn = draw([got] if sent is None else [sent, got])
            message = f"{got.client} got a message that {what}:\n{drawn}"
            raise MessageDoubled(message)
        if (first := seen.setdefault((got.client, known), got)) is not got:
            message = f"{_told(sent)} came to {got.client} twice:\n{draw([sent, first, got])}"
            raise MessageDoubled(message)


def in_order(history: History) -> None:
    """Check that each client got the messages of each sender in the order of their sending.

    Messages may be missing, and may come again, as long as none is overtaken by a later one
    that came for the first time.

    Raises:
        OutOfOrder: a message came behind one that was sent later.
    """
    sends = _sends(history)
    latest: dict[Hashable, tuple[Operation, Operation]] = {}
    seen: set[Hashable] = set()
    for got in _receives(history):
        known = (identity(got.key), identity(got.value))
        sent = sends.get(known)
        if sent is None or (got.client, known) in seen:
            continue
        seen.add((got.client, known))
        pair = (sent.client, got.client, known[0])
        before = latest.get(pair)
        if before is not None and sent.began < before[0].began:
            message = (
                f"{_told(sent)} came to {got.client} behind a later one:\n"
                f"{draw([sent, *before, got])}"
            )
            raise OutOfOrder(message)
        latest[pair] = (sent, got)


def _sends(history: History) -> dict[Hashable, Operation]:
    """Return what was sent, by key and value.

    Raises:
        ValueError: two messages of a key have the same value.
    """
    sends: dict[Hashable, Operation] = {}
    for each in history.operations:
        if each.name == "send":
            known = (identity(each.key), identity(each.value))
            if sends.setdefault(known, each) is not each:
                message = f"{_told(each)} was sent twice; number the messages of a key"
                raise ValueError(message)
    return sends


def _receives(history: History) -> Iterator[Operation]:
    """Return what clients got, in its order."""
    return (each for each in history.operations if each.name == "receive")


def _told(sent: Operation) -> str:
    """Return a message in words."""
    on = "" if sent.key is None else f" on {shown(sent.key, 60)}"
    who = f" by {sent.client}" if sent.client else ""
    return f"the message {shown(sent.value, 60)} sent{who}{on}"
