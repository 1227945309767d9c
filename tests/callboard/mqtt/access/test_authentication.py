"""Enhanced authentication (MQTT 5, 4.12) on a running router, packet by packet."""

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.mqtt import AclEntry, Router, RouterConfig, Security
from callboard.mqtt.access.auth import AuthGate
from callboard.mqtt.access.authentication import Challenge, Proved
from callboard.mqtt.access.ban import BanList
from callboard.mqtt.access.scram import SCRAM, ScramExchange, make_keys
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.errors import ListenError
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
)
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.access.test_scram import proof
from tests.callboard.mqtt.caller import Caller
from tests.callboard.mqtt.edge import ConnectEvent, Edge, incoming

CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.REAUTHENTICATE


class Riddle:
    """A method: the client says its name, and then the word backwards that it is told."""

    def __init__(self, shown):
        self.shown = shown
        self.user = ""

    def step(self, data):
        if not self.user:
            self.user = data.decode()
            return Challenge(b"drawer")
        return Proved(self.user, b"well") if data == b"reward" else ReasonCode.NOT_AUTHORIZED


class SlowRiddle(Riddle):
    async def step(self, data):
        await asyncio.sleep(0)
        return super().step(data)


class Broken(Riddle):
    def step(self, data):
        raise ValueError(data)


METHODS = {"riddle": Riddle, "slow riddle": SlowRiddle, "broken": Broken}


def running(security=None, methods=METHODS, **fields):
    return Router(
        RouterConfig(security=security or Security(), methods=methods, sys_interval=0, **fields)
    )


def said(data=None, method="riddle"):
    return Properties(authentication_method=method, authentication_data=data)


def begun(router, data=b"ann", method="riddle", **fields):
    """Send a CONNECT with a method; the first answer is `greeting`."""
    return Caller(router.port, "c", V5, properties=said(data, method), **fields)


def answered(caller, packet):
    caller.say(packet)
    return caller.hear_packets(1)


def proved(router, method="riddle", **fields):
    caller = begun(router, method=method, **fields)
    assert caller.greeting == Auth(CONTINUE, said(b"drawer", method))
    (greeting,) = answered(caller, Auth(CONTINUE, said(b"reward", method)))
    assert isinstance(greeting, ConnAck)
    assert greeting.reason_code == 0
    assert greeting.properties.authentication_method == method
    assert greeting.properties.authentication_data == b"well"
    return caller


# --- CONNECT ---


@pytest.mark.parametrize("method", ["riddle", "slow riddle"])
def test_a_client_with_valid_credentials_is_admitted(method):
    with running() as router, proved(router, method) as caller:
        assert answered(caller, PingReq()) == [PingResp()]


def test_a_client_that_fails_authentication_is_refused_and_closed():
    with running() as router, begun(router) as caller:
        (answer,) = answered(caller, Auth(CONTINUE, said(b"no")))

        assert answer.reason_code == ReasonCode.NOT_AUTHORIZED
        assert caller.hear_packets(1) == []


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("unheard", ReasonCode.BAD_AUTHENTICATION_METHOD),
        (SCRAM, ReasonCode.BAD_AUTHENTICATION_METHOD),
        ("broken", ReasonCode.UNSPECIFIED_ERROR),
    ],
)
def test_a_method_that_is_unknown_or_broken_refuses(method, reason):
    with running() as router, begun(router, method=method) as caller:
        assert caller.greeting.reason_code == reason


@pytest.mark.parametrize(
    "packet",
    [
        Publish("a"),
        PingReq(),
        Auth(CONTINUE, said(b"reward", "slow riddle")),
        Auth(AGAIN, said(b"ann")),
        Auth(0, said(b"reward")),
    ],
)
def test_only_the_next_authentication_step_is_accepted_before_admission(packet):
    with running() as router, begun(router) as caller:
        (answer,) = answered(caller, packet)

        assert isinstance(answer, ConnAck)
        assert answer.reason_code == ReasonCode.PROTOCOL_ERROR
        assert caller.hear_packets(1) == []
        assert router.call(lambda: dict(router.machine.sessions.connections)) == {}


