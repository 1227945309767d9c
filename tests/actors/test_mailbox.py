"""Bounded mailboxes: what does not fit waits, is refused or dropped, and is always counted."""

import asyncio
import threading
from dataclasses import dataclass

import pytest

from callboard import Actor, handler
from callboard.actors.errors import ActorDown, AskTimeout, MailboxFull
from callboard.actors.events import MailboxOverflow
from callboard.actors.mailbox import BoundedMailbox, Mailbox, size_of
from tests.actors.sample import instance


class Slow(Actor):
    """Handles nothing while its gate is shut."""

    def __init__(self):
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.seen = []

    @handler
    def take(self, msg: int | bytes) -> object:
        self.seen.append(msg)
        return msg

    @handler
    def hold(self, msg: str) -> None:
        self.entered.set()
        assert self.gate.wait(20)


class Sender(Actor):
    """Tells a number of messages from its handler, and notes what was raised."""

    def __init__(self, to):
        self.to = to
        self.turns = 0

    @handler
    def tell_many(self, msg: range) -> str:
        try:
            for number in msg:
                self.to.tell(number)
        except MailboxFull as error:
            return str(error)
        return ""

    @handler
    def turn(self, msg: str) -> None:
        self.turns += 1

    @handler
    async def ask(self, msg: float) -> object:
        return await self.to.ask(int(msg))


def spawn_held(runtime, **bounds):
    """A bounded actor whose handler is entered and waits for `gate`."""
    ref = runtime.start_actor(Slow.with_options(mailbox=Mailbox(**bounds)))
    ref.tell("hold")
    assert instance(ref).entered.wait(10)
    return ref, instance(ref)


def open_gate(ref):
    """Let the actor handle what waits, and wait until it has."""
    instance(ref).gate.set()
    while ref.target.depth:
        threading.Event().wait(0.001)


def overflows_of(runtime, action):
    events = []
    with runtime.subscribed(events.append):
        action()
    return [event for event in events if isinstance(event, MailboxOverflow)]


# --- policies ---


def test_fail_refuses_tells_and_asks_that_do_not_fit(runtime):
    ref, actor = spawn_held(runtime, limit=2, on_full="fail")

    ref.tell(1)
    asked = ref.ask(2)
    with pytest.raises(MailboxFull, match="2 messages wait, its bounds are 2 messages"):
        ref.tell(3)
    with pytest.raises(MailboxFull):
        ref.ask(4).result(5)
    open_gate(ref)

    assert asked.result(5) == 2
    assert ref.ask(5).result(5) == 5
    assert actor.seen == [1, 2, 5]
    assert runtime.counters.overflows == 2


def test_drop_newest_drops_messages_that_do_not_fit(runtime):
    ref, actor = spawn_held(runtime, limit=2, on_full="drop_newest")

    for number in range(5):
        ref.tell(number)
    lost = ref.ask(9)
    open_gate(ref)

    with pytest.raises(MailboxFull):
        lost.result(5)
    ref.ask(7).result(5)
    assert actor.seen == [0, 1, 7]
    assert runtime.counters.overflows == 4


def test_drop_oldest_makes_room_and_fails_the_ask_that_it_drops(runtime):
    ref, actor = spawn_held(runtime, limit=2, on_full="drop_oldest")

    lost = ref.ask(0)
    for number in range(1, 5):
        ref.tell(number)
    open_gate(ref)

    with pytest.raises(MailboxFull):
        lost.result(5)
    ref.ask(5).result(5)
    assert actor.seen == [3, 4, 5]
    assert runtime.counters.overflows == 3


def test_wait_blocks_threads_outside_until_there_is_room(runtime):
    ref, actor = spawn_held(runtime, limit=4)
    told = []

    def tell_all():
        for number in range(20):
            ref.tell(number)
            told.append(number)

    thread = threading.Thread(target=tell_all)
    thread.start()
    while len(told) < 4:
        thread.join(0.001)
    depth = ref.target.depth
    actor.gate.set()
    thread.join(20)

    assert depth == 4
    assert ref.ask(20).result(5) == 20
    assert actor.seen == list(range(21))
    assert runtime.counters.overflows == 0


def test_an_ask_waits_for_room_no_longer_than_for_its_answer(runtime):
    ref, actor = spawn_held(runtime, limit=1)
    ref.tell(1)

    with pytest.raises(AskTimeout):
        ref.ask(2, timeout=0.05).result(5)
    open_gate(ref)

    ref.ask(3).result(5)
    assert actor.seen == [1, 3]
    assert runtime.counters.overflows == 1


def test_a_sender_that_waits_for_room_continues_when_the_actor_ends(runtime):
    ref, actor = spawn_held(runtime, limit=1)
    ref.tell(1)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (ref.tell(2), done.set()))
    thread.start()

    ref.kill()
    actor.gate.set()
    thread.join(20)

    assert done.is_set()
    with pytest.raises(ActorDown):
        ref.ask(3).result(5)


# --- inside of handlers ---


def test_a_handler_has_one_overdraft_and_is_then_refused(runtime):
    ref, actor = spawn_held(runtime, limit=3)
    sender = runtime.start_actor(Sender, (ref,))

    refused = sender.ask(range(10)).result(5)
    open_gate(ref)

    assert "6 messages wait" in refused
    ref.ask(99).result(5)
    assert actor.seen == [0, 1, 2, 3, 4, 5, 99]
    assert runtime.counters.overflows == 1


def test_a_sender_to_a_full_actor_gets_no_turn_until_there_is_room(runtime):
    ref, actor = spawn_held(runtime, limit=3)
    sender = runtime.start_actor(Sender, (ref,))

    assert sender.ask(range(4)).result(5) == ""
    sender.tell("turn")
    other = runtime.start_actor(Sender, (ref,))
    other.ask(range(0)).result(5)
    turns = instance(sender).turns
    open_gate(ref)
    sender.ask(range(0)).result(5)

    assert turns == 0
    assert instance(sender).turns == 1


