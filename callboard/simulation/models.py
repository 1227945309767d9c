"""Models of services: the correct behavior of one key, as a small sequential program.

A model has a `start` state and a method `step`. States must be hashable; `step` returns the
next state and must not modify the old one. Any class with these two is a model. A model that
lists its read-only operations in `reads` is checked faster.
"""

from collections.abc import Hashable
from typing import Any, Final, NamedTuple, Protocol


class Model(Protocol):
    """The effect of sequential operations on one key."""

    @property
    def start(self) -> Hashable:
        """The state before the first operation."""

    def step(self, state: Any, name: str, value: Any, /) -> tuple[Hashable, Any]:
        """Return the state after an operation, and its answer.

        The answer may be `ANY` or `OneOf(…)`. An operation that is impossible in a state, such
        as releasing a lock that another client holds, has the answer `NEVER`.
        """


class _Word:
    """A sentinel with a name."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


#: The answer of a model that allows every answer.
ANY: Final[Any] = _Word("ANY")

#: The answer of an operation that is impossible in a state.
NEVER: Final[Any] = _Word("NEVER")


class OneOf(NamedTuple):
    """Alternative answers, all of them correct."""

    answers: tuple[Any, ...]


def agrees(expected: Any, observed: Any) -> bool:
    """Return whether the answer that a client got fits the answer of a model."""
    if expected is ANY:
        return True
    if type(expected) is OneOf:
        return observed in expected.answers
    return bool(expected == observed)


class NotInModel(ValueError):
    """A history contains an operation that the model does not have."""

    def __init__(self, model: object, name: str, known: str) -> None:
        kind = type(model).__name__
        super().__init__(
            f"{kind} has no operation {name!r}; it has {known}: "
            "record the operation under one of these names, or use another model"
        )


class Register:
    """One value: `read` returns it, `write` sets it, `cas` and `create` set it conditionally.

    The value of `cas` is a pair (expected, new); `create` expects None. Both answer whether
    they have set the value. Answers of `write` are ignored.
    """

    #: Operations that do not change the state.
    reads = frozenset({"read"})

    def __init__(self, start: Hashable = None) -> None:
        self.start = start

    def step(self, state: Any, name: str, value: Any) -> tuple[Hashable, Any]:
        """Return the next state and the answer."""
        if name == "read":
            return state, state
        if name == "write":
            return value, ANY
        if name == "cas":
            expected, new = value
            return (new, True) if state == expected else (state, False)
        if name == "create":
            return (value, True) if state is None else (state, False)
        raise NotInModel(self, name, "read, write, cas and create")


class Counter:
    """A number: `add` adds to it and answers the sum or None; `read` returns it."""

    reads = frozenset({"read"})

    def __init__(self, start: float = 0) -> None:
        self.start = start

    def step(self, state: Any, name: str, value: Any) -> tuple[Hashable, Any]:
        """Return the next state and the answer."""
        if name == "read":
            return state, state
        if name == "add":
            return state + value, OneOf((state + value, None))
        raise NotInModel(self, name, "add and read")


class Elements:
    """A set: `add`, `remove`, `contains`, and `read`, which answers all elements in any order.

    `add` and `remove` answer whether they changed the set, or None.
    """

    reads = frozenset({"read", "contains"})
    start: frozenset[Any] = frozenset()

    def step(self, state: frozenset[Any], name: str, value: Any) -> tuple[Hashable, Any]:
        """Return the next state and the answer."""
        if name == "add":
            return state | {value}, OneOf((value not in state, None))
        if name == "remove":
            return state - {value}, OneOf((value in state, None))
        if name == "contains":
            return state, value in state
        if name == "read":
            return state, _Unordered(state)
        raise NotInModel(self, name, "add, remove, contains and read")


class _Unordered:
    """Equal to any collection of the same elements without duplicates."""

    def __init__(self, elements: frozenset[Any]) -> None:
        self._elements = elements

    def __eq__(self, other: object) -> bool:
        try:
            elements = list(other)  # type: ignore[call-overload]
            return len(elements) == len(self._elements) and set(elements) == self._elements
        except TypeError:
            return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(set(self._elements))


class Queue:
    """A FIFO queue: `put` appends, `get` removes and answers the first element, or None."""

    reads: frozenset[str] = frozenset()
    start: tuple[Any, ...] = ()

    def step(self, state: tuple[Any, ...], name: str, value: Any) -> tuple[Hashable, Any]:
        """Return the next state and the answer."""
        if name == "put":
            return (*state, value), ANY
        if name == "get":
            return (state[1:], state[0]) if state else (state, None)
        raise NotInModel(self, name, "put and get")


class Lock:
    """A mutex: `acquire` and `release`; the value is the client.

    `acquire` answers whether it got the lock; None means that it did. Only the holder can
    release the lock.
    """

    reads: frozenset[str] = frozenset()
    start = None

    def step(self, state: Any, name: str, value: Any) -> tuple[Hashable, Any]:
        """Return the next state and the answer."""
        if name == "acquire":
            return (value, OneOf((True, None))) if state is None else (state, False)
        if name == "release":
            return (
                (None, OneOf((True, None)))
                if state == value
                else (state, OneOf((False, NEVER)))
            )
        raise NotInModel(self, name, "acquire and release")
