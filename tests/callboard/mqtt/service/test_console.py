"""The console over HTTP, metrics, `$SYS` topics, traces."""

import json
import logging
import socket
import urllib.error
import urllib.request

import pytest

from callboard import Node
from callboard.commitlog import CommitLog
from callboard.figures import exposition
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.access.acl import AclEntry
from callboard.mqtt.access.auth import Security
from callboard.mqtt.port.trace import KEPT, MOST, PATIENCE, Tracer
from callboard.mqtt.service.bridge import BridgeSettings
from callboard.mqtt.service.bridge_relay import BridgeTopics
from callboard.mqtt.service.console import part_rows
from callboard.mqtt.service.figures import RouterState
from callboard.mqtt.wire.errors import ListenError
from callboard.mqtt.wire.packet import V4, V5, PingReq, Publish
from callboard.operation.metrics import node_metrics
from tests.callboard.mqtt.caller import Caller
from tests.polling import eventually


@pytest.fixture(scope="module")
def router():
    security = Security(acl=(AclEntry("*", ("#", "$SYS/#")),))
    config = RouterConfig(console="127.0.0.1:0", sys_interval=0.05, security=security)
    with Router(config) as running:
        yield running


@pytest.fixture
def caller(router):
    with Caller(router.port, "c/1", V5) as connected:
        connected.subscribe("a/b", 1)
        yield connected


def ask(router, path, posted=None):
    request = urllib.request.Request(router.console_url + path, data=posted)
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
        return (
            json.loads(text) if answer.headers["Content-Type"] == "application/json" else text
        )


def test_consolelink_router_shows_counts(router, caller):
    told = ask(router, "/router")

    assert told["connections"] >= 1
    assert told["meters"]["connects"] >= 1
    assert told["network"]["bytes_in"] > 0


def test_consolelink_device_describes_a_client(router, caller):
    assert "c/1" in [each["client_id"] for each in ask(router, "/devices")["devices"]]
    told = ask(router, "/device/c%2F1")

    assert told["connected"]
    assert told["version"] == 5
    assert told["subscriptions"] == [{"filter": "a/b", "qos": 1, "no_local": False}]
    assert told["status"] == "ConnectionCaughtup"


def test_consolelink_subscriptions_and_waiters_accept_dots_for_slashes(router, caller):
    assert "a/b" in [each["filter"] for each in ask(router, "/subscriptions")["filters"]]
    assert ask(router, "/subscriptions/a.b")["clients"] == ["c/1"]
    assert ask(router, "/subscriptions/a%2Fb")["readers"] == 1
    assert ask(router, "/waiters/a.b")["waiters"][0]["client_id"] == "c/1"


def test_consolelink_config_hides_secrets_and_readyqueue_is_short(router, caller):
    config = ask(router, "/config")

    assert config["limits"]["share_strategy"] == "round-robin"
    assert config["sessions"] == "take over"
    assert config["acl"][0]["allow"] == ["#", "$SYS/#"]
    assert ask(router, "/readyqueue")["count"] == 0
    assert "/router" in ask(router, "/")


@pytest.mark.parametrize("path", ["/device/nobody", "/subscriptions/x", "/nothing", "/device"])
def test_an_unknown_path_is_404(router, path):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(router, path)


def test_prometheus_metrics_count_publishes_connections_and_failures(router, caller):
    caller.say(Publish("a/b", b"x"))
    caller.hear_packets(1)

    text = ask(router, "/metrics")

    assert "# TYPE callboard_mqtt_published_total counter" in text
    assert "callboard_mqtt_connections " in text
    assert "callboard_mqtt_refused_total " in text


def test_meters_are_pushed_by_a_timer_as_retained_sys_topics():
    with (
        Router(RouterConfig(sys_interval=0.05)) as router,
        Caller(router.port, "sys", V4) as caller,
    ):
        caller.subscribe("$SYS/broker/clients/connected")
        counts = [caller.hear_packets(1)[0]]
        assert counts[0].retain
        with Caller(router.port, "another", V4):
            while counts[-1].payload != b"2":
                counts.append(caller.hear_packets(1)[0])


def test_the_lag_of_named_readers_of_logs_is_a_sys_topic(tmp_path):
    with (
        CommitLog(tmp_path / "a+b", sync="none") as log,
        log.reader("billing"),
        Router(RouterConfig(sys_interval=0.05)) as router,
        Caller(router.port, "sys", V4) as caller,
    ):
        log.append_batch([1, 2, 3], topic="/t")
        caller.subscribe("$SYS/broker/log/a_b/billing/lag")
        while caller.hear_packets(1)[0].payload != b"3":
            pass


def test_the_list_of_slow_subscribers_names_stalled_clients(router):
    with Caller(router.port, "slow", V4) as slow, router.link() as link:
        slow.subscribe("flood")
        while not ask(router, "/slow")["count"]:
            link.publish("flood", bytes(100_000), qos=1).result(5)

        (told,) = ask(router, "/slow")["slow"]
        assert told["client_id"] == "slow"
        assert told["behind"] > 0


