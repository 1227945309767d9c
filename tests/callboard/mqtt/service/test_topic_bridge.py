"""The bridge between MQTT and topics, in both directions, without loops."""

import threading

import pytest

from callboard import Endpoint, Node
from callboard.model.scalar import Octets
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.service.topic_bridge import MqttDoor, TopicMap

QUIET = RouterConfig(sys_interval=0)


class Place:
    """A node with a router on it, a door between them, an endpoint and a client."""

    def __init__(self, *maps, node=None):
        self.node = node or Node("host")
        self.router = Router(QUIET, node=self.node).start()
        self.door = MqttDoor(self.router, self.node, maps or [TopicMap()])
        self.endpoint = Endpoint(node=self.node)
        self.link = self.router.link()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.endpoint.shutdown()
        self.door.close()
        self.router.close()
        self.node.close()


def wait_until(condition):
    paused = threading.Event()
    while not condition():
        paused.wait(0.01)


def test_mqtt_topics_appear_as_endpoint_topics_and_the_reverse():
    with Place() as place, place.endpoint.make_subscriber("/mqtt/a") as subscriber:
        for number in range(500):
            place.link.publish("a/b", b"%d" % number, qos=1)
        got = [subscriber.get() for _ in range(500)]
        assert got == [("/mqtt/a/b", str(number)) for number in range(500)]

        place.link.subscribe("c/#", qos=1).result(5)
        for number in range(500):
            place.endpoint.publish("/mqtt/c/d", str(number))
        back = [place.link.recv(5) for _ in range(500)]
        assert [(each.topic, int(each.payload)) for each in back] == [
            ("c/d", number) for number in range(500)
        ]
        wait_until(lambda: (place.door.brought, place.door.taken) == (500, 500))


def test_no_message_returns_through_the_topic_bridge():
    with Place() as place, place.endpoint.make_subscriber("/mqtt") as subscriber:
        place.link.subscribe("#", qos=1).result(5)

        place.link.publish("a", b"from mqtt", qos=1).result(5)
        assert subscriber.get() == ("/mqtt/a", "from mqtt")
        place.endpoint.publish("/mqtt/b", b"from the hub")
        assert place.link.recv(5).payload == b"from mqtt"
        assert place.link.recv(5).payload == b"from the hub"
        place.link.publish("end", b"", qos=1).result(5)
        assert subscriber.get() == ("/mqtt/end", "")
        assert place.link.recv(5).topic == "end"

        assert place.link.try_recv() is None
        wait_until(lambda: (place.door.brought, place.door.taken) == (2, 1))


def test_two_routers_in_one_cluster_deliver_each_message_once():
    with Place() as one, Place() as two:
        assert two.endpoint.peer("127.0.0.1", one.endpoint.listen("127.0.0.1"))
        two.link.subscribe("#", qos=1).result(5)
        one.link.subscribe("#", qos=1).result(5)

        for number in range(100):
            one.link.publish("a", b"%d" % number, qos=1)
        there = [two.link.recv(10) for _ in range(100)]
        two.link.publish("back", b"", qos=1).result(5)
        here = [one.link.recv(10) for _ in range(101)]

        assert [int(message.payload) for message in there] == list(range(100))
        assert [message.topic for message in here] == ["a"] * 100 + ["back"]
        assert two.link.recv(5).topic == "back"
        assert two.link.try_recv() is None


@pytest.mark.parametrize(
    ("values", "payload", "expected"),
    [
        ("text", "ä".encode(), "ä"),
        ("text", b"\xff", b"\xff"),
        ("json", b'{"a": [1]}', {"a": (1,)}),
        ("json", b"{", b"{"),
        ("bytes", b"{", b"{"),
        ("bytes", b"\xd9\xbf", b"\xd9\xbf"),
    ],
)
def test_payloads_are_converted_as_the_map_requires(values, payload, expected):
    place = Place(TopicMap(values=values))
    with place, place.endpoint.make_subscriber("/mqtt/") as subscriber:
        place.link.publish("a", payload)

        assert subscriber.get() == ("/mqtt/a", expected)


@pytest.mark.parametrize(
    ("otherwise", "payload", "expected"),
    [
        ("bytes", b"{", [b"{"]),
        ("bytes", b"\xff", [b"\xff"]),
        ("text", b"{", ["{"]),
        ("text", b"\xff", [b"\xff"]),
        ("refused", b"{", []),
        ("refused", b"1" * 30, []),
    ],
)
def test_a_payload_that_is_not_json_is_converted_as_configured(
    otherwise, payload, expected, caplog
):
    place = Place(TopicMap(values="json", otherwise=otherwise))
    with place, place.endpoint.make_subscriber("/mqtt/") as subscriber:
        for _ in range(3):
            place.link.publish("a", payload)
        place.link.publish("a", b'"end"', qos=1).result(5)
        got = []
        while not got or got[-1] != "end":
            got.append(subscriber.get()[1])

        assert got == [*(expected * 3), "end"]
        assert place.door.malformed == 3
        assert place.door.refused == (0 if expected else 3)
    told = [line for line in caplog.messages if "is not json" in line]
    assert len(told) == (1 if payload != b"1" * 30 else 0)


def test_an_invalid_payload_does_not_affect_other_messages():
    place = Place(TopicMap(values="json"))
    with place, place.endpoint.make_subscriber("/mqtt/") as subscriber:
        for payload in (b"1", b"9" * 30, b"2", b"3"):
            place.link.publish("a", payload)

        assert [subscriber.get()[1] for _ in range(3)] == [1, 2, 3]


def test_bytes_stay_bytes_beside_values_that_cbor_has_no_type_for():
    place = Place(TopicMap(values="bytes"))
    with place, place.endpoint.make_subscriber("/mqtt/") as subscriber:
        place.endpoint.hub.ingest([("/mqtt/x", Octets(b"a")), ("/mqtt/y", {1})], None)
        assert [subscriber.get()[1] for _ in range(2)] == [b"a", {1}]


def test_maps_with_unknown_words_are_refused():
    with pytest.raises(
        ValueError, match="otherwise='drop': choose one of bytes, text, refused"
    ):
        TopicMap(otherwise="drop")


def test_maps_choose_prefixes_and_directions():
    maps = (
        TopicMap("up/", "/up/", "in"),
        TopicMap("down/", "/down/", "out", retain=True),
    )
    with Place(*maps) as place, place.endpoint.make_subscriber("/") as subscriber:
        place.link.publish("other", b"")
        place.link.publish("up/1", b"x", qos=1).result(5)
        assert subscriber.get() == ("/up/1", "x")

        place.endpoint.publish("/up/2", b"stays")
        place.endpoint.publish("/down/2", {"k": 1})
        wait_until(lambda: place.door.taken == 1)
        place.link.subscribe("#").result(5)
        got = place.link.recv(5)
        assert (got.topic, got.payload, got.retain) == ("down/2", b'{"k": 1}', True)


def test_values_that_mqtt_cannot_carry_are_counted():
    with Place() as place:
        place.link.subscribe("#").result(5)
        for topic in ("/mqtt/", "/mqtt/a/#", "/mqtt/$SYS/x", "/mqtt/good"):
            place.endpoint.publish(topic, b"")

        assert place.link.recv(5).topic == "good"
        assert place.door.unmapped == 3


@pytest.mark.parametrize("wrong", [{"mqtt": "a"}, {"mqtt": "#/"}, {"endpoint": ""}])
def test_a_map_that_cannot_work_is_refused(wrong):
    with pytest.raises(ValueError, match="prefix"):
        TopicMap(**wrong)