def test_packets_after_a_connect_with_a_method_wait_for_admission():
    with running() as router:
        connection = socket.create_connection(("127.0.0.1", router.port), 10)
        with Caller(0, "x", V5, connection=_Glued(connection, Publish("a"))) as caller:
            assert caller.greeting.reason_code == ReasonCode.PROTOCOL_ERROR


class _Glued:
    """A socket that sends a second packet in the same write as the first one."""

    def __init__(self, inner, packet):
        self.inner, self.packet = inner, packet

    def sendall(self, _data):
        hello = Connect("c", version=V5, properties=said(b"ann"))
        publish = Publish(self.packet.topic, properties=Properties())
        self.inner.sendall(encode(hello, V5) + encode(publish, V5))

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_client_may_leave_in_the_middle():
    with running() as router, begun(router) as caller:
        assert answered(caller, Disconnect()) == []


def test_auth_without_a_method_is_an_error():
    with running(Security(anonymous=True)) as router, Caller(router.port, "c", V5) as caller:
        (answer,) = answered(caller, Auth(AGAIN, said(b"ann")))

        assert answer.reason_code == ReasonCode.PROTOCOL_ERROR


def test_with_methods_a_client_without_one_must_log_in_otherwise():
    def greeting(router, **fields):
        with Caller(router.port, "c", V5, **fields) as caller:
            return caller.greeting.reason_code

    with running() as router:
        assert greeting(router) == ReasonCode.NOT_AUTHORIZED
        assert greeting(router, username="ann", password=b"x") == 0x86
        with Caller(router.port, "c", V4) as caller:
            assert caller.greeting.reason_code == 5
    with running(Security(anonymous=True)) as router:
        assert greeting(router) == 0
    public = (ListenerSettings("0.0.0.0:0"),)
    with running(listeners=public) as router:
        assert router.port
    with pytest.raises(ListenError):
        Router(RouterConfig(listeners=public)).start()


def test_rules_and_bans_apply_to_the_proven_user():
    acl = (AclEntry("ann", allow=("publish up/%u",)),)
    with running(Security(acl=acl, bans=BanList(["user:eve"]))) as router:
        with proved(router, username="bob") as caller:
            caller.say(
                Publish("up/ann", b"x", 1, packet_id=1), Publish("up/bob", b"x", 1, packet_id=2)
            )
            assert [each.reason_code for each in caller.hear_packets(2)] == [
                ReasonCode.SUCCESS,
                ReasonCode.NOT_AUTHORIZED,
            ]
        with begun(router, b"eve") as caller:
            (answer,) = answered(caller, Auth(CONTINUE, said(b"reward")))
            assert answer.reason_code == ReasonCode.BANNED


def test_a_host_with_many_failed_logins_must_wait():
    with running(Security(login_failures=2)) as router:
        reasons = []
        for _ in range(4):
            with begun(router) as caller:
                answer = caller.greeting
                if isinstance(answer, Auth):
                    (answer,) = answered(caller, Auth(CONTINUE, said(b"no")))
                reasons.append(answer.reason_code)

        assert reasons == [0x87] * 2 + [ReasonCode.SERVER_BUSY] * 2


RIGHT = Auth(CONTINUE, said(b"reward"))
packets = st.sampled_from(
    [
        RIGHT,
        Auth(CONTINUE, said(b"no")),
        Auth(CONTINUE, said(b"reward", "other")),
        Auth(AGAIN, said(b"ann")),
        Auth(0, said(b"ann")),
        PingReq(),
        Publish("a", properties=Properties()),
        Disconnect(properties=Properties()),
    ]
)
reads = st.lists(st.lists(packets, min_size=1, max_size=2), max_size=4)


@given(reads, st.integers(1, 50))
def test_a_client_is_admitted_only_by_the_right_steps_in_order(reads, cut):
    gate = AuthGate(Security(login_failures=0), methods=METHODS)
    edge = Edge(gate)
    edge.connections.authenticate = gate.authenticate
    edge.connect(V5, properties=said(b"ann"))
    assert edge.wire.written == encode(Auth(CONTINUE, said(b"drawer")), V5)

    for read in reads:
        data = b"".join(encode(packet, V5) for packet in read)
        for piece in (data[:cut], data[cut:]) if len(read) == 1 else (data,):
            edge.remote.receive(piece)
    gate.close()

    is_in = bool(reads) and reads[0] == [RIGHT]
    assert edge.router.kinds().count(ConnectEvent) == is_in
    assert edge.wire.is_closed == (bool(reads) and not is_in)
    if is_in:
        # What comes later goes to the router, which hands AUTH packets back.
        later = b"".join(encode(packet, V5) for read in reads[1:] for packet in read)
        assert b"".join(incoming(edge.remote.link)) == later


