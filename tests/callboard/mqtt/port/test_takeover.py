"""A client that reconnects: packets of its first connection take effect first."""

import socket
import threading
from contextlib import contextmanager
from typing import Any

import pytest
import trustme
from websockets.sync.client import connect as connect_websocket

from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.framing import Deframer
from callboard.mqtt.wire.packet import (
    V5,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from callboard.mqtt.wire.properties import Properties
from callboard.tls.contexts import Tls

SCHEMES = ("tcp", "tls", "ws", "wss", "unix")
NONE = Properties()
CONNECT = Connect(
    "c",
    clean_start=False,
    will=Will("will", b"gone", properties=NONE),
    version=V5,
    properties=Properties(session_expiry_interval=100),
)
PUBLISHES = [Publish(f"t/{at}", b"x", retain=True, properties=NONE) for at in range(5)]


class Socket:
    """A client on any kind of socket."""

    def __init__(self, scheme, router, authority):
        self.frames = Deframer()
        self.web = None
        if scheme == "unix":
            self.raw = socket.socket(socket.AF_UNIX)
            self.raw.connect(router.addresses[0].removeprefix("unix:"))
        else:
            self.raw = socket.create_connection(("127.0.0.1", router.port), 10)
        self.raw.settimeout(10)
        context = Tls(authority=authority).for_dialing()
        if scheme in {"ws", "wss"}:
            tls = context if scheme == "wss" else None
            url = f"{scheme}://localhost:{router.port}"
            web = connect_websocket(url, sock=self.raw, ssl=tls, subprotocols=["mqtt"])
            self.web = web.__enter__()  # the only form that all releases of the library like
        elif scheme == "tls":
            self.raw = context.wrap_socket(self.raw, server_hostname="localhost")

    def say(self, *packets):
        send = self.raw.sendall if self.web is None else self.web.send
        send(b"".join(encode(each, V5) for each in packets))

    def hear(self):
        receive = (lambda: self.raw.recv(65_536)) if self.web is None else self.web.recv
        return decode_all(self.frames.receive(receive()), V5)

    def close(self):
        (self.raw if self.web is None else self.web).close()


@contextmanager
def stuck(router):
    """Keep the router from reading; afterwards it reads the sockets in the opposite order."""
    begun, end = threading.Event(), threading.Event()

    def block():
        begun.set()
        end.wait(10)

    thread = threading.Thread(target=router.call, args=(block,))
    thread.start()
    assert begun.wait(10)
    yield
    selector = router.edge._runner.selector
    select = selector.select
    selector.select = lambda timeout=None: select(timeout)[::-1]
    end.set()
    thread.join(10)


@pytest.fixture
def play(tmp_path):
    """Return a function that lets a client say packets, and connect again on another socket."""
    made: list[Any] = []

    def run(scheme, *packets, before=(), **limits):
        ca = trustme.CA()
        ca.cert_pem.write_to_path(tmp_path / "ca.pem")
        issued = ca.issue_cert("localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
        has_tls = scheme in {"tls", "wss"}
        tls = Tls(certificate=tmp_path / "own.pem", mutual=False) if has_tls else None
        where = f"unix:{tmp_path}/s" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
        listener = ListenerSettings(where, tls)
        config = RouterConfig((listener,), network=NetworkLimits(**limits), sys_interval=0)
        router = Router(config).start()
        made.append(router)
        old = Socket(scheme, router, tmp_path / "ca.pem")
        old.say(CONNECT, *before)
        assert old.hear()[0].reason_code == 0
        new = Socket(scheme, router, tmp_path / "ca.pem")
        made.extend((old, new))
        with stuck(router):
            old.say(*packets)
            new.say(CONNECT)
        return router, new.hear()[0]

    yield run
    for each in reversed(made):
        each.close()


def facts(router):
    """Return the state of the session: wills, takeovers, filters, retained messages."""
    return router.call(
        lambda: (
            router.machine.meters.wills,
            router.machine.meters.taken_over,
            list(router.machine.sessions.connections["c"].session.subscriptions),
            len(router.machine.logs.retained),
        )
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_disconnect_is_processed_before_the_next_connect_of_its_client(play, scheme):
    router, greeting = play(scheme, *PUBLISHES, Disconnect(0, NONE))

    assert greeting.session_present is True
    assert facts(router) == (0, 0, [], 5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_session_expiry_of_a_disconnect_holds(play, scheme):
    router, greeting = play(scheme, Disconnect(0, Properties(session_expiry_interval=0)))

    assert greeting.session_present is False
    assert facts(router)[:2] == (0, 0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_subscriptions_are_in_force_before_a_session_is_taken_over(play, scheme):
    asked = Subscribe(1, (Subscription("new"), Subscription("gone")), NONE)

    router, greeting = play(scheme, asked, Unsubscribe(2, ("gone",), NONE), *PUBLISHES)

    assert greeting.session_present is True
    assert facts(router) == (1, 1, ["new"], 5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_order_holds_for_connections_that_the_router_reads_slowly(play, scheme):
    before = [Publish("slow", b"", properties=NONE)] * 3

    router, _ = play(scheme, *PUBLISHES, Disconnect(0, NONE), before=before, message_rate=0.5)

    assert facts(router) == (0, 0, [], 5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_order_holds_over_several_reads_and_turns(play, scheme):
    large = [Publish("large", bytes(12_000), properties=NONE)] * 10

    router, _ = play(scheme, *large, *PUBLISHES, Disconnect(0, NONE), packets_per_read=3)

    assert facts(router) == (0, 0, [], 5)
