"""Supervisors on nodes: names of incarnations, children on other nodes, chance by seed."""

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from callboard import Actor, Child, Endpoint, Restarted, Supervisor, TopicMessage, handler
from callboard.actors.errors import WrongArgument
from callboard.simulation.cluster import Cluster
from tests.proxies.cast import Echo


class Patient(Actor):
    def __init__(self) -> None:
        self.told: list[Restarted] = []

    @handler
    def restarted(self, msg: Restarted) -> None:
        self.told.append(msg)

    @handler
    def text(self, msg: str) -> str:
        if msg == "fail":
            raise ValueError(msg)
        return msg

    def history(self) -> list[tuple[str, str, int]]:
        return [(str(told.reason), told.detail, told.count) for told in self.told]


def children_of(supervisor):
    return supervisor.call(Supervisor.children).result(5)


def test_a_name_leads_to_the_incarnation_that_runs(cluster):
    a, b = cluster(2)
    a.supervise([Child(Patient, name="patient")])
    first = b.find("patient").result(5)

    first.tell("fail")
    cluster.advance(0.1)
    second = b.find("patient").result(5)

    assert first != second
    assert second.ask("hi").result(5) == "hi"
    lost = a.stats().dead_letters
    first.tell("late")
    cluster.advance(0.1)
    assert b.stats().dead_letters + a.stats().dead_letters == lost + 1


def test_a_child_on_another_node_is_started_again_and_told_why(cluster):
    a, b = cluster(2, spawnable={"patient": Patient})
    supervisor = a.supervise([Child(Patient, on=b.address)])
    cluster.advance(0.1)
    [first] = children_of(supervisor)
    assert first.node_id == b.node_id

    first.tell("fail")
    cluster.advance(0.1)
    [second] = children_of(supervisor)

    assert second.call(Patient.history).result(5) == [("error", "ValueError: fail", 1)]


def test_a_child_on_another_node_ends_with_its_supervisor(cluster):
    a, b = cluster(2, spawnable={"echo": Echo})
    supervisor = a.supervise([Child(Echo, on=b.node_id)])
    cluster.advance(0.1)
    [echo] = children_of(supervisor)
    down = b.monitor(b.ref(str(echo)))

    supervisor.stop()

    assert down.result(5).reason == "killed"


def test_a_child_on_another_node_ends_when_its_supervisors_node_is_lost(cluster):
    a, b = cluster(2, spawnable={"echo": Echo})
    supervisor = a.supervise([Child(Echo, on=b.node_id)])
    cluster.advance(0.1)
    [echo] = children_of(supervisor)
    down = b.monitor(b.ref(str(echo)))

    cluster.kill(a)

    assert down.result(5).reason == "unreachable"


def test_a_supervisor_gives_up_when_the_node_of_its_child_is_gone(cluster):
    a, b = cluster(2, spawnable={"echo": Echo})
    supervisor = a.supervise([Child(Echo, on=b.node_id)], intensity=(2, 60.0))
    cluster.advance(0.1)
    down = a.monitor(supervisor)

    cluster.kill(b)

    ended = down.result(60)
    assert ended.reason == "shutdown"
    assert "Echo ended too often" in ended.detail


class Stubborn(Patient):
    """It does not end with its supervisor's node."""

    trap_exit = True


def alive(kind, *nodes):
    """Return the names of the nodes that run an actor of a class."""
    return [
        node.name
        for node in nodes
        for cell in list(node.runtime.contexts.values())
        if type(cell.actor) is kind
    ]


def test_a_child_moves_when_its_node_is_gone_and_is_told_why(cluster):
    a, b, c = cluster(3, topology="star", spawnable={"patient": Patient})
    child = Child(Patient, name="patient", on=[b.address, c.node_id])
    supervisor = a.supervise([child])
    cluster.advance(0.1)
    assert alive(Patient, a, b, c) == ["b"]

    cluster.kill(b)
    cluster.advance(10.0)

    assert alive(Patient, c) == ["c"]
    [ref] = children_of(supervisor)
    assert ref.node_id == c.node_id
    assert a.find("patient").result(5) == ref
    [(reason, _, count)] = ref.call(Patient.history).result(5)
    assert (reason, count) == ("unreachable", 1)
    assert supervisor.call(Supervisor.restarts).result(5) == 1


def test_a_child_that_fails_is_started_again_where_it_was(cluster):
    a, b, c = cluster(3, topology="star", spawnable={"patient": Patient})
    supervisor = a.supervise([Child(Patient, on=[c.address, b.address])])
    cluster.advance(0.1)

    children_of(supervisor)[0].tell("fail")
    cluster.advance(0.1)

    assert alive(Patient, b, c) == ["c"]


def test_a_child_starts_on_the_first_node_that_takes_it(cluster):
    a, b, c = cluster(3, topology="star", spawnable={"patient": Patient})
    d = cluster.node("d")
    d.connect(a.address)
    cluster.kill(b)
    supervisor = a.supervise([Child(Patient, on=[b.address, d.address, c.address])])

    cluster.advance(30.0)

    assert alive(Patient, c) == ["c"]
    assert supervisor.call(Supervisor.restarts).result(5) == 0


