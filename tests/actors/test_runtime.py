"""The runtime: spawning, what is counted and told, and the end."""

import threading

import pytest

from callboard import Actor, handler
from callboard.actors.errors import ActorDown, CallboardError, NodeClosed
from callboard.actors.events import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    DeadLetter,
    Unexpected,
)
from callboard.actors.runtime import FIRST_NUMBER, LAST_NUMBER, Runtime
from tests.actors.sample import Echo, Fail, Gate, Waiter, instance


def end(runtime, ref):
    down = runtime.monitor(ref)
    ref.stop()
    down.result(5)


# --- spawning ---


def test_an_exception_of_init_is_raised_by_spawn(runtime):
    class Bad(Actor):
        def __init__(self):
            raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        runtime.start_actor(Bad)
    assert runtime.contexts == {}


def test_an_actor_whose_init_raised_ends_as_others_do(runtime):
    kept = {}

    class Bad(Actor):
        def __init__(self, other):
            kept["child"] = self.spawn(Echo)
            kept["ask"] = self.me.ask("x", timeout=None)
            kept["down"] = runtime.monitor(self.me)
            self.link(other)
            raise OSError("no disk")

    linked = runtime.start_actor(Echo)
    linked_down = runtime.monitor(linked)
    with pytest.raises(OSError, match="no disk"):
        runtime.start_actor(Bad, (linked,))

    assert kept["down"].result(5).reason == "error"
    assert linked_down.result(5).reason == "error"
    assert runtime.monitor(kept["child"]).result(5).reason in ("shutdown", "not_found")
    with pytest.raises(ActorDown):
        kept["ask"].result(5)
    assert runtime.await_ends(5)


def test_spawning_from_many_threads_gives_each_actor_its_own_number(runtime):
    refs = []

    def spawn():
        refs.extend(runtime.start_actor(Echo) for _ in range(100))

    threads = [threading.Thread(target=spawn) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(refs)) == 800
    assert runtime.counters.spawned == 800


def test_numbers_wrap_and_skip_those_in_use(runtime):
    runtime._number = LAST_NUMBER - 1
    taken = runtime.start_actor(Echo, number=FIRST_NUMBER)

    assert runtime.start_actor(Echo).actor_id == LAST_NUMBER
    assert runtime.start_actor(Echo).actor_id == FIRST_NUMBER + 1
    assert taken.actor_id == FIRST_NUMBER


# --- what is counted and told ---


def test_events_tell_the_life_of_an_actor(runtime):
    events = []
    with runtime.subscribed(events.append):
        ref = runtime.start_actor(Echo)
        ref.tell(b"?")
        down = runtime.monitor(ref)
        ref.tell(Fail("x"))
        down.result(5)
        with pytest.raises(ActorDown):
            ref.ask("late").result(5)
        end(runtime, runtime.start_actor(Gate))

    assert [event for event in events if event.ref == ref] == [
        ActorStarted(ref, "Echo"),
        Unexpected(ref, b"?"),
        ActorFailed(ref, "ValueError: x"),
        ActorStopped(ref, "error", "ValueError: x"),
        DeadLetter(ref, "late"),
    ]


def test_a_subscriber_that_fails_breaks_nothing(runtime):
    with runtime.subscribed(lambda _: 1 / 0):
        ref = runtime.start_actor(Echo)
        end(runtime, ref)

    assert runtime.monitor(ref).result(5).reason == "not_found"


def test_ends_and_messages_are_counted(runtime):
    one, two = runtime.start_actor(Echo), runtime.start_actor(Echo)
    for _ in range(3):
        one.ask("x").result(5)
    end(runtime, one)
    down = runtime.monitor(two)
    two.tell(Fail())
    down.result(5)

    assert runtime.counters.ends == {"normal": 1, "error": 1}
    assert runtime.counters.failures == 1
    assert runtime.handled == 3 + 1 + 1  # the stop is a message too


# --- the end ---


def test_end_actors_ends_all_with_shutdown(no_thread_left):
    runtime = Runtime("ending")
    waiter = runtime.start_actor(Waiter)
    actor, down = instance(waiter), runtime.monitor(waiter)
    waiter.tell("x")
    assert actor.entered.wait(5)

    assert runtime.end_actors()
    assert down.result(5).reason == "shutdown"
    assert actor.cancelled
    runtime.close()


def test_nothing_can_be_spawned_after_the_end(no_thread_left):
    runtime = Runtime("closed")
    runtime.start_actor(Echo)
    runtime.end_actors()
    runtime.close()

    with pytest.raises(NodeClosed, match="closed is closed"):
        runtime.start_actor(Echo)


def test_asks_after_the_end_fail_at_once(no_thread_left):
    runtime = Runtime("closed")
    ref = runtime.start_actor(Echo)
    runtime.end_actors()
    runtime.close()
    runtime.close()

    for _ in range(2):
        with pytest.raises(ActorDown):
            ref.ask("x", timeout=None).result(1)
    ref.tell("x")
    assert runtime.counters.dead_letters == 3


def test_closing_without_ending_actors_first_ends_them(no_thread_left):
    runtime = Runtime("abrupt")
    ref = runtime.start_actor(Echo)
    ref.ask("x").result(5)
    runtime.close()

    with pytest.raises(CallboardError):
        ref.ask("x", timeout=None).result(1)


def test_a_runtime_may_be_closed_by_one_of_its_actors(no_thread_left):
    class Closing(Actor):
        @handler
        def go(self, msg: str) -> None:
            self._cell.runtime.end_actors()
            self._cell.runtime.close()

    runtime = Runtime("own hand")
    runtime.start_actor(Closing).tell("x")

    assert runtime.runner.stopped.wait(5)
    assert runtime.await_ends(5)
