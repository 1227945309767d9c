"""What a node tells about itself over the wire."""

import pytest

from callboard import Actor, Mailbox, handler
from callboard.actors.errors import ActorDown
from callboard.basp.header import INSPECTOR
from callboard.proxies.inspection import DrainNode, Inspect
from callboard.support.inspection_tables import key_of
from tests.proxies.cast import Echo, Later, Sink, connect, eventually


class Forwarder(Actor):
    """Sends what it receives on to another actor."""

    def __init__(self, receiver) -> None:
        self.receiver = receiver

    @handler
    def forward(self, msg: str) -> None:
        self.receiver.tell(msg)


class Waiting(Actor):
    @handler
    async def seconds(self, msg: float) -> None:
        await self.sleep(msg)


@pytest.fixture
def inspected(cluster):
    a, b = cluster(2)
    inspector = a.runtime.ref_of(b.node_id, INSPECTOR)

    def inspect(**question):
        return inspector.ask(Inspect(**question)).result(5)

    return a, b, inspect


def test_actors_are_told_with_class_name_depth_handled_and_age(cluster, inspected):
    a, b, inspect = inspected
    echo, waiting = b.spawn(Echo), b.spawn(Waiting)
    b.register("echo", echo)
    for _ in range(3):
        echo.tell("x")
    for _ in range(4):
        waiting.tell(60.0)
    cluster.advance(2.0)

    told = inspect()

    assert (told.name, told.actor_count, told.links, told.nodes) == ("b", 2, 1, 1)
    first, second = told.actors
    assert (first.actor_class, first.state, first.depth, first.handled) == (
        "Waiting",
        "awaiting",
        3,
        1,
    )
    assert (second.actor_class, second.name, second.state) == ("Echo", "echo", "idle")
    assert (second.depth, second.handled) == (0, 3)
    assert 2.0 <= second.age < 2.1
    assert a.ref(second.address) == echo
    assert told.uptime >= told.actors[1].age


def test_losses_and_what_waits_are_told(cluster, inspected):
    _, b, inspect = inspected
    small = b.spawn(Waiting.with_options(mailbox=Mailbox(limit=2, on_full="drop_newest")))
    small.tell(60.0)
    cluster.advance(0.1)
    for _ in range(5):
        small.tell(0.0)
    late = b.spawn(Waiting)
    late.tell(1.0)
    late.ask(0.0, timeout=0.5)
    cluster.advance(2.0)

    told = inspect()

    assert (told.overflows, told.expired, told.waiting) == (3, 1, 2)
    assert (told.slow_handlers, told.handler_seconds) == (0, {})


def test_a_loss_names_the_class_of_the_actor_that_sent_the_message(cluster, inspected):
    _, b, inspect = inspected
    ended = b.spawn(Echo)
    ended.kill()
    cluster.advance(0.1)

    b.spawn(Forwarder, ended).tell("from an actor")
    ended.tell("from the program")
    cluster.advance(0.1)

    losses = inspect(history=True).losses
    assert sorted((row.actor_class, row.end, row.sender, row.count) for row in losses) == [
        ("Echo", "killed", "", 1),
        ("Echo", "killed", "Forwarder", 1),
    ]


def test_the_nodes_own_parts_are_told_only_when_asked_for(inspected):
    a, b, inspect = inspected
    kept = b.ref(str(a.spawn(Echo)))

    assert inspect().actors == []
    parts = {row.actor_class for row in inspect(system=True).actors}
    assert {"SpawnServer", "Directory", "Inspector", "Broker", "Proxy"} <= parts
    assert kept.node_id == a.node_id


def test_links_and_routes_are_told_with_the_nodes_own_parts(cluster):
    a, b, c = cluster(3, topology="line")
    inspector = a.runtime.ref_of(b.node_id, INSPECTOR)

    told = inspector.ask(Inspect(system=True)).result(5)

    assert {link.peer for link in told.neighbours} == {a.node_id, c.node_id}
    assert {(route.node_id, route.hops, route.via) for route in told.routes} == {
        (a.node_id, 1, a.node_id),
        (c.node_id, 1, c.node_id),
    }
    assert inspector.ask(Inspect()).result(5).routes == []


def test_the_busiest_come_first_where_not_all_are_told(inspected):
    _, b, inspect = inspected
    quiet = [b.spawn(Sink) for _ in range(5)]
    busy = b.spawn(Echo)
    busy.tell("x")

    told = inspect(limit=1)

    assert [row.actor_class for row in told.actors] == ["Echo"]
    assert told.actor_count == len(quiet) + 1


def test_a_node_can_be_drained_from_elsewhere(make_node):
    a, b = make_node(), make_node()
    connect(a, b)
    later = b.spawn(Later)
    answer = a.ref(str(later)).ask("x")

    report = a.runtime.ref_of(b.node_id, INSPECTOR).ask(DrainNode(0.5)).result(10)

    assert report.left == 1
    with pytest.raises(ActorDown):
        answer.result(10)
    eventually(lambda: a.nodes() == [])
    assert b.runtime.is_closed


def test_the_keys_of_rows_are_what_the_actors_are_sorted_by(inspected):
    _, b, inspect = inspected
    for name in ("z", "a"):
        b.register(name, b.spawn(Echo))

    by_name = inspect(sort="name", rising=True, keys=True)
    by_depth = inspect(sort="depth", keys=True)

    assert [actor.name for actor in by_name.actors] == ["a", "z"]
    assert by_name.keys == [key_of("a"), key_of("z")]
    assert by_depth.keys == [key_of(0), key_of(0)]
