"""Calls on another thread that a handler awaits."""

import asyncio
import threading

import pytest

from callboard.actors.actor import Actor
from callboard.actors.closing import on_a_thread
from callboard.actors.dispatch import handler
from callboard.actors.reference import current_cell


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
