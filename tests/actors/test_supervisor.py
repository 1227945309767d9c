"""Restarts: which children, how often, and the end of a supervisor that gives up."""

import threading

import pytest

from actors import Actor, Child, Down, Supervisor, handler
from actors.errors import RemoteError
from actors.events import ActorRestarted, RestartsExhausted
from tests.actors.sample import Echo, Fail


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
    return runtime.spawn(Supervisor, (list(children),), options)


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

    assert running(supervisor)[0] == second


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

    for _ in range(2):
        end(runtime, next(ref for ref in running(supervisor) if ref != steady), fail)
    end(runtime, next(ref for ref in running(supervisor) if ref != steady), fail)

    reason = "Echo ended too often, last: error"
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

    assert down.result(5).detail == "Breaking ended too often, last: OSError: broken"
    assert Breaking.starts == 4


def test_a_supervisor_whose_first_start_fails_leaves_no_child_behind(runtime):
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
        runtime.spawn(
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
