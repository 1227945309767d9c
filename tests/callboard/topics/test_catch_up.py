"""Values that are published while news of their receivers are still under way."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard import Node
from callboard.simulation import Cluster
from callboard.simulation.cluster import PORT
from callboard.topics.hub import Hub, HubOptions
from callboard.topics.machine import catch_up
from callboard.topics.machine.catch_up import CatchUp
from callboard.topics.machine.core import Core
from callboard.topics.machine.effect import Item

SETTLED = 15.0
"""Virtual seconds after which all that is under way has arrived."""


class Taker:
    def __init__(self) -> None:
        self.got: list[Item] = []

    def take(self, items: list[Item]) -> None:
        self.got += items

    @property
    def values(self) -> list[Any]:
        return [value for _, value in self.got]


class Endpoints:
    """Endpoints on simulated nodes without links; some subscribe to /t."""

    def __init__(
        self,
        cluster: Cluster,
        count: int,
        subscribed: Sequence[int],
        options: HubOptions | None = None,
    ) -> None:
        self.cluster = cluster
        self.nodes: list[Node] = cluster(count, topology="none")
        self.hubs = [Hub.of(node, options) for node in self.nodes]
        self.takers = {index: Taker() for index in subscribed}
        for index, taker in self.takers.items():
            self.hubs[index].add_receiver(taker, ["/t"]).result(5)

    def peer(self, dialer: int, listener: int) -> None:
        host = self.nodes[listener].address.rpartition("//")[2].rpartition(":")[0]
        assert self.hubs[dialer].peerings.peer((host, PORT), 0).result(30)

    def publish(self, index: int, *values: Any) -> None:
        for value in values:
            self.hubs[index].publish("/t/x", value)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Any:
    made = Cluster(getattr(request, "param", 1))
    yield made
    made.close()


def chain(ends: Endpoints) -> None:
    for dialer, listener in pairwise(range(len(ends.nodes))):
        ends.peer(dialer, listener)


@pytest.mark.parametrize("cluster", range(4), indirect=True)
@pytest.mark.parametrize("subscribed", [(0, 1, 2, 3, 4), (0, 4)])
def test_a_value_reaches_the_other_end_of_a_chain_when_it_is_published_after_the_last_peering(
    cluster: Cluster, subscribed: tuple[int, ...]
) -> None:
    ends = Endpoints(cluster, 5, subscribed)
    chain(ends)

    ends.publish(0, *range(100))
    ends.publish(4, *range(100, 200))
    cluster.advance(SETTLED)

    for index, taker in ends.takers.items():
        first = [] if index == 0 else [*range(100)]
        last = [] if index == 4 else [*range(100, 200)]
        assert sorted(taker.values) == first + last
        assert [value for value in taker.values if value < 100] == first


def test_a_value_reaches_each_endpoint_of_a_ring_once(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 6, range(6))
    chain(ends)
    ends.peer(5, 0)

    for index in range(6):
        ends.publish(index, index)
    cluster.advance(SETTLED)

    for index, taker in ends.takers.items():
        assert sorted(taker.values) == [other for other in range(6) if other != index]


def test_a_value_that_is_published_before_a_peering_does_not_cross_it(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 3, (1, 2))
    ends.peer(0, 1)
    ends.publish(0, "before")
    cluster.run_until(lambda: ends.takers[1].values == ["before"], 5.0)
    ends.peer(1, 2)
    ends.publish(0, "after")
    cluster.advance(SETTLED)

    assert ends.takers[1].values == ["before", "after"]
    assert ends.takers[2].values == ["after"]


def test_a_value_that_is_published_before_its_receiver_subscribed_does_not_arrive(
    cluster: Cluster,
) -> None:
    ends = Endpoints(cluster, 2, ())
    ends.peer(0, 1)
    ends.publish(0, "before")
    cluster.advance(0.001)
    taker = Taker()
    ends.hubs[1].add_receiver(taker, ["/t"]).result(5)
    ends.publish(0, "after")
    cluster.advance(SETTLED)

    assert taker.values == ["after"]


def test_values_after_the_first_contact_wait_behind_late_ones(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 4, (3,))
    chain(ends)
    for value in range(200):
        ends.publish(0, value)
        cluster.advance(0.0002)
    cluster.advance(SETTLED)

    assert ends.takers[3].values == [*range(200)]


def test_directed_values_keep_their_order_with_late_ones(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 4, (3,))
    chain(ends)
    target = ends.nodes[3].node_id
    ends.publish(0, 0)
    cluster.run_until(lambda: bool(ends.hubs[0].core.catch_up.pending), 5.0)
    ends.hubs[0].publishing.send_to(target, [("/t", 1)])
    ends.publish(0, 2)
    cluster.advance(SETTLED)

    assert ends.takers[3].values == [0, 1, 2]


def test_receivers_are_told_when_nothing_waits_for_them(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 4, (3,))
    chain(ends)
    ends.publish(0, 0)
    cluster.run_until(lambda: bool(ends.hubs[0].core.catch_up.pending), 5.0)

    assert ends.hubs[0].receivers_of("/t").result(10) == (ends.nodes[3].node_id,)
    assert not ends.hubs[0].core.catch_up.pending


def old_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes answer pings as releases did that know no ages."""
    monkeypatch.setattr(Core, "_answer", lambda _self, _asker, _topic, content, _now: content)


