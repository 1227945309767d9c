"""Aliases: keywords of Zeek Broker's package for parameters, and former names of methods."""

import functools
import inspect
import operator
import warnings
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


def former_method(former: str, name: str) -> Callable[..., Any]:
    """Return a method for the former name of another; calls of it give a `DeprecationWarning`.

    It works for one release, then it is removed.

    Args:
        former: the former name.
        name: the name of the method, or a path to it, as in `publishing.ingest_encoded`.
    """
    find = operator.attrgetter(name)

    def call(self: object, *args: Any, **keywords: Any) -> Any:
        message = f"{type(self).__name__}.{former} is deprecated and ends with 0.3; use {name}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return find(self)(*args, **keywords)

    return call
