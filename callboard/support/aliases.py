"""Keywords of Zeek Broker's package beside our own names for the same parameters."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def alias(**others: str) -> Callable[[F], F]:
    """Let a function take parameters under other names as well: `alias(addr="address")`.

    A call that gives a parameter under both names is refused as Python does it.
    """

    def renamed(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            for name in others.keys() & named.keys() if named else ():
                if others[name] in named:
                    message = (
                        f"{function.__name__}() got {name} and {others[name]}, which are one"
                    )
                    raise TypeError(message)
                named[others[name]] = named.pop(name)
            return function(*args, **named)

        @functools.wraps(function)
        async def acall(*args: Any, **named: Any) -> Any:
            return await call(*args, **named)

        made: Any = acall if inspect.iscoroutinefunction(function) else call
        return made  # type: ignore[no-any-return]

    return renamed
