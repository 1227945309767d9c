"""What goes together counts in the accounts as what it holds, at both ends."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard import Entity, Node, handler, message
from callboard.actors.future import Future
from callboard.basp.header import ENTITIES, SEQUENCE_COUNT
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import EntityMessages, MoveSlots
from callboard.errors import ActorDown, AskTimeout, RemoteError
from callboard.events import MessagesLost, NodeDown
from callboard.proxies.messages import CARRIERS
from callboard.proxies.traffic.batches import CARRIED_HEAD, NO_DEADLINE
from callboard.simulation import Cluster

CODEC = PayloadCodec(DEFAULT_REGISTRY)
SERVER = "postgresql://simulated/shop"


@message("carried-accounts.Take")
@dataclass(frozen=True)
class Take:
    number: int


class Shelf(Entity):
    name = "carried-accounts.Shelf"

    def __init__(self) -> None:
        self.numbers: list[int] = []

    @handler
    def on_take(self, msg: Take) -> int:
        self.numbers.append(msg.number)
        return msg.number

    @handler(read_only=True)
    def on_text(self, _: str) -> list[int]:
        return self.numbers


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(11)) as made:
        yield made


def pair(cluster: Cluster) -> tuple[Node, Node]:
    """A node that hosts shelves, and one that has asked one; all is confirmed."""
    host, asker = cluster(2, topology="mesh")
    host.host(Shelf)
    asker.entity(Shelf, "k-0").ask("all").result(5)
    rest(cluster, host, asker)
    return host, asker


def rest(cluster: Cluster, *nodes: Node) -> None:
    """Wait until nothing is in flight."""
    cluster.advance(0.5)
    cluster.run_until(lambda: not any(map(in_flight, nodes)), 10)


def in_flight(node: Node) -> int:
    return sum(each.in_flight for each in node.accounts().values())


def books(node: Node, other: Node) -> Counter[str]:
    """Return what was sent and what came of it, and what the other end counted."""
    account = node.accounts()[other.node_id]
    epochs = other._broker.routes.accounts.arrivals[node.node_id].values()
    arrived = sum(each.delivered + each.dead_letters for each in epochs)
    return Counter(
        sent=account.sent,
        confirmed=account.confirmed,
        dead_letters=account.dead_letters,
        lost=account.lost,
        arrived=arrived,
    )


def burst(node: Node, count: int, keys: int = 5, first: int = 0) -> list[Future[Any]]:
    """Ask shelves in one turn, and tell them as often."""
    refs = [node.entity(Shelf, f"k-{key}") for key in range(keys)]
    asked: list[Future[Any]] = []

    def send() -> None:
        for number in range(first, first + count):
            ref = refs[number % keys]
            ref.tell(Take(-number))
            asked.append(ref.ask(Take(number), timeout=30.0))

    node.runtime.post(send)
    return asked


@pytest.mark.parametrize("together", [True, False])
def test_both_ends_count_each_message_and_each_answer(cluster: Cluster, together: bool) -> None:
    host, asker = pair(cluster)
    if not together:
        asker._routes.abilities[host.node_id] -= {CARRIERS}
    before = books(asker, host), books(host, asker)
    frames = asker._routes.wires[host.node_id].frames_sent

    asked = burst(asker, 40)
    rest(cluster, host, asker)

    assert [one.result(0) for one in asked] == list(range(40))
    assert (asker._routes.wires[host.node_id].frames_sent - frames < 20) is together
    for one, other, was in ((asker, host, before[0]), (host, asker, before[1])):
        assert books(one, other) - was == Counter(sent=80, confirmed=80, arrived=80)


def test_an_epoch_that_is_full_ends_between_messages_of_one_turn(cluster: Cluster) -> None:
    host, asker = pair(cluster)
    before = []
    for one, other in ((asker, host), (host, asker)):
        account = one._routes.accounts.account(other.node_id)
        start = SEQUENCE_COUNT - 7
        account._base, account.offset = account.sent - start, start - account.sent
        order = other._broker.incoming._orders[one.node_id]
        order._position = order.expected = start
        before.append(books(one, other))

    asked = burst(asker, 40)
    cluster.advance(0.1)

    assert [one.result(0) for one in asked] == list(range(40))
    kept = [asker.entity(Shelf, f"k-{key}").ask("all").result(5) for key in range(5)]
    assert [number for shelf in kept for number in shelf] == [
        number for key in range(5) for n in range(key, 40, 5) for number in (-n, n)
    ]
    for one, other, was in ((asker, host, before[0]), (host, asker, before[1])):
        now = books(one, other) - was
        assert now["sent"] == now["arrived"] == 80 + 5
        assert one._routes.accounts.account(other.node_id).epoch == 1


def send_together(
    asker: Node, host: Node, items: list[tuple[str, bytes, int]], name: str = Shelf.name
) -> list[Future[Any]]:
    """Send asks, each with a key, a payload and the milliseconds left."""
    outgoing, futures = asker._broker.outgoing, [Future[Any]() for _ in items]
    proxy: Any = asker.runtime.ref_of(host.node_id, ENTITIES)
    with outgoing.lock:
        heads = b"".join(
            CARRIED_HEAD.pack(
                *(outgoing.asks.add(future, host.node_id), 1, 0, 0, left),
                *(len(key), len(body)),
            )
            for future, (key, body, left) in zip(futures, items, strict=True)
        )
        keys = "".join(key for key, _, _ in items).encode()
        carrier = EntityMessages(name, heads, keys, b"".join(body for _, body, _ in items))
        ids = [future.message_id for future in futures]
        outgoing.batches.send_asks(proxy.target, carrier, ids)
    return futures


TAKE = CODEC.encode(Take(1))


def test_those_of_a_carrier_that_are_dead_letters_count_as_such(cluster: Cluster) -> None:
    host, asker = pair(cluster)
    before = books(asker, host)
    items = [("k", TAKE, NO_DEADLINE), ("k", TAKE, 0), ("k", b"\xff", 9), ("", TAKE, 9)]

    asked = send_together(asker, host, [*items, items[0]])
    rest(cluster, host, asker)

    errors = [type(one.exception(0)) for one in asked]
    assert errors[1:3] == [AskTimeout, RemoteError]
    assert errors[0] is errors[4] is type(None)
    found = books(asker, host) - before
    assert found == Counter(sent=5, confirmed=5, dead_letters=2, arrived=5)


@pytest.mark.parametrize("why", ["a bad name", "garbage", "another number", "no entities"])
def test_a_carrier_that_is_refused_as_a_whole_counts_as_all_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    host, asker = pair(cluster)
    before, letters = books(asker, host), host.stats().dead_letters
    if why == "no entities":
        host.runtime.contexts.pop(ENTITIES)
    elif why == "another number":
        monkeypatch.setattr(EntityMessages, "each", lambda _: [])
    elif why == "garbage":
        strange = CODEC.encode(EntityMessages(Shelf.name, b"", b"", b""))
        strange = strange.replace(b"EntityMessages", b"EntityMassages")
        monkeypatch.setattr(asker._broker.outgoing.batches, "encode", lambda _: strange)

    name = "a/b" if why == "a bad name" else Shelf.name
    asked = send_together(asker, host, [("k", TAKE, 1000)] * 6, name)
    cluster.advance(0.05)
    monkeypatch.undo()
    cluster.advance(2.0)

    assert all(one.exception(0) is not None for one in asked)
    found = books(asker, host) - before
    assert (found["sent"], found["confirmed"], found["arrived"]) == (6, 6, 6)
    is_dead = why in ("no entities", "garbage")
    assert found["dead_letters"] == host.stats().dead_letters - letters == 6 * is_dead
    if why == "no entities":
        assert isinstance(asked[0].exception(0), ActorDown)


def lost_in(event: object) -> int:
    """Return how many messages an event reports as lost."""
    if isinstance(event, NodeDown):
        return event.lost
    return event.count if isinstance(event, MessagesLost) else 0


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 60), st.floats(0.0, 0.4))
def test_no_unanswered_ask_of_a_killed_node_is_left_out_of_what_is_lost(
    seed: int, count: int, until: float
) -> None:
    bursts: list[list[Future[Any]]] = []
    told: list[int] = []
    with closing(Cluster(seed)) as cluster:
        host, asker = pair(cluster)
        before = asker.accounts()[host.node_id]
        with asker.subscribed(lambda event: told.append(lost_in(event))):
            for number in range(8):
                first = number * count
                cluster.clock.plan(
                    number * 0.05,
                    lambda first=first: bursts.append(burst(asker, count, 3, first)),
                )
            cluster.advance(until)
            cluster.crash(host)
            cluster.advance(15.0)

        asked = [one for each in bursts for one in each]
        account = asker.accounts()[host.node_id]
        answered = sum(one.done() and one.exception(0) is None for one in asked)
        assert account.sent - before.sent == 2 * len(asked)
        assert account.confirmed - before.confirmed <= 2 * answered
        assert account.lost == sum(told) >= len(asked) - answered
        assert (account.in_flight, before.lost) == (0, 0)


@pytest.mark.slow
def test_what_moves_to_another_owner_is_counted_at_both(cluster: Cluster) -> None:
    one, other, asker = cluster(3, topology="mesh")
    for node in (one, other):
        node.host(Shelf, leases=SERVER)
    asker.entity(Shelf, "k-0").ask("all").result(5)
    bursts: list[list[Future[Any]]] = []
    for number in range(30):
        cluster.clock.plan(
            number * 0.02,
            lambda first=number * 40: bursts.append(burst(asker, 40, 10, first)),
        )
    for number in range(6):
        target = (one, other)[number % 2].node_id.hex()
        order = MoveSlots(Shelf.name, [slot_of(f"k-{key}") for key in range(10)], target)
        ref = asker.runtime.ref_of(one.node_id, ENTITIES)
        cluster.clock.plan(0.05 + number * 0.1, ref.tell, order)
    cluster.advance(5.0)
    rest(cluster, one, other, asker)

    asked = [each.result(0) for one in bursts for each in one]
    assert asked == list(range(1200))
    for node in (one, other):
        account = books(asker, node)
        assert account["sent"] == account["confirmed"] == account["arrived"]
        assert account["lost"] == account["dead_letters"] == 0
        back = books(node, asker)
        assert back["sent"] == back["confirmed"] == back["arrived"]
    assert sum(books(asker, node)["sent"] for node in (one, other)) > 2400
