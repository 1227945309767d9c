"""Routers of one cluster: a session lives on one of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from callboard import Node
from callboard.mqtt import Router
from callboard.mqtt.cluster import ROUTERS
from callboard.mqtt.codec import encode
from callboard.mqtt.packet import (
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from callboard.mqtt.properties import Properties
from callboard.mqtt.reason_code import ReasonCode
from tests.callboard.mqtt.stage import packets_of
from tests.callboard.mqtt.test_router import Caller


@pytest.fixture
def routers() -> Iterator[tuple[Router, Router]]:
    with Node("a") as a, Node("b") as b, Router(node=a) as one, Router(node=b) as two:
        a.listen("127.0.0.1", 0)
        b.connect(a.address)
        for node in (a, b):
            node.group(ROUTERS).ready(2).result(10)
        yield one, two


class Client(Caller):
    """A client of MQTT 5; `answer` is its CONNACK."""

    def __init__(self, router: Router, *, clean: bool, expiry: int) -> None:
        said = Properties(session_expiry_interval=expiry)
        self._connect = encode(Connect("ann", clean, version=V5, properties=said), V5)
        super().__init__(router.port, "ann")

    def say(self, *packets) -> None:
        if isinstance(packets[0], Connect):
            self.socket.sendall(self._connect)
        else:
            self.socket.sendall(b"".join(encode(each, V5) for each in packets))

    def hear(self, size: int) -> list:
        if size == 4:  # in place of the CONNACK of 3.1.1
            self.answer = self.one()
            return [ConnAck()]
        return [self.one()]

    def one(self):
        """Return the next packet."""
        head = self._exactly(2)
        return packets_of(head + self._exactly(head[1]), V5)[0]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "closed"
            data += more
        return data


@contextmanager
def joined(router: Router, *, clean: bool = False, expiry: int = 100) -> Iterator[Client]:
    with Client(router, clean=clean, expiry=expiry) as client:
        yield client


def test_a_lasting_session_is_on_its_router_and_others_say_where(routers) -> None:
    one, two = routers
    with joined(one) as first:
        first.say(Subscribe(1, (Subscription("t", 1),), Properties()))
        assert isinstance(first.one(), SubAck)

    with joined(two) as elsewhere:
        refusal = elsewhere.answer
    with joined(one) as again:
        welcome = again.answer

    assert refusal.reason_code == ReasonCode.USE_ANOTHER_SERVER
    assert refusal.properties.server_reference == one.addresses[0]
    assert (welcome.reason_code, welcome.session_present) == (0, True)


def test_a_client_that_starts_clean_is_free_to_move(routers) -> None:
    one, two = routers
    with joined(one):
        pass

    with joined(two, clean=True) as moved:
        assert moved.answer.reason_code == 0
        with joined(one) as back:
            assert back.answer.reason_code == ReasonCode.USE_ANOTHER_SERVER

    assert one.call(lambda: list(one.machine.graveyard)) == []


def test_a_client_whose_session_need_not_last_takes_its_id_along(routers) -> None:
    one, two = routers
    with joined(one, expiry=0) as first:
        with joined(two, expiry=0) as second:
            end = first.one()
            second.say(Publish("t", b"x", properties=Properties()))
        assert second.answer.reason_code == 0
        assert isinstance(end, Disconnect)
        assert end.reason_code == ReasonCode.SESSION_TAKEN_OVER


def test_a_router_that_is_out_of_reach_has_no_say(routers) -> None:
    one, two = routers
    with joined(one):
        pass
    one.close()

    with joined(two) as client:
        assert (client.answer.reason_code, client.answer.session_present) == (0, False)
