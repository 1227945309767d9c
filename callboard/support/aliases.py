"""Aliases of parameters: keywords of Zeek Broker's package in addition to our own names."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def alias(**aliases: str) -> Callable[[F], F]:
    """Add aliases to parameters of a function: `alias(addr="address")`.

    A call with both names of a parameter raises a `TypeError`, as for a repeated argument.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            for name in aliases.keys() & keywords.keys() if keywords else ():
                parameter = aliases[name]
                if parameter in keywords:
                    message = (
                        f"{function.__name__}() got {name} and {parameter}, which are the same"
                    )
                    raise TypeError(message)
                keywords[parameter] = keywords.pop(name)
            return function(*args, **keywords)

        @functools.wraps(function)
        async def acall(*args: Any, **keywords: Any) -> Any:
            return await call(*args, **keywords)

        wrapper: Any = acall if inspect.iscoroutinefunction(function) else call
        return wrapper  # type: ignore[no-any-return]

    return decorate
