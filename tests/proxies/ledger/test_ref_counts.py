import pytest

from callboard.actors.exit_reason import ExitReason
from callboard.proxies.ledger.ref_counts import RefCount, RemoteRefs

HOST, OTHER = b"h" * 18, b"o" * 18


@pytest.fixture
def holdings():
    return RemoteRefs(lambda _, __, sightings: RefCount(sightings))


def test_sightings_rise_with_each_ref_whatever_its_host(holdings):
    first = holdings.add(HOST, 17)
    second = holdings.add(OTHER, 17)
    holdings.dropped(HOST, 17)
    again = holdings.add(HOST, 17)

    assert [first.sightings, second.sightings, again.sightings] == [1, 2, 3]
    assert holdings.get(HOST, 17) is again
    assert len(holdings) == 2


def test_a_dropped_holding_is_released_with_the_sightings_of_its_announce(holdings):
    holdings.add(HOST, 17)
    holdings.add(HOST, 18)

    assert holdings.dropped(HOST, 17) == 1
    assert holdings.get(HOST, 17) is None
    assert [held.sightings for held in holdings.all()] == [2]


def test_what_is_held_is_renewed_behind_all_that_was_announced_before(holdings):
    held = [holdings.add(HOST, 17), holdings.add(HOST, 18)]
    holdings.add(OTHER, 17)

    assert holdings.renewed(HOST) == (held, 3)
    assert [each.sightings for each in held] == [4, 5]
    assert holdings.dropped(HOST, 18) == 5
    assert holdings.renewed(b"?" * 18) == ([], 5)


def test_an_end_is_told_once_and_what_watches_later_is_told_at_once():
    holding = RefCount(1)
    assert holding.watch("key", "watcher") is None

    assert holding.ended(ExitReason.ERROR, "why") == ["watcher"]
    assert holding.ended(ExitReason.KILLED, "") == []

    assert not holding.is_watched
    assert holding.watch("key", "watcher") == (ExitReason.NOT_FOUND, "it had ended (error)")
    assert holding.down == (ExitReason.ERROR, "why")


def test_a_node_out_of_reach_is_told_to_watchers_and_the_actor_may_live_on():
    holding = RefCount(1)
    holding.watch("key", "watcher")

    assert holding.unreachable() == ["watcher"]
    assert holding.unreachable() == []

    assert holding.down is None
    assert holding.watch("key", "another") is None
    assert holding.ended(ExitReason.NORMAL, "") == ["another"]
