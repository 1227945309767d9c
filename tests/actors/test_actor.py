"""What an actor has inside: names, promises, timers, options, Thespian's styles."""

import threading

import pytest
from thespian.actors import ActorExitRequest, InvalidActorAddress

from callboard import Actor, Down, handler
from callboard.actors.actor import RESERVED
from callboard.actors.asking.reply import Reply
from callboard.actors.errors import ActorDown, RemoteError, ReservedName, UnexpectedMessage
from tests.actors.sample import Collector, Echo, Parent, instance
from tests.polling import eventually


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_reserved_name_is_refused_when_the_class_is_made(name):
    with pytest.raises(ReservedName, match=name):
        type("Bad", (Actor,), {name: lambda self: None})


def test_a_reserved_name_is_refused_in_a_mixin_too():
    class Mixin:
        def send(self): ...

    with pytest.raises(ReservedName, match="Bad redefines send"):
        type("Bad", (Mixin, Actor), {})


def test_the_runtime_is_there_before_init(runtime):
    class Early(Actor):
        def __init__(self):
            self.child = self.spawn(Echo)
            self.seen = self.me, self.parent, self.node
            self.send(self.child, "hello")

    runtime.node = "node"
    ref = runtime.start_actor(Early)

    assert instance(ref).seen == (ref, None, "node")


def test_a_child_knows_its_parent(runtime):
    class Child(Actor):
        @handler
        def who(self, msg: str) -> object:
            return self.parent

    parent = runtime.start_actor(Parent)

    assert parent.ask(Child).result(5).ask("who").result(5) == parent


# --- answers ---


class Promising(Actor):
    def __init__(self):
        self.promises = []

    @handler
    def later(self, msg: str) -> str:
        self.promises.append(self.promise())
        return "not the answer"

    @handler
    async def later_too(self, msg: bytes) -> str:
        self.promises.append(self.promise())
        await self.sleep(0)
        return "not the answer"

    @handler
    def keep(self, msg: int) -> bool:
        return self.promises.pop(0).set_result(msg)

    @handler
    def fail(self, msg: float) -> bool:
        return self.promises.pop(0).set_exception(RemoteError("E", str(msg)))


@pytest.mark.parametrize("question", ["x", b"x"])
def test_a_promise_answers_later(runtime, question):
    ref = runtime.start_actor(Promising)
    answer, plain = ref.ask(question), ref.ask(5)

    assert plain.result(5) is True
    assert answer.result(5) == 5


def test_a_promise_can_fail_the_ask(runtime):
    ref = runtime.start_actor(Promising)
    answer = ref.ask("x")

    assert ref.ask(1.5).result(5) is True
    with pytest.raises(RemoteError, match="1.5"):
        answer.result(5)


def test_a_promise_without_an_asker_has_no_effect(runtime):
    ref = runtime.start_actor(Promising)
    ref.tell("x")

    assert ref.ask(5).result(5) is False


def test_a_promise_fails_with_its_actor(runtime):
    ref = runtime.start_actor(Promising)
    answer = ref.ask("x")
    ref.stop()

    with pytest.raises(ActorDown):
        answer.result(5)


def test_many_promises_are_all_kept_or_fail(runtime):
    ref = runtime.start_actor(Promising)
    answers = [ref.ask("x") for _ in range(200)]
    kept = [ref.ask(i).result(5) for i in range(150)]
    ref.stop()

    assert kept == [True] * 150
    assert [answer.result(5) for answer in answers[:150]] == list(range(150))
    for answer in answers[150:]:
        with pytest.raises(ActorDown):
            answer.result(5)


def test_the_first_message_to_the_sender_of_an_ask_is_its_answer(runtime):
    class Sending(Actor):
        @handler
        def go(self, msg: str) -> str:
            for answer in ("first", "second"):
                self.sender.tell(answer)
            return "third"

    assert runtime.start_actor(Sending).ask("x").result(5) == "first"


def test_second_answers_are_counted(runtime):
    class Sending(Actor):
        @handler
        def go(self, msg: str) -> str:
            self.sender.tell("first")
            self.sender.tell("second")
            return "third"

        @handler
        def silent(self, msg: int) -> None:
            self.sender.tell(msg)

    ref = runtime.start_actor(Sending)
    ref.ask("x").result(5)

    assert ref.ask(1).result(5) == 1
    assert ref.ask(2).result(5) == 2
    assert runtime.counters.late_answers == 2


# --- timers ---


class Alarm(Collector):
    def wake_me(self, seconds, msg):
        return self.after(seconds, msg)

    def wake_me_in_time(self):
        """In one handler, so that no message comes before all are set."""
        self.after(0.5, "second")
        self.after(0.01, "first")
        self.after(0.2, "never").cancel()


