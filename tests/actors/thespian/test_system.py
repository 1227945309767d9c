"""Programs written for Thespian, unmodified, on callboard's runtime."""

import sys
import threading
import time
from datetime import timedelta

import pytest
from thespian.actors import (
    Actor,
    ActorExitRequest,
    ActorSystem,
    ActorTypeDispatcher,
    ChildActorExited,
    DeadEnvelope,
    InvalidActorSourceHash,
    InvalidActorSpecification,
    NoCompatibleSystemForActor,
    PoisonMessage,
    WakeupMessage,
    requireCapability,
)

import callboard
from callboard import handler
from callboard.actors import SystemBase
from callboard.actors.errors import ActorDown
from tests.actors.sample import Gate, instance


class Upper(Actor):
    def receiveMessage(self, msg, sender):
        if isinstance(msg, str):
            self.send(sender, msg.upper())


class Typed(ActorTypeDispatcher):
    def receiveMsg_str(self, msg, sender):
        self.send(sender, f"str {msg}")

    def receiveMsg_dict(self, msg, sender):
        self.send(sender, f"dict {sorted(msg)}")


class Parent(Actor):
    """Creates what it is told to, and keeps what its children tell it."""

    def __init__(self):
        self.seen = []

    def receiveMessage(self, msg, sender):
        if isinstance(msg, tuple):
            self.send(sender, self.createActor(*msg))
        elif msg == "seen":
            self.send(sender, list(self.seen))
        elif not isinstance(msg, ActorExitRequest):
            self.seen.append(msg)


class Failing(Actor):
    """Changes each message before it raises."""

    def __init__(self):
        self.seen = []

    def receiveMessage(self, msg, sender):
        if isinstance(msg, list):
            self.seen.append(list(msg))
            msg.append("touched")
            raise ValueError(msg)
        if msg == "exit":
            sys.exit(1)
        if msg == "seen":
            self.send(sender, self.seen)


class Ends(Actor):
    """Tells a list of each exit request that it gets."""

    requests = []

    def receiveMessage(self, msg, sender):
        if isinstance(msg, ActorExitRequest):
            self.requests.append(self.myAddress)
        elif msg == "fail at exit":
            self.requests = None
        elif msg == "child":
            self.send(sender, self.createActor(Ends))
        elif msg == "not recursive":
            self.not_recursive = True


class Merciful(Ends):
    def receiveMessage(self, msg, sender):
        if isinstance(msg, ActorExitRequest):
            msg.notRecursive()
        super().receiveMessage(msg, sender)


class DeadLetters(Actor):
    def __init__(self):
        self.seen = []

    def receiveMessage(self, msg, sender):
        if msg == "register":
            self.handleDeadLetters()
            self.send(sender, "registered")
        elif msg == "seen":
            self.send(sender, list(self.seen))
        elif isinstance(msg, DeadEnvelope):
            self.seen.append((msg.deadAddress, msg.deadMessage))


class Sleeper(Actor):
    def receiveMessage(self, msg, sender):
        if isinstance(msg, WakeupMessage):
            self.send(self.asker, (msg.delayPeriod, msg.payload, sender == self.myAddress))
        elif isinstance(msg, threading.Event):
            assert msg.wait(5)
            self.send(sender, "slept")
        elif not isinstance(msg, ActorExitRequest):
            self.asker = sender
            self.wakeupAfter(msg, "payload")


@requireCapability("tape drive")
class Backup(Upper): ...


class Broken(Upper):
    def __init__(self):
        raise OSError("no disk")


class Told(Actor):
    def __init__(self, capabilities=None):
        self.capabilities = capabilities

    def receiveMessage(self, msg, sender):
        if isinstance(msg, str):
            self.send(sender, (self.globalName, self.capabilities.get("colour")))


