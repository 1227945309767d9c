"""Messages that are acknowledged when an actor or a queue is done with them; rules with to."""

import threading
from dataclasses import dataclass, replace

import pytest

from callboard import Actor, Child, Node, Refusal, handler, message
from callboard.commitlog import LogReader
from callboard.mqtt import MqttDoor, Router, RouterConfig, Rule
from callboard.mqtt.service.destination import Destination, filled
from callboard.mqtt.service.forwarding import MessageNotHandled
from callboard.mqtt.service.topic_bridge import TopicMap
from callboard.store import attach_master
from callboard.topics.actor_subscription import TopicMessage
from callboard.topics.hub import Hub
from tests.polling import eventually

QUICK = {"attempts": 6, "timeout": 10.0}


class Worker(Actor):
    """Handles jobs, and fails for some of them."""

    def __init__(self, failures: list[None] | None = None) -> None:
        self.jobs: list[tuple[str, object]] = []
        self.failures = failures

    @handler
    def on_job(self, message: TopicMessage) -> None:
        if self.failures:
            self.failures.pop()
            error = "not today"
            raise RuntimeError(error)
        self.jobs.append((message.topic, message.value))

    @handler
    def on_question(self, _: str) -> list[tuple[str, object]]:
        return self.jobs


class Stuck(Actor):
    """Never finishes before it is allowed to."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate

    @handler
    def on_job(self, _: TopicMessage) -> None:
        self.gate.wait(30)


@message("tests.mqtt.TooSmall")
@dataclass
class TooSmall(Refusal):
    """A job is refused."""

    def __str__(self) -> str:
        return "the job is too small"


class Strict(Actor):
    """Refuses every job."""

    @handler
    def on_job(self, _: TopicMessage) -> None:
        raise TooSmall


def running(tmp_path=None, *rules, **fields):
    return RouterConfig(sys_interval=0, directory=tmp_path, rules=rules, **fields)


def jobs_of(ref) -> list[tuple[str, object]]:
    return [tuple(job) for job in ref.ask("jobs").result(10)]


HANDLED = TopicMap("jobs/", "/jobs/", "in", "json", acknowledge="handled", actor="w", **QUICK)


def window_of(router: Router) -> int:
    """Return how many messages the session of the door has not acknowledged."""

    def look() -> int:
        sessions = [s for s in router.machine.sessions if s.client_id.startswith("$door-")]
        return sum(len(s.window.unacknowledged) for s in sessions)

    return router.call(look)


def test_a_message_is_acknowledged_when_its_handler_is_done() -> None:
    gate = threading.Event()
    with Node() as node, Router(running(), node=node) as router:
        node.register("w", node.spawn(Stuck, gate))
        with MqttDoor(router, node, [HANDLED]) as door, router.link() as link:
            link.publish("jobs/1", b"{}", qos=1).result(5)
            eventually(lambda: window_of(router) == 1)
            assert door.forwarders[0].figures.handled == 0

            gate.set()

            eventually(lambda: window_of(router) == 0)
            assert door.forwarders[0].figures.handled == 1


def test_a_message_whose_handler_fails_is_sent_again() -> None:
    with Node() as node, Router(running(), node=node) as router:
        node.supervise([Child(Worker, [None] * 2, name="w")])
        with MqttDoor(router, node, [HANDLED]) as door, router.link() as link:
            link.publish("jobs/1", b"[1]", qos=1).result(5)

            figures = door.forwarders[0].figures
            eventually(lambda: (figures.handled, figures.dead) == (1, 0))
            assert figures.retried >= 2
            assert jobs_of(node.find("w").result(5)) == [("/jobs/1", [1])]


def test_a_message_is_given_up_after_the_number_of_attempts(caplog) -> None:
    events = []
    with (
        Node() as node,
        Router(running(), node=node) as router,
        node.subscribed(events.append),
        MqttDoor(router, node, [replace(HANDLED, attempts=2)]) as door,
        router.link() as link,
    ):
        link.publish("jobs/1", b"1", qos=1).result(5)  # there is no actor
        figures = door.forwarders[0].figures
        eventually(lambda: figures.dead == 1)
        node.register("w", node.spawn(Worker))
        link.publish("jobs/2", b"2", qos=1).result(5)

        eventually(lambda: figures.handled == 1)
        assert jobs_of(node.find("w").result(5)) == [("/jobs/2", 2)]
        eventually(lambda: window_of(router) == 0)
        (event,) = [each for each in events if isinstance(each, MessageNotHandled)]
    assert (event.topic, event.destination, event.attempts) == ("jobs/1", "actor w", 2)
    assert "registered as 'w'" in event.reason
    assert "not handled by the actor w in 2 attempts" in caplog.text


def test_a_message_that_its_handler_refuses_is_given_up_at_once() -> None:
    events = []
    with (
        Node() as node,
        Router(running(), node=node) as router,
        node.subscribed(events.append),
        MqttDoor(router, node, [HANDLED]) as door,
        router.link() as link,
    ):
        node.register("w", node.spawn(Strict))
        link.publish("jobs/1", b"1", qos=1).result(5)

        eventually(lambda: window_of(router) == 0 and door.forwarders[0].figures.dead == 1)
        assert door.forwarders[0].figures.retried == 0
        (event,) = [each for each in events if isinstance(each, MessageNotHandled)]
    assert (event.topic, event.attempts) == ("jobs/1", 1)
    assert "the job is too small" in event.reason


def test_unhandled_messages_survive_a_restart_of_the_router(tmp_path) -> None:
    gate = threading.Event()
    with Node() as node:
        stuck = node.spawn(Stuck, gate)
        node.register("w", stuck)
        with (
            Router(running(tmp_path), node=node) as router,
            MqttDoor(router, node, [HANDLED]),
            router.link() as link,
        ):
            for number in range(3):
                link.publish(f"jobs/{number}", b"%d" % number, qos=1).result(5)
            eventually(lambda: window_of(router) == 3)
        node.unregister("w")
        gate.set()
        worker = node.spawn(Worker)
        node.register("w", worker)

        with Router(running(tmp_path), node=node) as again, MqttDoor(again, node, [HANDLED]):
            eventually(lambda: sorted(jobs_of(worker)) == [(f"/jobs/{n}", n) for n in range(3)])


def test_a_queue_gets_a_job_for_each_message(tmp_path) -> None:
    state = f"sqlite:{tmp_path}/jobs.db"
    into = TopicMap("jobs/", "/jobs/", "in", acknowledge="handled", queue="jobs")
    with Node() as node, Router(running(), node=node) as router:
        queue = node.queue("jobs", state=state)
        with MqttDoor(router, node, [into]), router.link() as link:
            link.publish("jobs/1", b"paint", qos=1).result(5)

            job = queue.take().result(20)
            assert job.value == TopicMessage("/jobs/1", "paint")
            job.ack().result(10)
            eventually(lambda: window_of(router) == 0)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"actor": "w"}, "needs acknowledge"),
        ({"acknowledge": "handled"}, "needs the name"),
        ({"acknowledge": "handled", "actor": "w", "queue": "q"}, "needs the name"),
        ({"acknowledge": "handled", "actor": "w", "direction": "both"}, "direction"),
        ({"acknowledge": "handled", "actor": "w", "direction": "in", "qos": 0}, "QoS"),
        (
            {"acknowledge": "handled", "actor": "w", "direction": "in", "attempts": 0},
            "attempts",
        ),
        ({"acknowledge": "later"}, "choose one of"),
    ],
)
def test_contradictions_of_a_map_are_refused(fields, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        TopicMap(**fields)


# --- rules with a destination ---


def test_a_rule_sends_selected_messages_to_another_topic() -> None:
    rules = (
        Rule(
            "sensors/+/climate",
            conditions={"celsius": {">": 30}},
            select=("celsius", "room.name"),
            to=Destination(topic="alarms/{2}", retain=True),
        ),
        Rule("sensors/+/climate", select="celsius", to=Destination(topic="plain/{2}")),
    )
    with Router(running(None, *rules)) as router, router.link() as link:
        link.subscribe("alarms/#").result(5)
        link.subscribe("plain/#").result(5)
        for celsius in (20, 40):
            payload = b'{"celsius": %d, "room": {"name": "hall"}}' % celsius
            link.publish("sensors/7/climate", payload, qos=1).result(5)
        link.publish("sensors/7/climate", b"no JSON", qos=1).result(5)

        arrived = sorted((m.topic, m.payload) for m in (link.recv(5) for _ in range(3)))

        assert arrived == [
            ("alarms/7", b'{"celsius": 40, "room.name": "hall"}'),
            ("plain/7", b"20"),
            ("plain/7", b"40"),
        ]
        assert router.shadow("alarms/7").payload == arrived[0][1]


def test_rules_send_to_a_log_a_store_a_queue_and_an_actor(tmp_path) -> None:
    log, state = tmp_path / "log", f"sqlite:{tmp_path}/jobs.db"
    rules = (
        Rule("t/#", to=Destination(log=str(log))),
        Rule("t/#", select="n", to=Destination(store="things", key="{2}")),
        Rule("t/#", to=Destination(queue="jobs", state=state)),
        Rule("t/#", conditions={"n": 1}, to=Destination(actor="w")),
    )
    with Node() as node, attach_master(Hub.of(node), "things") as store:
        worker = node.spawn(Worker)
        node.register("w", worker)
        config = running(None, *rules)
        with Router(config, node=node) as router, router.link() as link:
            for number in range(2):
                link.publish(f"t/{number}", b'{"n": %d}' % number, qos=1).result(5)

            eventually(lambda: [f.figures.handled for f in router.forwarders] == [2, 2, 2, 1])
            jobs = [node.queue("jobs").take().result(20).value for _ in range(2)]
            assert store.get("1") == 1
            assert [job.topic for job in jobs] == ["t/0", "t/1"]
            assert jobs_of(worker)[0][0] == "t/1"
    records = [(r.topic, r.payload) for r in LogReader(str(log)).read(0)]
    assert records == [("t/0", {"n": 0}), ("t/1", {"n": 1})]


def test_the_session_of_a_removed_rule_ends(tmp_path) -> None:
    rule = Rule("t", to=Destination(log=str(tmp_path / "log")))
    with Router(running(tmp_path / "journal", rule)):
        pass
    with Router(running(tmp_path / "journal")) as router:
        names = router.call(lambda: [s.client_id for s in router.machine.sessions])
        assert [name for name in names if name.startswith("$rule")] == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "needs one of topic, actor, queue, store, log; here is none"),
        ({"topic": "a", "log": "b"}, "here is topic and log"),
        ({"log": "b", "retain": True}, "retain belongs to a topic"),
        ({"topic": "a", "key": "b"}, "key belongs to a store"),
        ({"topic": "a/#"}, "is not a topic"),
    ],
)
def test_contradictions_of_a_destination_are_refused(fields, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        Destination(**fields)


def test_placeholders_stand_for_the_topic_and_its_levels() -> None:
    assert filled("x/{topic}/{2}/{1}", "a/b") == "x/a/b/b/a"
    assert filled("{3}", "a/b") == "{3}"
