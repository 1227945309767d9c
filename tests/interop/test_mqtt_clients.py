"""Real clients at the MQTT router: mosquitto's tools, paho, aiomqtt, and npm's mqtt."""

import asyncio
import json
import os
import queue
import shutil
import subprocess
import threading

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.port.listener import ListenerSettings
from tests.interop.npm_modules import node

pytestmark = pytest.mark.slow

TIMEOUT = 120


@pytest.fixture
def router():
    listeners = (ListenerSettings("127.0.0.1:0"), ListenerSettings("ws://127.0.0.1:0"))
    with Router(RouterConfig(listeners=listeners)) as running:
        yield running


def web_port(router):
    return int(router.addresses[1].rpartition(":")[2])


def wait_for(router, topic_filter):
    """Return when somebody has subscribed to a filter."""
    asked = threading.Event()
    while router.call(router.machine.logs.get, topic_filter) is None:
        asked.wait(0.01)


# --- mosquitto_pub and mosquitto_sub ---


def mosquitto(router, tool, *args, **options):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (Debian: mosquitto-clients)")
    return subprocess.Popen(
        [tool, "-h", "127.0.0.1", "-p", str(router.port), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def publish(router, *args, text=None):
    with mosquitto(router, "mosquitto_pub", *args, stdin=subprocess.PIPE) as process:
        _, err = process.communicate(text, timeout=TIMEOUT)
        assert process.returncode == 0, err


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_sub_gets_what_mosquitto_pub_sends(router, version, qos):
    lines = "".join(f"line {number}\n" for number in range(500))
    args = ("-V", version, "-q", qos, "-t")
    with mosquitto(router, "mosquitto_sub", *args, "a/+", "-C", "500") as reader:
        wait_for(router, "a/+")
        publish(router, *args, "a/b", "-l", text=lines)
        out, _ = reader.communicate(timeout=TIMEOUT)

    assert out == lines


def test_mosquitto_sees_retained_messages_wills_and_properties(router):
    publish(router, "-t", "kept", "-m", "old", "-r")
    args = ("-V", "mqttv5", "-F", "%t %p %r %C", "-t", "kept", "-t", "last/+", "-C", "2")
    with mosquitto(router, "mosquitto_sub", *args) as reader:
        assert reader.stdout.readline() == "kept old 1 \n"
        will = ("--will-topic", "last/word", "--will-payload", "gone")
        with mosquitto(router, "mosquitto_sub", "-t", "x", "-i", "mortal", *will) as mortal:
            wait_for(router, "x")
            mortal.kill()
        assert reader.stdout.readline() == "last/word gone 0 \n"

    assert reader.returncode == 0


@pytest.mark.quick
def test_mosquitto_rr_gets_an_answer(router):
    """Request and response: the topic and the correlation data go through."""
    if shutil.which("mosquitto_rr") is None:
        pytest.skip("mosquitto_rr is not installed (Debian: mosquitto-clients)")
    with router.link() as link:
        link.subscribe("ask", qos=1).result(TIMEOUT)
        args = ("-V", "mqttv5", "-t", "ask", "-e", "answer", "-m", "question", "-q", "1")
        with mosquitto(router, "mosquitto_rr", *args) as asker:
            asked = link.recv(TIMEOUT)
            assert asked.properties.response_topic == "answer"
            link.publish(asked.properties.response_topic, asked.payload[::-1], qos=1)
            out, _ = asker.communicate(timeout=TIMEOUT)

    assert out == "noitseuq\n"


def test_a_session_of_mosquitto_sub_waits_for_it(router):
    args = ("-i", "keeper", "-c", "-q", "1", "-t", "a")
    with mosquitto(router, "mosquitto_sub", *args, "-E") as first:
        assert first.wait(TIMEOUT) == 0
    publish(router, "-t", "a", "-q", "1", "-m", "meanwhile")

    with mosquitto(router, "mosquitto_sub", *args, "-C", "1") as again:
        assert again.communicate(timeout=TIMEOUT)[0] == "meanwhile\n"


# --- paho ---


class Paho:
    """A paho client whose messages wait in a queue."""

    def __init__(self, router, client_id, version, transport="tcp", **options):
        self.messages = queue.Queue()
        self.granted = queue.Queue()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=version,
            transport=transport,
        )
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self.granted.put(codes)
        port = web_port(router) if transport == "websockets" else router.port
        self.client.connect("127.0.0.1", port, **options)
        self.client.loop_start()

    def subscribe(self, topic_filter, qos=0, **options):
        self.client.subscribe(topic_filter, qos, **options)
        return [code.value for code in self.granted.get(timeout=TIMEOUT)]

    def publish(self, topic, payload, qos=0, **options):
        self.client.publish(topic, payload, qos, **options).wait_for_publish(TIMEOUT)

    def get(self):
        return self.messages.get(timeout=TIMEOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_paho_speaks_both_versions_on_both_transports(router, version, transport):
    with Paho(router, "p", version, transport) as client:
        for qos in (0, 1, 2):
            assert client.subscribe(f"q/{qos}", qos) == [qos]
            for number in range(100):
                client.client.publish(f"q/{qos}", b"%d" % number, qos)
            got = [client.get() for _ in range(100)]
            assert [int(message.payload) for message in got] == list(range(100))
            assert {message.qos for message in got} == {qos}


@pytest.mark.quick
def test_paho_gets_the_properties_of_mqtt_5(router):
    sent = Properties(PacketTypes.PUBLISH)
    sent.UserProperty = [("a", "1"), ("a", "2")]
    sent.ContentType = "text/plain"
    sent.CorrelationData = b"42"
    sent.ResponseTopic = "back"
    sent.MessageExpiryInterval = 100
    identifier = Properties(PacketTypes.SUBSCRIBE)
    identifier.SubscriptionIdentifier = 7
    with Paho(router, "p", paho.MQTTv5) as client:
        client.subscribe("a", properties=identifier)
        client.publish("a", b"x", 1, properties=sent)
        got = client.get().properties

    assert got.UserProperty == [("a", "1"), ("a", "2")]
    assert (got.ContentType, got.ResponseTopic) == ("text/plain", "back")
    assert got.CorrelationData == b"42"
    assert got.MessageExpiryInterval in {99, 100}
    assert got.SubscriptionIdentifier == [7]


# --- aiomqtt ---


@pytest.mark.quick
def test_aiomqtt_publishes_and_reads(router):
    async def play():
        async with asyncio.timeout(TIMEOUT):
            async with aiomqtt.Client("127.0.0.1", router.port, identifier="aio") as client:
                await client.subscribe("a/#", qos=2)
                for number in range(50):
                    await client.publish("a/b", str(number), qos=number % 3)
                messages = aiter(client.messages)
                return [int((await anext(messages)).payload) for _ in range(50)]

    assert asyncio.run(play()) == list(range(50))


# --- npm's mqtt ---


NODE = """
const mqtt = require('mqtt');
const client = mqtt.connect(process.argv[2], {protocolVersion: Number(process.argv[3])});
const got = [];
client.on('message', (topic, payload) => {
  got.push(Number(payload.toString()));
  if (got.length === 90) { console.log(JSON.stringify(got)); client.end(); }
});
client.subscribe('n/+', {qos: 2}, (error, granted) => {
  if (error) throw error;
  for (let i = 0; i < 90; i++) client.publish('n/x', String(i), {qos: i % 3});
});
"""


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_npm_mqtt_speaks_both_versions_on_both_transports(router, version, scheme):
    program, modules = node()
    port = web_port(router) if scheme == "ws" else router.port
    done = subprocess.run(
        [program, "-e", NODE, "script", f"{scheme}://127.0.0.1:{port}", version],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
    )

    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert sorted(got) == list(range(90))
    for qos in range(3):  # it hands QoS 2 on when it is released, so behind the others
        assert [n for n in got if n % 3 == qos] == list(range(qos, 90, 3))
