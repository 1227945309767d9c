"""Actors of callboard itself: their context, mail to themselves, and their last word."""

import threading

import pytest

from callboard.actors.dispatch import handler
from callboard.actors.errors import NoSuchMethod
from callboard.actors.exit_reason import ExitReason
from callboard.actors.system_actor import SystemActor
from tests.polling import eventually


class Note:
    """What the actor sends to itself."""


class Keeper(SystemActor):
    def __init__(self, seen, fails=False):
        self.seen, self.fails = seen, fails
        self.seen.append(("began", self.context.ref == self.me, self.context.activity))

    @handler
    def note(self, note: Note):
        self.seen.append(("note", self.sender, self.now() <= self.runtime.now()))

    def on_end(self, reason, detail):
        self.seen.append(("end", reason, self.context.alive))
        if self.fails:
            raise ValueError("nothing to say")


def test_its_context_is_there_before_its_init(runtime):
    seen = []

    runtime.start_actor(Keeper, (seen,))

    assert seen == [("began", True, "running")]


def test_it_sends_itself_mail_from_any_thread(runtime):
    seen = []
    ref = runtime.start_actor(Keeper, (seen,))
    keeper = runtime.contexts[ref.actor_id].actor

    thread = threading.Thread(target=keeper.post_self, args=(Note(),))
    thread.start()

    eventually(lambda: len(seen) == 2)
    assert seen[1] == ("note", None, True)


@pytest.mark.parametrize("fails", [False, True])
def test_it_has_a_last_word_before_others_learn_of_its_end(runtime, fails):
    seen = []
    ref = runtime.start_actor(Keeper, (seen, fails))
    runtime.monitor(ref).add_done_callback(lambda down: seen.append(down.result().reason))

    ref.kill()

    eventually(lambda: len(seen) == 3)
    assert seen[1:] == [("end", ExitReason.KILLED, True), "killed"]
    assert runtime.counters.failures == fails


def test_nothing_of_it_can_be_called_from_afar(runtime):
    ref = runtime.start_actor(Keeper, ([],))

    for name in ("on_end", "post_self", "now"):
        with pytest.raises(NoSuchMethod):
            ref.proxy().__getattr__(name)().result(5)
