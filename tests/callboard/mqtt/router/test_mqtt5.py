"""Features of MQTT 5: aliases, expiry, sizes, properties, flow control."""

import pytest

from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.packet import V4, V5, PubAck, Publish, PubRec
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.stage import Stage


def test_an_alias_of_a_publisher_stands_for_its_topic(stage) -> None:
    reader = stage.client("r")
    reader.subscribe("#", qos=1)
    client = stage.client("c")

    client.send(
        client.message("a", b"1", topic_alias=1),
        client.message("", b"2", topic_alias=1),
        client.message("b", b"3", 1, topic_alias=1),
        client.message("", b"4", 1, topic_alias=1),
    )

    messages = reader.messages()
    assert [(each.topic, each.payload) for each in messages] == [
        ("a", b"1"),
        ("a", b"2"),
        ("b", b"3"),
        ("b", b"4"),
    ]
    assert {each.properties.topic_alias for each in messages} == {None}


@pytest.mark.parametrize(
    ("topic", "alias", "reason"),
    [
        ("a", 65, ReasonCode.TOPIC_ALIAS_INVALID),
        ("", 1, ReasonCode.PROTOCOL_ERROR),
    ],
)
def test_a_wrong_alias_ends_the_connection(stage, topic, alias, reason) -> None:
    client = stage.client("c")
    client.publish(topic, b"", topic_alias=alias)
    assert client.end is not None
    assert client.end.reason_code == reason


def test_readers_that_accept_aliases_get_them(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", topic_alias_maximum=2, answers=False)
    reader.subscribe("#", qos=1, identifier=5)
    known: dict[int, str] = {}

    publisher.send(*(publisher.message(t, b"x", 1) for t in "aaabbbccca"))

    messages = reader.messages()
    assert [bool(each.topic) for each in messages] == [
        *(True, False, False),
        *(True, False, False),
        *(True, True, True),
        False,
    ]
    topics = []
    for each in messages:
        alias = each.properties.topic_alias
        if each.topic and alias:
            known[alias] = each.topic
        topics.append(each.topic or known[alias])
        assert each.properties.subscription_identifiers == (5,)
    assert "".join(topics) == "aaabbbccca"


def test_redelivery_has_no_alias_of_the_connection_before(stage) -> None:
    publisher = stage.client("p")
    options = {"clean": False, "expiry": 60, "topic_alias_maximum": 5, "answers": False}
    reader = stage.client("r", **options)
    reader.subscribe("t", qos=1)
    publisher.send(publisher.message("t", b"1", 1), publisher.message("t", b"2", 1))
    reader.lose()

    again = stage.client("r", **options).messages()

    assert [(each.topic, each.payload, each.dup) for each in again] == [
        ("t", b"1", True),
        ("t", b"2", True),
    ]


def test_a_message_expires_before_it_is_sent(stage) -> None:
    publisher = stage.client("p")
    away = stage.client("s", clean=False, expiry=1000)
    away.subscribe("t", qos=1)
    away.lose()
    publisher.publish("t", b"short", 1, message_expiry_interval=10)
    publisher.publish("t", b"long", 1, message_expiry_interval=100)
    publisher.publish("t", b"for ever", 1)

    stage.advance(30)
    back = stage.client("s", clean=False, expiry=1000)

    assert [
        (each.payload, each.properties.message_expiry_interval) for each in back.messages()
    ] == [(b"long", 70), (b"for ever", None)]
    assert stage.machine.meters.expired == 1


def test_a_packet_larger_than_the_clients_maximum_is_not_sent(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", maximum_packet_size=50)
    reader.subscribe("t", qos=1)

    publisher.send(
        *(publisher.message("t", bytes(size), 1) for size in (10, 100, 20, 43, 41, 200))
    )

    assert [len(each) for each in reader.payloads()] == [10, 20, 41]
    assert stage.machine.meters.too_large == 3
    assert not stage.machine.sessions.connections["r"].session.window.inflight


def test_properties_of_messages_are_passed_on_unchanged(stage) -> None:
    reader, old = stage.client("r"), stage.client("old", version=V4)
    reader.subscribe("t", qos=2, identifier=9)
    old.subscribe("t", qos=2)
    client = stage.client("c")
    fields = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answer/here",
        "correlation_data": b"\0\1",
        "user_properties": (("a", "1"), ("a", "2"), ("b", "")),
    }

    for qos in (0, 1, 2):
        client.publish("t", b"hello", qos, **fields)

    for message in reader.messages():
        assert message.properties == Properties(**fields, subscription_identifiers=(9,))
    assert [each.payload for each in old.messages()] == [b"hello"] * 3


def test_a_request_is_answered_on_its_response_topic(stage) -> None:
    server, client = stage.client("server"), stage.client("client")
    server.subscribe("do")
    client.subscribe("answers/client")

    client.publish("do", b"2+2", response_topic="answers/client", correlation_data=b"7")
    (request,) = server.messages()
    asked = request.properties
    server.publish(asked.response_topic, b"4", correlation_data=asked.correlation_data)

    (answer,) = client.messages()
    assert (answer.payload, answer.properties.correlation_data) == (b"4", b"7")


def test_a_client_may_not_send_subscription_identifiers(stage) -> None:
    client = stage.client("c")
    client.publish("t", b"", subscription_identifiers=(1,))
    assert client.end is not None
    assert client.end.reason_code == ReasonCode.PROTOCOL_ERROR


def test_more_unreleased_messages_than_the_receive_maximum_end_the_connection() -> None:
    stage = Stage(Limits(receive_maximum=3))
    client = stage.client("c", answers=False)

    answers = client.send(*(client.message("t", b"", 2) for _ in range(3)))
    client.send(client.message("t", b"", 2))

    assert [type(each) for each in answers] == [PubRec] * 3
    assert client.end is not None
    assert client.end.reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_runs_with_and_without_properties_keep_their_order(stage) -> None:
    reader = stage.client("r")
    reader.subscribe("t", qos=1)
    client = stage.client("c")
    packets = [
        client.message("t", bytes([n]), 1, **({"content_type": "x"} if n % 3 == 0 else {}))
        for n in range(12)
    ]

    answers = client.send(b"".join(encode(each, V5) for each in packets))

    assert [each.packet_id for each in answers] == [each.packet_id for each in packets]
    assert {type(each) for each in answers} == {PubAck}
    messages = reader.messages()
    assert [each.payload[0] for each in messages] == list(range(12))
    assert [each.properties.content_type for each in messages] == ["x", None, None] * 4
    assert all(isinstance(each, Publish) for each in messages)
