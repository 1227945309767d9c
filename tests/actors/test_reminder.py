"""Messages to oneself: they can be taken back, keep their rhythm, and end with their actor."""

import pytest

from callboard import Actor, handler
from callboard.actors.errors import RemoteError
from tests.actors.sample import instance


class Ticking(Actor):
    def __init__(self):
        self.ticks = 0

    @handler
    def start(self, msg: float) -> None:
        self.reminder = self.every(msg, "tick")

    @handler
    def tick(self, msg: str) -> None:
        self.ticks += 1
        if self.ticks == 3:
            self.reminder.cancel()

    @handler
    async def ticked(self, msg: type) -> tuple:
        while self.reminder.active:
            await self.sleep(0.002)
        return self.ticks, self.reminder.active

    @handler
    async def pending(self, msg: bytes) -> int:
        self.kept = [self.after(1000.0, "never") for _ in range(5)]
        return len(self._cell.rare.reminders)


class Patient(Ticking):
    @handler
    async def ticked(self, msg: type) -> tuple:
        return self.ticks, self.reminder.active


def test_every_sends_until_it_is_cancelled(runtime):
    ref = runtime.start_actor(Patient)
    ref.ask(0.002).result(5)

    while ref.ask(int).result(5)[1]:
        pass

    assert ref.ask(int).result(5) == (3, False)


def test_a_period_is_more_than_nothing(runtime):
    with pytest.raises(RemoteError, match="more than 0"):
        runtime.start_actor(Ticking).ask(0.0).result(5)


def test_reminders_end_with_their_actor(runtime):
    ref = runtime.start_actor(Ticking)
    assert ref.ask(b"").result(5) == 5
    kept = instance(ref).kept
    down = runtime.monitor(ref)

    ref.kill()
    down.result(5)

    assert not any(reminder.active for reminder in kept)