# --- again ---


def again(caller, data=b"reward", user=b"ann", method="riddle"):
    """Prove it again; returns the last answer."""
    (challenge,) = answered(caller, Auth(AGAIN, said(user, method)))
    assert challenge == Auth(CONTINUE, said(b"drawer", method))
    return answered(caller, Auth(CONTINUE, said(data, method)))[0]


@pytest.mark.parametrize("method", ["riddle", "slow riddle"])
def test_a_client_may_reauthenticate_while_it_continues(method):
    with running() as router, proved(router, method) as caller:
        for _ in range(2):
            assert again(caller, method=method) == Auth(0, said(b"well", method))

        answered(caller, Auth(AGAIN, said(b"ann", method)))
        (answer,) = answered(caller, Publish("a", b"x", 1, packet_id=1))
        assert isinstance(answer, PubAck)


@pytest.mark.parametrize("fields", [{"data": b"no"}, {"user": b"bob"}])
def test_a_client_that_fails_to_reauthenticate_is_disconnected(fields):
    with running() as router, proved(router) as caller:
        answer = again(caller, **fields)

        assert (type(answer), answer.reason_code) == (Disconnect, ReasonCode.NOT_AUTHORIZED)
        assert caller.hear_packets(1) == []


@pytest.mark.parametrize(
    "packet",
    [
        Auth(AGAIN, said(b"ann", "slow riddle")),
        Auth(CONTINUE, said(b"reward")),
        Auth(0, said(b"ann")),
    ],
)
def test_an_unexpected_auth_ends_the_connection(packet):
    with running() as router, proved(router) as caller:
        (answer,) = answered(caller, packet)

        assert (type(answer), answer.reason_code) == (Disconnect, ReasonCode.PROTOCOL_ERROR)


# --- SCRAM ---

KEYS = {"ann": make_keys("secret", count=4096)}


class Told:
    """The server's half of an exchange, over a connection."""

    def __init__(self, router, **fields):
        self.router, self.fields = router, fields
        self.caller = None

    def step(self, data):
        if self.caller is None:
            self.caller = begun(self.router, data, SCRAM, **self.fields)
            answer = self.caller.greeting
        else:
            (answer,) = answered(self.caller, Auth(CONTINUE, said(data, SCRAM)))
        if isinstance(answer, Auth):
            return Challenge(answer.properties.authentication_data)
        if answer.reason_code:
            return ReasonCode(answer.reason_code)
        return Proved("", answer.properties.authentication_data)


@pytest.mark.slow
def test_scram_sha_256_is_offered_if_a_user_has_keys():
    with running(Security(scram=KEYS), {}) as router:
        right, wrong, nobody = (Told(router) for _ in range(3))
        answer, expected = proof(right, "ann", "secret")

        assert answer == Proved("", expected)
        assert proof(wrong, "ann", "guess")[0] is ReasonCode.NOT_AUTHORIZED
        assert proof(nobody, "bob", "secret")[0] is ReasonCode.NOT_AUTHORIZED
        assert answered(right.caller, PingReq()) == [PingResp()]

        router.reload(Security(scram={"bob": KEYS["ann"]}))
        (answer,) = right.caller.hear_packets(1)
        assert answer.reason_code == ReasonCode.NOT_AUTHORIZED


def test_a_custom_method_may_replace_the_built_in_one_of_its_name():
    mine = {SCRAM: lambda _shown: ScramExchange({"zoe": KEYS["ann"]}.get)}
    with running(Security(scram=KEYS), mine) as router:
        assert isinstance(proof(Told(router), "zoe", "secret")[0], Proved)
        assert proof(Told(router), "ann", "secret")[0] is ReasonCode.NOT_AUTHORIZED