def test_when_no_node_takes_it_that_is_one_failed_start_which_says_why(cluster):
    a, b, c = cluster(3, topology="star")
    supervisor = a.supervise([Child(Patient, on=[b.address, c.node_id])], intensity=(1, 60.0))
    down = a.monitor(supervisor)

    detail = down.result(60).detail

    assert f"on {b.address}: NotSpawnable" in detail
    assert f"on {c.node_id.hex()}: NotSpawnable" in detail


def test_what_an_init_raises_is_not_tried_on_other_nodes(cluster):
    class Broken(Actor):
        def __init__(self) -> None:
            made.append(1)
            raise ValueError("broken")

    made: list[int] = []
    a, b, c = cluster(3, topology="star", spawnable={"broken": Broken})
    supervisor = a.supervise([Child(Broken, on=[b.address, c.address])], intensity=(0, 60.0))

    a.monitor(supervisor).result(60)

    assert made == [1]


@pytest.mark.parametrize("kind", [Patient, Stubborn])
def test_of_nodes_that_see_each_other_one_runs_a_child(cluster, kind):
    a, b, c = cluster(3, topology="star", spawnable={"kind": kind})
    a.supervise([Child(kind, on=[b.address, c.address])])
    cluster.advance(0.1)

    cluster.partition(a, b)
    cluster.advance(30.0)
    assert alive(kind, c) == ["c"]
    assert alive(kind, b) == (["b"] if kind is Stubborn else [])  # a partition may have two

    cluster.heal()
    cluster.advance(30.0)
    assert alive(kind, a, b, c) == ["c"]


def test_a_subscription_follows_a_child_that_moves(cluster):
    a, b, c = cluster(3, topology="star", spawnable={"listener": Listener})
    a.supervise([Child(Listener, name="listener", on=[b.address, c.address])])
    endpoint = Endpoint(node=a)
    cluster.advance(2.0)
    subscription = endpoint.subscribe(a.find("listener").result(5), "/x")
    endpoint.publish("/x", 1)
    cluster.advance(1.0)
    cluster.kill(b)
    cluster.advance(10.0)
    endpoint.publish("/x", 2)
    cluster.advance(1.0)

    ref = a.find("listener").result(5)
    assert (subscription.ref, ref.node_id) == (ref, c.node_id)
    assert ref.call(Listener.values).result(5) == [2]


class Listener(Actor):
    def __init__(self) -> None:
        self.got: list[object] = []

    @handler
    def on_topic(self, message: TopicMessage) -> None:
        self.got.append(message.value)

    def values(self) -> list[object]:
        return self.got


def test_lists_of_places_name_nodes():
    for on in ([], [None], ("basp://h:1", None)):
        with pytest.raises(WrongArgument, match="name the nodes"):
            Child(Patient, on=on)


class MovingChildren(RuleBasedStateMachine):
    """Nodes are cut off, killed and started again; of those in reach one runs a child."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(7)
        spawnable = {"stubborn": Stubborn}
        self.nodes = self.cluster(4, topology="star", spawnable=spawnable)
        self.top = self.nodes[0]
        self.dead: set[int] = set()
        places = [node.address for node in self.nodes[1:]]
        self.supervisor = self.top.supervise(
            [Child(Stubborn, name="child", on=places)], intensity=(1000, 1.0)
        )
        self.cluster.advance(1.0)

    @rule(index=st.integers(1, 3))
    def cut_off(self, index):
        self.cluster.partition(self.top, self.nodes[index])

    @rule()
    def heal(self):
        self.cluster.heal()

    @rule(index=st.integers(1, 3))
    def kill(self, index):
        if index not in self.dead:
            self.dead.add(index)
            self.cluster.kill(self.nodes[index])

    @rule(index=st.integers(1, 3))
    def start_again(self, index):
        if index in self.dead:
            self.dead.discard(index)
            self.nodes[index] = self.cluster.restart(self.nodes[index])

    @rule(seconds=st.sampled_from([0.01, 0.5, 5.0, 60.0]))
    def wait(self, seconds):
        # Where no node is left the child is tried 500 times a second, as its intensity allows.
        self.cluster.advance(seconds if len(self.dead) < 3 else min(seconds, 5.0))

    @rule()
    def fail(self):
        for ref in self.children():
            ref.tell("fail")

    def children(self):
        return children_of(self.supervisor)

    def teardown(self):
        living = [node for at, node in enumerate(self.nodes) if at not in self.dead]
        if len(living) > 1:
            self.cluster.heal()
            self.cluster.advance(120.0)
            assert len(alive(Stubborn, *living)) == 1
            [ref] = self.children()
            assert self.top.find("child").result(5) == ref
            assert ref.ask("hi").result(5) == "hi"
        self.cluster.close()


MovingChildren.TestCase.settings = settings(
    max_examples=8, stateful_step_count=12, deadline=None
)
TestMovingChildren = MovingChildren.TestCase


def restart_times(seed):
    with contextlib.closing(Cluster(seed)) as cluster:
        [node] = cluster(1)
        times = []

        def note(event):
            if type(event).__name__ == "ActorRestarted":
                times.append(cluster.now)
                event.ref.tell("fail")

        with node.subscribed(note):
            node.supervise([Child(Patient, name="patient")], intensity=(6, 60.0))
            node.find("patient").result(5).tell("fail")
            cluster.advance(60.0)
        return times


def test_the_pauses_between_restarts_come_from_the_seed():
    assert len(restart_times(1)) == 6
    assert restart_times(1) == restart_times(1)
    assert restart_times(1) != restart_times(2)
