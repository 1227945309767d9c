"""The actor of a module: crashes, restarts, timers, detached threads."""

import asyncio
import threading

import pytest

from callboard.actors.mailbox import Mailbox
from callboard.gateway.broker import ModuleBroker
from callboard.gateway.errors import DuplicateModule, ModuleFailed
from callboard.gateway.handle import ModuleOptions
from callboard.gateway.module import Module, module
from callboard.gateway.wire.message import Message
from tests.callboard.gateway.cast import LIMIT, Failing, Gate, Quiet, Recorder
from tests.polling import eventually


class Made(Failing):
    """Remembers all that were made."""

    made: list["Made"]

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)


@pytest.fixture
def kind() -> type[Made]:
    return type("Made", (Made,), {"made": []})


def test_a_crashed_module_is_recreated_and_receives_the_waiting_messages(broker, kind):
    source = broker.add(Quiet)
    handle = broker.add(kind, options=ModuleOptions(on_error="crash"))
    broker.link(source, handle)
    broker.start(handle)
    first_ref = handle.ref

    for content in (b"good", b"bad", b"next", b"last"):
        broker.publish(source, Message(content))
    eventually(lambda: len(kind.made) == 2 and len(kind.made[1].got) == 2)

    first, second = kind.made
    assert first.contents == [b"good"]
    assert first.calls == ["create", "start", "destroy"]
    assert second.contents == [b"next", b"last"]
    assert second.calls == ["create", "start"]
    eventually(lambda: handle.counters.received == 3)
    assert (handle.counters.failed, handle.counters.restarts) == (1, 1)
    assert handle.ref != first_ref


def test_a_crash_notifies_the_monitors_of_the_module(broker, kind):
    source = broker.add(Quiet)
    handle = broker.add(kind, options=ModuleOptions(on_error="crash"))
    broker.link(source, handle)
    down = broker.node.monitor(handle.ref)

    broker.publish(source, Message(b"bad"))

    assert down.result(LIMIT).reason == "error"
    assert "cannot take" in down.result().detail


@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
def test_the_restart_policy_decides_what_happens_after_an_error(broker, kind, restart):
    ended = []
    broker.on_ended = lambda handle, detail: ended.append(handle)
    source = broker.add(Quiet)
    handle = broker.add(kind, options=ModuleOptions(on_error="crash", restart=restart))
    broker.link(source, handle)

    broker.publish(source, Message(b"bad"))
    broker.publish(source, Message(b"good"))

    if restart == "temporary":
        eventually(lambda: ended == [handle])
        assert handle.counters.lost == {"ended": 1} or handle.counters.received == 0
        assert handle not in broker.modules()
        assert len(kind.made) == 1
    else:
        eventually(lambda: len(kind.made) == 2 and kind.made[1].contents == [b"good"])
        assert ended == []


def test_a_module_that_keeps_failing_is_given_up_and_the_others_continue(broker, kind):
    ended = []
    broker.on_ended = lambda handle, detail: ended.append((handle, detail))
    good, source = Recorder(), broker.add(Quiet)
    options = ModuleOptions(on_error="crash", intensity=(1, 60.0))
    handle = broker.add(kind, options=options)
    broker.link(source, handle)
    broker.link(source, broker.add(good))

    for _ in range(5):
        broker.publish(source, Message(b"bad"))

    eventually(lambda: ended)
    assert ended[0][0] is handle
    assert "cannot take b'bad'" in ended[0][1]
    assert good.until(5)
    assert handle.counters.failed + sum(handle.counters.lost.values()) <= 5
    broker.publish(source, Message(b"after"))
    good.until(6)


def test_a_killed_module_counts_as_ended(broker, kind):
    handle = broker.add(kind)
    broker.start(handle)

    handle.ref.kill()

    eventually(lambda: len(kind.made) == 2 and "start" in kind.made[1].calls)
    assert kind.made[0].calls == ["create", "start", "destroy"]


def test_a_module_that_reports_its_own_failure_is_recreated(broker, kind):
    handle = broker.add(kind)

    threading.Thread(target=lambda: kind.made[0].fail(OSError("lost the line"))).start()

    eventually(lambda: len(kind.made) == 2)
    assert handle.counters.restarts == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(object(), TypeError), (Recorder.__name__, TypeError), (lambda: 5, ModuleFailed)],
)
def test_a_class_that_is_not_a_module_is_refused(broker, wrong, error):
    with pytest.raises(error):
        broker.add(wrong)
    assert broker.modules() == []


def test_a_create_that_raises_leaves_no_module(broker):
    class Broken(Recorder):
        def create(self, args):
            error = "no such port"
            raise OSError(error)

    with pytest.raises(ModuleFailed, match="'Broken' was not created: OSError: no such port"):
        broker.add(Broken)
    assert broker.modules() == []


def test_the_same_module_twice_is_refused(broker):
    one = Recorder()
    broker.add(one)

    with pytest.raises(DuplicateModule):
        broker.add(one)
    assert one.calls == ["create"]


