"""Sessions: their content, their expiry, and takeovers."""

import pytest

from callboard.mqtt.router.effects import RouterTurn
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import RouterLink
from callboard.mqtt.router.sessions import KEPT
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.stage import Stage, connack

LASTING = pytest.mark.parametrize(
    "lasting", [{"version": V4, "clean": False}, {"version": V5, "clean": False, "expiry": 100}]
)


@LASTING
def test_connect_restores_a_session_and_reports_it(stage, lasting) -> None:
    first = stage.client("s", **lasting)
    first.subscribe("t", qos=1)
    first.lose()
    stage.client("p").publish("t", b"while away", 1)

    again = stage.client("s", **lasting)

    assert connack(first).session_present is False
    assert connack(again).session_present is True
    assert again.payloads() == [b"while away"]


@pytest.mark.parametrize("version", [V4, V5])
def test_a_clean_session_ends_with_its_connection(stage, version) -> None:
    client = stage.client("s", version=version)
    client.subscribe("a")
    client.subscribe("b/+")
    client.lose()

    again = stage.client("s", version=version)

    assert connack(again).session_present is False
    assert len(stage.machine.logs) == 0
    assert not stage.machine.sessions.graveyard


@LASTING
def test_a_clean_start_ends_the_session_before(stage, lasting) -> None:
    stage.client("s", **lasting).subscribe("t", qos=1)
    stage.machine.sessions.connections["s"].link.disconnect()
    stage.run()
    stage.client("p").publish("t", b"", 1)

    again = stage.client("s", **(lasting | {"clean": True}))

    assert connack(again).session_present is False
    assert again.got() == []


@LASTING
@pytest.mark.parametrize("qos", [1, 2])
def test_inflight_is_retransmitted_from_the_lowest_unacknowledged_on(
    stage, lasting, qos
) -> None:
    publisher = stage.client("p")
    first = stage.client("s", answers=False, **lasting)
    first.subscribe("t", qos=qos)
    publisher.send(*(publisher.message("t", bytes([n]), qos) for n in range(6)))
    sent = first.messages()
    kind = PubAck if qos == 1 else PubRec
    first.send(kind(sent[2].packet_id))
    first.lose()
    publisher.send(*(publisher.message("t", bytes([n]), qos) for n in range(6, 9)))

    again = stage.client("s", answers=False, **lasting)

    got = again.got()
    released = [each.packet_id for each in got if isinstance(each, PubRel)]
    messages = [each for each in got if isinstance(each, Publish)]
    assert released == ([sent[2].packet_id] if qos == 2 else [])
    assert [each.payload[0] for each in messages] == [0, 1, 3, 4, 5, 6, 7, 8]
    assert [each.dup for each in messages] == [True] * 5 + [False] * 3
    old = [each.packet_id for each in sent if each.payload[0] != 2]
    assert [each.packet_id for each in messages[:5]] == old


@LASTING
def test_connect_sends_pending_pubrels_again_until_pubcomp(stage, lasting) -> None:
    publisher = stage.client("p")
    first = stage.client("s", answers=False, **lasting)
    first.subscribe("t", qos=2)
    publisher.publish("t", b"", 2)
    (message,) = first.messages()
    first.send(PubRec(message.packet_id))
    first.lose()

    again = stage.client("s", answers=False, **lasting)
    released = again.got()
    again.send(PubComp(message.packet_id))
    again.lose()
    last = stage.client("s", answers=False, **lasting)

    assert [(type(each), each.packet_id) for each in released] == [(PubRel, message.packet_id)]
    assert last.got() == []


def test_a_returning_publisher_does_not_duplicate_qos_2(stage) -> None:
    subscriber = stage.client("s")
    subscriber.subscribe("t", qos=2)
    lasting = {"version": V4, "clean": False, "answers": False}
    first = stage.client("p", **lasting)
    first.send(first.message("t", b"once", 2, packet_id=9))
    first.lose()

    again = stage.client("p", **lasting)
    again.send(again.message("t", b"once", 2, packet_id=9, dup=True))

    assert subscriber.payloads() == [b"once"]


def test_redelivery_after_a_smaller_receive_maximum_waits(stage) -> None:
    publisher = stage.client("p")
    first = stage.client("s", expiry=100, clean=False, answers=False)
    first.subscribe("t", qos=1)
    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(6)))
    first.lose()

    again = stage.client("s", expiry=100, clean=False, answers=False, receive_maximum=2)
    sent = again.messages()
    more = again.send(PubAck(sent[0].packet_id))

    assert [each.payload[0] for each in sent] == [0, 1]
    assert [(each.payload[0], each.dup) for each in more] == [(2, True)]


