"""Restarts: which children, how often, and the end of a supervisor that gives up."""

import threading

import pytest

from callboard import Actor, Child, Down, Restarted, Supervisor, handler
from callboard.actors.errors import InvalidSeconds, RemoteError
from callboard.actors.events import (
    ActorRestarted,
    ActorStarted,
    ActorStopped,
    RestartsExhausted,
)
from tests.actors.sample import Collector, Echo, Fail, Gate, instance
from tests.polling import eventually


class Fragile(Echo):
    """Cannot be made while `broken` says so."""

    broken = False
    starts = 0

    def __init__(self):
        type(self).starts += 1
        if self.broken:
            raise OSError("broken")


@pytest.fixture
def events(runtime):
    kept = []
    with runtime.subscribed(kept.append):
        yield kept


def supervise(runtime, *children, **options):
    return runtime.start_actor(Supervisor, (list(children),), options)


def running(supervisor):
    return supervisor.call(Supervisor.children).result(5)


def end(runtime, ref, how):
    down = runtime.monitor(ref)
    how(ref)
    down.result(5)


def fail(ref):
    ref.tell(Fail())


@pytest.mark.parametrize("how", [fail, lambda ref: ref.stop(), lambda ref: ref.kill()])
def test_permanent_children_are_always_started_again(runtime, how):
    supervisor = supervise(runtime, Child(Echo))
    [first] = running(supervisor)

    end(runtime, first, how)
    [second] = running(supervisor)

    assert first != second
    assert second.ask("x").result(5) == "x"


@pytest.mark.parametrize(
    ("how", "restarts"), [(fail, 1), (lambda ref: ref.kill(), 1), (lambda ref: ref.stop(), 0)]
)
def test_transient_children_are_started_again_unless_they_ended_normally(
    runtime, how, restarts
):
    supervisor = supervise(runtime, Child(Echo, restart="transient"))
    [first] = running(supervisor)

    end(runtime, first, how)

    assert len(running(supervisor)) == restarts
    assert supervisor.call(Supervisor.restarts).result(5) == restarts


def test_temporary_children_are_never_started_again(runtime):
    supervisor = supervise(runtime, Child(Echo, restart="temporary"))
    [first] = running(supervisor)

    end(runtime, first, fail)

    assert running(supervisor) == []


def test_only_the_child_that_ended_is_started_again(runtime):
    supervisor = supervise(runtime, Child(Echo), Child(Echo))
    first, second = running(supervisor)

    end(runtime, first, fail)

    assert running(supervisor)[0] != first
    assert running(supervisor)[1] == second


def test_a_restart_is_an_event(runtime, events):
    supervisor = supervise(runtime, Child(Echo))
    [first] = running(supervisor)

    end(runtime, first, fail)
    [second] = running(supervisor)

    assert [event for event in events if isinstance(event, ActorRestarted)] == [
        ActorRestarted(second, "Echo", 1, "error")
    ]


def test_too_many_restarts_end_the_supervisor_and_its_children_with_one_event(runtime, events):
    supervisor = supervise(runtime, Child(Echo), Child(Echo), intensity=(2, 60.0))
    steady = running(supervisor)[1]
    down, child_down = runtime.monitor(supervisor), runtime.monitor(steady)

    for _ in range(3):
        eventually(lambda: len(running(supervisor)) == 2)
        end(runtime, running(supervisor)[0], fail)

    reason = "Echo ended too often; last reason: error"
    assert down.result(5) == Down(supervisor, "shutdown", reason)
    assert child_down.result(5).reason == "shutdown"
    assert [event for event in events if isinstance(event, RestartsExhausted)] == [
        RestartsExhausted(supervisor, "Echo", 2, 60.0)
    ]


def test_restarts_long_ago_do_not_count(runtime):
    supervisor = supervise(runtime, Child(Echo), intensity=(1, 0.0))

    for _ in range(4):
        [child] = running(supervisor)
        end(runtime, child, fail)

    assert len(running(supervisor)) == 1


