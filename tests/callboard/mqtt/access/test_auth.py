"""Admission and rights of clients on a running router."""

import asyncio
import threading

import pytest

from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.access.acl import AclEntry
from callboard.mqtt.access.admission import Admission, Peer
from callboard.mqtt.access.auth import AuthGate, Security
from callboard.mqtt.access.ban import BanList
from callboard.mqtt.access.scrypt import PasswordHash, hash_password
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.caller import Caller

#: Cheap ones: the cost stands in the hash.
ANN = hash_password(b"secret", cost=2)
USERS = Security(users={"ann": ANN})


def running(security=None, authenticator=None, **network):
    return Router(
        RouterConfig(
            security=security or Security(),
            authenticator=authenticator,
            network=NetworkLimits(**network),
            sys_interval=0,
        )
    )


def greeting(router, version=V5, **fields):
    with Caller(router.port, "c", version, **fields) as caller:
        return caller.greeting.reason_code


# --- passwords ---


def test_a_password_hash_is_scrypt_with_its_own_salt_and_cost():
    first, second = hash_password(b"x", cost=4), hash_password(b"x", cost=4)

    assert first.salt != second.salt
    assert str(first).startswith("scrypt$4$8$1$")
    assert PasswordHash.parse(str(first)) == first
    assert first.verify(b"x")
    assert not first.verify(b"y")


@pytest.mark.parametrize(
    "line",
    ["plain", "scrypt$3$8$1$YQ==$YQ==", "scrypt$x$8$1$YQ==$YQ==", "scrypt$2$8$1$?$YQ=="],
)
def test_a_line_that_is_not_a_hash_is_refused(line):
    with pytest.raises(ValueError, match=r"scrypt"):
        PasswordHash.parse(line)


def test_a_hash_may_not_ask_for_all_memory():
    with pytest.raises(ValueError, match="more than 256 MiB"):
        PasswordHash.parse(f"scrypt${1 << 30}$8$1$YQ==$YQ==")


def test_static_table_admits_users_with_the_right_password():
    with running(USERS) as router:
        assert greeting(router, username="ann", password=b"secret") == 0
        assert greeting(router, username="ann", password=b"wrong") == 0x86
        assert greeting(router, username="bob", password=b"secret") == 0x86
        assert greeting(router, username="ann") == 0x86
        assert greeting(router, V4, username="ann", password=b"wrong") == 4


def test_missing_login_is_refused_unless_strangers_are_welcome():
    with running(USERS) as router:
        assert greeting(router) == 0x87
        assert greeting(router, V4) == 5
    with running(Security(users={"ann": ANN}, anonymous=True)) as router:
        assert greeting(router) == 0


def test_a_host_that_fails_often_has_to_wait():
    with running(Security(users={"ann": ANN}, login_failures=3)) as router:
        answers = [greeting(router, username="ann", password=b"x") for _ in range(5)]

        assert answers == [0x86] * 3 + [ReasonCode.SERVER_BUSY] * 2


def test_other_authentication_methods_are_refused():
    with running() as router:
        properties = Properties(authentication_method="SCRAM-SHA-1")

        assert greeting(router, properties=properties) == ReasonCode.BAD_AUTHENTICATION_METHOD


# --- a function ---


def test_external_function_wins_over_the_table():
    seen = []

    def judge(shown):
        seen.append((shown.client_id, shown.username, shown.password))
        return shown.password == b"from elsewhere"

    with running(USERS, judge) as router:
        assert greeting(router, username="ann", password=b"secret") == 0x87
        assert greeting(router, username="zoe", password=b"from elsewhere") == 0
    assert seen[0] == ("c", "ann", b"secret")


def test_an_external_function_may_be_async_and_return_reasons():
    async def judge(shown):
        await asyncio.sleep(0)
        if shown.username == "crash":
            raise ValueError
        if shown.username == "cancelled":
            raise asyncio.CancelledError
        return {"busy": ReasonCode.SERVER_BUSY, "in": Admission()}.get(shown.username, False)

    with running(authenticator=judge) as router:
        assert greeting(router, username="busy") == 0x89
        assert greeting(router, username="in") == 0
        assert greeting(router, username="crash") == 0x80
        assert greeting(router, username="cancelled") == 0x80
        assert greeting(router) == 0x87


# --- topics ---


