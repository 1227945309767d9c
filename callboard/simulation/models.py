"""What a service promises for one key, as a small sequential program.

A model has a `start` state and a `step`. Its states have to be hashable, and `step` changes
none: it returns the next one. A user's model is any class with the two. One that names its
operations that change nothing in `reads` is checked faster.
"""

from collections.abc import Hashable
from typing import Any, Final, NamedTuple, Protocol


class Model(Protocol):
    """What operations do to one key, one after the other."""

    @property
    def start(self) -> Hashable:
        """The state before the first operation."""

    def step(self, state: Any, name: str, value: Any, /) -> tuple[Hashable, Any]:
        """Return the state after an operation, and its answer.

        The answer may be `ANY`, or `OneOf(…)`. An operation that cannot come about in a state,
        such as to release what another one holds, has the answer `NEVER`.
        """


class _Word:
    """A word that no value is equal to."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


#: The answer of a model that does not say what the answer is.
ANY: Final[Any] = _Word("ANY")

#: The answer of an operation that cannot come about in a state.
NEVER: Final[Any] = _Word("NEVER")


class OneOf(NamedTuple):
    """Answers of which each is right."""

    answers: tuple[Any, ...]


def agrees(expected: Any, told: Any) -> bool:
    """Return whether a client may have been told this, where a model expects that."""
    if expected is ANY:
        return True
    if type(expected) is OneOf:
        return told in expected.answers
    return bool(expected == told)


class NotInModel(ValueError):
    """A history has an operation that the model does not know."""

    def __init__(self, model: object, name: str, known: str) -> None:
        kind = type(model).__name__
        super().__init__(
            f"{kind} knows no operation {name!r}; it knows {known}: "
            "say which one it is when you record it, or check with another model"
        )


class Register:
    """One value: `read` answers it, `write` sets it, `cas` and `create` set it on a condition.

    The value of `cas` is the pair of what is expected and what is set; `create` expects None.
    Both answer whether they have set it. Answers of `write` are not looked at.
    """

    #: Operations that change nothing, so their order matters to nothing else.
    reads = frozenset({"read"})

    def __init__(self, start: Hashable = None) -> None:
        self.start = start

    def step(self, state: Any, name: str, value: Any) -> tuple[Hashable, Any]:
        """Return what comes of an operation."""
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
    """A number: `add` adds to it and answers the sum, or None; `read` answers it."""

    reads = frozenset({"read"})

    def __init__(self, start: float = 0) -> None:
        self.start = start

    def step(self, state: Any, name: str, value: Any) -> tuple[Hashable, Any]:
        """Return what comes of an operation."""
        if name == "read":
            return state, state
        if name == "add":
            return state + value, OneOf((state + value, None))
        raise NotInModel(self, name, "add and read")


class Elements:
    """Elements: `add`, `remove` and `contains`, and `read`, which answers all in any order.

    `add` and `remove` answer whether they changed something, or None.
    """

    reads = frozenset({"read", "contains"})
    start: frozenset[Any] = frozenset()

    def step(self, state: frozenset[Any], name: str, value: Any) -> tuple[Hashable, Any]:
        """Return what comes of an operation."""
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
    """Equal to any collection with the same elements, each once."""

    def __init__(self, elements: frozenset[Any]) -> None:
        self._elements = elements

    def __eq__(self, other: object) -> bool:
        try:
            told = list(other)  # type: ignore[call-overload]
            return len(told) == len(self._elements) and set(told) == self._elements
        except TypeError:
            return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(set(self._elements))


class Queue:
    """First in, first out: `put` adds at the end, `get` takes the first, or answers None."""

    reads: frozenset[str] = frozenset()
    start: tuple[Any, ...] = ()

    def step(self, state: tuple[Any, ...], name: str, value: Any) -> tuple[Hashable, Any]:
        """Return what comes of an operation."""
        if name == "put":
            return (*state, value), ANY
        if name == "get":
            return (state[1:], state[0]) if state else (state, None)
        raise NotInModel(self, name, "put and get")


class Lock:
    """One holder at a time: `acquire` and `release`; the value says who.

    `acquire` answers whether it got the lock (None means that it did); who releases has it.
    """

    reads: frozenset[str] = frozenset()
    start = None

    def step(self, state: Any, name: str, value: Any) -> tuple[Hashable, Any]:
        """Return what comes of an operation."""
        if name == "acquire":
            return (value, OneOf((True, None))) if state is None else (state, False)
        if name == "release":
            return (
                (None, OneOf((True, None)))
                if state == value
                else (state, OneOf((False, NEVER)))
            )
        raise NotInModel(self, name, "acquire and release")