def test_a_session_expires(stage) -> None:
    first = stage.client("s", expiry=10, clean=False)
    first.subscribe("t", qos=1)
    first.lose()

    stage.advance(9.9)
    assert "s" in stage.machine.sessions.graveyard
    stage.advance(0.2)

    assert not stage.machine.sessions.graveyard
    assert len(stage.machine.logs) == 0


def test_a_disconnect_may_change_the_expiry(stage) -> None:
    client = stage.client("s", expiry=10, clean=False)
    client.send(Disconnect(0, Properties(session_expiry_interval=100)))

    stage.advance(50)

    assert "s" in stage.machine.sessions.graveyard


def test_a_disconnect_cannot_make_a_clean_session_persistent(stage) -> None:
    client = stage.client("s")

    client.send(Disconnect(0, Properties(session_expiry_interval=100)))

    assert client.end is not None
    assert client.end.reason_code == ReasonCode.PROTOCOL_ERROR
    assert not stage.machine.sessions.graveyard


def test_a_session_lives_no_longer_than_the_limit() -> None:
    stage = Stage(Limits(session_expiry=60))
    answer = connack(stage.client("five", expiry=1000, clean=False))
    stage.client("four", version=V4, clean=False)
    for connection in list(stage.machine.sessions.connections.values()):
        connection.link.disconnect()
    stage.run()

    stage.advance(61)

    assert answer.properties is not None
    assert answer.properties.session_expiry_interval == 60
    assert not stage.machine.sessions.graveyard


@pytest.mark.parametrize("version", [V4, V5])
def test_connect_kicks_an_older_holder_of_the_id(stage, version) -> None:
    old = stage.client("same", version=version)

    new = stage.client("same", version=version)

    assert old.end is not None
    assert old.end.reason_code == ReasonCode.SESSION_TAKEN_OVER
    expected = [Disconnect(ReasonCode.SESSION_TAKEN_OVER, Properties())]
    assert old.got() == (expected if version == V5 else [])
    assert stage.machine.sessions.connections["same"].link is new.link
    old.send(old.message("t"))
    assert stage.machine.meters.published == 0


def test_the_router_that_has_a_persistent_session_hands_over_unread_messages(stage) -> None:
    publisher = stage.client("p")
    old = stage.client("s", clean=False, expiry=60, answers=False)
    old.subscribe("t", qos=1)
    publisher.publish("t", b"unacknowledged", 1)

    new = stage.client("s", clean=False, expiry=60)

    assert connack(new).session_present is True
    assert new.payloads() == [b"unacknowledged"]


def test_local_links_do_not_count_as_clients() -> None:
    stage = Stage(Limits(connections=2))
    inside = [stage.client(f"inside-{at}", is_local=True) for at in range(3)]
    clients = [stage.client(str(at)) for at in range(3)]

    codes = [connack(each).reason_code for each in (*inside, *clients)]
    assert codes == [0, 0, 0, 0, 0, ReasonCode.QUOTA_EXCEEDED]
    assert stage.machine.sessions.remote == 2


@pytest.mark.parametrize(("version", "code"), [(V4, 3), (V5, ReasonCode.QUOTA_EXCEEDED)])
def test_connect_checks_max_connections(version, code) -> None:
    stage = Stage(Limits(connections=2))
    first = stage.client("1")
    stage.client("2")

    refused = stage.client("3", version=version)
    stage.client("2")  # takes its own place over
    first.lose()

    assert connack(refused).reason_code == code
    assert refused.end is not None
    assert connack(stage.client("3")).reason_code == 0


@pytest.mark.parametrize(
    ("version", "clean", "code"),
    [(V4, True, 0), (V4, False, 2), (V5, True, 0), (V5, False, 0)],
)
def test_assigned_client_id_in_mqtt_5_and_a_refusal_in_3_1_1(
    stage, version, clean, code
) -> None:
    client = stage.client("", version=version, clean=clean)

    answer = connack(client)

    assert answer.reason_code == code
    if version == V5:
        assert answer.properties is not None
        assert answer.properties.assigned_client_identifier == client.link.client_id == "auto-1"


def test_a_client_id_may_have_any_characters_but_not_any_length(stage) -> None:
    assert connack(stage.client("+/#$")).reason_code == 0
    long = stage.client("x" * 257)
    assert connack(long).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_the_connack_states_the_limits_of_the_router() -> None:
    limits = Limits(receive_maximum=50, topic_alias_maximum=7, packet_size=1234, keep_alive=30)
    client = Stage(limits).client("c", keep_alive=0)

    assert connack(client) == ConnAck(
        properties=Properties(
            receive_maximum=50,
            topic_alias_maximum=7,
            maximum_packet_size=1234,
            server_keep_alive=30,
        )
    )


