"""The model database: who waits for whom, and what its faults do."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from callboard.entity.state.interface import Committed, EntityState, Fence
from callboard.lease.errors import (
    DatabaseReplaced,
    OutcomeUnknown,
    StateBusy,
    StateUnavailable,
)
from callboard.lease.leases import Leases, LeaseValue
from callboard.simulation.clock import Clock
from callboard.simulation.cluster import Cluster
from callboard.simulation.databases.model_database import ModelDatabase
from callboard.simulation.runner import runner_of
from tests.callboard.entity.state.stores import BlockingModel, batch, run_until


def pair(url: str) -> tuple[ModelDatabase, BlockingModel, BlockingModel]:
    """Two writers; the first one has slots 1 and 2."""
    model = ModelDatabase(url, Clock(), random.Random(1))
    one, other = BlockingModel(model, "a"), BlockingModel(model, "b")
    assert one.claim("Cart", {1: 1, 2: 1}) == {}
    return model, one, other


@pytest.mark.parametrize("delay", [0.0005 * n for n in range(14)])
def test_a_claim_and_a_commit_that_meet_are_one_after_the_other(delay: float) -> None:
    model, one, other = pair("postgresql://x")
    done: list[Any] = []
    one.client.commit(batch(1, [1]), done.append)
    let_pass(model.clock, delay)
    claimed: list[Any] = []
    other.client.submit(claimed.append, EntityState.claim, "Cart", {1: 2})
    run_until(model.clock, lambda: bool(claimed))
    seen = len(model.tables.events.get(("Cart", "k-1"), []))
    run_until(model.clock, lambda: bool(done))
    assert claimed == [{}]
    assert len(model.tables.events.get(("Cart", "k-1"), [])) == seen, "nothing after the claim"
    assert (done[0].fenced == {}) is (seen == 1)


def let_pass(clock: Clock, seconds: float) -> None:
    """Let time pass up to a moment."""
    end = clock.now + seconds
    while clock.run_due() or (clock.next_event_at or end) < end:
        clock.now = max(clock.now, min(end, clock.next_event_at or end))
    clock.now = end


def test_what_goes_down_undoes_what_is_under_way() -> None:
    model, one, _ = pair("postgresql://x")
    done: list[Any] = []
    one.client.commit(batch(1, [1]), done.append)
    run_until(model.clock, lambda: bool(model._open))
    model.down()
    run_until(model.clock, lambda: bool(done))
    assert isinstance(done[0], StateUnavailable)
    with pytest.raises(StateUnavailable):
        one.fences([("Cart", 1)])
    model.up()
    assert one.commit([batch(1, [1])]).positions == {"Cart": 1}


def test_a_lost_answer_is_settled_or_unknown() -> None:
    model, one, _ = pair("postgresql://x")
    model.lost_answers = 1.0
    assert one.commit([batch(1, [1])]).positions == {"Cart": 1}
    begun = model.clock.now
    done: list[Any] = []
    one.client.commit(batch(1, [2]), done.append)
    run_until(model.clock, lambda: model.tables.positions["Cart"] == 2)
    model.cut(one.runner)
    run_until(model.clock, lambda: bool(done))
    assert isinstance(done[0], OutcomeUnknown)
    assert model.clock.now - begun > 6.0


def test_a_paused_process_keeps_the_lock_of_a_file_only() -> None:
    for url, expected in (("sqlite:x", StateBusy), ("postgresql://x", Committed)):
        model, one, other = pair(url)
        other.claim("Cart", {3: 1})
        one.client.commit(batch(1, [1]), lambda outcome: None)
        run_until(model.clock, lambda model=model: bool(model._open and model._open[0].locks))
        one.runner.is_paused = True
        done: list[Any] = []
        other.client.commit(batch(3, [1]), done.append)
        run_until(model.clock, lambda done=done: bool(done))
        assert isinstance(done[0], expected)


def test_a_failover_loses_the_end_and_raises_fences() -> None:
    model, one, _ = pair("postgresql://x")
    one.commit([batch(1, [1])])
    model.clock.now += 5.0
    one.commit([batch(1, [2])])
    model.fail_over(lost=1.0)
    with pytest.raises(DatabaseReplaced, match="claim all slots again"):
        one.commit([batch(1, [3])])
    assert [e.number for e in one.recover("Cart", "k-1", 1).events] == [1]
    assert one.commit([batch(1, [2])]).fenced == {("Cart", 1): Fence(2, "")}
    assert one.claim("Cart", {1: 3}) == {}
    assert one.commit([batch(1, [2], epoch=3)]).positions == {"Cart": 2}


def test_a_register_is_written_once_and_tells_after_a_lost_answer() -> None:
    model, one, other = pair("postgresql://x")
    answers: list[Any] = []

    def ask(client: BlockingModel, method: Callable[..., Any], *args: Any) -> Any:
        client.client.submit(answers.append, method, *args)
        return client.wait(answers)

    assert ask(one, Leases.write, "table", LeaseValue("a", 1), 0) is True
    assert ask(other, Leases.write, "table", LeaseValue("b", 1), 0) is False
    model.lost_answers = 1.0
    with pytest.raises(OutcomeUnknown):
        ask(other, Leases.write, "table", LeaseValue("b", 2), 1)
    assert ask(one, Leases.read, "table") == (LeaseValue("b", 2), 2)


def test_the_nodes_of_a_cluster_share_the_database_of_a_url() -> None:
    cluster = Cluster(seed=1)
    a, b = cluster(2, "none")
    answers: list[Any] = []
    for node in (a, b):
        client = runner_of(node).databases("sqlite:x").client(node.name, runner_of(node))
        client.submit(answers.append, EntityState.claim, "Cart", {1: 1})
    assert cluster.run_until(lambda: len(answers) == 2, 10.0)
    fence = cluster.database("sqlite:x").tables.fences["Cart", 1]
    assert sorted(answers, key=len) == [{}, {1: fence}]
    cluster.close()
