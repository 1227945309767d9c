"""What actors are asked: questions with typed answers, and calls of methods."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


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