def test_the_history_keeps_the_last_ten_connects_and_disconnects(stage) -> None:
    for _ in range(8):
        stage.client("s", clean=False, expiry=60).lose()
        stage.advance(1)

    history = stage.machine.sessions.graveyard["s"].history

    assert len(history) == 10
    assert history[-1] == (7.0, "disconnected: unspecified_error")


def test_short_lived_client_ids_leave_no_state(stage) -> None:
    for number in range(50):
        client = stage.client(f"c{number}")
        client.subscribe(f"t/{number}", "w/+", f"$share/g{number}/s", qos=1)
        client.publish(f"t/{number}", b"", 1)
        client.lose()

    machine = stage.machine
    held = (
        machine.sessions.connections,
        machine.sessions.graveyard,
        machine.delivery.groups,
        machine.sessions.wills,
    )
    assert [len(each) for each in held] == [0, 0, 0, 0]
    assert len(machine.logs) == 0
    assert machine.is_idle


def test_a_second_connect_ends_the_connection_whatever_is_in_it(stage) -> None:
    for number, second in enumerate(
        (b"\x10\x00", b"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00")
    ):
        client = stage.client(f"c{number}")

        (answer,) = client.send(second)

        assert isinstance(answer, Disconnect)
        assert client.end is not None


def test_connection_has_the_metadata_of_its_client(stage) -> None:
    will = Will("gone", b"x", 1, properties=Properties())
    client = stage.client("s", expiry=60, clean=False, will=will, topic_alias_maximum=5)
    client.subscribe("a/+", qos=1, identifier=7)
    client.publish("t", b"x", topic_alias=2)
    stage.client("p").publish("a/b", b"x")

    connection = stage.machine.sessions.connections["s"]
    session = connection.session
    assert (connection.client_id, connection.link.connect.will, session.expiry) == (
        "s",
        will,
        60,
    )
    assert list(session.subscriptions) == ["a/+"]
    assert session.subscriptions["a/+"].identifier == b"\x0b\x07"
    assert connection.aliases_in == {2: b"t"}
    assert list(connection.aliases_out) == [b"a/b"]
    assert [what for _, what in session.history] == ["connected"]


def test_graveyard_keeps_tracker_subscriptions_and_unacked_pubrels_by_client_id(stage) -> None:
    client = stage.client("s", clean=False, expiry=60, answers=False)
    client.subscribe("a", "b", qos=2)
    stage.client("p").publish("a", b"x", 2)
    (message,) = client.messages()
    client.send(PubRec(message.packet_id))
    tracker = stage.machine.sessions.connections["s"].session.tracker
    client.lose()

    kept = stage.machine.sessions.graveyard["s"]
    assert kept.tracker is tracker
    assert list(kept.subscriptions) == ["a", "b"]
    assert list(kept.window.releasing) == [message.packet_id]


@pytest.mark.parametrize("clean", [False, True])
def test_graveyard_metrics_are_kept_with_and_without_a_clean_session(stage, clean) -> None:
    for _ in range(2):
        stage.client("s", clean=clean, expiry=0 if clean else 60).lose()

    stage.client("s", clean=True)

    history = stage.machine.sessions.connections["s"].session.history
    assert [what.partition(":")[0] for _, what in history] == [
        "connected",
        "disconnected",
    ] * 2 + ["connected"]


def test_histories_of_disconnected_clients_are_bounded(stage) -> None:
    for number in range(KEPT + 5):
        stage.client(str(number)).lose()
    for client_id in ("4", "5"):
        stage.client(client_id)

    connections = stage.machine.sessions.connections
    assert len(connections["4"].session.history) == 1  # all before is forgotten
    assert len(connections["5"].session.history) == 3


def test_connect_writes_the_connack_to_the_link_and_creates_all_parts(stage) -> None:
    link = RouterLink(stage, Connect("s", version=V4), lambda: None)
    link.begin()

    stage.machine.run_turn(0.0)
    turn = stage.machine.run_turn(0.0)

    connection = stage.machine.sessions.by_link[link]
    assert turn == RouterTurn()
    assert connection is stage.machine.sessions.connections["s"]
    assert connection.session.connection is connection
    assert (connection.link, connection.acks) == (link, [])
    assert connection.session.tracker == []


def test_disconnect_pulls_waiters_back_into_the_tracker_and_unacked_messages_back(
    stage,
) -> None:
    client = stage.client("s", clean=False, expiry=60, answers=False)
    client.subscribe("t", qos=1)
    log = stage.machine.logs.get("t")
    stage.client("p").publish("t", b"x", 1)
    (message,) = client.messages()
    waiting = list(log.waiters)

    client.lose()

    session = stage.machine.sessions.graveyard["s"]
    assert (session.tracker, list(log.waiters)) == (waiting, [])
    assert list(session.window.resend) == [message.packet_id]
    assert "s" not in stage.machine.sessions.connections
