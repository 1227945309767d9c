"""What an operator changes while a router runs: clients, retained messages, listeners."""

import json
import math
import urllib.error
import urllib.request

import pytest

from callboard.mqtt import ListenerSettings, Router, RouterConfig
from callboard.mqtt.service.config_edit import with_user, without_user
from callboard.mqtt.service.figures import RouterState, SysLoads
from callboard.mqtt.wire.packet import V5, Disconnect, Publish
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.caller import Caller
from tests.polling import eventually

HERE, THERE = "127.0.0.1:0", "localhost:0"
LISTENERS = ListenerSettings(HERE), ListenerSettings(THERE)
LASTING = {"properties": Properties(session_expiry_interval=100)}


@pytest.fixture
def router():
    config = RouterConfig(listeners=LISTENERS, console="127.0.0.1:0", sys_interval=0)
    with Router(config) as running:
        yield running


def post(router: Router, path: str, text: bytes = b"") -> dict:
    request = urllib.request.Request(router.console_url + path, data=text)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def sessions(router: Router) -> list[str]:
    return router.call(lambda: sorted(s.client_id for s in router.machine.sessions))


def test_a_kicked_client_is_told_and_keeps_its_session(router) -> None:
    with Caller(router.port, "c/1", V5, **LASTING) as caller:
        assert post(router, "/kick/c%2F1") == {"name": "c/1", "count": 1}

        (last,) = caller.hear_packets(1)
        assert isinstance(last, Disconnect)
        assert last.reason_code == 0x98
        assert caller.hear_packets(1) == []
    assert sessions(router) == ["c/1"]
    assert not router.kick("c/1")
    assert not router.kick("nobody", end_session=True)


@pytest.mark.parametrize("is_away", [True, False])
def test_the_session_of_a_kicked_client_can_end_too(router, is_away) -> None:
    with Caller(router.port, "c", V5, **LASTING) as caller:
        if is_away:
            caller.socket.close()
            eventually(lambda: router.call(lambda: list(router.machine.sessions.graveyard)))

        assert post(router, "/kick/c", b"session")["count"] == 1

        eventually(lambda: sessions(router) == [])


def test_retained_messages_of_a_filter_are_purged(router) -> None:
    with router.link() as link:
        for topic in ("a/1", "a/2", "b"):
            link.publish(topic, b"x", qos=1, retain=True).result(5)

        assert post(router, "/purge/a%2F%23")["count"] == 2

        assert router.shadow("b").payload == b"x"
        assert router.shadow("a/#") is None
        assert router.purge_retained("none/#") == 0
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(router, "/purge/%23%2Fa")


def test_a_listener_is_disabled_and_enabled_while_others_continue(router) -> None:
    first, second = router.addresses
    ports = [int(address.rpartition(":")[2]) for address in (first, second)]
    with Caller(ports[0], "a", V5) as a, Caller(ports[1], "b", V5) as b:
        assert post(router, "/disable/" + second)["count"] == 1

        (last,) = b.hear_packets(1)
        assert isinstance(last, Disconnect)
        with pytest.raises(ConnectionError):
            Caller(ports[1], "again")
        a.say(Publish("t", b"x", 1, packet_id=1))
        assert len(a.hear_packets(1)) == 1
        assert router.addresses == [first]
        assert not router.disable(second)

        assert router.enable(THERE)
        assert not router.enable(THERE)
        with Caller(int(router.addresses[1].rpartition(":")[2]), "again"):
            pass


def test_a_router_whose_only_listener_is_disabled_stays_usable() -> None:
    with Router(RouterConfig(sys_interval=0)) as router:
        assert router.disable(router.addresses[0])
        assert router.addresses == []
        with router.link() as link:
            link.publish("t", b"x", qos=1).result(5)


def test_a_reload_needs_a_configuration_file(router) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        post(router, "/reload")
    router.reload_file = lambda: ["users.0.name: no"]
    assert post(router, "/reload") == {"reloaded": False, "problems": ["users.0.name: no"]}


def test_loads_are_moving_averages_per_minute() -> None:
    with Router(RouterConfig(sys_interval=0)) as router, router.link() as link:
        state = RouterState(router.machine, router.edge.connections)
        loads = SysLoads(state, 0.0)
        for _ in range(30):
            link.publish("t", b"x", qos=1).result(5)

        first = loads.values(60.0)
        later = loads.values(120.0)

    expected = 30 * (1 - math.exp(-1))
    assert first["load/publish/received/1min"] == f"{expected:.2f}"
    assert later["load/publish/received/1min"] == f"{expected * math.exp(-1):.2f}"
    assert float(str(first["load/publish/received/15min"])) < expected
    assert len(first) == 27


MOSQUITTO_TOPICS = (
    *("bytes/received", "bytes/sent", "clients/active", "clients/connected"),
    *("clients/disconnected", "clients/expired", "clients/inactive", "clients/maximum"),
    *("clients/total", "heap/current", "heap/maximum", "load/bytes/received/1min"),
    *("load/connections/5min", "load/messages/sent/15min", "load/publish/dropped/1min"),
    *("load/sockets/1min", "messages/received", "messages/sent", "messages/stored"),
    *("publish/bytes/received", "publish/bytes/sent", "publish/messages/dropped"),
    *("publish/messages/received", "publish/messages/sent", "retained messages/count"),
    *("shared_subscriptions/count", "store/messages/bytes", "store/messages/count"),
    *("subscriptions/count", "uptime", "version"),
)


def test_all_topics_of_mosquitto_are_published() -> None:
    with Router(RouterConfig(sys_interval=0.05)) as router, router.link() as link:
        link.subscribe("$SYS/broker/#").result(5)
        missing = {f"$SYS/broker/{name}" for name in MOSQUITTO_TOPICS}
        while missing:
            missing.discard(link.recv(10).topic)


FILE = """# the router of a plant
[[listeners]]
address = "127.0.0.1:1883"  # ours

[[users]]
name = "ann"
password = "old"

# bob is a machine
[[users]]
name = "bob"
password = "bob's"

[[acl]]
user = "ann"
allow = [
  "a/#",
]

[limits]
max_inflight = 5
"""


def test_a_user_is_added_replaced_and_removed_in_a_file() -> None:
    entry = '[[users]]\nname = "ann"\npassword = "new"'

    replaced = with_user(FILE, "ann", entry)
    added = with_user(FILE, "eve", entry.replace("ann", "eve"))
    removed, was_there = without_user(FILE, "ann")

    assert replaced == FILE.replace('"old"', '"new"')
    assert added == FILE + "\n" + entry.replace("ann", "eve") + "\n"
    assert was_there
    assert "ann" not in removed
    assert "# bob is a machine\n[[users]]" in removed
    assert removed.endswith("[limits]\nmax_inflight = 5\n")
    assert without_user(removed, "ann") == (removed, False)
