"""Some random lives of topics on every change, and bugs that each rule must find."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.actors.reference import ActorRef
from callboard.basp.link import LinkPairs
from callboard.simulation import cluster_test
from callboard.topics.machine.core import Core
from callboard.topics.machine.effect import CoreCounters
from callboard.topics.machine.filter_exchange import FilterExchange
from callboard.topics.machine.status import SC
from callboard.topics.machine.subscriptions import SubscriptionTable
from callboard.topics.publishing import TopicPublishing
from callboard.topics.remote_hubs import RemoteHubs
from callboard.topics.run_transmitter import RunTransmitter
from tests.simulation.rules import Violation
from tests.simulation.topic_life import FAULTS, TopicLife, live_topics

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@cluster_test(seeds=range(7000, 7008), faults=FAULTS)
def test_random_lives_of_topics_break_no_rule(cluster):
    TopicLife(cluster, most=8).run()


def test_a_seed_gives_the_same_events_in_any_process():
    program = (
        "import json; from tests.simulation.topic_life import live_topics as life; "
        "run = life.test.live(7001, life.test.faults_of(7001), {'most': 4}); "
        "print(json.dumps(run.cluster.trace.lines()))"
    )

    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    )

    assert len(first) > 10_000
    assert first == second


def filters_do_not_travel(plant):
    plant(FilterExchange, "tick", lambda *_: [])
    plant(FilterExchange, "change", lambda *_: [])


def topics_are_never_taken_back(plant):
    apply = FilterExchange._apply

    def keeping(self, node, remote, update, changes):
        known = set(remote.topics)
        done = apply(self, node, remote, update, changes)
        remote.topics |= known
        return done

    plant(FilterExchange, "_apply", keeping)


def runs_arrive_backwards(plant):
    take = Core._deliver_items
    plant(
        Core,
        "_deliver_items",
        lambda self, kind, items, *more: take(self, kind, items[::-1], *more),
    )


def runs_arrive_twice(plant):
    transmit = RunTransmitter.send

    def twice(self, run):
        transmit(self, run)
        transmit(self, run)

    plant(RunTransmitter, "send", twice)


def runs_are_dropped(plant):
    transmit = RunTransmitter.send

    def forgetful(self, run):
        if not run.messages or len(run.payload) % 7:
            transmit(self, run)

    plant(RunTransmitter, "send", forgetful)


def everybody_gets_everything(plant):
    match = SubscriptionTable.match

    def any_of(self, topic):
        return tuple(self._prefixes) if len(self._prefixes) < 3 else match(self, topic)

    plant(SubscriptionTable, "match", any_of)


def the_ttl_is_not_looked_at(plant):
    def may_reach(self, node):
        path, remotes = self.path_of(node), self.filters.remotes
        return bool(path) and all(
            passed not in remotes or remotes[passed].forwards for passed in path[:-1]
        )

    plant(Core, "_may_reach", may_reach)


def all_endpoints_forward(plant):
    plant(Core, "_may_reach", lambda self, node: 0 < len(self.path_of(node)) <= self.ttl)


def directed_messages_go_to_all(plant):
    plant(Core, "send_to", lambda self, _node, kind, run: self.central_merge(kind, run))


def directed_messages_are_overtaken(plant):
    send_to = TopicPublishing.send_to

    def overtaking(self, node_id, messages):
        send_to(self, node_id, messages)
        self._inputs.entries.rotate()

    plant(TopicPublishing, "send_to", overtaking)


def losses_are_not_told(plant):
    lost = Core.endpoint_lost

    def silent(self, node, text):
        effects = lost(self, node, text)
        unreachable = SC.EndpointUnreachable
        return [each for each in effects if getattr(each, "kind", None) is not unreachable]

    plant(Core, "endpoint_lost", silent)


def peers_are_told_twice(plant):
    connected = Core._connected
    plant(Core, "_connected", lambda self, node: connected(self, node) * 2)


def endpoints_that_are_gone_are_kept(plant):
    plant(FilterExchange, "forget", lambda *_: [])


def own_subscriptions_are_kept(plant):
    unsubscribe = Core.unsubscribe

    def keeping(self, receiver, topics, now, **kind):
        before = set(self.filters.topics)
        effects = unsubscribe(self, receiver, topics, now, **kind)
        self.filters.topics.update(before)
        return effects

    plant(Core, "unsubscribe", keeping)


def deliveries_are_not_counted(plant):
    plant(CoreCounters, "delivered", property(lambda _: 0, lambda *_: None))


def pairs_get_two_links(plant):
    plant(LinkPairs, "acquire", lambda *_: True)


def errors_are_logged(plant):
    tick = Core.tick

    def failing(self, now):
        logging.getLogger("callboard.topics").error("something is wrong")
        return tick(self, now)

    plant(Core, "tick", failing)


def nodes_are_not_found(plant):
    plant(ActorRef, "ask", ActorRef.ask)
    plant(RemoteHubs, "find_hub", lambda *_: None)


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (filters_do_not_travel, ("did not arrive", "takes the filter of")),
        (topics_are_never_taken_back, ("takes the filter of", "did not arrive")),
        (runs_arrive_backwards, ("came after",)),
        (runs_arrive_twice, ("came after",)),
        (runs_are_dropped, ("did not arrive",)),
        (everybody_gets_everything, ("who wants",)),
        (the_ttl_is_not_looked_at, ("must not arrive, but did",)),
        (all_endpoints_forward, ("must not arrive, but did",)),
        (directed_messages_go_to_all, (", arrived at",)),
        (directed_messages_are_overtaken, ("came after",)),
        (losses_are_not_told, ("out of turn", "was told of")),
        (peers_are_told_twice, ("out of turn",)),
        (endpoints_that_are_gone_are_kept, ("filters of",)),
        (own_subscriptions_are_kept, ("the filter of", "did not arrive")),
        (deliveries_are_not_counted, ("counts 0",)),
        (pairs_get_two_links, ("two links", "already a neighbor")),
        (errors_are_logged, ("something is wrong",)),
        (nodes_are_not_found, ("filters of", "did not arrive")),
    ],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_a_planted_bug_is_found_by_its_rule(monkeypatch, bug, words):
    bug(monkeypatch.setattr)

    said = first_violation()

    assert any(word in said for word in words), said


def first_violation() -> str:
    """Return what the first life that breaks a rule says; those that find most come first."""
    test = live_topics.test
    for seed in (7000, 7011, 7003, *range(7000, 7040)):
        error = test.live(seed, test.faults_of(seed), {"most": 6}).error
        if error is not None:
            assert isinstance(error, Violation), error
            return str(error)
    return "no rule was broken"
