"""Small searches are run whole; what is wrong on purpose is found."""

import hmac

import pytest

from callboard.basp import handshake, seal
from callboard.basp.handshake import Introduction, Transcript
from callboard.basp.link import LinkPairs
from callboard.basp.seal import Opener
from callboard.entity.machine.ownership_machine import OwnershipMachine
from callboard.proxies.ledger.registry import HolderRegistry
from tests.search.explorer import Model, Violation, explore
from tests.search.handshake import Handshake
from tests.search.lifetimes import Budget, Lifetimes
from tests.search.models import CROSSING, RELAYED, RELAYED_TWICE, SEARCHES
from tests.search.ownership import Owners, OwnershipBudget
from tests.search.relay import Relay

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SEARCHES)
def test_nothing_is_wrong_in_any_order_of_events(name):
    for model in SEARCHES[name].small:
        explored = explore(model)

        assert explored.is_whole
        assert explored.ends > 0


class Glasses(Model[tuple[int, int]]):
    """A glass for 3 and one for 5: which amounts can they hold?"""

    def start(self):
        return (0, 0)

    def steps(self, state):
        small, large = state
        pour = min(small, 5 - large)
        back = min(large, 3 - small)
        yield "fill the small", (3, large)
        yield "fill the large", (small, 5)
        yield "empty the small", (0, large)
        yield "empty the large", (small, 0)
        yield "pour into the large", (small - pour, large + pour)
        yield "pour into the small", (small + back, large - back)

    def check(self, state):
        return state == (0, 0)


def test_each_state_is_visited_once():
    explored = explore(Glasses())

    assert (explored.states, explored.steps, explored.ends) == (16, 96, 1)
    assert explored.is_whole


def test_a_search_stops_at_its_limit():
    explored = explore(Glasses(), 5)

    assert explored.states == 5
    assert not explored.is_whole


def test_a_violation_tells_the_events_that_lead_there():
    class Four(Glasses):
        def check(self, state):
            assert state[1] != 4, "four"
            return False

    with pytest.raises(
        Violation, match=r"(?s)four\n.*after\n  start\n  fill .*  pour into the"
    ):
        explore(Four())


# --- machines that are wrong ---


class IgnoresSightings(HolderRegistry):
    def released(self, node, number, sightings):
        super().released(node, number, 1 << 63)


class IgnoresSweeps(HolderRegistry):
    def swept(self, node, sightings):
        pass

    def sweep(self, node, sightings):
        return []


class TakesLateAnnounces(HolderRegistry):
    def swept(self, node, sightings):
        super().swept(node, sightings)
        self._swept.clear()


class ForgetsEnds(HolderRegistry):
    def ended(self, number, reason, detail):
        told = super().ended(number, reason, detail)
        for node in told:
            self._forget(node, number)
        return told


class TellsOnce(HolderRegistry):
    def owed(self, node):
        return []


class IgnoresTheDead(HolderRegistry):
    def announced(self, node, number, sightings, limit=1):
        super().announced(node, number, sightings)


class KeepsTheLost(HolderRegistry):
    def node_lost(self, node):
        return []


@pytest.mark.parametrize(
    ("registry", "budget", "problem"),
    [
        (IgnoresSightings, Budget((2, 0), 0, moves=1), "does not know of the proxy"),
        (IgnoresSweeps, Budget((1, 0), 0, moves=1), "keeps an entry"),
        (TakesLateAnnounces, Budget((1, 0), 0, moves=1), "keeps an entry"),
        (ForgetsEnds, Budget((1, 0), 0), "does not know of the proxy"),
        (TellsOnce, Budget((1, 0), 0, moves=1), "missed a down"),
        (IgnoresTheDead, Budget((1, 0), 0), "missed a down"),
        (KeepsTheLost, Budget((1, 0), 0, crashes=1), "keeps what B held"),
    ],
)
def test_a_host_that_is_wrong_is_found_out(registry, budget, problem):
    explore(Lifetimes(budget))

    with pytest.raises(Violation, match=problem):
        explore(Lifetimes(budget, registry))


