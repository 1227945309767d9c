"""A detached actor has a thread of its own: it may block, and disturbs nobody."""

import threading

import pytest

from callboard import Actor, handler
from callboard.actors.errors import ActorDown, RemoteError
from tests.actors.conftest import runtime_threads
from tests.actors.sample import Echo, Gate, instance


class Blocking(Actor):
    detached = True

    def __init__(self, to=None):
        self.to = to

    @handler
    def thread(self, msg: type) -> str:
        return threading.current_thread().name

    @handler
    def ask(self, msg: str) -> object:
        return self.to.ask(msg).result(5)

    @handler
    async def ask_and_await(self, msg: bytes) -> object:
        await self.sleep(0.001)
        return self.to.ask("x").result(5) + await self.to.ask("y")

    @handler
    def ask_oneself(self, msg: int) -> object:
        return self.me.ask(msg).result(5)

    @handler
    def remind(self, msg: float) -> object:
        self.promised = self.promise()
        self.after(msg, ())
        return None

    @handler
    def reminded(self, msg: tuple) -> None:
        self.promised.set_result(threading.current_thread().name)


def test_a_detached_actor_has_a_thread_of_its_own(runtime):
    first, second = (
        runtime.start_actor(Blocking),
        runtime.start_actor(Echo.with_options(detached=True)),
    )

    names = {first.ask(int).result(5) for _ in range(5)}

    assert names == {"callboard-test-Blocking"}
    assert second.ask("x").result(5) == "x"
    assert first.ask(0.001).result(5) == "callboard-test-Blocking"


@pytest.mark.parametrize("question", ["xy", b""])
def test_a_detached_actor_may_wait_for_results(runtime, question):
    ref = runtime.start_actor(Blocking, (runtime.start_actor(Echo),))

    assert ref.ask(question).result(5) == "xy"


def test_a_detached_actor_cannot_wait_for_itself(runtime):
    with pytest.raises(RemoteError, match="WouldDeadlock"):
        runtime.start_actor(Blocking).ask(1).result(5)


def test_a_blocked_detached_actor_costs_the_others_nothing(runtime):
    held = runtime.start_actor(Gate.with_options(detached=True))
    asked = held.ask("x")
    assert instance(held).entered.wait(5)

    assert runtime.start_actor(Echo).ask("y").result(5) == "y"
    assert runtime.runner.times.stuck == {}
    instance(held).opened.set()
    assert asked.result(5) == "x"


def test_the_thread_ends_with_its_actor_and_late_messages_are_dead_letters(runtime):
    before = runtime_threads()
    ref = runtime.start_actor(Blocking)
    ref.ask(int).result(5)
    started = runtime_threads() - before
    down = runtime.monitor(ref)

    ref.stop()
    assert down.result(5).reason == "normal"
    for thread in started:
        if "Blocking" in thread.name:
            thread.join(5)
            assert not thread.is_alive()

    with pytest.raises(ActorDown):
        ref.ask(int).result(5)


def test_a_detached_actor_whose_init_fails_leaves_nothing(runtime):
    class Broken(Actor):
        detached = True

        def __init__(self):
            raise ValueError("as asked")

    with pytest.raises(ValueError, match="as asked"):
        runtime.start_actor(Broken)

    assert not any("Broken" in thread.name for thread in runtime_threads())


def test_a_detached_actor_is_killed_between_messages(runtime):
    ref = runtime.start_actor(Gate.with_options(detached=True))
    asked = ref.ask("x")
    gate = instance(ref)
    assert gate.entered.wait(5)
    down = runtime.monitor(ref)

    ref.tell("never")
    ref.kill()
    gate.opened.set()

    assert down.result(5).reason == "killed"
    assert asked.result(5) == "x"
