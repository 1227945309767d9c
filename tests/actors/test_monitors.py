"""Monitors and links: who watches is told once, and links hold in both directions."""

import pytest

from callboard import Actor, Down, Exit, ExitReason, handler
from tests.actors.sample import Echo
from tests.polling import eventually


class Watching(Actor):
    """Keeps the `Down` and `Exit` messages that it gets."""

    def __init__(self):
        self.kept = []

    @handler
    def watch(self, msg: tuple) -> object:
        verb, ref = msg
        return getattr(self, verb)(ref)

    @handler
    def cancel(self, msg: str) -> None:
        self.monitors.cancel()

    @handler
    def signal(self, msg: Down | Exit) -> None:
        self.kept.append(msg)

    @handler
    def give(self, msg: type) -> list:
        return list(self.kept)


class Trapping(Watching):
    trap_exit = True


# --- monitors ---


def test_each_monitor_gets_one_down(runtime):
    watching, target = runtime.start_actor(Watching), runtime.start_actor(Echo)
    first = watching.ask(("monitor", target)).result(5)
    second = watching.ask(("monitor", target)).result(5)
    outside = runtime.monitor(target)

    target.kill()
    outside.result(5)

    assert first is not second
    assert watching.ask(list).result(5) == [Down(target, ExitReason.KILLED)] * 2


def test_a_cancelled_monitor_gets_none(runtime):
    watching, target = runtime.start_actor(Watching), runtime.start_actor(Echo)
    kept = watching.ask(("monitor", target)).result(5)
    cancelled = watching.ask(("monitor", target)).result(5)
    outside = runtime.monitor(target)

    cancelled.cancel()
    target.stop()
    outside.result(5)

    assert kept is not cancelled
    assert watching.ask(list).result(5) == [Down(target, ExitReason.NORMAL)]


def test_a_monitor_of_a_dead_actor_fires_at_once_with_not_found(runtime):
    watching, target = runtime.start_actor(Watching), runtime.start_actor(Echo)
    down = runtime.monitor(target)
    target.stop()
    down.result(5)

    watching.ask(("monitor", target)).result(5)
    [seen] = watching.ask(list).result(5)

    assert (seen.ref, seen.reason) == (target, "not_found")
    assert runtime.monitor(target).result(5).reason == "not_found"


# --- links ---


@pytest.mark.parametrize("linked_by", ["link"])
def test_an_abnormal_end_takes_linked_actors_along(runtime, linked_by):
    one, other = runtime.start_actor(Watching), runtime.start_actor(Watching)
    one.ask((linked_by, other)).result(5)
    downs = [runtime.monitor(one), runtime.monitor(other)]

    other.kill()

    assert [down.result(5).reason for down in downs] == ["killed", "killed"]


def test_links_hold_in_both_directions(runtime):
    one, other = runtime.start_actor(Watching), runtime.start_actor(Watching)
    one.ask(("link", other)).result(5)
    down = runtime.monitor(other)

    one.kill()

    assert down.result(5).reason == "killed"


def test_a_normal_end_does_not_take_linked_actors_along(runtime):
    one, other = runtime.start_actor(Watching), runtime.start_actor(Watching)
    one.ask(("link", other)).result(5)
    down = runtime.monitor(other)

    other.stop()

    assert down.result(5).reason == "normal"
    assert one.ask(list).result(5) == []


@pytest.mark.parametrize(("end", "reason"), [("stop", "normal"), ("kill", "killed")])
def test_trap_exit_turns_the_end_of_a_linked_actor_into_a_message(runtime, end, reason):
    one, other = runtime.start_actor(Trapping), runtime.start_actor(Watching)
    one.ask(("link", other)).result(5)
    down = runtime.monitor(other)

    getattr(other, end)()
    down.result(5)

    assert one.ask(list).result(5) == [Exit(other, reason)]


def test_a_link_to_a_dead_actor_ends_the_linker(runtime):
    one, other = runtime.start_actor(Watching), runtime.start_actor(Watching)
    gone, down = runtime.monitor(other), runtime.monitor(one)
    other.stop()
    gone.result(5)

    one.tell(("link", other))

    assert down.result(5).reason == "not_found"


def test_an_actor_that_traps_exits_receives_one_for_a_link_to_a_dead_actor(runtime):
    one, other = runtime.start_actor(Trapping), runtime.start_actor(Watching)
    gone = runtime.monitor(other)
    other.stop()
    gone.result(5)

    one.ask(("link", other)).result(5)
    [seen] = one.ask(list).result(5)

    assert (seen.ref, seen.reason) == (other, "not_found")


def test_an_undone_link_has_no_effect(runtime):
    one, other = runtime.start_actor(Watching), runtime.start_actor(Watching)
    one.ask(("link", other)).result(5)
    one.ask(("unlink", other)).result(5)
    down = runtime.monitor(other)

    other.kill()
    down.result(5)

    assert one.ask(list).result(5) == []


def test_a_link_undone_while_its_signal_waits_has_no_effect(runtime):
    other = runtime.start_actor(Watching)
    down = runtime.monitor(other)

    class Late(Watching):
        @handler
        def late(self, msg: str) -> None:
            self.link(other)
            other.kill()
            eventually(down.done)
            self.unlink(other)

    one = runtime.start_actor(Late)
    one.ask("go").result(5)

    assert one.ask(list).result(5) == []