class Ours(callboard.Actor):
    @handler
    def double(self, msg: int) -> int:
        return 2 * msg

    @handler
    async def slowly(self, msg: str) -> str:
        await self.sleep(0.001)
        return msg + "!"

    @handler
    def later(self, msg: bytes) -> None:
        self.promise().set_result("promised")

    @handler
    def nothing(self, msg: float) -> None:
        self.seen = msg


def ended(base, address):
    return base.runtime.monitor(address)


# --- the system ---


def test_the_base_can_be_handed_over_as_an_object(system):
    assert system.ask(system.createActor(Upper), "hello", 5) == "HELLO"


def test_the_base_is_found_by_its_name(no_thread_left):
    system = ActorSystem("callboard", {"colour": "red"}, transientUnique=True)

    told = system.createActor(Told, globalName="it")

    assert system.ask(told, "x", 5) == ("it", "red")
    system.shutdown()


def test_actors_can_be_named_by_text(system):
    assert system.ask(system.createActor(f"{__name__}.Upper"), "x", 5) == "X"


def test_dispatch_by_type_of_thespians_own(system):
    typed = system.createActor(Typed)

    assert system.ask(typed, "x", 5) == "str x"
    assert system.ask(typed, {"b": 1, "a": 2}, 5) == "dict ['a', 'b']"


@pytest.mark.parametrize("timeout", [0.05, timedelta(seconds=0.05)])
def test_ask_gives_up_after_its_timeout_and_the_handler_continues(system, timeout):
    sleeper = system.createActor(Sleeper)
    started = time.monotonic()

    assert system.ask(sleeper, woken := threading.Event(), timeout) is None
    assert time.monotonic() - started >= 0.05
    woken.set()
    assert system.listen(5) == "slept"


def test_tell_and_listen(system):
    upper = system.createActor(Upper)
    system.tell(upper, "one")
    system.tell(upper, "two")

    assert [system.listen(5), system.listen(5)] == ["ONE", "TWO"]
    assert system.listen(0) is None


def test_an_ask_to_a_dead_actor_gets_nothing(system, base):
    upper = system.createActor(Upper)
    down = ended(base, upper)
    system.tell(upper, ActorExitRequest())

    assert down.result(5).reason == "normal"
    assert system.ask(upper, "x", 0.05) is None