def test_a_start_that_fails_counts_and_is_tried_again_until_there_have_been_enough(runtime):
    class Breaking(Fragile): ...

    supervisor = supervise(runtime, Child(Breaking), intensity=(3, 60.0))
    [child] = running(supervisor)
    down = runtime.monitor(supervisor)
    Breaking.broken = True

    child.tell(Fail())

    assert down.result(5).detail == "Breaking ended too often; last reason: OSError: broken"
    assert Breaking.starts == 4


def test_a_supervisor_whose_first_start_fails_ends_the_children_it_started(runtime):
    class Breaking(Fragile):
        broken = True

    with pytest.raises(OSError, match="broken"):
        supervise(runtime, Child(Echo), Child(Breaking))
    assert runtime.await_ends(5)


def test_children_get_their_arguments(runtime):
    class Named(Actor):
        def __init__(self, name, *, mark):
            self.name = name + mark

        @handler
        def give(self, msg: str) -> str:
            return self.name

    supervisor = supervise(runtime, Child(Named, "n", mark="!"))
    [child] = running(supervisor)

    assert child.ask("x").result(5) == "n!"


@pytest.mark.parametrize(("name", "value"), [("restart", "sometimes"), ("strategy", "none")])
def test_unknown_choices_are_refused(runtime, name, value):
    with pytest.raises(ValueError, match=f"{name}='{value}'"):
        runtime.start_actor(
            Supervisor,
            ([Child(Echo, restart=value if name == "restart" else "permanent")], value),
        )


def test_supervisors_can_be_supervised(runtime):
    top = supervise(runtime, Child(Supervisor, [Child(Echo)], intensity=(0, 1.0)))
    [middle] = running(top)
    [child] = running(middle)

    end(runtime, middle, lambda _: child.tell(Fail()))
    [again] = running(top)

    assert again != middle
    assert running(again)[0].ask("x").result(5) == "x"


def test_an_asker_learns_of_the_failure_and_the_next_incarnation_answers(runtime):
    restarted = threading.Event()
    with runtime.subscribed(lambda e: isinstance(e, ActorRestarted) and restarted.set()):
        supervisor = supervise(runtime, Child(Echo))
        [child] = running(supervisor)
        with pytest.raises(RemoteError):
            child.ask(Fail()).result(5)
        assert restarted.wait(5)

    assert running(supervisor)[0].ask("x").result(5) == "x"


@pytest.mark.parametrize(
    ("strategy", "renewed"),
    [
        ("one_for_one", [False, True, False]),
        ("one_for_all", [True, True, True]),
        ("rest_for_one", [False, True, True]),
    ],
)
def test_the_strategy_selects_the_children_to_restart(runtime, strategy, renewed):
    supervisor = supervise(runtime, Child(Echo), Child(Echo), Child(Echo), strategy=strategy)
    before = running(supervisor)

    end(runtime, before[1], fail)
    eventually(lambda: len(running(supervisor)) == 3)

    assert [a != b for a, b in zip(before, running(supervisor), strict=True)] == renewed


def test_a_group_ends_backwards_and_starts_forwards(runtime, events):
    children = [Child(Echo, name=None) for _ in range(4)]
    supervisor = supervise(runtime, *children, strategy="one_for_all")
    before = running(supervisor)
    events.clear()

    end(runtime, before[1], fail)
    eventually(lambda: sum(isinstance(event, ActorRestarted) for event in events) == 4)

    ended = [event.ref for event in events if isinstance(event, ActorStopped)]
    started = [event.ref for event in events if isinstance(event, ActorStarted)]
    assert ended == [before[1], before[3], before[2], before[0]]
    assert started == running(supervisor)


class Told(Collector):
    @handler
    def restarted(self, msg: Restarted) -> None:
        self.kept.append(msg)


