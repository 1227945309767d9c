import re
import threading

from callboard import Actor, Mailbox, Node, handler
from callboard.errors import AskTimeout
from callboard.operation import Metric, exposition, node_metrics
from tests.proxies.cast import Echo, Sink, connect, eventually, settled


class Waiting(Actor):
    @handler
    async def seconds(self, msg: float) -> None:
        await self.sleep(msg)


def values(node):
    return {
        (metric.name, *(value for _, value in labels)): found
        for metric in node_metrics(node)
        for labels, found in metric.samples
    }


def test_mailboxes_and_actors_are_counted():
    with Node() as node:
        waiting, echo = node.spawn(Waiting), node.spawn(Echo)
        for _ in range(5):
            waiting.tell(60.0)
        echo.ask("x").result(5)
        echo.kill()
        eventually(lambda: node.stats().actors == 1)
        echo.tell("late")
        eventually(lambda: node.stats().dead_letters == 1)

        found = values(node)

    assert found["callboard_actors",] == 1
    assert found["callboard_actors_ended_total", "killed"] == 1
    assert found["callboard_mailbox_messages",] == 4
    assert found["callboard_mailbox_depth_max",] == 4
    assert found["callboard_mailbox_depth", str(waiting.actor_id), "Waiting"] == 4
    assert found["callboard_dead_letters_total",] == 1
    assert found["callboard_messages_handled_total",] >= 2
    assert found["callboard_draining",] == 0


class Small(Waiting):
    mailbox = Mailbox(limit=2, on_full="drop_newest")


def test_overflows_and_expired_asks_are_counted():
    with Node() as node:
        small, waiting = node.spawn(Small), node.spawn(Waiting)
        small.tell(60.0)
        eventually(lambda: node.stats().handled == 1)
        for _ in range(5):
            small.tell(0.0)
        waiting.tell(0.2)
        late = waiting.ask(0.0, timeout=0.01)
        eventually(late.done)
        assert isinstance(late.exception(), AskTimeout)
        eventually(lambda: node.stats().expired == 1)

        found = values(node)

    assert found["callboard_overflows_total",] == 3
    assert found["callboard_expired_total",] == 1
    assert found["callboard_mailbox_messages",] == 2


class Blocking(Actor):
    @handler
    def until(self, msg: threading.Event) -> None:
        msg.wait(10)


def test_time_in_handlers_is_counted_by_class():
    with Node() as node:
        node.runtime.runner.times.slow_after = 0.05
        is_seen = threading.Event()
        answer = node.spawn(Blocking).ask(is_seen)
        eventually(lambda: node.stats().slow_handlers == 1)
        is_seen.set()
        answer.result(10)

        found = values(node)

    assert 0.05 < found["callboard_handler_seconds_total", "Blocking"] < 10.0
    assert found["callboard_slow_handlers_total",] == 1


def test_traffic_is_counted_for_each_link_and_in_all():
    with Node() as a, Node() as b:
        connect(a, b)
        sink = a.ref(str(b.spawn(Sink)))
        for number in range(100):
            sink.tell(number)
        settled(a)

        found = values(a)

    peer = b.name
    assert found["callboard_links",] == 1
    assert found["callboard_messages_sent_total",] >= 100
    assert found["callboard_messages_lost_total",] == 0
    assert found["callboard_messages_in_flight",] == 0
    assert found["callboard_link_frames_sent_total", peer] >= 100
    assert found["callboard_link_bytes_sent_total", peer] > 100 * 60


def test_every_line_is_of_the_text_format():
    line = re.compile(
        r"# (HELP|TYPE) callboard_\w+ .+"
        r'|callboard_\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? -?\d+(\.\d+)?'
    )
    with Node() as a, Node() as b:
        connect(a, b)
        text = exposition(node_metrics(a))

    assert text.endswith("\n")
    assert all(line.fullmatch(found) for found in text.splitlines())
    names = re.findall(r"# TYPE (\S+) (\S+)", text)
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in names)


def test_labels_are_escaped():
    metric = Metric("m", "gauge", "a\\b\nc", [((("x", 'say "hi"\n\\'),), 1.5)])

    assert exposition([metric]) == (
        '# HELP m a\\\\b\\nc\n# TYPE m gauge\nm{x="say \\"hi\\"\\n\\\\"} 1.5\n'
    )


def test_times_are_histograms_of_the_text_format():
    with Node() as node:
        node.runner.sampler.asks.add(0.003)
        text = exposition(node_metrics(node))

    lines = text.splitlines()
    assert "# TYPE callboard_ask_seconds histogram" in lines
    assert any(line.startswith('callboard_ask_seconds_bucket{le="0.005"} ') for line in lines)
    assert any(line.startswith('callboard_ask_seconds_bucket{le="+Inf"} ') for line in lines)
    assert any(line.startswith("callboard_ask_seconds_sum ") for line in lines)
    assert any(line.startswith("callboard_mailbox_wait_seconds_count ") for line in lines)