def test_nodes_that_know_no_ages_get_what_is_published_from_the_first_contact_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_answers(monkeypatch)
    ends = Endpoints(cluster, 4, (3,))
    chain(ends)
    core = ends.hubs[0].core
    ends.publish(0, "early")
    cluster.run_until(lambda: core.node_of(ends.hubs[3].endpoint_id) is not None, 5.0)
    ends.publish(0, 1, 2)
    cluster.advance(0.1)

    assert ends.takers[3].values == [1, 2]


def test_nodes_on_the_way_need_no_endpoint(cluster: Cluster) -> None:
    west, middle, east = cluster(3, topology="none")
    hub, taker = Hub.of(west), Taker()
    Hub.of(east).add_receiver(taker, ["/t"]).result(5)
    west.connect(middle.address)
    cluster.run_until(lambda: len(west.links()) == 1, 5.0)
    hub.publish("/t", "before")
    cluster.advance(0.01)
    middle.connect(east.address)
    cluster.run_until(lambda: len(east.links()) == 1, 5.0)
    hub.publish("/t", "after")
    cluster.advance(SETTLED)

    assert taker.values == ["after"]


def test_an_endpoint_behind_one_that_does_not_forward_gets_nothing(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 3, (1, 2), HubOptions(forwards=False))
    chain(ends)
    ends.publish(0, 1)
    cluster.advance(SETTLED)

    assert (ends.takers[1].values, ends.takers[2].values) == ([1], [])


def test_a_value_crosses_no_more_links_than_its_ttl_when_it_is_late(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 4, (1, 2, 3), HubOptions(ttl=2))
    chain(ends)
    ends.publish(0, 1)
    cluster.advance(SETTLED)

    assert [taker.values for taker in ends.takers.values()] == [[1], [1], []]


