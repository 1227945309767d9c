"""Channels as a whole: beside a short model, over a bad network, and in the large."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from callboard.channel import Consumer, CumulativeAck, Producer
from tests.simulation.channel_life import live_channels
from tests.simulation.rules import Violation


class Model:
    """What a channel promises: each consumer has a prefix of what came since it was added."""

    def __init__(self):
        self.produced = []
        self.start = {}
        self.seen = {}

    def produce(self, payload):
        self.produced.append(payload)

    def add(self, hdl):
        self.start[hdl] = len(self.produced)
        self.seen[hdl] = []

    def holds(self, hdl):
        due = self.produced[self.start[hdl] :]
        return self.seen[hdl] == due[: len(self.seen[hdl])]

    def is_complete(self, hdl):
        return self.seen[hdl] == self.produced[self.start[hdl] :]


class Beside(RuleBasedStateMachine):
    """hypothesis delivers, loses, doubles and delays at will. Nobody times out."""

    @initialize()
    def start(self):
        self.model, self.wire, self.consumers = Model(), [], {}
        self.producer = Producer(self, timeout=10_000)

    # ------------------------------------------------------------------------- backends

    def send(self, sender, *args):
        if sender is self.producer:
            hdl, msg = args
            self.wire.append((hdl, "down", msg))
        else:
            self.wire.append((self.handle_of(sender), "up", args[0]))

    def broadcast(self, _producer, msg):
        self.wire += [(hdl, "down", msg) for hdl in self.consumers]

    def handshake_completed(self, _producer, hdl):
        assert hdl in self.model.start

    def consume(self, receiver, payload):
        self.model.seen[self.handle_of(receiver)].append(payload)

    def drop(self, *_):
        raise AssertionError

    consume_nil = close = drop

    def handle_of(self, receiver):
        return next(hdl for hdl, each in self.consumers.items() if each is receiver)

    # ---------------------------------------------------------------------------- rules

    @rule(payload=st.integers())
    def produce(self, payload):
        self.model.produce(payload)
        self.producer.produce(payload)

    @rule()
    def add(self):
        hdl = len(self.consumers)
        if hdl < 3:
            self.model.add(hdl)
            self.consumers[hdl] = Consumer(self, timeout=10_000)
            self.producer.add(hdl)

    @rule(data=st.data(), keep=st.booleans())
    def deliver(self, data, keep):
        if self.wire:
            place = data.draw(st.integers(0, len(self.wire) - 1))
            hdl, way, msg = self.wire[place]
            if not keep:
                del self.wire[place]
            if way == "up":
                self.producer.handle(hdl, msg)
            else:
                self.consumers[hdl].handle(msg)

    @rule(data=st.data())
    def lose(self, data):
        if self.wire:
            del self.wire[data.draw(st.integers(0, len(self.wire) - 1))]

    @rule(count=st.integers(1, 6))
    def pass_time(self, count):
        for _ in range(count):
            self.producer.tick()
            for receiver in self.consumers.values():
                receiver.tick()

    @invariant()
    def everybody_has_a_prefix(self):
        if hasattr(self, "model"):
            assert all(map(self.model.holds, self.consumers))

    def teardown(self):
        """Once nothing is lost any more, all have all."""
        if not hasattr(self, "model"):
            return
        for _ in range(30):
            arrived, self.wire = self.wire, []
            for hdl, way, msg in arrived:
                to = self.producer.handle if way == "up" else self.consumers[hdl].handle
                to(*((hdl, msg) if way == "up" else (msg,)))
            self.pass_time(1)
        assert all(map(self.model.is_complete, self.consumers))
        assert self.producer.is_idle
        assert all(each.is_idle for each in self.consumers.values())
        assert self.producer.buffered == 0


TestBesideAModel = Beside.TestCase
TestBesideAModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_order_and_completeness_hold_over_a_bad_network():
    runs = [lived(seed) for seed in range(500_000, 500_150)]

    assert [run.error for run in runs if run.error is not None] == []
    seen = sum((run.met for run in runs), Counter())
    assert {what for what, count in seen.items() if count >= 2} >= {
        "CumulativeAck",
        "Nack",
        "nil",
        "dropped",
        "closed: connection_timeout",
        "closed: retransmission_timeout",
        "closed: too many",
        "consumer vanished",
        "producer vanished",
    }


def test_a_seed_gives_the_same_world():
    one, two = lived(11), lived(11)

    assert one.met == two.met
    assert one.cluster.trace.lines() == two.cluster.trace.lines()
    assert one.cluster.trace.count > 500


def lived(seed):
    """Return a life of a channel, as a run of its test."""
    test = live_channels.test
    return test.live(seed, test.faults_of(seed), {})


GENUINE_EVENT = Consumer.handle_event
GENUINE_TRIM = Producer._trim


def forget_an_event(self, seq, payload):
    if seq == self.next_seq == 100:
        self.next_seq += 1
    else:
        GENUINE_EVENT(self, seq, payload)


def consume_doubles(self, seq, payload):
    if 0 < seq < self.next_seq and not self.is_closed:
        self.backend.consume(self, payload)
    else:
        GENUINE_EVENT(self, seq, payload)


def acknowledge_too_much(self):
    self._unacked_ticks = 0
    self._acked = self.next_seq - 1
    self.backend.send(self, CumulativeAck(max(self._acked, self._last)))


def keep_for_the_quickest_only(self):
    slow = {hdl: path.acked for hdl, path in self._paths.items()}
    most = max(slow.values(), default=0)
    for path in self._paths.values():
        path.acked = most
    GENUINE_TRIM(self)
    for hdl, acked in slow.items():
        self._paths[hdl].acked = acked


BUGS = [
    (Consumer, "handle_event", forget_an_event, "was due|in vain"),
    (Consumer, "handle_event", consume_doubles, "was due"),
    (Consumer, "_acknowledge", acknowledge_too_much, "in vain"),
    (Producer, "_trim", keep_for_the_quickest_only, "without cause"),
    (Producer, "_drop_silent", lambda _self: None, "waits for"),
]


@pytest.mark.parametrize(("kind", "name", "bug", "finding"), BUGS)
def test_a_planted_bug_is_found(kind, name, bug, finding, monkeypatch):
    monkeypatch.setattr(kind, name, bug)

    with pytest.raises(Violation, match=finding):
        _live_all(range(60))


def _live_all(seeds):
    for seed in seeds:
        error = lived(seed).error
        if error is not None:
            raise error
