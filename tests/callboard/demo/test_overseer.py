import pytest

from callboard import ActorRef, Node
from callboard.demo.aggregator import Aggregator, TakeSnapshot
from callboard.demo.overseer import Overseer, Reconsider, choose_hosts
from callboard.demo.sensor import Rest, Sample, Sensor
from callboard.topics.hub import Hub


@pytest.mark.parametrize(
    ("in_reach", "is_patient", "hosts"),
    [
        ({"B", "C", "D"}, True, ("C",)),
        ({"B"}, True, ()),  # the first choice may still come
        ({"B", "C", "D"}, False, ("C", "B")),
        ({"B"}, False, ("B",)),
        ({"D"}, False, ()),
        (set(), False, ()),
    ],
)
def test_hosts_are_tried_in_the_order_of_preference(in_reach, is_patient, hosts):
    assert choose_hosts(in_reach, is_patient=is_patient) == hosts


class Notes:
    """Collects what actors note."""

    def __init__(self, node):
        self.kinds = []
        self.node = node

    def __call__(self, kind, **fields):
        self.kinds.append(kind)


def find_aggregator(node):
    return next(
        cell.ref
        for cell in node.runtime.contexts.values()
        if isinstance(cell.actor, Aggregator)
    )


def read_until(aggregator: ActorRef[Aggregator], handled: int) -> dict:
    """Ask until the aggregator handled so many; the test's own time limit ends it otherwise."""
    while True:
        snapshot = aggregator.ask(TakeSnapshot()).result(5)
        if snapshot["handled"] >= handled:
            return snapshot


@pytest.mark.slow
@pytest.mark.timeout(20)
def test_a_lone_overseer_serves_itself_and_replaces_an_aggregator_that_ended():
    with Node(name="A") as node:
        note, hub, kept = Notes(node), Hub.of(node), []
        sensor = node.spawn(
            Sensor,
            "A.cpu",
            lambda: Sample(1.0, {"x": 1.0}),
            hub.publish,
            lambda *reading: kept.append(reading),
            note,
            is_followed=True,
        )
        overseer = node.spawn(Overseer, note, {"A.cpu": sensor}, {})
        overseer.ask(Reconsider()).result(5)
        first = find_aggregator(node)
        assert read_until(first, 12)["sensors"]["A.cpu"]["missed"] == 0

        down = node.monitor(first)
        first.kill()
        down.result(5)
        overseer.ask(Reconsider()).result(5)  # behind the Down
        second = find_aggregator(node)

        assert second != first
        assert read_until(second, 2)["sensors"]["A.cpu"]["missed"] == 0
        assert note.kinds.count("spawned") == 2
        assert "aggregator_down" in note.kinds
        assert "answered" in note.kinds
        assert set(kept) == {("A.cpu", 1.0)}


@pytest.mark.timeout(20)
def test_an_aggregator_ends_when_its_overseer_is_gone():
    with Node(name="A") as node:
        overseer = node.spawn(Overseer, Notes(node), {}, {})
        overseer.ask(Reconsider()).result(5)
        down = node.monitor(find_aggregator(node))

        overseer.kill()

        assert down.result(5).reason == "normal"


@pytest.mark.timeout(20)
def test_who_rests_heals_nothing_more():
    with Node(name="A") as node:
        note = Notes(node)
        overseer = node.spawn(Overseer, note, {}, {})
        overseer.ask(Rest()).result(5)

        overseer.ask(Reconsider()).result(5)

        assert note.kinds == []
