"""Some random lives of doors to Zeeks on every change, and bugs that each rule must find."""

import pytest

from callboard.simulation import cluster_test
from callboard.topics.door_claim import DoorClaim, DoorState
from callboard.topics.hub import Hub
from callboard.zeek.doors.web_socket_peer import FilterPlan, WebSocketPeer
from tests.simulation.door_life import FAULTS, DoorLife, live_doors
from tests.simulation.rules import Violation


@pytest.mark.slow
@cluster_test(seeds=range(7000, 7012), faults=FAULTS)
def test_random_lives_of_doors_break_no_rule(cluster):
    live_doors.scenario(cluster, most=3)


@pytest.mark.slow
@cluster_test(seeds=range(4))  # also where its node has the smallest id
def test_a_door_that_does_not_reach_its_zeek_gives_way_to_one_that_does(cluster):
    life = DoorLife(cluster)
    life.begin(nodes=3, zeeks=1)
    assert life.cluster.run_until(life.is_settled, 10.0)
    zeek = life.zeeks[0]
    door = next(place for place in life.places if place.peers[0].is_door)
    life.cluster.partition(door.node, zeek.node)

    def moved():
        doors = [place for place in life.places if place.peers[0].is_door]
        return len(doors) == 1 and doors[0] is not door and doors[0].peers[0].subscriptions()

    assert life.cluster.run_until(moved, 40.0)
    life.cluster.advance(1.0)
    door.hub.publish("/c", ["node", door.index, 99])
    zeek.hub.publish("/c", ["zeek", 0, 99])
    life.cluster.advance(1.0)

    assert zeek.takers[0].got["node", door.index, 99] == 1
    takers = [each for place in life.places for each in place.takers]
    for taker in takers:
        assert taker.got["zeek", 0, 99] == "/c".startswith(taker.topics)


def everybody_is_the_door(plant):
    plant(
        "callboard.topics.door_claim.next_state",
        lambda state, *_, **__: state if state is DoorState.RELEASED else DoorState.HELD,
    )


def nobody_takes_over(plant):
    enter = DoorClaim._enter
    plant(
        DoorClaim,
        "_enter",
        lambda self, state, holders: (
            None if self.state is DoorState.STANDBY else enter(self, state, holders)
        ),
    )


def those_who_stand_by_publish_themselves(plant):
    plant(WebSocketPeer, "_hand_on", lambda self, *_: self._send())


def filters_overlap(plant):
    plant(FilterPlan, "missing", lambda self, beside=None: self.wanted)
    plant(FilterPlan, "_in_the_way", lambda self, beside=None: [])


def wishes_are_not_followed(plant):
    plant(Hub, "watch_interest", lambda *_: lambda: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (everybody_is_the_door, ("has the doors",)),
        (nobody_takes_over, ("has the doors",)),
        (those_who_stand_by_publish_themselves, ("came 2 times", "came 1 times")),
        (filters_overlap, ("came 2 times", "came 3 times")),
        (wishes_are_not_followed, ("asks Zeek",)),
    ],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_a_planted_bug_is_found_by_its_rule(monkeypatch, bug, words):
    bug(monkeypatch.setattr)

    said = first_violation(words)

    assert any(word in said for word in words), said


def first_violation(words: tuple[str, ...] = ("",)) -> str:
    """Return what the first life says that breaks a rule, or this rule."""
    test, said = live_doors.test, "no rule was broken"
    for seed in range(7085, 7125):
        error = test.live(seed, test.faults_of(seed), {"most": 3}).error
        if error is not None:
            assert isinstance(error, Violation), error
            said = str(error)
            if any(word in said for word in words):
                break
    return said
