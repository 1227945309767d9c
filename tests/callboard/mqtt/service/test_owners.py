"""A session belongs to its user: no other user gets it, or ends it, on any router."""

from contextlib import ExitStack

import pytest

from callboard import Node
from callboard.mqtt import DuplicateClientId, Limits, Router, RouterConfig, Security
from callboard.mqtt.access.admission import Admission, Peer
from callboard.mqtt.access.auth import AuthGate
from callboard.mqtt.access.scrypt import hash_password
from callboard.mqtt.router.record import SessionOpened, WillKept, read_record
from callboard.mqtt.service.claims import ClaimSession, SessionRefused
from callboard.mqtt.service.cluster import ROUTERS
from callboard.mqtt.wire.packet import V4, V5, Connect, Disconnect, Will
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.caller import Caller
from tests.polling import eventually

WORD = hash_password(b"word", cost=2)
USERS = Security(users={"ann": WORD, "bob": WORD}, anonymous=True)
NOT_AUTHORIZED = ReasonCode.NOT_AUTHORIZED


def running(stack, security=USERS, limits=None, node=None, **fields):
    config = RouterConfig(
        security=security, limits=limits or Limits(), sys_interval=0, **fields
    )
    return stack.enter_context(Router(config, node=node))


def connect(router, user, *, clean=False, version=V5, expiry=100, client_id="meter", **fields):
    if user:
        fields |= {"username": user, "password": b"word"}
    if version == V5:
        fields["properties"] = Properties(session_expiry_interval=expiry)
    return Caller(router.port, client_id, version, clean_start=clean, **fields)


def refusal(router, user, **fields):
    with connect(router, user, **fields) as caller:
        return caller.greeting.reason_code


def publish(router, payload, topic="t"):
    with router.link() as local:
        local.publish(topic, payload, qos=1).result(5)


@pytest.fixture
def stack():
    with ExitStack() as entered:
        yield entered


@pytest.fixture(params=["one router", "two routers"])
def here_and_there(request, stack):
    """Return the router that has a session, and the one that others come to."""
    if request.param == "one router":
        router = running(stack)
        return router, router
    nodes = [stack.enter_context(Node(name)) for name in "ab"]
    routers = [running(stack, node=node) for node in nodes]
    nodes[0].listen("127.0.0.1", 0)
    nodes[1].connect(nodes[0].address)
    for node in nodes:
        node.group(ROUTERS).ready(2).result(10)
    return routers


@pytest.mark.parametrize("other", ["bob", ""])
@pytest.mark.parametrize("clean", [True, False])
def test_another_user_neither_gets_nor_ends_a_session(here_and_there, other, clean):
    here, there = here_and_there
    with connect(here, "ann") as ann:
        ann.subscribe("t", 1)
        assert refusal(there, other, clean=clean) == NOT_AUTHORIZED
        publish(here, b"while connected")
        (message,) = ann.hear_packets(1)
        assert message.payload == b"while connected"  # and nothing ended it
    eventually(lambda: here.call(lambda: "meter" in here.machine.sessions.graveyard))
    publish(here, b"while away")

    assert refusal(there, other, clean=clean) == NOT_AUTHORIZED
    assert refusal(there, other, clean=clean, version=V4) == 5

    with connect(there, "ann") as ann:
        assert ann.greeting.session_present
        waiting = [packet.payload for packet in ann.hear_packets(2)]
    assert waiting[-1] == b"while away"


def test_clients_without_a_name_are_one_user(stack):
    router = running(stack)
    connect(router, "").socket.close()
    eventually(lambda: router.call(lambda: "meter" in router.machine.sessions.graveyard))

    assert refusal(router, "ann") == NOT_AUTHORIZED
    assert refusal(router, "") == 0


def test_a_client_id_is_free_when_its_session_has_ended(stack):
    router = running(stack)
    with connect(router, "ann", expiry=0) as ann:
        assert refusal(router, "bob", clean=True) == NOT_AUTHORIZED
        ann.say(Disconnect())
        assert refusal(router, "bob", clean=True) == 0


def test_a_closed_connection_releases_its_client_id(stack):
    router = running(stack)
    for user in ("ann", "bob") * 5:
        assert refusal(router, user, expiry=0) == 0


def test_without_authentication_the_last_client_has_the_session(stack):
    router = running(stack, Security())
    first = connect(router, "", username="x")
    with connect(router, "", username="y") as second:
        assert second.greeting.session_present
        assert first.hear_packets(1)[0].reason_code == ReasonCode.SESSION_TAKEN_OVER


def test_the_option_allows_another_user_to_take_a_session_over(stack):
    router = running(stack, limits=Limits(duplicate_client_id="take over"))
    with connect(router, "ann") as ann, connect(router, "bob") as bob:
        assert bob.greeting.session_present
        assert ann.hear_packets(1)[0].reason_code == ReasonCode.SESSION_TAKEN_OVER
        router.reload(limits=Limits(duplicate_client_id=DuplicateClientId.REFUSE))
        assert refusal(router, "ann") == NOT_AUTHORIZED  # it is bob's now
    with pytest.raises(ValueError, match="'refuse' or 'take over'"):
        Limits(duplicate_client_id="both")