def test_a_restarted_child_first_receives_the_reason_and_the_count(runtime):
    supervisor = supervise(runtime, Child(Told), Child(Told), strategy="one_for_all")

    for _ in range(2):
        end(runtime, running(supervisor)[0], lambda ref: ref.kill())
        eventually(lambda: len(running(supervisor)) == 2)

    first, second = (ref.ask(str).result(5) for ref in running(supervisor))
    assert first == [Restarted("killed", "", 2)]
    assert second == [Restarted("shutdown", "Told ended: killed", 2)]


def test_children_of_a_stopped_supervisor_end_one_by_one_the_last_first(runtime, events):
    supervisor = supervise(runtime, Child(Echo), Child(Supervisor, [Child(Echo)]), Child(Echo))
    first, middle, last = running(supervisor)
    [inner] = running(middle)

    end(runtime, supervisor, lambda ref: ref.stop())

    stopped = [event for event in events if isinstance(event, ActorStopped)]
    assert [event.ref for event in stopped] == [last, inner, middle, first, supervisor]
    assert [event.reason for event in stopped] == ["shutdown"] * 4 + ["normal"]


def test_a_child_that_does_not_end_in_time_is_waited_for_no_longer(runtime, caplog):
    supervisor = supervise(runtime, Child(Echo), Child(Gate, shutdown=0.01))
    echo, stuck = running(supervisor)
    gate = instance(stuck)
    answer = stuck.ask("x")
    assert gate.entered.wait(5)

    end(runtime, supervisor, lambda ref: ref.stop())

    assert not runtime.contexts.keys() & {echo.actor_id, supervisor.actor_id}
    assert "Gate did not end within 0.01 s" in caplog.text
    gate.opened.set()
    assert answer.result(5) == "x"


def test_a_killed_supervisor_takes_its_children_along(runtime):
    supervisor = supervise(runtime, Child(Echo), Child(Echo))
    downs = [runtime.monitor(ref) for ref in running(supervisor)]

    end(runtime, supervisor, lambda ref: ref.kill())

    assert [down.result(5).reason for down in downs] == ["shutdown", "shutdown"]


def test_children_can_be_added_and_removed(runtime):
    supervisor = supervise(runtime)

    added = supervisor.call(Supervisor.add, Child(Echo)).result(5)
    assert running(supervisor) == [added]
    end(runtime, added, fail)
    [again] = running(supervisor)
    down = runtime.monitor(again)

    assert supervisor.call(Supervisor.remove, again).result(5)
    assert down.done()
    assert running(supervisor) == []
    assert not supervisor.call(Supervisor.remove, again).result(5)


def test_a_child_that_cannot_be_added_is_the_callers_trouble(runtime):
    class Breaking(Fragile):
        broken = True

    supervisor = supervise(runtime, Child(Echo))

    with pytest.raises(RemoteError, match="OSError: broken"):
        supervisor.call(Supervisor.add, Child(Breaking)).result(5)
    assert len(running(supervisor)) == 1


def test_a_child_for_another_node_needs_other_nodes(runtime, events):
    supervisor = supervise(runtime, Child(Echo, on="basp://h:1"), intensity=(0, 1.0))

    runtime.monitor(supervisor).result(5)

    assert [type(event) for event in events].count(RestartsExhausted) == 1


@pytest.mark.parametrize("wrong", [{"intensity": (-1, 5.0)}, {"backoff": (-0.1, 5.0)}])
def test_negative_numbers_are_refused(runtime, wrong):
    with pytest.raises(ValueError, match="must not be negative"):
        supervise(runtime, **wrong)


def test_a_negative_time_for_the_end_is_refused():
    with pytest.raises(ValueError, match="shutdown=-1"):
        Child(Echo, shutdown=-1)
    with pytest.raises(InvalidSeconds, match="shutdown='5'"):
        Child(Echo, shutdown="5")
