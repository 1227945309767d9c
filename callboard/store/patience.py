"""Waiting for the actor of a store, but not for ever."""

from typing import Any, TypeVar

from actors.errors import ResultTimeout
from actors.future import Future
from callboard.store.port import Port

__all__ = ["expire_in", "within"]

T = TypeVar("T")


async def within(port: Port, future: Future[T], timeout: float) -> T:
    """Await a future for some time at most, by the node's clock.

    Raises:
        ResultTimeout: the time is over.
    """
    expire_in(port, future, timeout)
    return await future


def expire_in(port: Port, future: Future[Any], timeout: float) -> None:
    """Fail a future with `ResultTimeout` when the time is over."""
    runner = port.hub.node.runtime.runner

    def arm() -> None:
        error = ResultTimeout(f"{port!r} did not answer within {timeout:g} s")
        timer = runner.call_later(timeout, future.set_exception, error)
        future._add(lambda _: timer.cancel())  # noqa: SLF001

    runner.post(arm)