def test_a_trace_shows_packets_in_both_directions(router, caller):
    assert ask(router, "/trace/c%2F1/0", b"") == {"connected": True, "count": 0, "packets": []}

    caller.say(PingReq(), Publish("a/b", b"hello"))
    caller.hear_packets(2)
    told = ask(router, "/trace/c%2F1/0", b"")

    shown = {(each["direction"], each["packet"]) for each in told["packets"]}
    assert shown == {
        ("in", "PingReq"),
        ("in", "Publish"),
        ("out", "PingResp"),
        ("out", "Publish"),
    }
    assert [each["payload"] for each in told["packets"] if "payload" in each] == ["hello"] * 2
    assert ask(router, f"/trace/c%2F1/{told['count']}", b"")["packets"] == []
    assert ask(router, "/trace/c%2F1/" + "9" * 5000, b"")["connected"]


def test_consolelink_logs_swaps_the_log_level_live(router):
    def post(text):
        url = router.console_url + "/logs"
        with urllib.request.urlopen(url, data=text, timeout=10) as answer:
            return answer.read()

    logger = logging.getLogger("callboard.mqtt")
    before = logger.level
    try:
        assert post(b"debug") == b"debug\n"
        assert logger.level == logging.DEBUG
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(b"loud")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(bytes(5000))
    finally:
        logger.setLevel(before)


class Remote:
    """A stand-in for the connection that a tracer uses."""

    link = None
    tracer = None


def test_an_unread_trace_ends():
    now = [0.0]
    tracer, remote = Tracer(lambda: now[0]), Remote()
    tracer.packets_since("c", remote, 0)
    remote.link = type("L", (), {"connect": type("C", (), {"version": 4})})
    tracer.packets_since("c", None, 0)
    tracer.packets_since("c", remote, 0)
    assert remote.tracer is not None
    remote.tracer("in", b"\xc0\x00" * (KEPT + 5))
    assert len(tracer.packets_since("c", remote, 0)["packets"]) == KEPT

    now[0] += PATIENCE + 1
    tracer.packets_since("d", None, 0)

    assert remote.tracer is None


def test_only_some_clients_are_traced_at_a_time():
    tracer = Tracer(lambda: 0.0)
    for number in range(MOST):
        assert tracer.packets_since(str(number), None, 0) is not None

    assert tracer.packets_since("one more", None, 0) is None


def test_a_console_port_in_use_stops_the_start(router):
    port = router.console_url.rpartition(":")[2]
    with pytest.raises(ListenError, match="the console's"):
        Router(RouterConfig(console=f"127.0.0.1:{port}")).start()


def test_metrics_of_the_node_have_the_figures_of_its_router() -> None:
    config = RouterConfig(name="plant", sys_interval=0)
    with Node() as node:
        with Router(config, node=node) as running, running.link() as link:
            link.publish("t", b"x", qos=1).result(10)
            text = exposition(node_metrics(node))
            labels = f'{{router="plant",listener="127.0.0.1:{running.port}"}}'
            assert f"callboard_mqtt_published_total{labels} 1" in text
            assert f"callboard_mqtt_connections{labels} 1" in text

        assert 'router="plant"' not in exposition(node_metrics(node))


UP = (BridgeTopics("up/#", "out"),)


def test_bridges_are_in_metrics_tables_and_the_console() -> None:
    with Node() as node, Router(RouterConfig(sys_interval=0)) as far:
        settings = BridgeSettings(f"127.0.0.1:{far.port}", UP, client_id="up")
        config = RouterConfig(bridges=(settings,), console="127.0.0.1:0", sys_interval=0)
        with Router(config, node=node) as near, near.link() as link:
            (bridge,) = near.bridges
            eventually(lambda: bridge.is_connected)
            link.publish("up/1", b"x", qos=1).result(10)
            eventually(lambda: bridge.figures.sent == 1 and bridge.waiting == 0)

            (row,) = ask(near, "/bridges")["bridges"]
            tables = near.call(lambda: part_rows("mqtt_bridges", state_of(near), config))
            text = exposition(node_metrics(node))

    expected = {"client_id": "up", "connected": True, "sent": 1, "waiting": 0, "lost": 0}
    assert expected.items() <= row.items()
    assert tables == [row]
    samples = [line for line in text.splitlines() if 'bridge="up"' in line]
    assert [line.rpartition(" ")[2] for line in samples] == ["1", "0", "1", "0", "0", "0", "0"]


def state_of(router: Router) -> RouterState:
    return RouterState(router.machine, router.edge.connections, router.bridges)


def test_the_lag_of_a_bridge_includes_messages_that_the_router_has_not_sent() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        settings = BridgeSettings(f"127.0.0.1:{closed.getsockname()[1]}", UP, client_id="up")
        config = RouterConfig(bridges=(settings,), sys_interval=0)
        with Router(config) as near, near.link() as link:
            eventually(lambda: near.call(near.machine.logs.get, "up/#") is not None)
            for _ in range(250):
                link.publish("up/1", b"x", qos=1).result(10)

            eventually(lambda: near.call(lambda: near.bridges[0].waiting) == 250)