def test_a_session_keeps_its_user_over_a_restart(tmp_path):
    for user, expected in (
        ("ann", 0),
        ("bob", NOT_AUTHORIZED),
        ("ann", 0),
        ("", NOT_AUTHORIZED),
    ):
        with ExitStack() as stack:
            assert refusal(running(stack, directory=tmp_path), user) == expected


def test_a_session_of_an_older_release_is_its_first_users(tmp_path):
    with ExitStack() as stack:  # nobody proves anything: as 0.1 writes it
        connect(running(stack, Security(), directory=tmp_path), "").socket.close()
    for user, expected in (("bob", 0), ("ann", NOT_AUTHORIZED)):
        with ExitStack() as stack:
            assert refusal(running(stack, directory=tmp_path), user) == expected


def test_a_session_without_a_user_is_written_as_in_earlier_releases():
    will = Will("w", b"gone")
    for older, newer in (
        (SessionOpened("s", 1.0, None, 5), SessionOpened("s", 1.0, None, 5, "ann")),
        (WillKept("s", will), WillKept("s", will, None, "ann")),
    ):
        fields = older.write(0.0)
        assert newer.write(0.0) == (fields[0], (*fields[1], "ann"))
        assert read_record(*fields, 0.0) == older
        assert read_record(*newer.write(0.0), 0.0) == newer


def test_a_session_that_moves_keeps_its_user(here_and_there):
    here, there = here_and_there
    connect(here, "ann").socket.close()
    with connect(there, "ann") as ann:
        assert ann.greeting.session_present
        assert refusal(here, "bob") == NOT_AUTHORIZED
    assert refusal(here, "ann") == 0


def test_a_claim_of_an_older_router_is_answered_as_before(stack):
    router = running(stack)
    connect(router, "ann").socket.close()
    claims = router._actor._cluster.claims

    def asked(user):
        return router.call(claims.asked, ClaimSession("meter", False, 1 << 62, 0, user))

    eventually(lambda: router.call(lambda: "meter" in router.machine.sessions.graveyard))
    assert isinstance(asked("bob"), SessionRefused)
    assert not isinstance(asked(None), SessionRefused)
    assert not isinstance(asked("ann"), SessionRefused)


def test_a_client_of_the_network_cannot_take_a_local_link(stack):
    router = running(stack)
    with router.link("meter") as local:
        local.subscribe("t").result(5)
        for user in ("ann", ""):
            assert refusal(router, user) == NOT_AUTHORIZED


def test_the_user_is_the_proven_one():
    admit = Connect("meter", username="said", version=V5)
    named = Peer(certificate={"commonName": "shown"})

    def user_of(gate, connect, peer=Peer()):  # noqa: B008
        admission = gate.admit(connect, peer, print)
        gate.close()
        return admission.user

    assert user_of(AuthGate(), admit) is None
    assert user_of(AuthGate(), admit, named) == "shown"
    assert user_of(AuthGate(USERS), Connect("meter"), named) == "shown"
    assert user_of(AuthGate(USERS), Connect("meter")) == ""
    assert user_of(AuthGate(), Connect("meter"), named._replace(tenant="acme")) == "acme/shown"
    assert user_of(AuthGate(USERS), admit, Peer(user="proved")) == "proved"
    assert user_of(AuthGate(authenticator=lambda _: True), admit) == "said"
    assert user_of(AuthGate(authenticator=lambda _: Admission()), admit) == "said"
    assert user_of(AuthGate(authenticator=lambda _: Admission(user="its")), admit) == "its"


# --- wills ---


@pytest.mark.parametrize("delay", [0, 3600])
def test_the_will_of_a_removed_user_is_not_published(stack, delay):
    router = running(stack)
    will = Will("last", b"words", properties=Properties(will_delay_interval=delay))
    for user in ("ann", "bob"):
        caller = stack.enter_context(connect(router, user, client_id=user, will=will))
        if delay:
            caller.socket.close()
    with connect(router, "", client_id="reader") as reader:
        reader.subscribe("last")
        if delay:
            waiting = ["ann", "bob"]
            eventually(
                lambda: router.call(
                    lambda: sorted(router.machine.sessions.wills.waiting) == waiting
                )
            )
        router.reload(Security(users={"bob": WORD}, anonymous=True))

        def end_sessions():
            for name in ("ann", "bob"):
                router.machine.sessions.give_up(name)

        router.call(end_sessions)
        publish(router, b"end", "last")
        heard = []
        while not heard or heard[-1].payload != b"end":
            heard += reader.hear_packets(1)
    assert len(heard) == 2  # bob's, whose connection or session ended


def test_the_will_of_a_user_who_was_removed_before_a_restart_is_not_published(tmp_path):
    import shutil

    will = Will("last", b"words", retain=True)
    before, after = tmp_path / "before", tmp_path / "after"
    with ExitStack() as stack:
        router = running(stack, directory=before)
        for user in ("ann", "bob"):
            stack.enter_context(connect(router, user, client_id=user, will=will, expiry=0))
        shutil.copytree(before, after)  # as a crash leaves it
    with ExitStack() as stack:
        router = running(stack, Security(users={"bob": WORD}), directory=after)
        wills = router.machine.meters
        eventually(lambda: wills.wills + wills.refused >= 2)
        assert (wills.wills, wills.refused) == (1, 1)
