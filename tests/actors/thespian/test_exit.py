"""How plain actors end: children first, once each, and what failed creations leave behind."""

import threading

import pytest
from thespian.actors import (
    Actor,
    ActorExitRequest,
    ActorSystem,
    ChildActorExited,
    PoisonMessage,
    WakeupMessage,
    requireCapability,
)

from callboard.actors import SystemBase
from tests.actors.sample import instance


class Slow(Actor):
    """Leaves when the test lets it."""

    may_leave = threading.Event()

    def receiveMessage(self, msg, sender):
        if isinstance(msg, ActorExitRequest):
            assert self.may_leave.wait(10)
        else:
            self.send(sender, "here")


class Head(Actor):
    """Writes down what it sees until it is gone."""

    def __init__(self):
        self.seen = []

    def receiveMessage(self, msg, sender):
        self.seen.append(type(msg).__name__ if not isinstance(msg, str) else msg)
        if msg == "child":
            self.send(sender, self.createActor(Slow))
        elif isinstance(msg, ChildActorExited):
            self.replacement = self.createActor(Slow)


class Hopeless(Actor):
    def __init__(self):
        raise OSError("no disk")


class Hopeful(Actor):
    """Sends to a child that could not be created, at once and after it was told so."""

    def receiveMessage(self, msg, sender):
        if msg == "try":
            self.asker, self.seen = sender, []
            self.child = self.createActor(Hopeless)
            self.send(self.child, "first")
        elif isinstance(msg, ChildActorExited | PoisonMessage):
            self.seen.append(msg)
            if len(self.seen) == 2:
                self.send(self.child, "late")
                self.wakeupAfter(0)
        elif isinstance(msg, WakeupMessage):
            self.send(self.asker, self.seen)


@requireCapability("colour", "blue")
class Picky(Actor):
    def __init__(self, requirements, capabilities):
        self.told = (requirements, capabilities["colour"])

    def receiveMessage(self, msg, sender):
        if msg == "told":
            self.send(sender, self.told)


@pytest.fixture
def family(system):
    Slow.may_leave.clear()
    head = system.createActor(Head)
    child = system.ask(head, "child", 5)
    assert system.ask(child, "there?", 5) == "here"
    yield head, child
    Slow.may_leave.set()


def test_a_parent_stays_until_its_children_have_left(system, base, family):
    head, child = family
    seen = instance(head).seen
    head_down, child_down = base.runtime.monitor(head), base.runtime.monitor(child)

    system.tell(head, ActorExitRequest())
    system.tell(head, "too late")
    assert system.ask(head, "too late", 0.05) is None
    assert not head_down.done()
    Slow.may_leave.set()

    assert child_down.result(5).reason == "normal"
    assert head_down.result(5).reason == "normal"
    assert seen == ["child", "ActorExitRequest", "ChildActorExited"]
    assert base.runtime.counters.dead_letters == 2


def test_a_parent_that_exits_creates_no_replacements(system, base, family):
    head, _ = family
    actor = instance(head)
    down = base.runtime.monitor(head)
    Slow.may_leave.set()
    system.tell(head, ActorExitRequest())
    down.result(5)

    assert actor.replacement == base.runtime.nobody


def test_messages_to_a_child_that_failed_come_back_as_poison(system, base):
    seen = system.ask(system.createActor(Hopeful), "try", 5)

    exits = [msg for msg in seen if isinstance(msg, ChildActorExited)]
    poison = [msg for msg in seen if isinstance(msg, PoisonMessage)]
    assert len(exits) == len(poison) == 1
    assert poison[0].poisonMessage == "first"
    assert "no disk" in poison[0].details
    assert base.runtime.counters.dead_letters == 1  # "late"


def test_init_receives_the_requirements_and_capabilities_that_it_names(system):
    picky = system.createActor(Picky, {"size": 3})

    assert system.ask(picky, "told", 5) == ({"size": 3}, "blue")


def test_messages_that_wait_at_the_end_of_a_private_context_are_dead_letters(system, base):
    with system.private() as context:
        address = context._systemBase._external.cell.ref

    address.tell("late")

    assert base.runtime.counters.dead_letters == 1


def test_a_plain_actor_of_a_runtime_without_a_system_creates_actors(runtime):
    from callboard.actors.thespian import PlainActors

    runtime.plain = PlainActors({})
    head = runtime.start_actor(Head)
    Slow.may_leave.set()

    child = head.ask("child").result(5)

    assert child.ask("there?").result(5) == "here"


def test_systems_of_one_process_do_not_disturb_each_other(no_thread_left):
    one = ActorSystem(systemBase=SystemBase({"colour": "blue"}), transientUnique=True)
    two = ActorSystem(systemBase=SystemBase({"colour": "blue"}), transientUnique=True)
    picky = two.createActor(Picky)
    one.shutdown()

    assert two.ask(picky, "told", 5) == (None, "blue")
    two.shutdown()
