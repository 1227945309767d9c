"""Design, section 3: one handler at a time, order for each sender, and what an end does."""

import asyncio
import sys
import threading
from collections import Counter as Tally

import pytest

from callboard import Actor, ActorRef, Down, ExitReason, handler
from callboard.actors.cell import TURN_QUANTUM, Cell
from callboard.actors.dispatch import NO_HANDLERS
from callboard.actors.errors import ActorDown, RemoteError, UnexpectedMessage
from tests.actors.sample import Collector, Echo, Fail, Gate, Parent, Waiter, instance
from tests.polling import eventually


class Overlap(Actor):
    """Notes whether a handler was entered while another one ran."""

    def __init__(self):
        self.inside = 0
        self.overlaps = 0
        self.seen = []
        self.told = threading.Event()

    @handler
    def number(self, msg: tuple) -> None:
        self.inside += 1
        self.overlaps += self.inside > 1
        if msg[1] % 50 == 0:  # block until another message is here, if one comes at all
            self.told.clear()
            self.told.wait(0.005)
        self.seen.append(msg)
        self.inside -= 1

    @handler
    async def pause(self, msg: ActorRef) -> None:
        self.inside += 1
        self.overlaps += self.inside > 1
        await msg.ask("x")
        self.inside -= 1

    @handler
    def report(self, msg: str) -> tuple:
        return self.overlaps, self.seen


class Quitter(Actor):
    @handler
    def quit(self, msg: int) -> None:
        sys.exit(msg)


def tell_all(ref, sender, count):
    told = instance(ref).told
    for i in range(count):
        ref.tell((sender, i))
        told.set()