def test_private_contexts_have_queues_of_their_own(system):
    upper, answers = system.createActor(Upper), {}

    def ask(me):
        with system.private() as context:
            answers[me] = [context.ask(upper, f"{me}-{i}", 5) for i in range(50)]

    threads = [threading.Thread(target=ask, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert answers == {f"t{n}": [f"T{n}-{i}" for i in range(50)] for n in range(4)}
    assert system.listen(0) is None


def test_shutdown_shows_the_exit_request_to_actors_first(no_thread_left):
    class Ending(Ends):
        requests = []

    system = ActorSystem(systemBase=SystemBase(), transientUnique=True)
    parent = system.createActor(Ending)
    system.tell(parent, "hello")
    system.shutdown()

    assert Ending.requests == [parent]


def test_a_base_that_was_never_used_shuts_down(no_thread_left):
    ActorSystem(systemBase=SystemBase(), transientUnique=True).shutdown()


# --- children ---


def test_actors_create_actors(system):
    child = system.ask(system.createActor(Parent), (Upper,), 5)

    assert system.ask(child, "x", 5) == "X"


@pytest.mark.parametrize("goodbye", [ActorExitRequest(), "exit"])
def test_a_parent_learns_once_that_a_child_ended(system, base, goodbye):
    parent = system.createActor(Parent)
    child = system.ask(parent, (Failing,), 5)
    down = ended(base, child)

    system.tell(child, goodbye)
    down.result(5)
    [seen] = system.ask(parent, "seen", 5)

    assert isinstance(seen, ChildActorExited)
    assert seen.childAddress == child


@pytest.mark.parametrize("spec", [Broken, Backup, "no.such.Thing", "Unqualified"])
def test_a_child_that_cannot_be_made_is_an_exit_not_an_exception(system, spec):
    parent = system.createActor(Parent)
    child = system.ask(parent, (spec,), 5)
    [seen] = system.ask(parent, "seen", 5)

    assert isinstance(seen, ChildActorExited)
    assert seen.childAddress == child


def test_an_exit_request_reaches_children_too(system, base):
    Ends.requests = []
    parent = system.createActor(Ends)
    child = system.ask(parent, "child", 5)
    down = ended(base, child)

    system.tell(parent, ActorExitRequest())

    assert down.result(5).reason == "normal"
    assert Ends.requests == [parent, child]


@pytest.mark.parametrize(
    ("parent_class", "request_"),
    [(Ends, ActorExitRequest(recursive=False)), (Merciful, ActorExitRequest())],
)
def test_children_survive_an_exit_request_that_is_not_recursive(
    system, base, parent_class, request_
):
    parent = system.createActor(parent_class)
    child = system.ask(parent, "child", 5)
    down = ended(base, parent)

    system.tell(parent, request_)
    down.result(5)

    assert system.ask(child, "child", 5) is not None


def test_an_actor_that_fails_at_its_exit_ends_all_the_same(system, base):
    ends = system.createActor(Ends)
    down = ended(base, ends)
    system.tell(ends, "fail at exit")
    system.tell(ends, ActorExitRequest())

    assert down.result(5).reason == "normal"


# --- failures ---


def test_a_failed_message_is_tried_once_more_as_a_copy_and_then_is_poison(system):
    failing, message = system.createActor(Failing), ["m"]

    poison = system.ask(failing, message, 5)

    assert isinstance(poison, PoisonMessage)
    assert poison.poisonMessage is message
    assert "ValueError" in poison.details
    assert system.ask(failing, "seen", 5) == [["m"], ["m", "touched"]]


def test_a_message_that_cannot_be_copied_is_tried_again_as_it_is(system):
    failing = system.createActor(Failing)

    assert isinstance(system.ask(failing, [threading.Lock()], 5), PoisonMessage)
    assert len(system.ask(failing, "seen", 5)) == 2


def test_an_actor_outlives_its_failures(system):
    failing = system.createActor(Failing)
    for _ in range(3):
        assert isinstance(system.ask(failing, ["m"], 5), PoisonMessage)


# --- dead letters, wake-ups, names, capabilities ---


def test_dead_letters_go_to_the_last_handler(system, base):
    first, last = system.createActor(DeadLetters), system.createActor(DeadLetters)
    system.ask(first, "register", 5)
    system.ask(last, "register", 5)
    upper = system.createActor(Upper)
    down = ended(base, upper)
    system.tell(upper, ActorExitRequest())
    down.result(5)

    with pytest.raises(ActorDown):
        upper.ask("late").result(5)

    assert system.ask(last, "seen", 5) == [(upper, "late")]
    assert system.ask(first, "seen", 5) == []


@pytest.mark.parametrize("period", [0.02, timedelta(seconds=0.02)])
def test_a_wakeup_comes_from_oneself(system, period):
    sleeper = system.createActor(Sleeper)
    started = time.monotonic()

    assert system.ask(sleeper, period, 5) == (timedelta(seconds=0.02), "payload", True)
    assert time.monotonic() - started >= 0.02


def test_the_first_holder_of_a_global_name_has_it_until_it_ends(system, base):
    first = system.createActor(Told, globalName="it")
    again = system.createActor(Upper, globalName="it")
    down = ended(base, first)
    system.tell(first, ActorExitRequest())
    down.result(5)
    third = system.createActor(Told, globalName="it")

    assert first == again != third
    assert system.ask(third, "x", 5) == ("it", "blue")


def test_capabilities_and_no_name(system):
    assert system.ask(system.createActor(Told), "x", 5) == (None, "blue")


def test_an_actor_that_needs_a_missing_capability_is_refused(system):
    with pytest.raises(NoCompatibleSystemForActor):
        system.createActor(Backup)


def test_an_actor_ends_when_a_capability_that_it_needs_is_removed(system, base):
    system.updateCapability("tape drive", True)
    backup = system.createActor(Backup)
    down = ended(base, backup)
    assert system.ask(backup, "x", 5) == "X"

    system.updateCapability("tape drive", None)

    assert down.result(5).reason == "normal"


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("Unqualified", InvalidActorSpecification),
        ("callboard.actors.NoSuchClass", InvalidActorSpecification),
        ("no.such.Thing", ImportError),
        (Broken, OSError),
    ],
)
def test_a_failed_creation_raises_outside_of_actors(system, spec, error):
    with pytest.raises(error):
        system.createActor(spec)


