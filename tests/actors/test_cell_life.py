"""The life of a cell against a small model: nothing is lost, every ask ends once."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from callboard import Actor, handler
from callboard.actors.errors import ActorDown
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import current_cell
from callboard.actors.runtime import Runtime


class Recorder(Actor):
    def __init__(self, seen):
        self.seen = seen

    @handler
    def number(self, msg: int) -> int:
        self.seen.append(msg)
        return msg

    @handler
    async def slow(self, msg: str) -> str:
        await asyncio.sleep(0)
        self.seen.append(msg)
        return msg


class CellLife(RuleBasedStateMachine):
    """The runner is held still: the rules decide when the cell has its turn."""

    def __init__(self):
        super().__init__()
        self.runtime = Runtime("model")
        self.runtime.runner.start = lambda: None
        self.seen = []
        self.asks = []
        self.outcomes = []
        self.model_waiting = []
        self.model_seen = []
        self.model_dead = 0
        self.model_end = None
        self.number = 0

    @initialize()
    def spawn(self):
        self.ref = self.runtime.start_actor(Recorder, (self.seen,))
        self.cell = self.ref.target
        self.downs = []
        self.cell.monitor("test", self.downs.append)

    def next_number(self):
        self.number += 1
        return self.number

    def expect(self, message):
        if self.model_end is None:
            self.model_waiting.append(message)
        elif message != "stop":
            self.model_dead += 1

    @rule(kind=st.sampled_from([int, str]))
    def tell(self, kind):
        number = kind(self.next_number())
        self.ref.tell(number)
        self.expect(number)

    @rule(kind=st.sampled_from([int, str]), timeout=st.sampled_from([None, 60.0]))
    def ask(self, kind, timeout):
        number = kind(self.next_number())
        future = self.ref.ask(number, timeout)
        future.add_done_callback(self.outcomes.append)
        self.asks.append((number, future))
        self.expect(number)

    @rule()
    def stop(self):
        self.ref.stop()
        self.expect("stop")

    @rule()
    def kill(self):
        self.ref.kill()
        if self.model_end is None:
            self.model_end = ExitReason.KILLED
            self.model_dead += sum(1 for message in self.model_waiting if message != "stop")
            self.model_waiting.clear()

    @rule()
    def turn(self):
        ready = self.runtime.runner.ready
        while ready:
            ready.popleft().run()
        current_cell.set(None)  # as the runner does after a batch
        while self.model_waiting:
            message = self.model_waiting.pop(0)
            if message == "stop":
                self.model_end = ExitReason.NORMAL
                self.model_dead += sum(1 for late in self.model_waiting if late != "stop")
                self.model_waiting.clear()
            else:
                self.model_seen.append(message)
        self.check()

    def check(self):
        assert self.seen == self.model_seen
        assert self.runtime.counters.dead_letters == self.model_dead
        assert [down.reason for down in self.downs] == [self.model_end] * bool(self.model_end)
        for number, future in self.asks:
            assert future.done()
            answered = number in self.model_seen
            assert (future.exception() is None) == answered
            assert answered or isinstance(future.exception(), ActorDown)

    @invariant()
    def every_ask_ends_at_most_once(self):
        assert len(set(map(id, self.outcomes))) == len(self.outcomes)

    @invariant()
    @precondition(lambda self: hasattr(self, "cell"))
    def a_scheduled_cell_stands_in_the_queue_once(self):
        assert self.runtime.runner.ready.count(self.cell) == self.cell.scheduled

    def teardown(self):
        if hasattr(self, "cell"):
            self.kill()
            self.turn()
        self.runtime.runner.stop()


CellLife.TestCase.settings = settings(deadline=None, stateful_step_count=30)
TestCellLife = CellLife.TestCase
