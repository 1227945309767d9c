"""Deadlines and trace contexts go with messages, from actor to actor."""

import threading

import pytest

from callboard import Actor, handler
from callboard.actors.envelope import (
    is_traceparent,
    is_tracestate,
    traced,
    traceparent,
    tracestate,
)
from callboard.actors.errors import ActorDown, AskTimeout, RemoteError
from callboard.actors.events import Expired
from tests.actors.sample import Echo, Gate, instance
from tests.polling import eventually

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Hop(Actor):
    """Passes a question on to the next actor."""

    def __init__(self, to=None):
        self.to = to

    @handler
    async def trace(self, msg: str) -> object:
        await self.sleep(0)
        return traceparent() if self.to is None else await self.to.ask(msg)

    @handler
    def trace_at_once(self, msg: bytes) -> object:
        return traceparent()

    @handler
    async def left(self, msg: float) -> object:
        if self.to is None:
            return self.deadline
        return await self.to.ask(msg)

    @handler
    async def left_if_told(self, msg: int) -> object:
        return await self.to.ask(float(msg), timeout=msg)

    @handler
    def send_on(self, msg: tuple) -> None:
        self.send(*msg)

    @handler
    def trace_of_calls(self, msg: type) -> object:
        return self.sender


class Traces(Actor):
    def __init__(self):
        self.seen = []

    @handler
    def take(self, msg: object) -> None:
        self.seen.append((msg, traceparent()))

    @handler
    def give(self, msg: type) -> object:
        return list(self.seen)


# --- trace contexts ---


def test_a_trace_context_goes_with_asks_over_several_actors(runtime):
    last = runtime.start_actor(Hop)
    first = runtime.start_actor(Hop, (runtime.start_actor(Hop, (last,)),))

    with traced(TRACE):
        asked = first.ask("x")

    assert asked.result(5) == TRACE
    assert first.ask("x").result(5) is None


def test_a_trace_context_travels_with_tells_and_ends_with_its_message(runtime):
    hop, traces = runtime.start_actor(Hop), runtime.start_actor(Traces)

    with traced(TRACE):
        hop.tell((traces, 1))
        traces.tell(2, priority="high")
    hop.ask((traces, 3)).result(5)

    seen = dict(traces.ask(type).result(5)[:3])
    assert seen == {1: TRACE, 2: TRACE, 3: None}


def test_a_traced_answer_is_the_plain_answer(runtime):
    class Answering(Actor):
        @handler
        def answer(self, msg: str) -> None:
            self.send(self.sender, msg.upper())

    with traced(TRACE):
        assert runtime.start_actor(Answering).ask("x").result(5) == "X"


def test_a_traced_dead_letter_is_reported_without_its_envelope(runtime):
    ref = runtime.start_actor(Echo)
    down = runtime.monitor(ref)
    ref.kill()
    down.result(5)
    events = []

    with runtime.subscribed(events.append):
        with traced(TRACE), pytest.raises(ActorDown):
            ref.ask("x").result(5)
        eventually(lambda: events)

    assert [event.message for event in events] == ["x"]


def test_a_traced_message_that_fails_fails_its_ask(runtime):
    class Failing(Actor):
        @handler
        def fail(self, msg: str) -> None:
            raise ValueError(msg)

    with traced(TRACE), pytest.raises(RemoteError, match="as asked"):
        runtime.start_actor(Failing).ask("as asked").result(5)


@pytest.mark.parametrize("text", ["", "00-1-2-3", TRACE.upper(), TRACE + "é", 5, TRACE * 9])
def test_an_invalid_trace_context_is_refused(text):
    assert not is_traceparent(text)
    with pytest.raises(ValueError, match="traceparent"), traced(text):
        pass


# --- deadlines ---


def test_a_handler_knows_how_much_time_is_left(runtime):
    ref = runtime.start_actor(Hop)

    assert 0 < ref.ask(1.0, timeout=7.0).result(5) <= 7
    assert ref.ask(1.0, timeout=None).result(5) is None


def test_asks_of_a_handler_inherit_the_rest_of_its_time(runtime):
    first = runtime.start_actor(Hop, (runtime.start_actor(Hop),))

    assert 0 < first.ask(1.0, timeout=7.0).result(5) <= 7
    assert 7 < first.ask(1.0, timeout=9.0).result(5) <= 9
    assert first.ask(1.0, timeout=None).result(5) <= 60


def test_an_ask_with_its_own_timeout_inherits_no_limit(runtime):
    first = runtime.start_actor(Hop, (runtime.start_actor(Hop),))

    assert 7 < first.ask(9, timeout=7.0).result(5) <= 9


@pytest.mark.parametrize("question", ["text", 1.0, b""])
def test_an_expired_message_is_reported_instead_of_handled(runtime, question):
    class Late(Gate):
        def __init__(self):
            super().__init__()
            self.handled = []

        @handler
        def sync(self, msg: bytes) -> None:
            self.handled.append(msg)

        @handler
        async def later(self, msg: float) -> None:
            self.handled.append(msg)

        @handler
        def urgent(self, msg: int) -> int:
            return msg

    ref = runtime.start_actor(Late)
    ref.tell("hold")
    assert instance(ref).entered.wait(10)
    events = []

    with runtime.subscribed(events.append):
        late = ref.ask(question, timeout=0.01)
        with pytest.raises(AskTimeout):
            late.result(5)
        instance(ref).opened.set()
        assert ref.ask(1).result(5) == 1

    assert events == [Expired(ref, question)]
    assert runtime.counters.expired == 1
    assert instance(ref).handled == []


def test_an_ask_between_turns_has_the_usual_time(runtime):
    class Background(Actor):
        def __init__(self, to):
            self.to = to
            self.done = threading.Event()

        @handler
        def start(self, msg: str) -> None:
            self.timer = self._cell.runner.call_later(0.001, self.ask)

        def ask(self):
            self.answer = self.to.ask(1.0)
            self.done.set()

    ref = runtime.start_actor(Background, (runtime.start_actor(Hop),))
    ref.ask("start", timeout=2.0).result(5)

    assert instance(ref).done.wait(5)
    assert instance(ref).answer.result(5) > 2


class Stating(Actor):
    @handler
    def state(self, msg: str) -> tuple:
        return traceparent(), tracestate()


def test_the_trace_state_goes_with_the_trace(runtime):
    ref = runtime.start_actor(Stating)
    with traced(TRACE, "vendor=opaque,rojo=00f067aa0ba902b7"):
        both = ref.ask("x").result(5)
    with traced(TRACE):
        alone = ref.ask("x").result(5)

    assert both == (TRACE, "vendor=opaque,rojo=00f067aa0ba902b7")
    assert alone == (TRACE, "")
    assert tracestate() == ""


@pytest.mark.parametrize(
    "state", ["", "a=1", "a=1, b=2", "fw529a3039@dt=FfAB,,x=", "a=" + "v" * 256]
)
def test_a_well_formed_trace_state_is_taken(state):
    assert is_tracestate(state)


@pytest.mark.parametrize(
    "state", [7, "a", "A=1", "a=1=2", "a=1\n", ",".join(["a=1"] * 33), "a=" + "v" * 600]
)
def test_a_malformed_trace_state_is_refused(state):
    assert not is_tracestate(state)
    with pytest.raises(ValueError, match="tracestate"), traced(TRACE, state):
        pass