def test_an_endpoint_that_is_found_again_gets_no_value_twice(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 3, (2,))
    chain(ends)
    for value in range(60):
        ends.publish(0, value)
        if value == 20:
            cluster.partition(ends.nodes[1], ends.nodes[2])
        if value == 40:
            cluster.mend(ends.nodes[1], ends.nodes[2])
            cluster.link(ends.nodes[1], ends.nodes[2])
        cluster.advance(0.5)
    cluster.advance(SETTLED)

    values = ends.takers[2].values
    assert values == sorted(set(values))
    assert {*range(10), *range(50, 60)} <= {*values}


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_who_is_subscribed_and_in_reach_gets_a_value_once_and_nobody_else(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster(seed)
    try:
        count = chance.randint(2, 7)
        ends = Endpoints(cluster, count, [i for i in range(count) if chance.random() < 0.6])
        links = [(chance.randrange(index), index) for index in range(1, count)]
        links += [tuple(chance.sample(range(count), 2)) for _ in range(chance.randint(0, 2))]  # type: ignore[misc]
        chance.shuffle(links)
        parts = {index: {index} for index in range(count)}
        due: dict[int, list[tuple[int, int]]] = {index: [] for index in ends.takers}
        number = 0
        for link in [None, *links]:
            if link is not None:
                dialer, listener = chance.sample(link, 2)
                ends.peer(dialer, listener)
                whole = parts[dialer] | parts[listener]
                parts.update(dict.fromkeys(whole, whole))
            for source in chance.sample(range(count), chance.randint(0, count)):
                for _ in range(chance.choice((1, 1, 30))):
                    number += 1
                    ends.publish(source, [source, number])
                    for index in parts[source] & due.keys() - {source}:
                        due[index].append((source, number))
            cluster.advance(chance.choice((0.0, 0.00001, 0.001, 1.0)))
        cluster.advance(SETTLED)
        for index, taker in ends.takers.items():
            for source in range(count):
                got = [value for value in taker.values if value[0] == source]
                assert got == [value for value in due[index] if value[0] == source]
    finally:
        cluster.close()


# --- the machine ---


def test_what_is_kept_is_bounded_in_messages_bytes_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (catch_up.KEEP_MESSAGES, catch_up.KEEP_BYTES, catch_up.KEEP_SECONDS) == (
        32_768,
        4 * 1024 * 1024,
        10.0,
    )
    monkeypatch.setattr(catch_up, "KEEP_MESSAGES", 16)
    monkeypatch.setattr(catch_up, "KEEP_BYTES", 160)
    recent = CatchUp()
    for number in range(60):
        recent.keep(0.0, "/t", b"1", 1, 1, 16)
        assert min(number + 1, 14) <= len(recent._recent) <= 16
        assert recent._recent[-1][0] == 0.0
    recent.keep(0.5, "/t", b"1" * 155, 1, 155, 16)
    assert len(recent._recent) == 0
    recent.keep(1.0, "/t", b"1" * 100, 1, 100, 16)
    recent.keep(2.0, "/t", [b"1"] * 20, 9, 20, 16)
    recent.tick(11.0)
    assert len(recent._recent) == 2
    recent.tick(11.1)
    assert len(recent._recent) == 1
    recent.tick(12.1)
    assert recent.next_number == 63
    assert (recent._messages, recent._bytes, len(recent._recent)) == (0, 0, 0)


def test_without_any_link_nothing_is_kept(cluster: Cluster) -> None:
    ends = Endpoints(cluster, 2, (1,))
    core = ends.hubs[0].core
    ends.publish(0, 1)
    cluster.advance(0.1)
    assert not core.catch_up._recent
    ends.peer(0, 1)
    ends.publish(0, 2)
    cluster.advance(0.1)
    assert len(core.catch_up._recent) == 1
    ends.nodes[1].close()
    cluster.advance(30.0)
    assert not core.catch_up._recent
    assert ends.takers[1].values == [2]


def test_a_receiver_for_which_too_much_waits_gets_it_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "HELD_BYTES", 1000)
    ends = Endpoints(cluster, 4, (3,))
    chain(ends)
    ends.publish(0, "early")
    catching_up = ends.hubs[0].core.catch_up
    cluster.run_until(lambda: bool(catching_up.pending), 5.0)
    for value in range(100):
        ends.publish(0, value)
        cluster.advance(0.0)
        assert all(pending.size <= 1100 for pending in catching_up.pending.values())
    cluster.advance(SETTLED)

    assert [value for value in ends.takers[3].values if value != "early"] == [*range(100)]
