"""Supervisors on nodes: names of incarnations, children on other nodes, chance by seed."""

import contextlib

from callboard import Actor, Child, Restarted, Supervisor, handler
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