def test_after_sends_a_message_to_oneself(runtime):
    ref = runtime.start_actor(Alarm)
    ref.call(Alarm.wake_me_in_time).result(20)

    eventually(lambda: len(ref.ask(list).result(5)) == 2)
    assert ref.ask(list).result(5) == ["first", "second"]


def test_a_timer_of_an_actor_that_ended_does_nothing(runtime):
    ref = runtime.start_actor(Alarm)
    down = runtime.monitor(ref)
    ref.call(Alarm.wake_me, 0.01, "never").result(5)
    ref.stop()
    down.result(5)
    done = threading.Event()
    runtime.runner.call_later(0.03, done.set)

    assert done.wait(5)
    assert runtime.counters.dead_letters == 0


# --- options ---


def test_options_can_be_set_for_one_spawn(runtime):
    class Counter(Actor):
        def __init__(self, start, *, step):
            self.total = start + step

    trapping = runtime.start_actor(Counter.with_options(trap_exit=True), (40,), {"step": 2})
    plain = runtime.start_actor(Counter, (1,), {"step": 1})

    assert (trapping.target.trap_exit, instance(trapping).total) == (True, 42)
    assert plain.target.trap_exit is False


# --- Thespian's styles ---


class Thespian(Actor):
    def __init__(self):
        self.seen = []

    def receiveMsg_str(self, msg, sender):
        self.send(sender, f"str {msg}")
        return "not the answer"

    def receiveMsg_int(self, msg, sender):
        raise KeyError(msg)

    def receiveUnrecognizedMessage(self, msg, sender):
        self.seen.append(msg)
        if isinstance(msg, bytes):
            self.send(sender, b"unrecognized")


class Plain(Actor):
    def receiveMessage(self, msg, sender):
        self.send(sender, ("plain", msg))

    @handler
    def number(self, msg: int) -> int:
        return msg


def test_thespians_styles_work(runtime):
    ref, plain = runtime.start_actor(Thespian), runtime.start_actor(Plain)

    assert ref.ask("x").result(5) == "str x"
    assert ref.ask(b"x").result(5) == b"unrecognized"
    assert plain.ask("x").result(5) == ("plain", "x")
    assert plain.ask(5).result(5) == 5


def test_an_ask_that_no_send_answers_fails_with_the_actor(runtime):
    ref = runtime.start_actor(Thespian)
    answer = ref.ask(1.5)
    ref.stop()

    with pytest.raises(ActorDown):
        answer.result(5)


def test_a_failure_in_thespians_style_ends_the_actor_at_once(runtime):
    ref = runtime.start_actor(Thespian)
    down = runtime.monitor(ref)

    with pytest.raises(RemoteError):
        ref.ask(1).result(5)
    assert down.result(5).reason == "error"


def test_an_exit_request_is_shown_to_the_actor_and_ends_it(runtime):
    ref = runtime.start_actor(Thespian)
    actor, down = instance(ref), runtime.monitor(ref)

    ref.tell(ActorExitRequest())

    assert down.result(5) == Down(ref, "normal")
    assert [type(msg) for msg in actor.seen] == [ActorExitRequest]


def test_an_exit_request_ends_actors_that_have_no_handler_for_it(runtime):
    ref = runtime.start_actor(Echo)
    down = runtime.monitor(ref)
    ref.tell(ActorExitRequest())

    assert down.result(5).reason == "normal"
    assert runtime.counters.unexpected == 0


def test_an_ask_to_an_actor_without_any_handler_is_unexpected(runtime):
    with pytest.raises(UnexpectedMessage):
        runtime.start_actor(Actor).ask("x").result(5)


def test_send_wants_an_address(runtime):
    class Sending(Actor):
        @handler
        def go(self, msg: str) -> None:
            self.send(msg, "x")

    with pytest.raises(RemoteError, match=InvalidActorAddress.__name__):
        runtime.start_actor(Sending).ask("nowhere").result(5)


def test_an_error_of_a_promise_is_the_same_for_askers_on_any_node(runtime):
    class Refuser(Actor):
        @handler
        def number(self, msg: int) -> None:
            self.promise().set_exception(ValueError(f"not {msg}"))

    with pytest.raises(RemoteError, match="not 3") as caught:
        runtime.start_actor(Refuser).ask(3).result(5)
    assert caught.value.type_name == "ValueError"


class CountedAsker(Reply):
    """An asker that counts how often it is looked whether it has its answer."""

    looks = 0

    def mark_handled(self):
        """Take note that the answer comes later."""

    def set_exception(self, error):
        """Be told that there will be none."""

    @property
    def is_done(self):
        CountedAsker.looks += 1
        return False


class Debtor(Actor):
    @handler
    def on_count(self, count: int) -> int:
        for _ in range(count):
            self._cell.owe(CountedAsker())
        return CountedAsker.looks


def test_an_actor_with_many_promises_checks_each_a_few_times(runtime):
    assert runtime.start_actor(Debtor).ask(4000).result(10) < 4 * 4000
