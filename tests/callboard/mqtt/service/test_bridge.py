"""Bridges to our router and to mosquitto, through outages, without loops."""

import contextlib
import shutil
import socket
import subprocess
import threading

import pytest
import trustme

from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.access.auth import Security
from callboard.mqtt.access.scrypt import hash_password
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.service.bridge import BridgeSettings
from callboard.mqtt.service.bridge_relay import BridgeTopics
from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.errors import ListenError
from callboard.mqtt.wire.framing import Deframer
from callboard.mqtt.wire.packet import V5, ConnAck, Disconnect, Publish
from callboard.mqtt.wire.properties import NO_PROPERTIES
from callboard.tls.contexts import Tls

BOTH = (BridgeTopics("in/#", "in", 2, "far/"), BridgeTopics("out/#", "out", 2, "near/"))


def running(*bridges, **fields):
    return Router(RouterConfig(bridges=bridges, sys_interval=0, **fields))


def to(port, topics=BOTH, **fields):
    return BridgeSettings(f"127.0.0.1:{port}", topics, reconnect_delay=0.05, **fields)


def wait_until(condition):
    paused = threading.Event()
    while not condition():
        paused.wait(0.01)


def wait_for(router):
    wait_until(lambda: router.bridges[0].is_connected)
    bridge = router.bridges[0]
    wait_until(
        lambda: router.call(
            lambda: (
                "$bridge-" + bridge.settings.client_id in (router.machine.sessions.connections)
            )
        )
    )


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_bridge_carries_messages_both_ways_with_every_qos(version):
    with running() as far, running(to(far.port, version=version)) as near:
        wait_for(near)
        wait_until(lambda: far.call(far.machine.logs.get, "in/#") is not None)
        wait_until(lambda: near.call(near.machine.logs.get, "out/#") is not None)
        versions = far.call(
            lambda: {c.is_v5 for c in far.machine.sessions.connections.values()}
        )
        assert versions == {version == "5"}
        with far.link() as there, near.link() as here:
            there.subscribe("near/#", qos=2).result(5)
            here.subscribe("far/#", qos=2).result(5)
            for number in range(300):
                there.publish(f"in/{number % 3}", b"%d" % number, qos=number % 3)
                here.publish(f"out/{number % 3}", b"%d" % number, qos=number % 3)

            got_here = [here.recv(10) for _ in range(300)]
            got_there = [there.recv(10) for _ in range(300)]

            for got, prefix in ((got_here, "far/in/"), (got_there, "near/out/")):
                assert sorted(int(each.payload) for each in got) == list(range(300))
                assert {each.topic for each in got} == {f"{prefix}{qos}" for qos in range(3)}
                assert all(each.topic.endswith(str(each.qos)) for each in got)


def test_topics_mapped_in_both_directions_do_not_loop():
    same = (BridgeTopics("#", "in"), BridgeTopics("#", "out"))
    with running() as far, running(to(far.port, same)) as near:
        wait_for(near)
        wait_until(lambda: far.call(far.machine.logs.get, "#") is not None)
        wait_until(lambda: near.call(near.machine.logs.get, "#") is not None)
        with far.link() as there, near.link() as here:
            there.subscribe("#", qos=1).result(5)
            here.subscribe("#", qos=1).result(5)
            there.publish("a", b"1", qos=1).result(5)
            assert here.recv(10).payload == b"1"
            assert there.recv(10).payload == b"1"
            here.publish("b", b"2", qos=1).result(5)
            assert there.recv(10).payload == b"2"
            assert here.recv(10).payload == b"2"

            assert here.try_recv() is None
            assert there.try_recv() is None


def test_messages_wait_for_a_broker_that_is_away():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    with running(to(port)) as near, near.link() as here:
        far = running(listeners=(ListenerSettings(f"127.0.0.1:{port}"),)).start()
        wait_for(near)
        wait_until(lambda: near.call(near.machine.logs.get, "out/#") is not None)
        far.close()
        wait_until(lambda: not near.bridges[0].is_connected)
        for number in range(50):
            here.publish("out/x", b"%d" % number, qos=1).result(5)

        again = running(listeners=(ListenerSettings(f"127.0.0.1:{port}"),))
        with again, again.link() as there:
            there.subscribe("near/#", qos=1).result(5)
            got = {int(there.recv(10).payload) for _ in range(50)}

        assert got == set(range(50))


