"""Spans of OpenTelemetry: each ask and each handled message has one, joined over nodes."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from callboard import (
    Actor,
    ActorRef,
    Endpoint,
    Node,
    errors,
    handler,
    message,
    topic,
    traced,
    traceparent,
)
from callboard import tracing as callboard_tracing
from callboard.actors.envelope import INSTRUMENTATION
from callboard.actors.runner.activity import activity_of
from tests.polling import eventually

sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode, get_current_span  # noqa: E402


@message("tests.tracing.Order")
@dataclass(frozen=True)
class Order:
    item: str


class Cook(Actor):
    def __init__(self) -> None:
        self.notes: list[str] = []

    @handler
    async def on_order(self, order: Order) -> str:
        await self.sleep(0)
        if order.item == "stone":
            raise ValueError("no stones")
        with tracer.start_as_current_span("cook"):
            await self.sleep(0)
            inner = get_current_span().name
            self.me.tell(f"{order.item} sold")
        return f"{order.item} {inner} {get_current_span().name}"

    @handler
    def on_note(self, note: str) -> None:
        self.notes.append(note)

    def price(self, item: str) -> int:
        return len(item)

    async def later(self, item: str) -> str:
        await self.sleep(0)
        return item


class Waiter(Actor):
    def __init__(self, cook: ActorRef[Cook]) -> None:
        self.cook = cook

    @handler
    async def on_order(self, order: Order) -> str:
        return await self.cook.ask(order)

    @handler
    def on_context(self, _: int) -> str | None:
        return traceparent()


tracer: sdk.Tracer


@pytest.fixture
def spans():
    """Return a function that waits for so many ended spans, and returns them by name."""
    global tracer
    exporter = export.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("tests")
    used = INSTRUMENTATION.used
    callboard_tracing.start(provider)

    def ended(count):
        eventually(lambda: len(exporter.get_finished_spans()) >= count)
        return {span.name: span for span in exporter.get_finished_spans()}

    yield ended
    callboard_tracing.stop()
    INSTRUMENTATION.used = used
    provider.shutdown()


@pytest.fixture
def make_node():
    with contextlib.ExitStack() as nodes:
        yield lambda name="": nodes.enter_context(Node(name))


@pytest.fixture
def two(make_node):
    here, there = make_node("here"), make_node("there")
    there.listen()
    here.connect(there.address)
    return here, there


def test_an_ask_over_two_nodes_is_one_trace(spans, two):
    here, there = two
    waiter = here.spawn(Waiter, here.ref(str(there.spawn(Cook))))

    with tracer.start_as_current_span("dinner"):
        answer = waiter.ask(Order("soup")).result(10)

    assert answer == "soup cook Cook.on_order"
    ended = spans(7)
    path = ["dinner", "ask Order", "Waiter.on_order", "Cook.on_order", "cook", "Cook.on_note"]
    assert set(path) == set(ended)
    assert len({span.context.trace_id for span in ended.values()}) == 1
    assert ended["Waiter.on_order"].kind is SpanKind.SERVER
    assert ended["Cook.on_note"].kind is SpanKind.CONSUMER
    assert ended["ask Order"].kind is SpanKind.CLIENT
    for child, parent in (("cook", "Cook.on_order"), ("Cook.on_note", "cook")):
        assert ended[child].parent.span_id == ended[parent].context.span_id
    cooked = ended["Cook.on_order"].attributes
    assert cooked["callboard.node"] == "there"
    assert cooked["callboard.sender.node.id"] == here.node_id.hex()
    assert (cooked["callboard.actor"], cooked["callboard.message"]) == ("Cook", "Order")
    assert ended["ask Order"].attributes["messaging.system"] == "callboard"


def test_each_ask_is_the_parent_of_what_handles_it(spans, make_node):
    node = make_node("n")
    waiter = node.spawn(Waiter, node.spawn(Cook))

    waiter.ask(Order("soup")).result(10)

    outer = spans(6)["Waiter.on_order"]
    assert outer.parent is not None
    assert outer.attributes["callboard.node"] == "n"
    assert spans(6)["Cook.on_order"].parent.span_id != outer.context.span_id  # the ask between


def test_what_is_told_without_a_context_begins_a_trace(spans, make_node):
    make_node().spawn(Cook).tell("hello")

    (span,) = spans(1).values()
    assert (span.name, span.parent) == ("Cook.on_note", None)


def test_a_context_that_is_carried_is_the_parent(spans, make_node):
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    node = make_node()

    with traced(f"00-{trace}-{parent}-01", "vendor=value"):
        asyncio.run(node.spawn(Cook).atell("hello"))

    (span,) = spans(1).values()
    assert f"{span.context.trace_id:032x}" == trace
    assert f"{span.parent.span_id:016x}" == parent
    assert span.context.trace_state["vendor"] == "value"


def test_errors_are_told_in_the_spans_of_both(spans, make_node):
    with pytest.raises(errors.RemoteError):
        make_node().spawn(Cook).ask(Order("stone"), retries=1).result(10)

    ended = spans(2)
    for name in ("ask Order", "Cook.on_order"):
        assert ended[name].status.status_code is StatusCode.ERROR
        assert "no stones" in ended[name].status.description
    assert ended["Cook.on_order"].events[0].attributes["exception.type"] == "ValueError"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class Mute(Actor):
    @handler
    def on_text(self, _: str) -> None:
        raise Unspeakable


def test_an_error_that_cannot_be_told_is_that_error_all_the_same(spans, make_node):
    mute = make_node("kitchen").spawn(Mute)
    with pytest.raises(errors.RemoteError) as caught:
        mute.ask("x").result(5)
    assert caught.value.type_name.endswith("Unspeakable")
    ended = spans(2)
    for name in ("ask str", "Mute.on_text"):
        assert ended[name].status.status_code is StatusCode.ERROR


def test_an_ask_of_an_actor_that_ended_ends_its_span(spans, make_node):
    node = make_node()
    cook = node.spawn(Cook)
    cook.kill()
    with pytest.raises(errors.ActorDown):
        cook.ask(Order("soup"), timeout=5).result(10)
    assert spans(1)["ask Order"].status.status_code is StatusCode.ERROR


def test_calls_of_methods_have_spans_and_refuse_as_ever(spans, make_node):
    cook = make_node().spawn(Cook)

    assert cook.call(Cook.price, "soup").result(10) == 4
    assert cook.proxy().later("soup").result(10) == "soup"
    for wrong in (cook.proxy().price(), cook.proxy().later(1, 2, 3)):
        with pytest.raises(errors.RemoteError, match="TypeError"):
            wrong.result(10)
    assert cook.call(Cook.price, "tea").result(10) == 3  # it lives

    ended = spans(9)
    assert {"ask price", "Cook.price", "ask later", "Cook.later"} <= set(ended)


def test_logs_and_programs_see_the_span_as_the_context(spans, make_node):
    node = make_node()
    seen = node.spawn(Waiter, node.spawn(Cook)).ask(1).result(10)

    span = spans(2)["Waiter.on_context"]
    assert seen.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")


def test_without_it_there_are_no_spans_and_contexts_are_carried(spans, make_node):
    node = make_node()
    waiter = node.spawn(Waiter, node.spawn(Cook))
    waiter.ask(1).result(10)
    spans(2)
    callboard_tracing.stop()

    with traced("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
        assert waiter.ask(1).result(10).endswith("b7ad6b7169203331-01")
    assert waiter.ask(1).result(10) is None

    assert len(spans(2)) == 2


def test_what_is_no_provider_is_refused(spans):
    with pytest.raises(errors.WrongArgument, match="TracerProvider"):
        callboard_tracing.start("console")


@pytest.mark.slow
def test_the_package_is_not_imported_unless_it_is_wanted():
    program = (
        "import sys; from callboard import Node, Actor, handler, tracing\n"
        "with Node(): pass\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
        "sys.modules['opentelemetry'] = None\n"
        "try: tracing.start()\n"
        "except tracing.OpenTelemetryMissing as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )

    assert "pip install 'callboard[otel]'" in done.stdout, done.stderr


def test_without_an_sdk_nothing_is_made_and_nothing_fails(make_node):
    callboard_tracing.start()
    try:
        assert make_node().spawn(Cook).call(Cook.price, "soup").result(10) == 4
    finally:
        callboard_tracing.stop()


class Slow(Actor):
    @handler
    async def wait(self, gate: asyncio.Event) -> None:
        await gate.wait()

    @handler
    def block(self, gate: threading.Event) -> None:
        gate.wait(20)

    @topic("/spans")
    def heard(self, value: str) -> None:
        pass


def test_inspection_names_the_handler_and_not_the_wrapper_of_its_span(spans, make_node):
    node = make_node()
    release = threading.Event()
    waiting, blocked = node.spawn(Slow), node.spawn(Slow)
    waiting.tell(asyncio.Event())
    blocked.tell(release)
    cells = [waiting.target, blocked.target]
    try:
        eventually(lambda: [activity_of(each).handler for each in cells] == NAMES)
        assert all(activity_of(each).place.startswith("test_tracing.py:") for each in cells)
    finally:
        release.set()


NAMES = ["Slow.wait", "Slow.block"]


def test_handlers_of_topics_have_spans(spans, make_node):
    node = make_node()
    node.spawn(Slow)
    with Endpoint(node=node) as endpoint:
        endpoint.publish("/spans", "x")

        ended = spans(1)

    span = ended["Slow.heard"]
    assert span.kind is SpanKind.CONSUMER
    assert span.attributes["callboard.message"] == "TopicMessage"