def from_threads(*calls):
    threads = [threading.Thread(target=call[0], args=call[1:]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


# --- one at a time, in order, nothing lost ---


def test_handlers_never_overlap_while_many_threads_tell_and_handlers_block(runtime):
    ref = runtime.start_actor(Overlap)

    from_threads(*((tell_all, ref, sender, 500) for sender in range(8)))
    overlaps, seen = ref.ask("report").result(20)

    assert overlaps == 0
    assert Tally(sender for sender, _ in seen) == dict.fromkeys(range(8), 500)


def test_messages_of_one_sender_keep_their_order(runtime):
    ref = runtime.start_actor(Overlap)

    from_threads(*((tell_all, ref, sender, 500) for sender in range(8)))
    _, seen = ref.ask("report").result(20)

    for sender in range(8):
        assert [i for who, i in seen if who == sender] == list(range(500))


def test_no_message_is_handled_while_a_coroutine_handler_awaits(runtime):
    ref, gate = runtime.start_actor(Overlap), runtime.start_actor(Gate)

    ref.tell(gate)
    assert instance(gate).entered.wait(5)
    tell_all(ref, "a", 10)
    instance(gate).opened.set()
    overlaps, seen = ref.ask("report").result(5)

    assert overlaps == 0
    assert len(seen) == 10


def test_an_actor_with_many_messages_gives_others_their_turn(runtime):
    busy, other = runtime.start_actor(Collector), runtime.start_actor(Echo)

    class Feeder(Actor):
        @handler
        def feed(self, msg: str) -> object:
            for i in range(10 * TURN_QUANTUM):
                busy.tell(i)
            return other.ask("first"), busy.ask(list)

    first, all_of_it = runtime.start_actor(Feeder).ask("go").result(5)

    assert first.result(5) == "first"
    assert all_of_it.result(5) == list(range(10 * TURN_QUANTUM))


def test_messages_to_an_actor_in_its_init_wait_for_it(runtime):
    class Starting(Collector):
        def __init__(self):
            super().__init__()
            self.me.tell("first")

    assert runtime.start_actor(Starting).ask(list).result(5) == ["first"]


# --- failures ---


def test_an_exception_reaches_the_asker_as_remote_error(runtime):
    with pytest.raises(RemoteError) as caught:
        runtime.start_actor(Echo).ask(Fail("no luck")).result(5)

    assert (caught.value.type_name, caught.value.text) == ("ValueError", "no luck")
    assert "raise ValueError(msg.text)" in caught.value.traceback


@pytest.mark.parametrize("late", [False, True])
def test_an_exception_ends_the_actor_with_error_and_its_text(runtime, late):
    class Failing(Actor):
        @handler
        async def go(self, msg: str) -> None:
            await (self.spawn(Echo).ask(msg) if late else asyncio.sleep(0))
            raise KeyError(msg)

    ref = runtime.start_actor(Failing)
    down = runtime.monitor(ref)
    with pytest.raises(RemoteError, match="KeyError"):
        ref.ask("x").result(5)

    assert down.result(5) == Down(ref, ExitReason.ERROR, "KeyError: 'x'")


def test_an_exception_without_text_of_its_own_ends_the_actor_too(runtime):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    class Failing(Actor):
        @handler
        def go(self, msg: str) -> None:
            raise Mute

    ref = runtime.start_actor(Failing)
    down = runtime.monitor(ref)

    with pytest.raises(RemoteError):
        ref.ask("x").result(5)
    assert down.result(5).reason == "error"


def test_sys_exit_ends_the_actor_normally_and_nothing_else(runtime):
    ref, other = runtime.start_actor(Quitter), runtime.start_actor(Echo)
    down = runtime.monitor(ref)

    ref.tell(1)

    assert down.result(5) == Down(ref, ExitReason.NORMAL)
    assert other.ask("alive").result(5) == "alive"


def test_an_unexpected_message_fails_the_ask_and_is_counted(runtime):
    ref = runtime.start_actor(Echo)

    with pytest.raises(UnexpectedMessage, match="Echo has no handler for bytes"):
        ref.ask(b"?").result(5)
    ref.tell(b"?")

    assert ref.ask("still here").result(5) == "still here"
    assert runtime.counters.unexpected == 2


# --- stop and kill ---


def test_stop_is_handled_after_earlier_messages(runtime):
    ref = runtime.start_actor(Gate)
    down = runtime.monitor(ref)
    first, second = ref.ask("first"), ref.ask("second")
    ref.stop()
    third = ref.ask("third")
    instance(ref).opened.set()

    assert (first.result(5), second.result(5)) == ("first", "second")
    assert down.result(5) == Down(ref, ExitReason.NORMAL)
    with pytest.raises(ActorDown):
        third.result(5)


def test_kill_comes_before_messages_that_wait(runtime):
    ref = runtime.start_actor(Gate)
    down = runtime.monitor(ref)
    gate = instance(ref)
    first, second = ref.ask("first"), ref.ask("second")
    assert gate.entered.wait(5)
    ref.kill()
    gate.opened.set()

    assert first.result(5) == "first"
    with pytest.raises(ActorDown) as caught:
        second.result(5)
    assert caught.value.reason == "killed"
    assert down.result(5) == Down(ref, ExitReason.KILLED)


def test_kill_cancels_a_handler_that_awaits_and_runs_its_finally(runtime):
    ref = runtime.start_actor(Waiter)
    actor = instance(ref)
    answer = ref.ask("x")
    assert actor.entered.wait(5)

    ref.kill()

    with pytest.raises(ActorDown):
        answer.result(5)
    assert actor.left.wait(5)
    assert actor.cancelled


def test_stop_waits_for_a_handler_that_awaits(runtime):
    ref, gate = runtime.start_actor(Overlap), runtime.start_actor(Gate)
    answer, down = ref.ask(gate), runtime.monitor(ref)
    assert instance(gate).entered.wait(5)

    ref.stop()
    instance(gate).opened.set()

    assert answer.result(5) is None
    assert down.result(5).reason == "normal"


def test_a_finally_that_awaits_does_not_keep_the_actor_alive(runtime):
    class Stubborn(Actor):
        def __init__(self):
            self.entered = threading.Event()

        @handler
        async def go(self, msg: str) -> None:
            try:
                self.entered.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.Event().wait()

    ref = runtime.start_actor(Stubborn)
    down, answer = runtime.monitor(ref), ref.ask("x")
    assert instance(ref).entered.wait(5)
    ref.kill()

    assert down.result(5).reason == "killed"
    with pytest.raises(ActorDown):
        answer.result(5)


def test_an_ask_to_a_dead_actor_fails_at_once(runtime):
    ref = runtime.start_actor(Echo)
    down = runtime.monitor(ref)
    ref.stop()
    down.result(5)

    with pytest.raises(ActorDown) as caught:
        ref.ask("x", timeout=None).result(5)

    assert caught.value.reason == "normal"


def test_a_tell_to_a_dead_actor_is_a_dead_letter(runtime):
    ref = runtime.start_actor(Echo)
    down, letters = runtime.monitor(ref), []
    arrived = threading.Event()
    runtime.on_dead_letter.append(lambda *letter: (letters.append(letter), arrived.set()))
    ref.stop()
    down.result(5)

    ref.tell("nobody reads this")

    assert arrived.wait(5)
    assert letters == [(ref, "nobody reads this", None)]
    assert runtime.counters.dead_letters == 1


# --- children ---


def test_children_end_with_their_parent(runtime):
    parent = runtime.start_actor(Parent)
    child = parent.ask(Waiter).result(5)
    down = runtime.monitor(child)

    parent.stop()

    assert down.result(5) == Down(child, ExitReason.SHUTDOWN)


def test_children_of_children_end_when_the_first_of_them_fails(runtime):
    class FailingParent(Parent):
        @handler
        def fail(self, msg: Fail) -> None:
            raise ValueError

    parent = runtime.start_actor(FailingParent)
    child = parent.ask(Parent).result(5)
    grandchild = child.ask(Echo).result(5)
    down = runtime.monitor(grandchild)

    parent.tell(Fail())

    assert down.result(5).reason == "shutdown"


def test_a_parent_outlives_its_children(runtime):
    parent = runtime.start_actor(Parent)
    child = parent.ask(Echo).result(5)
    down = runtime.monitor(child)
    child.tell(Fail())
    down.result(5)

    assert parent.ask(Echo).result(5) != child


def test_an_actor_that_ended_can_have_no_children(runtime):
    parent = runtime.start_actor(Parent)
    cell, down = parent.target, runtime.monitor(parent)
    parent.stop()
    down.result(5)

    with pytest.raises(ActorDown):
        runtime.start_actor(Echo, parent=cell)


# --- who is the sender ---


def test_a_message_carries_its_sender_also_after_an_await(runtime):
    collector = runtime.start_actor(Collector)

    class Known(Actor):
        @handler
        def tell_me(self, msg: str) -> object:
            return self.sender

    known = runtime.start_actor(Known)

    class Asking(Actor):
        @handler
        async def go(self, msg: str) -> None:
            await known.ask("x")
            collector.tell(self.me)
            self.send(Answering, "who")

    class Answer(Actor):
        @handler
        def who(self, msg: str) -> None:
            collector.tell(self.sender)

    Answering = runtime.start_actor(Answer)  # noqa: N806
    asking = runtime.start_actor(Asking)
    asking.ask("go").result(5)
    Answering.ask("who").result(5)

    assert collector.ask(list).result(5)[:2] == [asking, asking]
    known.tell("x")


def test_a_message_from_outside_of_actors_has_no_sender(runtime):
    collector = runtime.start_actor(Collector)

    class Told(Actor):
        @handler
        def go(self, msg: str) -> None:
            collector.tell(self.sender)

    told = runtime.start_actor(Told)
    told.tell("x")
    told.ask("y").result(5)

    assert collector.ask(list).result(5)[0] is None


class Slow(Actor):
    @handler
    def until(self, msg: threading.Event) -> None:
        msg.wait(10)


def test_messages_are_counted_while_the_actor_works_through_its_mailbox(runtime):
    ref = runtime.start_actor(Slow)
    gates = [threading.Event() for _ in range(3)]
    for gate in gates:
        ref.tell(gate)
    for number, gate in enumerate(gates, start=1):
        eventually(lambda number=number: ref.target.handled == number)
        assert runtime.handled == number
        gate.set()


class Stepping(Actor):
    @handler(concurrent=True)
    async def sleep_often(self, msg: int) -> None:
        for _ in range(msg):
            await self.sleep(0)


def test_steps_of_handlers_are_not_counted_as_messages(runtime):
    ref = runtime.start_actor(Stepping)
    for done in [ref.ask(5) for _ in range(150)]:  # more than may be under way at once
        done.result(5)

    assert ref.target.handled == 150


class Keeping(Actor):
    def __init__(self) -> None:
        self.is_open = False

    @handler
    def number(self, msg: int) -> None:
        if not self.is_open:
            self.stash()

    @handler
    def open(self, msg: str) -> None:
        self.is_open = True
        self.unstash_all()


def test_a_stashed_message_is_counted_once(runtime):
    ref = runtime.start_actor(Keeping)
    for number in range(3):
        ref.tell(number)
    ref.tell("open", priority="high")
    ref.ask("open").result(5)

    eventually(lambda: ref.target.handled == 5)


# --- what a package that makes actors itself uses ---


def cell_without_turns(runtime):
    """Make a cell that is never scheduled: its mail stays where it is."""
    cell = Cell(runtime, runtime.runner, 99, NO_HANDLERS, None, 0.0)
    cell.running, cell.scheduled = False, True
    return cell


def test_mail_is_taken_out_in_its_order_with_urgent_messages_first(runtime):
    cell = cell_without_turns(runtime)
    for message in ("a", "b"):
        cell.post(message)
    cell.post_urgent("urgent")
    cell.put_first("first")

    assert [message for message, _ in cell.take_mail()] == ["first", "urgent", "a", "b"]
    assert cell.take_mail() == []


def test_a_cell_with_mail_or_a_turn_to_come_is_not_quiet(runtime):
    cell = cell_without_turns(runtime)
    assert not cell.is_quiet

    cell.scheduled = False
    assert cell.is_quiet

    cell.post("a")
    assert not cell.is_quiet
