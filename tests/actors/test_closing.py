"""Calls on another thread that a handler awaits."""

import asyncio
import inspect
import threading

import pytest

from callboard.actors.actor import Actor
from callboard.actors.dispatch import handler
from callboard.actors.reference import current_cell
from callboard.closing import blocking_twin, on_a_thread, twin


class Caller(Actor):
    """Asks, from a handler, what a call on another thread sees."""

    @handler
    async def look(self, message: str) -> tuple[bool, int]:
        return await on_a_thread(lambda: (current_cell.get() is None, threading.get_ident()))


def test_a_function_on_another_thread_is_not_part_of_the_handler(runtime):
    is_outside, thread = runtime.start_actor(Caller).ask("look").result(10)

    assert is_outside
    assert thread != threading.get_ident()


def test_a_call_on_a_thread_takes_arguments_and_returns_or_raises():
    assert asyncio.run(on_a_thread(sorted, [2, 3, 1], reverse=True)) == [3, 2, 1]
    with pytest.raises(ValueError, match="'x'"):
        asyncio.run(on_a_thread(int, "x"))


class Twins:
    """A blocking method and an awaitable one, each with its twin."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def read(self, count: int, *, unit: str = "B") -> tuple[str, int]:
        """Read some bytes."""
        return f"{count} {unit}", threading.get_ident()

    async def _room(self) -> None:
        self.log.append("room")

    aread = twin(read)
    aread_later = twin(read, after=_room)

    async def afind(self, name: str, limit: float = 1.0) -> str:
        """Find a name."""
        return f"{name} {limit}"

    def _wait(self, coroutine):
        self.log.append(coroutine.__name__)
        return asyncio.run(coroutine)

    find = blocking_twin(afind)


class Louder(Twins):
    """Overrides both originals."""

    def read(self, count: int, *, unit: str = "B") -> tuple[str, int]:
        return "READ", threading.get_ident()

    async def afind(self, name: str, limit: float = 1.0) -> str:
        return name.upper()


def test_a_twin_calls_the_method_on_another_thread():
    text, thread = asyncio.run(Twins().aread(3, unit="kB"))

    assert text == "3 kB"
    assert thread != threading.get_ident()


def test_a_twin_with_a_wait_calls_the_method_here_after_it():
    twins = Twins()
    text, thread = asyncio.run(twins.aread_later(3))

    assert (text, twins.log) == ("3 B", ["room"])
    assert thread == threading.get_ident()


def test_a_blocking_twin_waits_for_the_awaitable_method():
    twins = Twins()

    assert twins.find("x", limit=2.0) == "x 2.0"
    assert twins.log == ["afind"]


def test_twins_call_what_a_subclass_overrides():
    louder = Louder()

    assert louder.find("x") == "X"
    assert asyncio.run(louder.aread(1))[0] == "READ"


def test_the_plain_name_has_the_documentation_and_both_have_the_parameters():
    assert (Twins.find.__doc__, Twins.afind.__doc__) == (
        "Find a name.",
        "Awaitable twin of `find`.",
    )
    assert Twins.aread.__doc__ == "Awaitable twin of `read`."
    names = [twins.__qualname__ for twins in (Twins.find, Twins.aread)]
    assert names == ["Twins.find", "Twins.aread"]
    assert inspect.signature(Twins.find).parameters == inspect.signature(Twins.afind).parameters
