"""Packets that bypass the logs have the same effect as those that go through them."""

from collections import defaultdict
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.service.router import last_message
from callboard.mqtt.wire.packet import V4, V5
from tests.callboard.mqtt.stage import Client, Stage


def log_of(stage: Stage, topic: str) -> Any:
    return stage.machine.logs.get(topic)


def test_the_only_reader_gets_the_bytes_that_were_published(stage) -> None:
    publisher, reader = stage.client("p"), stage.client("r")
    reader.subscribe("t")
    packets = b"".join((b"\x30\x05\x00\x01t\x00" + payload) for payload in (b"1", b"2", b"3"))
    publisher.push(packets)

    turn = stage.machine.run_turn(0.0)

    ((link, notifications),) = turn.transmits
    assert link is reader.link
    assert notifications == [packets]
    assert log_of(stage, "t").end == 3
    assert stage.machine.meters.published == stage.machine.meters.delivered == 3


def test_messages_after_a_directly_delivered_one_are_read_from_the_log(stage) -> None:
    publisher, reader = stage.client("p"), stage.client("r")
    reader.subscribe("t", qos=1)
    publisher.send(
        publisher.message("t", b"1"),
        publisher.message("t", b"2", 1),
        publisher.message("t", b"3"),
        publisher.message("t", b"4", 1),
    )
    publisher.publish("t", b"5")

    assert reader.payloads() == [b"1", b"2", b"3", b"4", b"5"]
    assert stage.lost == 0


def test_messages_for_a_full_link_wait_in_the_log() -> None:
    stage = Stage(Limits(delivery_quota=3))
    publisher, reader = stage.client("p"), stage.client("r", reads=False)
    reader.link.push(b"\x82\x07\x00\x01\x00\x00\x01t\x00")
    stage.run()
    for number in range(10):
        publisher.publish("t", b"%d" % number)

    assert log_of(stage, "t").end == 10
    assert log_of(stage, "t").segments[-1].runs
    while reader.link.outgoing:
        reader.read()
        stage.run()
    assert reader.payloads() == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("version", [V4, V5])
def test_the_last_message_is_known_though_it_passed_by(stage, version) -> None:
    publisher = stage.client("p", version=version)
    reader = stage.client("r", version=version)
    reader.subscribe("t")
    publisher.send(publisher.message("t", b"first"), publisher.message("t", b"final"))

    message = last_message(stage.machine, "t")

    assert message is not None
    assert (message.topic, message.payload, message.qos) == ("t", b"final", 0)


# --- both ways, side by side ---

NAMES = ("ann", "bob", "eve")
FILTERS = st.sampled_from(["a", "b", "a/#", "+", "$share/g/a", "$x"])
WHO = st.sampled_from(NAMES)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["a", "a", "a", "b", "a/b", "$x", "$SYS/x"]), st.integers(0, 2)),
    min_size=1,
    max_size=6,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), WHO, FILTERS, st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("unsubscribe"), WHO, FILTERS),
        st.tuples(st.just("send"), WHO, MESSAGES),
        st.tuples(st.just("push"), WHO, MESSAGES),
        st.tuples(st.just("send"), WHO, MESSAGES),
        st.tuples(st.just("doze"), WHO),
        st.tuples(st.just("wake"), WHO),
        st.tuples(st.just("away"), WHO),
    ),
    min_size=8,
    max_size=30,
)
CLIENTS = st.tuples(
    *(
        st.fixed_dictionaries(
            {
                "version": st.sampled_from([V4, V5, V5]),
                "topic_alias_maximum": st.sampled_from([None, None, 2]),
                "maximum_packet_size": st.sampled_from([None, None, 7]),
                "forbidden": st.sampled_from([None, None, "a"]),
                "reads": st.sampled_from(["", "a", "a", "b", "a/#"]),
            }
        )
        for _ in NAMES
    )
)


class _Forbidding:
    """Lets nothing of one topic through."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def may_publish(self, topic: str) -> bool:
        return topic != self._topic

    may_receive = may_publish

    def may_subscribe(self, _topic_filter: str, qos: int) -> int:
        return qos


class _Play:
    """Lets a script happen; returns what each client got, by topic."""

    def __init__(self, options: tuple[dict[str, Any], ...]) -> None:
        self.stage = Stage(Limits(delivery_quota=4))
        self._options = dict(zip(NAMES, [dict(each) for each in options], strict=True))
        first = {name: self._options[name].pop("reads") for name in NAMES}
        self._clients = {name: self._connect(name) for name in NAMES}
        for name, topic_filter in first.items():
            if topic_filter:
                self.subscribe(name, topic_filter, 1, 0)
        self._count = 0
        self.got: dict[str, dict[str, list[Any]]] = {name: defaultdict(list) for name in NAMES}

    def _connect(self, name: str) -> Client:
        options = dict(self._options[name])
        forbidden = options.pop("forbidden")
        access = None if forbidden is None else _Forbidding(forbidden)
        if options["version"] == V4:
            options = {"version": V4}
        return self.stage.client(name, access=access, clean=False, **options)

    def run(self, steps: list[Any]) -> dict[str, dict[str, list[Any]]]:
        for kind, name, *more in steps:
            getattr(self, kind)(name, *more)
            self.stage.run()
            self._collect()
        return self.got

    def subscribe(self, name: str, topic_filter: str, qos: int, option: int) -> None:
        self.wake(name)
        client, options = self._clients[name], {}
        if client.version == V5:
            no_local = option == 1 and not topic_filter.startswith("$share")
            options = {"identifier": 5 * (option == 2), "no_local": no_local}
        client.subscribe(topic_filter, qos=qos, **options)

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        self.wake(name)
        self._clients[name].unsubscribe(topic_filter)

    def send(self, name: str, messages: list[tuple[str, int]]) -> None:
        self.push(name, messages)
        self.stage.run()

    def push(self, name: str, messages: list[tuple[str, int]]) -> None:
        client = self._clients[name]
        packets = []
        for topic, qos in messages:
            self._count += 1
            packets.append(client.message(topic, b"%d" % self._count, qos))
        client.push(*packets)

    def doze(self, name: str) -> None:
        self._clients[name].reads = False

    def wake(self, name: str) -> None:
        self._clients[name].reads = True
        self._clients[name].read()
        self.stage.run()

    def away(self, name: str) -> None:
        self.wake(name)
        self._clients[name].lose()
        self._collect()
        self._clients[name] = self._connect(name)

    def _collect(self) -> None:
        for name, client in self._clients.items():
            for message in client.messages():
                said = message.properties
                identifiers = said.subscription_identifiers if said is not None else ()
                alias = said.topic_alias if said is not None else None
                topic = message.topic or f"alias {alias}"
                self.got[name][topic].append((message.payload, message.qos, identifiers))


@pytest.mark.slow
@given(CLIENTS, STEPS)
def test_both_paths_deliver_the_same_messages_in_the_same_order(options, steps) -> None:
    short = _Play(options)
    got = short.run(steps)
    with patch.object(Delivery, "pass_through", lambda *_: False):
        long = _Play(options)
        expected = long.run(steps)

    assert got == expected
    for meter in ("published", "published_bytes", "delivered", "refused", "too_large"):
        counted = [getattr(each.stage.machine.meters, meter) for each in (short, long)]
        assert counted[0] == counted[1], meter
    assert short.stage.machine.logs.number == long.stage.machine.logs.number