def test_a_start_that_raises_is_reported_and_retried(broker):
    class Late(Recorder):
        starts = 0

        def start(self):
            Late.starts += 1
            if Late.starts == 1:
                error = "not yet"
                raise OSError(error)
            super().start()

    handle = broker.add(Late)
    with pytest.raises(ModuleFailed, match="not yet"):
        broker.start(handle)
    eventually(lambda: handle.module.calls == ["create", "start"])


def test_messages_wait_for_the_start_if_configured(broker):
    sink, source = Recorder(), broker.add(Quiet)
    handle = broker.add(sink, options=ModuleOptions(hold=True))
    broker.link(source, handle)
    broker.publish(source, Message(b"early"))
    assert handle.waiting == 1

    broker.start(handle)

    assert sink.until(1)[0].content == b"early"
    assert sink.calls == ["create", "start"]


def test_a_receive_may_be_a_coroutine(broker):
    class Patient(Recorder):
        async def receive(self, message):
            self._inside += 1
            self.overlaps += self._inside > 1
            await asyncio.sleep(0)
            if message.content == b"bad":
                self._inside -= 1
                raise ValueError
            self.got.append(message)
            self._inside -= 1

    sink, source = Patient(), broker.add(Quiet)
    handle = broker.add(sink)
    broker.link(source, handle)
    for number in range(300):
        broker.publish(source, Message(b"bad" if number == 7 else b"%d" % number))

    eventually(lambda: handle.counters.received == 299)
    assert sink.overlaps == 0
    assert handle.counters.failed == 1
    assert sink.contents == [b"%d" % number for number in range(300) if number != 7]
    broker.remove(handle)
    assert sink.calls == ["create", "destroy"]


def test_timers_fire_in_the_modules_own_turn(broker):
    class Clock(Recorder):
        def start(self):
            self.ticks = 0
            self.thread = None
            self.once = self.after(0.0, lambda: self.publish(b"once"))
            self.again = self.every(0.01, self.tick)

        def tick(self):
            self.ticks += 1
            self.publish(b"tick")
            if self.ticks == 3:
                self.again.cancel()
            if self.ticks == 2:
                error = "an error ends nothing"
                raise ValueError(error)

    clock, sink = Clock(), Recorder()
    handle = broker.add(clock)
    broker.link(handle, broker.add(sink))

    broker.start(handle)

    sink.until(4)
    assert sorted(sink.contents) == [b"once", b"tick", b"tick", b"tick"]


def test_a_detached_module_has_a_thread_of_its_own(broker):
    class Where(Recorder):
        def handle(self, message):
            self.where = threading.get_ident()

    class Blocking(Where):
        detached = True

    ordinary, detached, declared, placed = Where(), Where(), Blocking(), Where()
    source = broker.add(Quiet)
    broker.link(source, broker.add(ordinary))
    broker.link(source, broker.add(declared))
    broker.link(source, broker.add(placed, where="thread"))
    broker.link(source, broker.add(detached, options=ModuleOptions(detached=True)))

    for number in range(100):
        broker.publish(source, Message(b"%d" % number))

    ordinary.until(100)
    detached.until(100)
    declared.until(100)
    placed.until(100)
    assert len({ordinary.where, detached.where, declared.where, placed.where}) == 4


def test_a_function_is_a_module(broker):
    @module
    def shout(message):
        if message.content == b"quiet":
            return None
        if message.content == b"twice":
            return [message, Message(b"again", {"n": "2"})]
        return message.content.upper()

    @module(name="other name")
    def nothing(message):
        """Do nothing."""

    sink, source = Recorder(), broker.add(Quiet)
    handle = broker.add(shout)
    broker.link(source, handle)
    broker.link(handle, broker.add(sink))

    for content in (b"quiet", b"hello", b"twice"):
        broker.publish(source, Message(content))

    sink.until(3)
    assert sink.contents == [b"HELLO", b"twice", b"again"]
    assert handle.name == "shout"
    assert nothing.__name__ == "other name"
    assert issubclass(nothing, Module)
    with pytest.raises(TypeError):
        module(5)


def test_apublish_waits_without_blocking_the_loop(node):
    with ModuleBroker(node) as broker:
        sink, source = Gate(), broker.add(Quiet)
        handle = broker.add(sink, options=ModuleOptions(queue=Mailbox(limit=2)))
        broker.link(source, handle)

        async def program():
            async def flood():
                for number in range(20):
                    await broker.apublish(source, Message(b"%d" % number))

            flooding = asyncio.create_task(flood())
            await asyncio.to_thread(sink.entered.wait, LIMIT)
            assert not flooding.done()
            sink.open.set()
            await flooding
            assert await broker.aremove(handle)
            assert not await broker.aremove(handle)

        asyncio.run(program())
        assert sink.contents == [b"%d" % number for number in range(20)]
        assert handle.counters.lost == {}
