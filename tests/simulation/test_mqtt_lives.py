"""Some random lives of MQTT routers on every change, and bugs that they must find."""

from collections.abc import Callable
from typing import Any

import pytest

from callboard.mqtt.journal.journal import RouterJournal
from callboard.mqtt.router import delivery
from callboard.mqtt.router.backpressure import Backpressure
from callboard.mqtt.router.datalog import Segment, Shelf
from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.record import SavedState
from callboard.mqtt.router.session import Connection, Session
from callboard.mqtt.router.subscribing import Subscriptions
from callboard.mqtt.router.wills import Wills
from callboard.mqtt.router.window import Window
from callboard.simulation import Cluster, cluster_test
from tests.simulation.mqtt_life import live_mqtt
from tests.simulation.rules import Violation

pytestmark = pytest.mark.slow


@cluster_test(seeds=range(9000, 9008))
def test_random_lives_of_mqtt_routers_break_no_rule(cluster: Cluster) -> None:
    live_mqtt.scenario(cluster)


def write_later(self: Any, records: Any, machine: Any) -> None:
    """Acknowledge what is not durable yet."""
    del machine
    flush, self._log.flush = self._log.flush, lambda: None
    self._append(records)
    self._log.flush = flush


def forget_received(self: Any, ids: tuple[int, ...]) -> list[int]:
    """Take a QoS 2 message as often as it comes."""
    del self
    return list(range(len(ids)))


def send_from_each_filter(session: Any, subscription: Any, run: Any) -> Any:
    """Send what several filters match once for each of them."""
    del session, run
    return delivery.Options(subscription.qos, b"", False)


def leave_at_once(self: Any, session: Any, topic_filter: str) -> None:
    """End a subscription that others rely on."""
    session.has_overlaps, before = False, session.has_overlaps
    LEAVE(self, session, topic_filter)
    session.has_overlaps = before


def resend_nothing(self: Any) -> None:
    """Forget what was in flight."""
    self.inflight = {}


def resend_backwards(self: Any) -> None:
    """Send what was in flight in another order."""
    self.resend = {**dict(reversed(self.inflight.items())), **self.resend}
    self.inflight = {}


def put_last(self: Any, request: Any) -> None:
    """Read older messages behind newer ones."""
    self.tracker.append(request)


def look_for_nobody(self: Any, log: Any) -> Any:
    """Let a log drop what connected readers have not read."""
    del self, log
    return iter(())


def hold_all(self: Any, connection: Any, chunks: list[bytes]) -> list[bytes]:
    """Take nothing of held clients, not even what others wait for."""
    del self
    connection.held.chunks += chunks
    return []


def shelve_nothing(self: Any) -> bool:
    """Forget messages that the journal has."""
    self.put_on_shelf((), Shelf((), (), ()))
    return True


LEAVE: Callable[..., None] = Subscriptions.leave

BUGS = [
    (RouterJournal, "write", write_later, "is lost|did not get|times|was not said", 1),
    (Connection, "receive", forget_received, "times with QoS 2", 1),
    (delivery, "merge", send_from_each_filter, "times", 1),
    (Subscriptions, "leave", leave_at_once, "times|did not get", 7),
    (Window, "connection_lost", resend_nothing, "did not get|no member", 0),
    (Window, "connection_lost", resend_backwards, "behind number", 6),
    (Session, "put_first", put_last, "behind number", 71),
    (Delivery, "notify", lambda self: self._logs.woken.clear(), "in 0 places", 0),
    (Backpressure, "_laggard_requests", look_for_nobody, "though it was there", 3),
    (Backpressure, "sift", hold_all, "not everything|though it was there", 2),
    (Segment, "shelve", shelve_nothing, "did not get|no member", 2),
    (SavedState, "places_on_the_way", lambda _: [], "did not get|no member", 315),
    (Wills, "keep", lambda *_: None, "was not said", 1),
    (Wills, "_drop", lambda *_: None, "was said", 1),
    (Delivery, "_release", lambda *_: None, "not everything|times|did not", 0),
]


@pytest.mark.parametrize(("owner", "name", "bug", "finding", "seed"), BUGS)
def test_a_planted_bug_is_found(
    owner: Any,
    name: str,
    bug: Any,
    finding: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, bug)

    with pytest.raises(Violation, match=finding):
        _live_all((seed, *range(20)))


def _live_all(seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        error = live_mqtt.test.live(seed, [], {}).error
        if error is not None:
            raise error
