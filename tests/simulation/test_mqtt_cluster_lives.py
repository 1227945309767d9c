"""Some random lives of clusters of MQTT routers on every change, and bugs they must find."""

from collections.abc import Iterable
from typing import Any

import pytest

from callboard.mqtt.journal.handover import Handover
from callboard.mqtt.router.retained import Heads, RetainedMessages
from callboard.mqtt.service.claims import Claims, SessionConfirmed, Verdict
from callboard.simulation import Cluster, cluster_test
from tests.simulation.mqtt_cluster_life import MqttClusterLife, live_mqtt_cluster
from tests.simulation.mqtt_partition_life import live_mqtt_partition
from tests.simulation.rules import Violation

pytestmark = pytest.mark.slow


@cluster_test(seeds=range(7000, 7015))
def test_a_session_is_on_one_router_whatever_is_lost_or_crashes(cluster: Cluster) -> None:
    live_mqtt_cluster.scenario(cluster)


@cluster_test(seeds=range(8))
def test_after_a_partition_one_router_has_the_session_of_each_client(cluster: Cluster) -> None:
    live_mqtt_partition.scenario(cluster)


def test_sessions_move_and_begin_anew_in_random_lives() -> None:
    moving, parted = live_mqtt_cluster.test, live_mqtt_partition.test

    assert moving.live(7000, [], {}).met["a session moves"] > 3
    assert sum(parted.live(seed, [], {}).met["a client begins anew"] for seed in range(3)) > 0


def forget_late(self: Any, session: Any, records: Any) -> None:
    """Leave out what came in behind the offer."""


def own_at_once(self: Any, client_id: str) -> Any:
    """Use a copy before the other router has let go."""
    self._handover.own(self._sessions.get(client_id))
    yield from ()
    return True


def let_go_at_once(self: Any, session: Any) -> Any:
    """End the session with the offer."""
    offer = OFFER(self, session)
    self._handover.hand_over(session)
    self.machine.sessions.handed.clear()
    return offer


def drop_what_is_in_doubt(self: Any, client_id: str) -> Any:
    """Give a copy up when its confirmation is not answered."""
    done = yield from RESOLVE(self, client_id)
    if not done and client_id in self.machine.sessions.adopted:
        self._sessions.give_up(client_id)
    return done


def say_yes(self: Any, order: Any) -> SessionConfirmed:
    """Confirm an offer that does not hold any more."""
    return SessionConfirmed(Verdict.YES)


def forget_received(self: Any, session: Any, since: int, about: Any = ()) -> Any:
    """Leave out the identifiers of QoS 2 messages that a client has not released."""
    kept = [each for each in about if type(each).__name__ != "Received"]
    return ENCODED(self, session, since, kept)


OFFER = Claims._offer
RESOLVE = Claims._resolve
ENCODED = Handover._encoded

BUGS = [
    (Handover, "add_late", forget_late, "did not get"),
    (Claims, "_resolve", own_at_once, "is at routers"),
    (Claims, "_offer", let_go_at_once, "is lost|routers have"),
    (Claims, "_resolve", drop_what_is_in_doubt, "is lost|routers have"),
    (Claims, "confirmed", say_yes, "is at routers"),
    (Handover, "_encoded", forget_received, "times"),
]


@pytest.mark.parametrize(("owner", "name", "bug", "finding"), BUGS)
def test_a_planted_bug_of_hand_overs_is_found(
    owner: Any, name: str, bug: Any, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)

    with pytest.raises(Violation, match=finding):
        _live_all(range(60))


def take_all(self: Any, key: bytes, head: Any, run: Any) -> bool:
    """Take what another router says, whether it is the last write or not."""
    self.heads._heads.pop(key, None)
    return bool(TAKE(self, key, head, run))


def forget_removals(self: Any) -> Any:
    """Leave what was removed out of snapshots."""
    return [each for each in RECORDS(self) if each.run is not None]


def restart_stamps(self: Any, saved: Any, kept: Any) -> None:
    """Take the stamps of a journal for older than all others."""
    ADOPT(self, {key: (1, origin, topic) for key, (_, origin, topic) in saved.items()}, kept)


def keep_quiet(self: Any, router: Any) -> None:
    """Never compare: what was lost on its way stays lost."""


TAKE = RetainedMessages.take
RECORDS = RetainedMessages.records
ADOPT = Heads.adopt

RETAINED_BUGS = [
    (RetainedMessages, "take", take_all, "has Head|retain|behind|rounds"),
    (RetainedMessages, "records", forget_removals, "has None|has Head|retain|rounds"),
    (Heads, "adopt", restart_stamps, "has Head|retain|behind|rounds|KeyError"),
    (MqttClusterLife, "_compare", keep_quiet, "rounds"),
]


@pytest.mark.parametrize(("owner", "name", "bug", "finding"), RETAINED_BUGS)
def test_a_planted_bug_of_retained_messages_is_found(
    owner: Any, name: str, bug: Any, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)
    monkeypatch.setattr("tests.simulation.mqtt_cluster_life.PATIENCE", 1_000)

    with pytest.raises(Violation, match=finding):
        _live_all([*range(6), 205, *range(6, 60)])


def _live_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        error = live_mqtt_cluster.test.live(seed, [], {}).error
        if error is not None:
            raise error
