"""One door for each foreign peer: claims at once, late claims, failures, partitions."""

from contextlib import closing

import pytest

from callboard.model.errors import DoorTaken
from callboard.simulation import Cluster
from callboard.topics.door_claim import DoorClaim, DoorState, next_state
from callboard.topics.hub import Hub

PEER = "ws://zeek:27759"
CLAIMING, HELD, STANDBY = DoorState.CLAIMING, DoorState.HELD, DoorState.STANDBY


class Story:
    """A claim, and what was told of it."""

    def __init__(self, node) -> None:
        self.node = node
        self.told: list[object] = []
        self.claim = DoorClaim(
            Hub.of(node),
            PEER,
            on_held=lambda: self.told.append("kept"),
            on_lost=self.told.append,
        )


@pytest.mark.parametrize(
    ("state", "claimers", "holders", "waited", "becomes"),
    [
        (CLAIMING, "b", "", False, CLAIMING),
        (CLAIMING, "b", "", True, HELD),
        (CLAIMING, "abc", "", True, CLAIMING),
        (CLAIMING, "bc", "", True, HELD),
        (CLAIMING, "b", "c", True, STANDBY),
        (CLAIMING, "b", "a", False, STANDBY),
        (HELD, "a", "b", True, HELD),
        (HELD, "", "bc", True, HELD),
        (HELD, "", "ab", True, STANDBY),
        (STANDBY, "", "c", True, STANDBY),
        (STANDBY, "a", "", True, CLAIMING),
        (DoorState.RELEASED, "b", "", True, DoorState.RELEASED),
    ],
)
def test_what_becomes_of_a_claim(state, claimers, holders, waited, becomes):
    nodes = [[letter.encode() for letter in each] for each in (claimers, holders)]
    assert next_state(state, b"b", *nodes, has_waited=waited) is becomes


@pytest.mark.parametrize(
    ("state", "holders", "becomes"),
    [
        (HELD, "", STANDBY),
        (STANDBY, "", STANDBY),
        (CLAIMING, "", STANDBY),
        (HELD, "c", STANDBY),
    ],
)
def test_who_does_not_reach_the_peer_gives_way_to_one_who_does(state, holders, becomes):
    others = [letter.encode() for letter in holders]
    assert next_state(state, b"b", [], others, has_waited=True, is_outdone=True) is becomes


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_claims_in_a_simulated_cluster(seed):
    with closing(Cluster(seed=seed)) as cluster:
        a, b = cluster(2)
        small, large = sorted((a, b), key=lambda node: node.node_id)

        one, other = Story(large), Story(small)  # at once: the smaller node id gets it
        cluster.advance(5)
        assert (other.told, one.told) == (["kept"], [small.node_id])
        assert one.claim.holder == small.node_id

        cluster.partition(a, b)  # nobody is seen any more: both have one
        cluster.advance(20)
        assert one.told[1:] == ["kept"]
        cluster.heal()
        cluster.advance(20)
        assert one.told[2:] == [small.node_id]
        assert other.told == ["kept"]

        other.claim.release()  # the other one takes it over
        cluster.advance(5)
        assert one.claim.state is HELD
        late = Story(small)  # comes too late, though its node id is smaller
        cluster.advance(5)
        assert late.told == [large.node_id]
        assert one.claim.state is HELD


def test_a_node_has_one_door_to_a_peer():
    with closing(Cluster(seed=1)) as cluster:
        node = cluster.node("a")
        story = Story(node)
        with pytest.raises(DoorTaken, match="is connected to ws://zeek:27759 already"):
            Story(node)
        cluster.advance(1)
        assert story.told == ["kept"]
        story.claim.release()
        cluster.advance(1)
        assert len(node.group(story.claim._name)) == 0
        Story(node)
