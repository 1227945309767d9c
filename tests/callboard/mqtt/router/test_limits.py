"""Limits of clients: queues, QoS, retained messages, client ids."""

import pytest

from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.packet import V4, V5, PubAck, Publish, Will
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.stage import Stage, connack


def received(client) -> list[bytes]:
    return [each.payload for each in client.inbox if isinstance(each, Publish)]


def test_an_absent_client_keeps_its_newest_messages_within_its_queue() -> None:
    stage = Stage(Limits(queued_messages=10))
    publisher = stage.client("p")
    away = stage.client("away", expiry=100)
    away.subscribe("t", qos=1)
    away.lose()
    for number in range(25):
        publisher.publish("t", b"%d" % number, 1)

    again = stage.client("away", clean=False, expiry=100)

    assert received(again) == [b"%d" % number for number in range(15, 25)]
    assert stage.lost == 15


def test_the_queue_of_a_client_counts_all_its_filters() -> None:
    stage = Stage(Limits(queued_messages=10))
    publisher = stage.client("p")
    away = stage.client("away", expiry=100)
    away.subscribe("a", "b", qos=1)
    away.lose()
    for number in range(20):
        publisher.publish("a" if number % 2 else "b", b"%d" % number, 1)

    again = stage.client("away", clean=False, expiry=100)

    assert len(received(again)) == 10
    assert stage.lost == 10


def test_the_size_of_a_queue_is_limited() -> None:
    stage = Stage(Limits(queued_bytes=20_000))
    publisher = stage.client("p")
    away = stage.client("away", expiry=100)
    away.subscribe("t", qos=1)
    away.lose()
    for number in range(25):
        publisher.publish("t", b"%02d" % number + bytes(2_000), 1)

    again = stage.client("away", clean=False, expiry=100)

    assert 5 <= len(received(again)) <= 9
    assert received(again)[-1][:2] == b"24"
    assert len(received(again)) + stage.lost == 25


def test_a_slow_client_loses_its_oldest_messages_and_a_quick_one_none() -> None:
    stage = Stage(Limits(queued_messages=10))
    publisher, quick = stage.client("p"), stage.client("quick")
    slow = stage.client("slow", receive_maximum=2, answers=False)
    for reader in (quick, slow):
        reader.subscribe("t", qos=1)
    for number in range(30):
        publisher.publish("t", b"%d" % number, 1)

    assert len(quick.payloads()) == 30
    first, second = slow.messages()
    (third,) = slow.send(PubAck(first.packet_id))
    assert [m.payload for m in (first, second, third)] == [b"0", b"1", b"20"]
    assert stage.lost == 18


def test_without_a_limit_nothing_is_dropped() -> None:
    stage = Stage()
    publisher = stage.client("p")
    away = stage.client("away", expiry=100)
    away.subscribe("t", qos=1)
    away.lose()
    for number in range(300):
        publisher.publish("t", b"%d" % number, 1)

    assert len(received(stage.client("away", clean=False, expiry=100))) == 300


# --- QoS and retained messages ---


def test_a_router_without_retained_messages_refuses_them() -> None:
    stage = Stage(Limits(retain_available=False))
    client = stage.client("c")
    assert connack(client).properties.retain_available == 0

    client.publish("t", b"x", 0, retain=True)

    assert client.end is not None
    assert client.end.reason_code is ReasonCode.RETAIN_NOT_SUPPORTED
    assert len(stage.machine.logs.retained) == 0
    local = stage.client("$sys", is_local=True)
    local.publish("$SYS/x", b"1", 0, retain=True)
    assert len(stage.machine.logs.retained) == 1


@pytest.mark.parametrize("most", [0, 1])
def test_a_maximum_qos_holds_in_both_directions(most) -> None:
    stage = Stage(Limits(maximum_qos=most))
    client, reader = stage.client("c"), stage.client("r")
    assert connack(client).properties.maximum_qos == most
    assert reader.subscribe("t", qos=2).reason_codes == (most,)

    client.publish("t", b"good", most)
    assert reader.payloads() == [b"good"]
    client.publish("t", b"bad", most + 1)

    assert client.end is not None
    assert client.end.reason_code is ReasonCode.QOS_NOT_SUPPORTED
    assert reader.payloads() == []


@pytest.mark.parametrize(
    ("limits", "will", "reason"),
    [
        (Limits(retain_available=False), Will("t", b"", retain=True), 0x9A),
        (Limits(maximum_qos=0), Will("t", b"", 1), 0x9B),
    ],
)
def test_wills_obey_the_same_limits(limits, will, reason) -> None:
    assert connack(Stage(limits).client("c", will=will)).reason_code == reason


@pytest.mark.parametrize(("version", "code"), [(V4, 2), (V5, 0x85)])
def test_clients_without_an_id_can_be_refused(version, code) -> None:
    stage = Stage(Limits(zero_length_client_ids=False))

    assert connack(stage.client("", version=version)).reason_code == code
    assert connack(stage.client("c", version=version)).reason_code == 0


def test_client_ids_can_have_64_kib() -> None:
    stage = Stage(Limits(client_id_length=65_535))

    assert connack(stage.client("c" * 65_535)).reason_code == 0
