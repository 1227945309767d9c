"""A runner that is given its turns: it asks for one, and takes it only when it is told to."""

import math
import random
import selectors

import pytest

from callboard import Actor, handler
from callboard.actors.runner.turnwise import TurnwiseRunner
from callboard.actors.runtime import Runtime


class Given(TurnwiseRunner):
    def __init__(self):
        self.time, self.asked = 0.0, 0
        super().__init__(
            "given",
            selector=selectors.DefaultSelector(),
            clock=lambda: self.time,
            rng=random.Random(1),
        )

    def is_runner_thread(self):
        return True

    def plan_turn(self):
        self.asked += 1

    def turn(self):
        while self.has_work:
            self.take_turns()
            self.housekeep()


class Echo(Actor):
    @handler
    def text(self, message: str) -> str:
        return message


@pytest.fixture
def runner():
    made = Given()
    yield made
    made.stop()


def test_nothing_runs_without_a_turn(runner):
    runtime = Runtime("given", runner=runner)
    future = runtime.start_actor(Echo).ask("hi")

    assert not future.done()
    assert runner.has_work
    assert runner.asked

    runner.turn()

    assert future.result(0) == "hi"
    assert not runner.has_work


def test_timers_fire_in_the_turn_after_their_time(runner):
    fired = []
    runner.call_later(5.0, fired.append, "five")
    runner.call_later(2.0, fired.append, "two")

    assert [when for when, _ in runner.pending_timers()] == [2.0, 5.0]
    assert runner.next_due() == 2.0

    runner.time = 3.0
    runner.housekeep()

    assert fired == ["two"]
    assert runner.next_due() == 5.0


def test_calls_wait_for_the_housekeeping(runner):
    called = []
    runner.post(called.append, 1)
    assert runner.has_calls

    runner.housekeep()

    assert called == [1]
    assert not runner.has_calls
    assert runner.next_due() == math.inf


def test_an_ask_without_an_answer_is_known_and_fails_at_its_time(runner):
    runtime = Runtime("given", runner=runner)
    future = runtime.start_actor(Echo).ask("hi", timeout=4)

    runner.next_due()
    assert runner.unanswered_asks() == [future]

    runner.time = 5.0
    runner.housekeep()

    assert "AskTimeout" in type(future.exception(0)).__name__
