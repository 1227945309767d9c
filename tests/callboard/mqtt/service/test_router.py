"""The router as an actor, on real sockets."""

import asyncio
import socket
import threading

import pytest

from callboard import Node
from callboard.commitlog import LogFailed
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.journal.journal import RouterJournal
from callboard.mqtt.port.network import RouterNetwork
from callboard.mqtt.router.datalog import CursorJump
from callboard.mqtt.router.ingress import Ingress
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.errors import JournalFailed, ListenError, RouterClosed
from callboard.mqtt.wire.packet import (
    V4,
    ConnAck,
    Connect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from tests.callboard.mqtt.stage import packets_of


class Caller:
    """A client on a socket that blocks."""

    def __init__(self, port: int, client_id: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.say(Connect(client_id))
        assert self.hear(4) == [ConnAck()]

    def say(self, *packets) -> None:
        self.socket.sendall(b"".join(encode(each, V4) for each in packets))

    def hear(self, size: int) -> list:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "the router closed the connection"
            data += more
        return packets_of(data, V4)

    def subscribe(self, topic_filter: str, qos: int = 0) -> None:
        self.say(Subscribe(1, (Subscription(topic_filter, qos),)))
        assert self.hear(5) == [SubAck(1, (qos,))]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def exchange(port: int) -> None:
    with Caller(port, "reader") as reader, Caller(port, "writer") as writer:
        reader.subscribe("a/+")
        sent = [Publish("a/b", bytes([number])) for number in range(50)]
        writer.say(*sent)
        assert reader.hear(8 * 50) == sent


def test_broker_is_embeddable_and_runs_until_it_is_stopped() -> None:
    with Router() as router:
        exchange(router.port)
        assert router.call(lambda: router.machine.meters.delivered) == 50

    with pytest.raises(RouterClosed):
        _ = router.port
    router.close()


def test_publishers_are_paused_while_a_reader_lags_by_half_a_log() -> None:
    limits = Limits(segment_bytes=1 << 16, segment_count=4, inflight=20)
    payload = bytes(4096)
    with (
        Router(RouterConfig(limits=limits, sys_interval=0)) as router,
        Caller(router.port, "reader") as reader,
        Caller(router.port, "writer") as writer,
    ):
        reader.subscribe("t", qos=1)
        sent = b"".join(
            encode(Publish("t", payload, 1, packet_id=number), V4) for number in range(1, 2001)
        )
        sending = threading.Thread(target=writer.socket.sendall, args=(sent,))
        sending.start()
        size = len(sent) // 2000
        for _ in range(2000):
            (message,) = reader.hear(size)
            reader.say(PubAck(message.packet_id))
        sending.join(10)
        meters = router.call(lambda: router.machine.meters)

    assert (meters.published, meters.lost, meters.passed_over) == (2000, 0, 0)
    assert meters.braked > 1


def test_a_session_that_was_away_reads_more_than_memory_holds(tmp_path) -> None:
    limits = Limits(segment_bytes=1 << 14, segment_count=2)
    config = RouterConfig(directory=tmp_path / "journal", limits=limits, sys_interval=0)
    with Router(config) as router:
        options = {"clean_start": False, "session_expiry": 1000}
        with router.link("away", **options) as link:
            link.subscribe("t", qos=1).result(5)
        with router.link("writer") as writer:
            for number in range(40):
                many = [Message("t", bytes([number]) * 200, 1) for _ in range(10)]
                writer.publish_all(many)[-1].result(5)
        assert router.call(lambda: router.machine.logs.get("t").shelved) > 0

        with router.link("away", **options) as link:
            got = [link.recv(5).payload[0] for _ in range(400)]
        lost = router.call(lambda: router.machine.meters.lost)

    assert got == [number for number in range(40) for _ in range(10)]
    assert lost == 0


def test_a_router_is_embedded_with_async_with() -> None:
    async def play() -> None:
        async with Router() as router:
            await asyncio.to_thread(exchange, router.port)

    asyncio.run(play())


def test_a_router_can_run_on_an_existing_node() -> None:
    with Node("host") as node:
        with Router(node=node) as router:
            exchange(router.port)
            down = node.monitor(router.ref)
        assert str(down.result(5).reason) == "normal"


def test_broker_refuses_to_start_with_no_listener_configured() -> None:
    with pytest.raises(ListenError, match="needs a listener"):
        Router(RouterConfig(listeners=()))


def test_a_router_starts_once() -> None:
    with Router() as router, pytest.raises(RouterClosed, match="started only once"):
        router.start()


def test_a_port_in_use_is_reported_and_no_resource_remains(monkeypatch) -> None:
    with Router() as first:
        taken = RouterConfig(
            listeners=(first.config.listeners[0].__class__(f"127.0.0.1:{first.port}"),)
        )
        with pytest.raises(ListenError, match="cannot be opened"):
            Router(taken).start()


def test_errors_on_the_routers_thread_are_raised_at_the_caller() -> None:
    def fail() -> None:
        raise LookupError("nobody there")

    with Router() as router:
        with pytest.raises(LookupError, match="nobody there"):
            router.call(fail)
        exchange(router.port)


def test_a_failing_turn_disconnects_one_client(monkeypatch, caplog) -> None:
    def fail(ingress, connection, data):
        if b"poison" in data:
            raise ZeroDivisionError
        return take(ingress, connection, data)

    take = Ingress._handle_chunk
    monkeypatch.setattr(Ingress, "_handle_chunk", fail)
    with Router() as router:
        with Caller(router.port, "bad") as bad:
            bad.say(Publish("t", b"poison"))
            assert bad.socket.recv(1) == b""
        exchange(router.port)
    assert "a turn of the MQTT router failed" in caplog.text


def test_a_failing_journal_ends_the_router_before_it_acknowledges(
    tmp_path, monkeypatch
) -> None:
    def fail(_self, _records, _machine):
        raise LogFailed("a sync failed")

    config = RouterConfig(directory=tmp_path / "journal")
    with Node("host") as node:
        router = Router(config, node=node).start()
        down = node.monitor(router.ref)
        with Caller(router.port, "c") as client:
            monkeypatch.setattr(RouterJournal, "write", fail)
            monkeypatch.setattr(RouterJournal, "has_failed", True)
            client.say(Publish("t", b"x", 1, retain=True, packet_id=1))

            assert client.socket.recv(4) == b""
        assert "a sync failed" in down.result(5).detail
        router.close()


def test_packets_that_fit_into_no_journal_are_refused_at_the_start(tmp_path) -> None:
    config = RouterConfig(limits=Limits(packet_size=1 << 24), directory=tmp_path / "journal")

    with pytest.raises(JournalFailed, match="allow at most 8,388,608"):
        Router(config).start()


def test_broker_builds_the_router_before_its_listeners(tmp_path, monkeypatch) -> None:
    config = RouterConfig(directory=tmp_path)
    with Router(config) as router, router.link("keeper", session_expiry=100) as link:
        link.subscribe("t", qos=1).result(5)
    found = []
    opening = RouterNetwork.open

    async def noted(edge: RouterNetwork, listeners) -> None:
        found.append(list(again.call(lambda: again.machine.sessions.graveyard)))
        await opening(edge, listeners)

    monkeypatch.setattr(RouterNetwork, "open", noted)
    again = Router(config)
    with again:
        assert found == [["keeper"]]


def test_alerts_are_events_of_the_node() -> None:
    limits = Limits(segment_bytes=2_000, segment_count=2, inflight=1, acknowledge_patience=0)

    async def play(node: Node, router: Router) -> object:
        events = aiter(node.events())
        following = asyncio.ensure_future(next_alert(events))
        await asyncio.sleep(0)
        with Caller(router.port, "slow") as slow, router.link() as link:
            slow.subscribe("t", 1)
            for _ in range(100):
                link.publish("t", bytes(100), qos=1)
            await asyncio.to_thread(slow.hear, 107)
            slow.say(PubAck(1))
            return await asyncio.wait_for(following, 10)

    with Node() as node, Router(RouterConfig(limits=limits), node=node) as router:
        alert = asyncio.run(play(node, router))
    assert (alert.client_id, alert.topic_filter) == ("slow", "t")
    assert alert.lost > 0


async def next_alert(events) -> CursorJump:
    async for event in events:
        if isinstance(event, CursorJump):
            return event
    raise AssertionError
