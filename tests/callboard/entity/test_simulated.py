"""Entities on simulated nodes: what becomes of them when an owner or the database fails."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from callboard import Entity, Node, event, handler, message
from callboard.basp.header import ENTITIES
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import MoveSlots
from callboard.errors import CallboardError, EntityUnavailable, OutcomeUnknown
from callboard.simulation import Cluster

FILE, SERVER = "sqlite:simulated.db", "postgresql://simulated/shop"


@message("simulated-entities.Add")
@dataclass(frozen=True)
class Add:
    amount: int
    wait: float = 0.0


class Account(Entity):
    name = "simulated-entities.Account"

    def __init__(self) -> None:
        self.total = 0

    @handler
    async def on_add(self, msg: Add) -> int:
        self.persist(msg)
        if msg.wait:
            await self.sleep(msg.wait)
        return self.total

    @event
    def on_added(self, event: Add) -> None:
        self.total += event.amount

    @handler(read_only=True)
    def on_text(self, msg: str) -> int:
        return self.total


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(7)) as made:
        yield made


def hosts(cluster: Cluster, url: str) -> tuple[Node, Node, Node]:
    """Three nodes of which two host accounts; the third only asks."""
    one, other, asker = cluster(3, topology="mesh")
    for node in (one, other):
        node.host(Account, state=url)
    return one, other, asker


def keys_of(asker: Node, owner: Node, count: int = 3) -> list[str]:
    """Keys that a node owns, each asked once."""
    keys = [f"k-{number}" for number in range(100)]
    asker.entity(Account, keys[0]).ask("total").result(5)
    return [key for key in keys if asker.entity(Account, key).node_id == owner.node_id][:count]


def answered_within(cluster: Cluster, asker: Node, keys: list[str], limit: float) -> float:
    """Ask keys again and again until each has answered; returns the virtual seconds."""
    begun = cluster.now
    for key in keys:
        while True:
            assert cluster.now - begun < limit, f"no answer of {key} within {limit} s"
            try:
                assert asker.entity(Account, key).ask("total").result(limit) == 1
            except CallboardError:
                cluster.advance(0.01)
            else:
                break
    return cluster.now - begun


def lost(cluster: Cluster, url: str, how: str) -> float:
    """Lose an owner in some way; returns after how long its entities answer again."""
    one, _, asker = hosts(cluster, url)
    keys = keys_of(asker, one)
    for key in keys:
        assert asker.entity(Account, key).ask(Add(1)).result(5) == 1
    if how == "partition":
        for node in cluster.nodes:
            if node is not one:
                cluster.partition(one, node)
        cluster.database(url).cut(one.runner)  # type: ignore[arg-type]
    else:
        getattr(cluster, how)(one)
    seconds = answered_within(cluster, asker, keys, 8.0)
    if how == "partition":
        with pytest.raises(CallboardError):
            one.entity(Account, keys[0]).ask("total").result(1)
    return seconds


def test_a_killed_process_of_the_machine_is_replaced_by_proof(cluster: Cluster) -> None:
    assert lost(cluster, FILE, "kill") < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "crash", "pause", "partition"])
@pytest.mark.parametrize("url", [FILE, SERVER])
def test_what_is_silent_is_replaced(cluster: Cluster, url: str, how: str) -> None:
    assert lost(cluster, url, how) < 5.0


def test_an_owner_that_slept_writes_and_shows_nothing_of_before(cluster: Cluster) -> None:
    one, _, asker = hosts(cluster, SERVER)
    key = keys_of(asker, one)[0]
    account = asker.entity(Account, key)
    assert account.ask(Add(1)).result(5) == 1
    cluster.pause(one)
    late = account.ask(Add(10), timeout=20.0)
    answered_within(cluster, asker, [key], 8.0)
    cluster.resume(one)
    early = one.entity(Account, key).ask(Add(100))
    cluster.advance(20.0)
    total = one.entity(Account, key).ask(Add(1000)).result(20)
    stored = cluster.database(SERVER).tables.events[Account.name, key]
    amounts = [json.loads(each.body)["amount"] for each in stored]
    # What it had not begun it sends to the new owner, if it hears of that one first.
    assert total == sum(amounts)
    assert (amounts[0], amounts[-1]) == (1, 1000)
    assert set(amounts) <= {1, 10, 100, 1000}
    assert len(set(amounts)) == len(amounts)
    assert isinstance(early.exception(), EntityUnavailable) == (100 not in amounts)
    assert isinstance(late.exception(), OutcomeUnknown)


def test_a_database_that_is_away_costs_no_answer(cluster: Cluster) -> None:
    one, _, asker = hosts(cluster, SERVER)
    key = keys_of(asker, one)[0]
    account = asker.entity(Account, key)
    assert account.ask(Add(1)).result(5) == 1
    database = cluster.database(SERVER)
    database.down()
    with pytest.raises(CallboardError):
        account.ask(Add(2)).result(10)
    cluster.advance(10.0)
    database.up()
    assert answered_within(cluster, asker, [key], 3.0) < 1.0
    assert one.entity(Account, key).ask(Add(1)).result(5) == 2


def test_a_node_that_starts_again_takes_its_share(cluster: Cluster) -> None:
    one, other, asker = hosts(cluster, FILE)
    keys = keys_of(asker, one)
    cluster.kill(one)
    again = cluster.restart(one)
    for node in (other, asker):
        again.connect(node.address)
    again.host(Account, state=FILE)
    cluster.advance(5.0)
    assert {asker.entity(Account, f"k-{n}").node_id for n in range(100)} == {
        again.node_id,
        other.node_id,
    }
    assert [asker.entity(Account, key).ask(Add(1)).result(5) for key in keys] == [1] * 3


def told(seed: int) -> list[str]:
    """Lose an owner, and return all that happened."""
    with closing(Cluster(seed)) as made:
        lost(made, SERVER, "pause")
        return made.trace.lines()


def test_mail_of_an_activation_that_ends_while_it_commits_goes_to_the_next(
    cluster: Cluster,
) -> None:
    one, _, _ = hosts(cluster, FILE)
    cluster.advance(1.0)  # the slots have found their owners
    key = next(key for key in map(str, range(100)) if one.entity(Account, key).is_local)
    account = one.entity(Account, key)
    assert account.ask("total").result(5) == 0
    cluster.database(FILE).latency = 0.1
    asked = [account.ask(Add(1)), account.ask(Add(1, wait=1.0))]
    cluster.advance(0.06)
    cell = one._entities._hosts[Account.name].cells[key]
    assert not cell.is_clean
    cell.kill()
    asked += [account.ask(Add(1)) for _ in range(3)]
    cluster.advance(5.0)

    assert asked[0].result(0) == 1
    with pytest.raises(OutcomeUnknown, match="stopped while it handled"):
        asked[1].result(0)
    assert [each.result(0) for each in asked[2:]] == [3, 4, 5]


def test_a_handler_that_fails_behind_what_it_stored_does_not_say_nothing_happened(
    cluster: Cluster,
) -> None:
    one, _, asker = hosts(cluster, SERVER)
    (key,) = keys_of(asker, one, 1)
    asked = asker.entity(Account, key).ask(Add(1, wait=0.3))
    cluster.advance(0.2)
    cluster.database(SERVER).down()
    cluster.advance(0.3)
    cluster.database(SERVER).up()

    with pytest.raises(OutcomeUnknown, match="part of what its handler persisted is stored"):
        asked.result(0)
    assert asker.entity(Account, key).ask("total").result(5) == 1


def test_a_commit_whose_answer_breaks_off_on_its_way_is_asked_for(cluster: Cluster) -> None:
    one, _, asker = hosts(cluster, SERVER)
    (key,) = keys_of(asker, one, 1)
    database = cluster.database(SERVER)
    database.latency = 0.1
    asked = asker.entity(Account, key).ask(Add(1))
    while not database.tables.events:
        cluster.advance(0.01)
    database.cut(one.runner)  # type: ignore[arg-type]
    cluster.advance(0.3)
    database.mend(one.runner)  # type: ignore[arg-type]

    assert asked.result(5) == 1


def test_a_marker_that_was_lost_on_its_way_is_sent_again(cluster: Cluster) -> None:
    one, other, asker = hosts(cluster, SERVER)
    (key,) = keys_of(asker, one, 1)
    asker.entity(Account, key).ask(Add(1)).result(5)
    cluster.partition(asker, one, both=False)
    order = MoveSlots(Account.name, [slot_of(key)], other.node_id.hex())
    asker.runtime.ref_of(other.node_id, ENTITIES).ask(order).result(5)
    while asker.entity(Account, key).node_id != other.node_id:
        cluster.advance(0.1)
    asker.entity(Account, key).tell(Add(0))  # behind a marker to the former owner
    cluster.advance(3.5)  # the link is silent, and ends with all that it had
    cluster.mend(asker, one)

    assert answered_within(cluster, asker, [key], 2.0) < 2.0


def test_a_seed_gives_the_same_run() -> None:
    assert told(3) == told(3)
