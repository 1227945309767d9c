"""Some random lives of peerings on every change, and bugs that they must find."""

import pytest

from callboard.simulation import cluster_test
from callboard.zeek.peering import FrameBuffer, PeeringSession, PeeringState
from tests.simulation.peering_life import FAULTS, live_peerings
from tests.simulation.rules import Violation


@cluster_test(seeds=range(7000, 7004), faults=FAULTS)
def test_random_lives_of_peerings_break_no_rule(cluster):
    live_peerings.scenario(cluster)


def test_a_life_of_peerings_brings_messages_through():
    test = live_peerings.test
    run = test.live(7000, test.faults_of(7000), {})

    assert run.error is None
    assert run.met["messages"] > 50


def go_on_always(self):
    """Take no look at other connections of the pair."""
    self._known.pop(self.peer, None)
    return LOOK_AHEAD(self)


def end_and_stay(self, reason, error=None):
    """Leave an ended session where the next one looks."""
    effects = END(self, reason, error)
    if effects and self.peer:
        self._known[self.peer] = self
    return effects


def forget_the_rest(self, data, limit):
    """Lose what came of the next frame."""
    found = TAKE(self, data, limit)
    self._parts.clear()
    self._waiting, self._needed = 0, 4
    return found


def never_look_at_silence(self, now):
    """Do nothing as time goes by."""
    return [] if self.state is PeeringState.PEERED else TICK(self, now)


LOOK_AHEAD, END, TICK = PeeringSession._try_select, PeeringSession._end, PeeringSession.tick
TAKE = FrameBuffer.take

BUGS = [
    (PeeringSession, "_try_select", go_on_always, "two peerings|stands|others"),
    (PeeringSession, "_end", end_and_stay, "stands"),
    (PeeringSession, "tick", never_look_at_silence, "peerings|arrive"),
    (PeeringSession, "send_filter", lambda *_: b"", "did not arrive"),
    (FrameBuffer, "take", forget_the_rest, "peerings|got"),
]


def live_many():
    test = live_peerings.test
    for seed in range(60):
        error = test.live(seed, test.faults_of(seed), {}).error
        if error is not None:
            raise error


@pytest.mark.parametrize(("kind", "name", "bug", "told"), BUGS)
def test_a_planted_bug_breaks_a_rule(kind, name, bug, told, monkeypatch):
    monkeypatch.setattr(kind, name, bug)

    with pytest.raises(Violation, match=told):
        live_many()