def test_each_filter_is_refused_by_itself_and_the_connection_stays():
    acl = (AclEntry("*", ("publish up/%c/#", "subscribe down/#")),)
    with running(Security(acl=acl)) as router, Caller(router.port, "c", V5) as caller:
        wanted = tuple(Subscription(each, 1) for each in ("down/1", "up/c/1", "#"))
        caller.say(Subscribe(1, wanted))
        assert caller.hear_packets(1) == [SubAck(1, (1, 0x87, 0x87), Properties())]

        topics = ("up/c/1", "up/d/1")
        caller.say(*(Publish(each, b"x", 1, packet_id=n) for n, each in enumerate(topics, 1)))

        first, second = caller.hear_packets(2)
        assert first.reason_code < 0x80
        assert second == PubAck(2, ReasonCode.NOT_AUTHORIZED, Properties())


def test_denied_topics_are_not_delivered_to_a_granted_filter():
    security = Security(acl=(AclEntry("*", ("#",), ("subscribe secret/#",)),))
    with running(security) as router, Caller(router.port, "c", V4) as caller:
        caller.subscribe("#", 1)
        caller.say(Publish("secret/1", b"no"), Publish("open/1", b"yes"))

        assert caller.hear_packets(1)[0].payload == b"yes"


# --- bans, reload ---


@pytest.mark.parametrize(
    "entry", ["client:c", "user:ann", "host:127.0.0.0/8", "host:127.0.0.1"]
)
def test_a_banned_client_is_refused(entry):
    with running(Security(bans=BanList([entry]))) as router:
        assert greeting(router, username="ann") == ReasonCode.BANNED
        assert greeting(router, V4, username="ann") == 5


def test_bans_know_mapped_addresses_and_refuse_nonsense():
    assert BanList(["host:192.0.2.0/24"]).holds("", "", Peer("x", "::ffff:192.0.2.7"))
    assert not BanList(["host:192.0.2.0/24"]).holds("", "", Peer("unix"))
    for entry in ("nobody", "host:", "host:x", "client:"):
        with pytest.raises(ValueError, match="write"):
            BanList([entry])


def test_a_reload_holds_for_clients_that_are_connected():
    with (
        running(Security()) as router,
        Caller(router.port, "c", V5, username="ann") as ann,
        Caller(router.port, "d", V5, username="bob") as bob,
    ):
        ann.say(Publish("a", b"", 1, packet_id=1))
        assert ann.hear_packets(1)[0].reason_code < 0x80

        router.reload(Security(acl=(AclEntry("*", ("b/#",)),), bans=BanList(["user:bob"])))

        end = Disconnect(ReasonCode.ADMINISTRATIVE_ACTION, Properties())
        assert bob.hear_packets(2) == [end]
        ann.say(Publish("a", b"", 1, packet_id=2))
        assert ann.hear_packets(1)[0].reason_code == ReasonCode.NOT_AUTHORIZED
        ann.say(Publish("b/1", b"", 1, packet_id=3))
        assert ann.hear_packets(1)[0].reason_code < 0x80


def test_a_user_who_was_removed_from_the_table_is_disconnected():
    with (
        running(USERS) as router,
        Caller(router.port, "c", V5, username="ann", password=b"secret") as ann,
    ):
        router.reload(Security(users={"bob": ANN}))

        assert ann.hear_packets(2) == [Disconnect(ReasonCode.NOT_AUTHORIZED, Properties())]


def test_strangers_stay_after_a_reload_when_they_are_welcome():
    gate = AuthGate(Security(users={"ann": ANN}, anonymous=True))

    assert not gate._is_gone("", Peer())
    assert gate._is_gone("bob", Peer())
    assert not gate._is_gone("bob", Peer(certificate={"commonName": "bob"}))
    gate.close()


# --- tenants and certificates, without TLS around them ---


def test_a_tenant_has_its_name_before_ids_and_topics():
    gate = AuthGate()

    admission = gate.admit(Connect("c"), Peer(tenant="acme"), None)

    assert admission.client_id == "acme.c"
    assert admission.access.may_publish("/tenants/acme/x")
    assert not admission.access.may_publish("x")
    gate.close()


def test_a_certificate_stands_for_a_login():
    gate = AuthGate(USERS)

    admission = gate.admit(Connect("c"), Peer(certificate={"commonName": "sensor"}), None)

    assert admission.reason_code == 0
    gate.close()


@pytest.mark.slow
def test_many_logins_at_once_are_all_answered():
    with running(USERS) as router:
        answers = []

        def login():
            answers.append(greeting_of(router, threading.get_ident()))

        threads = [threading.Thread(target=login) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert answers == [0] * 20


def greeting_of(router, number):
    fields = {"username": "ann", "password": b"secret"}
    with Caller(router.port, f"c{number}", V5, **fields) as caller:
        assert isinstance(caller.greeting, ConnAck)
        return caller.greeting.reason_code
