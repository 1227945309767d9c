"""Messages with QoS 0 pass a full window, once and in order."""

import random

import pytest

from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.packet import PubAck, Publish
from tests.callboard.mqtt.stage import Client, Stage


def blocked(stage: Stage, *filters: str, **options: object) -> Client:
    """Return a client that leaves one message unacknowledged, which fills its window."""
    reader = stage.client("r", receive_maximum=1, answers=False, **options)
    reader.subscribe(*filters, qos=1)
    return reader


def finish(reader: Client) -> list[bytes]:
    """Acknowledge everything; return the payloads in the order of their arrival."""
    payloads = []
    messages = reader.messages()
    while messages:
        payloads += [message.payload for message in messages]
        due = [PubAck(message.packet_id) for message in messages if message.qos]
        messages = [each for each in reader.send(*due) if isinstance(each, Publish)]
    return payloads


def test_other_filters_are_served_while_the_window_is_full(stage) -> None:
    publisher, reader = stage.client("p"), blocked(stage, "work")
    reader.subscribe("heartbeat", qos=0)
    publisher.publish("work", b"job", 1)
    publisher.publish("work", b"next", 1)

    for number in range(5):
        publisher.publish("heartbeat", b"%d" % number)

    assert reader.payloads() == [b"job", b"0", b"1", b"2", b"3", b"4"]


def test_messages_of_the_same_filter_pass_and_are_not_repeated(stage) -> None:
    publisher, reader = stage.client("p"), blocked(stage, "#")
    for number in range(6):
        publisher.publish("t", b"one %d" % number, 1)
        publisher.publish("t", b"zero %d" % number)

    messages = reader.messages()
    got = [message.payload for message in messages]
    assert got == [b"one 0", *(b"zero %d" % number for number in range(6))]
    reader.push(PubAck(messages[0].packet_id))
    stage.run()
    assert finish(reader) == [b"one %d" % number for number in range(1, 6)]
    assert stage.lost == 0


def test_runs_of_one_read_pass_too(stage) -> None:
    publisher, reader = stage.client("p"), blocked(stage, "#")
    publisher.send(
        *(publisher.message("t", b"%d" % n, qos=1 if n % 4 == 0 else 0) for n in range(16))
    )

    messages = reader.messages()
    assert [m.payload for m in messages if not m.qos] == [b"%d" % n for n in range(16) if n % 4]
    reader.push(PubAck(messages[0].packet_id))
    stage.run()
    assert finish(reader) == [b"4", b"8", b"12"]


def test_a_retained_message_with_qos_0_passes(stage) -> None:
    publisher = stage.client("p")
    publisher.publish("state", b"on", 0, retain=True)
    reader = blocked(stage, "work")
    publisher.publish("work", b"job", 1)
    publisher.publish("work", b"next", 1)

    reader.subscribe("state", qos=1)

    assert reader.payloads() == [b"job", b"on"]


def test_messages_pass_a_window_that_is_full_of_resent_ones(stage) -> None:
    publisher, reader = stage.client("p"), blocked(stage, "#", expiry=100)
    publisher.publish("t", b"first", 1)
    publisher.publish("t", b"second", 1)
    reader.lose()
    again = stage.client("r", clean=False, expiry=100, receive_maximum=1, answers=False)

    publisher.publish("t", b"zero")

    assert again.payloads() == [b"first", b"zero"]


def test_messages_pass_again_after_a_reconnect_without_news(stage) -> None:
    publisher, reader = stage.client("p"), blocked(stage, "#", expiry=100)
    for payload in (b"first", b"second"):
        publisher.publish("t", payload, 1)
    for _ in range(2):
        reader.lose()
        reader = stage.client("r", clean=False, expiry=100, receive_maximum=1, answers=False)

    publisher.publish("t", b"zero")

    assert reader.payloads() == [b"first", b"zero"]


def test_messages_that_passed_are_not_reported_as_lost() -> None:
    stage = Stage(Limits(segment_bytes=1_024, segment_count=2, acknowledge_patience=0))
    publisher, reader = stage.client("p"), blocked(stage, "#")
    for number in range(100):
        publisher.publish("t", b"%03d" % number + bytes(200), 1 if number % 2 else 0)

    first = reader.messages()
    assert sum(not message.qos for message in first) == 50
    due = [message for message in first if message.qos]
    reader.push(PubAck(due[0].packet_id))
    stage.run()
    rest = finish(reader)

    assert len(due) + len(rest) + stage.lost == 50
    assert stage.lost > 0


def test_an_ended_reader_leaves_nothing_in_the_logs(stage) -> None:
    publisher, reader = stage.client("p"), blocked(stage, "t")
    other = stage.client("o")
    other.subscribe("t")
    for _ in range(2):
        publisher.publish("t", b"job", 1)
    log = stage.machine.logs.get("t")
    was_blocked = log.blocked is not None

    reader.unsubscribe("t")

    assert was_blocked
    assert log.blocked is None


@pytest.mark.parametrize("seed", range(20))
def test_every_message_arrives_once_and_each_qos_in_order(seed: int) -> None:
    chance, stage = random.Random(seed), Stage(Limits(delivery_quota=20))
    publisher = stage.client("p")
    reader = stage.client("r", receive_maximum=chance.randint(1, 4), answers=False)
    reader.subscribe("a/#", "b", "$share/g/c", qos=1)
    sent: dict[tuple[str, int], list[bytes]] = {}
    got: dict[tuple[str, int], list[bytes]] = {}
    due: list[PubAck] = []

    def take() -> None:
        for message in reader.messages():
            got.setdefault((message.topic, message.qos), []).append(message.payload)
            if message.qos:
                due.append(PubAck(message.packet_id))

    for number in range(300):
        topic, qos = chance.choice(["a/x", "a/y", "b", "c"]), chance.randint(0, 1)
        sent.setdefault((topic, qos), []).append(b"%d" % number)
        publisher.push(publisher.message(topic, b"%d" % number, qos))
        if chance.random() < 0.3:
            stage.run()
            take()
        if due and chance.random() < 0.1:
            reader.push(due.pop(0))
    stage.run()
    take()
    while due:
        reader.push(due.pop(0))
        stage.run()
        take()

    assert got == sent