def test_messages_wait_for_a_broker_that_was_never_reached_also_over_a_restart(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    with running(to(port), directory=tmp_path) as near, near.link() as here:
        name = near.bridges[0].settings.client_id
        wait_until(lambda: near.call(near.machine.logs.get, "out/#") is not None)
        for number in range(50):
            here.publish("out/x", b"%d" % number, qos=1 + number % 2).result(5)

    far = running(listeners=(ListenerSettings(f"127.0.0.1:{port}"),))
    with far, far.link() as there:
        there.subscribe("near/#", qos=2).result(5)
        with running(to(port), directory=tmp_path) as near:
            assert near.bridges[0].settings.client_id == name
            got = sorted(int(there.recv(10).payload) for _ in range(50))

    assert got == list(range(50))


class Uplink:
    """A TCP path to a port that can be cut."""

    def __init__(self, port):
        self._target, self._pairs = port, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._pairs.append((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    @staticmethod
    def _copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(2_000):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Break all connections; what is under way is lost."""
        for pair in self._pairs:
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self):
        self._listener.close()
        self.cut()


@pytest.mark.parametrize("qos", [1, 2])
def test_an_uplink_that_is_cut_again_and_again_loses_no_message(qos):
    with running() as far, far.link() as there, contextlib.closing(Uplink(far.port)) as uplink:
        there.subscribe("near/#", qos=2).result(5)
        with running(to(uplink.port)) as near, near.link() as here:
            here.subscribe("far/#", qos=2).result(5)
            wait_for(near)
            wait_until(lambda: far.call(far.machine.logs.get, "in/#") is not None)
            done = []
            for number in range(600):
                done.append(here.publish("out/x", b"%d" % number, qos=qos))
                done.append(there.publish("in/x", b"%d" % number, qos=qos))
                if number % 50 == 49:
                    done[-2].result(10)
                    uplink.cut()
            got = {"there": [], "here": []}
            for name, link in (("there", there), ("here", here)):
                while set(got[name]) != set(range(600)):
                    got[name].append(int(link.recv(20).payload))

    if qos == 2:
        assert all(len(each) == 600 for each in got.values())


def test_bridges_without_a_client_id_have_different_ones():
    with running(to(1), to(2)) as near:
        first, second = (each.settings.client_id for each in near.bridges)

    assert first != second


def test_a_bridge_keeps_its_session_in_a_journal_of_the_first_release(tmp_path):
    with (
        running(directory=tmp_path) as near,
        near.link("$bridge-callboard-bridge", clean_start=False, session_expiry=1000),
    ):
        pass

    with running(to(1), to(2), directory=tmp_path) as near:
        first, second = (each.settings.client_id for each in near.bridges)

    assert first == "callboard-bridge" != second


def test_two_bridges_with_one_client_id_are_refused():
    router = running(to(1, client_id="same"), to(2, client_id="same"))
    with pytest.raises(ListenError, match="two bridges have the client_id 'same'"):
        router.start()


def test_a_bridge_whose_link_the_router_ends_joins_it_again():
    with running() as far, far.link() as there, running(to(far.port)) as near:
        there.subscribe("near/#", qos=1).result(5)
        wait_for(near)
        name = "$bridge-" + near.bridges[0].settings.client_id
        with near.link(name, clean_start=False, session_expiry=1000):
            wait_until(lambda: not near.bridges[0].is_connected)

        wait_for(near)
        with near.link() as here:
            here.publish("out/x", b"again", qos=1).result(5)
            assert there.recv(10).payload == b"again"


def test_the_state_of_a_bridge_is_published():
    with running() as far, running(to(far.port)) as near, near.link() as here:
        here.subscribe("$SYS/broker/connection/+/state", qos=1).result(5)
        wait_until(lambda: here.recv(10).payload == b"1")
        far.close()
        wait_until(lambda: here.recv(10).payload == b"0")


def test_a_bridge_tries_its_further_addresses():
    with running() as far:
        settings = to(1, fallbacks=(f"127.0.0.1:{far.port}",))
        with running(settings) as near:
            wait_for(near)


def test_a_bridge_logs_in_and_speaks_tls(tmp_path):
    authority = trustme.CA()
    path, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(path)
    listener = ListenerSettings("tls://127.0.0.1:0", Tls(certificate=path, mutual=False))
    users = Security(users={"plant": hash_password(b"secret", cost=2)})
    with running(listeners=(listener,), security=users) as far:
        settings = BridgeSettings(
            f"tls://127.0.0.1:{far.port}",
            BOTH,
            username="plant",
            password=b"secret",
            tls=Tls(authority=ca),
            reconnect_delay=0.05,
        )
        with running(settings) as near:
            wait_for(near)


def test_a_refused_bridge_reports_the_reason_and_retries(caplog):
    users = Security(users={"plant": hash_password(b"secret", cost=2)})
    with running(security=users) as far, running(to(far.port)):
        wait_until(lambda: caplog.text.count("not authorized") >= 2)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_mosquitto_is_bridged(tmp_path, version):
    tool = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if tool is None:
        pytest.skip("mosquitto is not installed")
    config = tmp_path / "mosquitto.conf"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    with subprocess.Popen([tool, "-c", str(config)], stderr=subprocess.DEVNULL) as broker:
        try:
            round_trip = (BridgeTopics("in/#", "in"), BridgeTopics("out/#", "out"))
            back = (BridgeTopics("out/#", "in"), BridgeTopics("in/#", "out"))
            one = to(port, round_trip, version=version)
            two = to(port, back, version=version, client_id="other")
            with running(one) as near, running(two) as other:
                wait_for(near)
                wait_for(other)
                wait_until(lambda: other.call(other.machine.logs.get, "in/#") is not None)
                with near.link() as here, other.link() as there:
                    there.subscribe("out/#", qos=1).result(5)
                    here.subscribe("in/#", qos=1).result(5)
                    wait_until(lambda: _echo(here, there))
        finally:
            broker.kill()


def _echo(here, there):
    """Publish on both sides; whether both arrived (subscriptions take a moment there)."""
    here.publish("out/1", b"to there", qos=1).result(5)
    there.publish("in/1", b"to here", qos=1).result(5)
    try:
        return (there.recv(0.5).payload, here.recv(0.5).payload) == (b"to there", b"to here")
    except TimeoutError:
        return False


@pytest.mark.parametrize("address", ["host", "host:0", "ws://host:1", ":1"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ListenError, match="not a broker address"):
        BridgeSettings(address).parse()


def test_topics_that_would_loop_over_mqtt_3_1_1_are_refused():
    round_trip = (BridgeTopics("a/#", "in"), BridgeTopics("+/b", "out"))
    with pytest.raises(ListenError, match=r"to \+/b from a/#: MQTT 3.1.1 cannot exclude"):
        to(1, round_trip, version="3.1.1").parse()

    assert to(1, round_trip).parse() == ("127.0.0.1", 1, False)
    apart = (BridgeTopics("a/#", "in"), BridgeTopics("+/b", "out", prefix="here/"))
    assert to(1, apart, version="3.1.1").parse() == ("127.0.0.1", 1, False)


@pytest.mark.slow
def test_a_bridge_that_ends_disconnects_cleanly_from_a_flooding_broker():
    """Without the DISCONNECT the broker would take it for lost, and publish its will."""
    flood = encode(Publish("in/x", bytes(60_000), properties=NO_PROPERTIES), V5) * 200
    for _ in range(10):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = running(to(listener.getsockname()[1])).start()
            broker, _ = listener.accept()
            broker.settimeout(20)
            broker.recv(65_536)
            broker.sendall(encode(ConnAck(properties=NO_PROPERTIES), V5))
            broker.recv(65_536)  # its subscription
            flooding = threading.Thread(target=broker.sendall, args=(flood,))
            flooding.start()
            closing = threading.Thread(target=near.close)
            closing.start()
            flooding.join()
            said = []
            network = Deframer()
            while not said:
                data = broker.recv(65_536)
                assert data
                said = [
                    each
                    for each in decode_all(network.receive(data), V5)
                    if isinstance(each, Disconnect)
                ]
            broker.close()
            closing.join()
            assert said[0].reason_code == 0
