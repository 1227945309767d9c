"""Keeps factories from waiting for their own broker.

A flow broker serves one message at a time, and a factory is called in that time. If it opened
or answered a flow itself, the broker could not pass on what it waits for: both would stand for
ever. Opening a flow inside a factory raises instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from callboard.flow.errors import FactoryDeadlock

_IN_FACTORY: Final[ContextVar[bool]] = ContextVar("callboard_flow_factory", default=False)


@contextmanager
def factory_running() -> Iterator[None]:
    """Mark that a factory is called in this context."""
    token = _IN_FACTORY.set(True)
    try:
        yield
    finally:
        _IN_FACTORY.reset(token)


def refuse_in_factory(call: str) -> None:
    """Raise when a factory is under way in this context.

    Raises:
        FactoryDeadlock: the call would wait for the broker that called the factory.
    """
    if _IN_FACTORY.get():
        msg = (
            f"{call} in a factory would wait for the flow broker that called it; give the BOT "
            "to a FlowHandler with bot.hand_to(ref) and return"
        )
        raise FactoryDeadlock(msg)