def test_a_sender_that_waits_for_room_can_be_killed(runtime):
    ref, actor = spawn_held(runtime, limit=1)
    sender = runtime.start_actor(Sender, (ref,))
    assert sender.ask(range(2)).result(5) == ""

    down = runtime.monitor(sender)
    sender.kill()

    assert down.result(5).reason == "killed"
    open_gate(ref)


def test_actors_that_fill_each_other_do_not_wait_in_a_circle(runtime):
    class Pair(Actor):
        mailbox = Mailbox(limit=2)

        @handler
        def flood(self, msg: tuple) -> int:
            other, rounds = msg
            refused = 0
            for _ in range(6):
                try:
                    other.tell(0)
                except MailboxFull:
                    refused += 1
            if rounds:
                self.send(self.me, (other, rounds - 1))
            return refused

        @handler
        def take(self, msg: int) -> None:
            pass

    one, two = runtime.start_actor(Pair), runtime.start_actor(Pair)

    for _ in range(20):
        first, second = one.ask((two, 0)), two.ask((one, 0))
        first.result(10)
        second.result(10)


def test_an_actor_that_fills_its_own_mailbox_continues(runtime):
    class Own(Actor):
        mailbox = Mailbox(limit=2)

        @handler
        def fill(self, msg: str) -> int:
            for number in range(10):
                try:
                    self.me.tell(number)
                except MailboxFull:
                    return number
            return 10

        @handler
        def take(self, msg: int) -> None:
            pass

    ref = runtime.start_actor(Own)

    assert ref.ask("go").result(5) == 4


def test_a_refused_ask_of_a_handler_fails_its_future(runtime):
    ref, actor = spawn_held(runtime, limit=1, on_full="fail")
    ref.tell(1)
    sender = runtime.start_actor(Sender, (ref,))
    down = runtime.monitor(sender)

    asked = sender.ask(2.0)

    assert "MailboxFull" in down.result(5).detail
    with pytest.raises(Exception, match="full"):
        asked.result(5)
    open_gate(ref)


def test_on_an_event_loop_the_overdraft_is_used_and_nothing_blocks(runtime):
    ref, actor = spawn_held(runtime, limit=2)

    async def tell_all():
        for number in range(4):
            ref.tell(number)
        with pytest.raises(MailboxFull):
            ref.tell(4)

    asyncio.run(tell_all())
    open_gate(ref)

    ref.ask(5).result(5)
    assert actor.seen == [0, 1, 2, 3, 5]


# --- what always fits, bytes, and what is told ---


def test_signals_of_the_runtime_always_fit(runtime):
    ref, actor = spawn_held(runtime, limit=1, on_full="fail")
    ref.tell(1)
    down = runtime.monitor(ref)

    ref.stop()
    open_gate(ref)

    assert down.result(5).reason == "normal"
    assert actor.seen == [1]


def test_a_bound_in_bytes_counts_the_waiting_messages(runtime):
    ref, actor = spawn_held(runtime, bytes=100, on_full="drop_newest")

    for _ in range(5):
        ref.tell(b"x" * 40)
    held = ref.target._mailbox.pressure.held
    open_gate(ref)
    ref.ask(1).result(5)

    assert held == 80
    assert actor.seen == [b"x" * 40] * 2 + [1]
    assert ref.target._mailbox.pressure.held == 0


def test_one_message_larger_than_the_bound_fits_when_nothing_else_waits(runtime):
    ref, actor = spawn_held(runtime, bytes=10, on_full="fail")

    ref.tell(b"x" * 40)
    open_gate(ref)

    ref.ask(1).result(5)
    assert actor.seen == [b"x" * 40, 1]


def test_an_overflow_is_reported_once_and_counted_in_the_next_event(runtime):
    ref, actor = spawn_held(runtime, limit=1, on_full="drop_newest")

    events = overflows_of(runtime, lambda: [ref.tell(number) for number in range(10)])
    open_gate(ref)

    assert events == [MailboxOverflow(ref, "drop_newest", 1)]
    assert runtime.counters.overflows == 9


def test_all_that_is_sent_is_handled_or_reported(runtime):
    ref = runtime.start_actor(
        Slow.with_options(mailbox=Mailbox(limit=5, on_full="drop_oldest"))
    )
    threads = [
        threading.Thread(target=lambda: [ref.tell(number) for number in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    ref.ask(-1).result(5)

    assert len(instance(ref).seen) - 1 + runtime.counters.overflows == 2000


def test_a_class_attribute_bounds_the_mailbox(runtime):
    class Bounded(Slow):
        mailbox = Mailbox(limit=7)

    ref = runtime.start_actor(Bounded)

    assert isinstance(ref.target._mailbox, BoundedMailbox)
    assert ref.target._mailbox.bounds.limit == 7


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"bytes": -1}, {"on_full": "explode"}])
def test_bounds_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Mailbox(**wrong)


@dataclass(frozen=True)
class Picture:
    name: str
    pixels: bytes


@pytest.mark.parametrize(
    ("message", "least", "most"),
    [
        ("abc", 3, 3),
        (b"abcd", 4, 4),
        (memoryview(b"abcde"), 5, 5),
        ([b"x" * 1000, b"y" * 1000], 2000, 2200),
        ({"a": "x" * 1000}, 1000, 1300),
        (Picture("n", b"x" * 5000), 5001, 5200),
    ],
)
def test_the_size_of_a_message_counts_its_direct_texts_and_bytes(message, least, most):
    assert least <= size_of(message) <= most