def test_links_that_do_not_wait_for_each_other_are_found_out(monkeypatch):
    monkeypatch.setattr(LinkPairs, "acquire", lambda *_: True)

    with pytest.raises((Violation, KeyError)):
        explore(Handshake(CROSSING[0]))


# --- a stranger between two nodes ---


def violation(model):
    """Return what is wrong with a model; empty if nothing is."""
    try:
        explore(model)
    except Violation as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize(("doors", "links"), [(("a", "b"), True), (("a", "a"), False)])
def test_no_state_links_a_relay_that_mixes_two_connections(doors, links):
    """Two nodes are linked through him in some states: he may pass everything on."""
    model = Relay(*doors)

    assert explore(model).is_whole
    assert (model.links > 0) is links


def test_where_both_sides_link_with_the_first_release_a_relay_gets_in():
    for one in "ab":
        assert explore(Relay("a", "b", allow_unsealed=one)).is_whole
    with pytest.raises(Violation, match="linked with the stranger"):
        explore(Relay("a", "b", allow_unsealed="ab"))


def switch_the_seal_off(monkeypatch):
    monkeypatch.setattr(Introduction, "_agree", lambda *_: None)


def forget_the_dialer_in_the_transcript(monkeypatch):
    of = Transcript.of
    monkeypatch.setattr(
        Transcript, "of", lambda server, _client, channel: of(server, b"", channel)
    )


def seal_both_directions_alike(monkeypatch):
    def seal_key(root, name, *, dialer):
        return hmac.digest(root, b"seals" + name, "sha256")

    monkeypatch.setattr(handshake, "seal_key", seal_key)


def take_batches_in_any_order(monkeypatch):
    is_good = Opener._is_header_good

    def is_header_good(opener, length, counter):
        opener._counter = counter
        return is_good(opener, length, counter)

    monkeypatch.setattr(Opener, "_is_header_good", is_header_good)


def believe_every_mac(monkeypatch):
    monkeypatch.setattr(seal, "_equal", lambda *_: True)


@pytest.mark.parametrize(
    "plant",
    [
        switch_the_seal_off,
        forget_the_dialer_in_the_transcript,
        seal_both_directions_alike,
        take_batches_in_any_order,
        believe_every_mac,
    ],
)
def test_a_seal_that_is_wrong_lets_the_relay_in_and_the_search_says_so(monkeypatch, plant):
    plant(monkeypatch)
    found = [violation(Relay(*doors)) for doors in RELAYED + RELAYED_TWICE[:1]]

    assert any("linked with the stranger" in text or "nobody said" in text for text in found)


def test_a_tls_connection_that_is_not_told_from_others_lets_the_relay_in(monkeypatch):
    monkeypatch.setattr(Relay, "channel", lambda *_: b"any connection")
    with pytest.raises(Violation, match="linked with the stranger|nobody said"):
        explore(Relay("a", "b", is_tls=True))


class ServesBeforeTheFence(OwnershipMachine):
    def _claim(self, effects):
        owned = self.table.owned(self.writer).items()
        self._serve({s: e for s, e in owned if self.served.get(s) != e}, effects)


class LeavesTheDead(OwnershipMachine):
    def _probed(self, event, _):
        self.probing, self.is_probed = None, True


class KeepsWhatMoved(OwnershipMachine):
    def _adopt(self, table, effects):
        served = self.served
        super()._adopt(table, effects)
        self.served = served


def planted(machine):
    """Let a machine take events by its own methods: they stand in a table."""
    machine._handlers = {
        kind: vars(machine).get(take.__name__, take)
        for kind, take in OwnershipMachine._handlers.items()
    }
    return machine


@pytest.mark.parametrize(
    ("machine", "budget"),
    [
        (ServesBeforeTheFence, OwnershipBudget()),
        (LeavesTheDead, OwnershipBudget(kills=1)),
        (KeepsWhatMoved, OwnershipBudget()),
    ],
)
def test_an_owner_that_is_wrong_is_found_out(machine, budget):
    with pytest.raises(Violation):
        explore(Owners(budget, planted(machine)))
