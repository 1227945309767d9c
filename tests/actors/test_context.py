"""Each actor has a context of its own: what is set in a handler stays with its actor."""

import contextvars

from callboard import Actor, handler

SECRET: contextvars.ContextVar[str | None] = contextvars.ContextVar("SECRET", default=None)


class Secretive(Actor):
    @handler
    def set(self, msg: str) -> None:
        SECRET.set(msg)

    @handler
    def get(self, msg: type) -> object:
        return SECRET.get()

    @handler
    async def get_later(self, msg: float) -> object:
        await self.sleep(msg)
        return SECRET.get()


def test_a_context_variable_set_in_a_handler_stays_with_its_actor(runtime):
    first, second = runtime.start_actor(Secretive), runtime.start_actor(Secretive)

    first.ask("mine").result(5)

    assert first.ask(str).result(5) == "mine"
    assert second.ask(str).result(5) is None


def test_a_coroutine_handler_sees_the_context_variables_of_its_actor(runtime):
    ref = runtime.start_actor(Secretive)

    ref.ask("mine").result(5)

    assert ref.ask(0.001).result(5) == "mine"