def test_an_unknown_source_hash_is_refused(system):
    with pytest.raises(InvalidActorSourceHash):
        system.createActor("a.B", sourceHash="0" * 32)


# --- callboard's actors and futures among Thespian's ---


def test_the_result_of_a_handler_arrives_as_an_ordinary_message(system):
    ours = system.createActor(Ours)

    assert system.ask(ours, 21, 5) == 42
    assert system.ask(ours, "x", 5) == "x!"


def test_the_result_of_a_handler_of_a_tell_is_dropped(system):
    ours = system.createActor(Ours)

    system.tell(ours, 21)

    assert system.ask(ours, 4, 5) == 8


def test_a_none_that_was_sent_arrives(system):
    class Nothing(Actor):
        def receiveMessage(self, msg, sender):
            if msg == "say nothing":
                self.send(sender, None)

    started = time.monotonic()

    assert system.ask(system.createActor(Nothing), "say nothing", 20) is None
    assert time.monotonic() - started < 10


def test_none_does_not_go_out(system):
    assert system.ask(system.createActor(Ours), 1.5, 0.05) is None


def test_a_promise_does_not_silence_the_answers_after_it(system):
    ours = system.createActor(Ours)

    assert system.ask(ours, b"x", 5) == "promised"
    assert system.ask(ours, 21, 5) == 42


def test_a_thespian_actor_can_be_asked_for_a_future(system):
    assert system.createActor(Upper).ask("x").result(5) == "X"


def test_an_ask_fails_when_the_thespian_actor_ends_without_an_answer(system):
    parent = system.createActor(Parent)
    answer = parent.ask(5)
    parent.tell(ActorExitRequest())

    with pytest.raises(ActorDown):
        answer.result(5)


def test_a_handler_that_blocks_delays_no_other_actor(system):
    gate, upper = system.createActor(Gate), system.createActor(Upper)
    assert system.ask(gate, "open", 0) is None
    assert instance(gate).entered.wait(5)

    assert system.ask(upper, "x", 5) == "X"
    instance(gate).opened.set()
    assert system.listen(5) == "open"


class Slow(Actor):
    """Ends its constructor when it is let go."""

    begun, may_end = threading.Event(), threading.Event()

    def __init__(self):
        Slow.begun.set()
        assert Slow.may_end.wait(30)

    def receiveMessage(self, message, sender):
        self.send(sender, message)


def test_a_constructor_that_blocks_holds_up_its_own_name_only(system):
    made = []
    threads = [
        threading.Thread(
            target=lambda: made.append(system.createActor(Slow, globalName="slow"))
        )
        for _ in range(2)
    ]
    threads[0].start()
    assert Slow.begun.wait(10)
    threads[1].start()

    other = system.createActor(Told, globalName="other")
    assert system.createActor(Upper, globalName="other") == other
    assert not made
    Slow.may_end.set()
    for thread in threads:
        thread.join(10)

    assert made[0] == made[1] == system.createActor(Told, globalName="slow")
    assert system.ask(made[0], "x", 10) == "x"


class Broken(Actor):
    """Never is."""

    def __init__(self):
        raise ValueError("no")


def test_a_constructor_that_fails_leaves_its_name_to_others(system):
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            system.createActor(Broken, globalName="broken")
    assert system.createActor(Told, globalName="broken") is not None
