"""Members that have gone mad send carriers: they are told or dropped, and nobody else loses."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from callboard import Actor, Entity, Node, handler
from callboard.actors.future import Future
from callboard.basp.frame import pack_frame
from callboard.basp.header import (
    CARRIED,
    POSITION_MASK,
    POSITION_SHIFT,
    RESPONSE,
    Operation,
)
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.entity.messages import EntityMessages
from callboard.errors import RemoteError
from callboard.proxies.traffic.batches import CARRIED_HEAD, NO_DEADLINE
from callboard.simulation import Cluster
from tests.basp.wire import empty_lists

CODEC = PayloadCodec(DEFAULT_REGISTRY)


class Toy(Entity):
    name = "lying-carriers.Toy"

    @handler
    def on_text(self, text: str) -> str:
        return text


class Echo(Actor):
    @handler
    def on_number(self, number: int) -> int:
        return number


@pytest.fixture
def nodes() -> Iterator[tuple[Cluster, Node, Node, Node]]:
    """A host, a member that asks, and one that has gone mad."""
    with closing(Cluster(5)) as cluster:
        host, honest, mad = cluster(3, topology=[(1, 0), (2, 0)])
        host.host(Toy)
        for node in (honest, mad):
            assert node.entity(Toy, "k").ask("x").result(5) == "x"
        cluster.advance(1.0)
        yield cluster, host, honest, mad


def send(
    mad: Node, host: Node, payload: bytes, data: int, actor: int, *, count: int, said: int
) -> None:
    """Send a dispatch that takes `count` positions, and says that it takes others."""
    account = mad._routes.accounts.account(host.node_id)
    account.sent += count
    data |= (account.offset + account.sent - 1 & POSITION_MASK) << POSITION_SHIFT
    frame = pack_frame(
        Operation.DISPATCH_MESSAGE, data, mad.node_id, host.node_id, said, actor, payload
    )
    mad._routes.send_to(host.node_id, frame)


def carrier(
    items: list[tuple[int, bytes, bytes]], flags: int = 1, name: str = Toy.name
) -> EntityMessages:
    """Return what carries messages, each with an id, a key and a payload."""
    heads = b"".join(
        CARRIED_HEAD.pack(number, flags, 0, 0, NO_DEADLINE, len(key), len(body))
        for number, key, body in items
    )
    keys, bodies = (b"".join(item[part] for item in items) for part in (1, 2))
    return EntityMessages(name, heads, keys, bodies)


def is_served(honest: Node) -> bool:
    """Ask an entity in one turn as often as is carried; return whether it answers."""
    ref = honest.entity(Toy, "k")
    asked: list[Future[Any]] = []
    honest.runtime.post(lambda: asked.extend(ref.ask(str(n), timeout=3.0) for n in range(20)))
    ref.ask("last").result(5)
    return [one.result(1) for one in asked] == [str(number) for number in range(20)]


def arrived(host: Node, node: Node) -> int:
    epochs = host._broker.routes.accounts.arrivals[node.node_id].values()
    return sum(each.total for each in epochs)


@pytest.mark.parametrize("value", ["no carrier", "garbage"])
def test_a_large_answer_to_no_ask_is_garbage_and_what_is_behind_it_goes_on(
    nodes: tuple[Cluster, Node, Node, Node], value: str
) -> None:
    cluster, host, honest, mad = nodes
    wire, before = host._routes.wires[mad.node_id], arrived(host, mad)
    large = b"\x81" + empty_lists(100_000)

    ref = host.spawn(Echo)
    with pytest.MonkeyPatch.context() as patch:
        written: list[bytes] = []
        patch.setattr(mad._routes, "send_to", lambda _, frame: written.append(frame))
        payload = large if value == "no carrier" else large[:-1]
        send(mad, host, payload, RESPONSE, 0, count=3, said=3)
        send(mad, host, b"\x81\x01", 0, ref.actor_id, count=1, said=0)
    mad._routes.send_to(host.node_id, b"".join(written))
    cluster.advance(0.1)

    assert arrived(host, mad) == before + 4
    assert not wire.is_open
    large_ones = host._broker.incoming._large
    assert not large_ones._by_source
    assert not large_ones.octets_of(wire)
    assert is_served(honest)


def test_a_carrier_without_an_id_counts_as_all_that_it_says(
    nodes: tuple[Cluster, Node, Node, Node],
) -> None:
    cluster, host, honest, mad = nodes
    before = arrived(host, mad)

    payload = CODEC.encode(carrier([(n, b"k", b"\x81\x61x") for n in range(1, 8)]))
    send(mad, host, payload, 0, CARRIED, count=7, said=7)
    cluster.advance(0.1)

    assert arrived(host, mad) == before + 7
    assert not host._routes.wires.get(mad.node_id)
    assert is_served(honest)


def test_an_ask_without_an_id_is_refused_with_all_that_came_with_it(
    nodes: tuple[Cluster, Node, Node, Node],
) -> None:
    cluster, host, honest, mad = nodes
    payload = CODEC.encode(carrier([(0, b"k", b"\x81\x61x")]))
    future: Future[Any] = Future()
    outgoing = mad._broker.outgoing
    with outgoing.lock:
        number = outgoing.asks.add(future, host.node_id)
        send(mad, host, payload, number, CARRIED, count=1, said=1)
    cluster.advance(1.0)

    assert isinstance(future.exception(0), RemoteError)
    assert mad.node_id in host._routes.wires
    assert is_served(honest)
