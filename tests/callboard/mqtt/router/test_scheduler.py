"""The ready queue: states and transitions of the scheduler."""

import pytest

from callboard.mqtt.router.delivery import MOST_READY, Delivery
from callboard.mqtt.router.effects import RouterTurn
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import UNSCHEDULE
from callboard.mqtt.router.machine import MOST_EVENTS
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.session import Cause, ConnectionStatus
from callboard.mqtt.wire.packet import V4, PubAck, Publish, PubRel
from tests.callboard.mqtt.stage import Stage

READY, BUSY = ConnectionStatus.READY, ConnectionStatus.BUSY
CAUGHT_UP, FULL = ConnectionStatus.CAUGHT_UP, ConnectionStatus.INFLIGHT_FULL


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("status", list(ConnectionStatus))
def test_scheduler_transitions(stage, status, cause) -> None:
    wakes = {
        Cause.INIT: {BUSY},
        Cause.READY: {BUSY},
        Cause.NEW_FILTER: {CAUGHT_UP, FULL},
        Cause.FRESH_DATA: {CAUGHT_UP, FULL},
        Cause.INCOMING_ACK: {CAUGHT_UP, FULL, ConnectionStatus.FETCHING},
        Cause.ACKS: {CAUGHT_UP, FULL, ConnectionStatus.FETCHING},
        Cause.FETCHED: {ConnectionStatus.FETCHING},
    }
    stage.client("c")
    delivery = stage.machine.delivery
    connection = delivery.connections["c"]
    connection.session.status = status

    delivery.schedule(connection.session, cause)

    assert list(delivery.ready) == [connection] * (status in wakes[cause])
    assert status_of(stage, "c") is (READY if status in wakes[cause] else status)


def status_of(stage: Stage, client_id: str) -> ConnectionStatus:
    return stage.machine.sessions.connections[client_id].session.status


def test_data_request_is_in_the_tracker_or_among_the_waiters_and_never_both(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False, receive_maximum=1)
    reader.subscribe("t", qos=1)
    session = stage.machine.sessions.connections["r"].session
    request, log = session.requests["t"], stage.machine.logs.get("t")

    def where() -> tuple[bool, bool]:
        return request in session.tracker, request in log.waiters

    caught_up = where()
    publisher.publish("t", b"", 1)
    publisher.publish("t", b"", 1)
    behind = where()

    assert (caught_up, behind) == ((False, True), (True, False))
    assert status_of(stage, "r") is FULL
    (first,) = reader.messages()
    (second,) = reader.send(PubAck(first.packet_id))
    reader.send(PubAck(second.packet_id))
    assert where() == (False, True)
    assert status_of(stage, "r") is CAUGHT_UP


def test_consume_buffer_full_unschedules_a_link_until_it_is_ready() -> None:
    stage = Stage(Limits(delivery_quota=100))
    publisher = stage.client("p")
    slow, quick = stage.client("slow", reads=False), stage.client("quick")
    slow.read()
    for reader in (slow, quick):
        reader.push(b"\x82\x07\0\1\0\0\1t\0")
    stage.run()

    for _ in range(3):
        publisher.send(*(publisher.message("t", b"x") for _ in range(100)))

    waiting = slow.link.outgoing
    assert waiting[-1] is UNSCHEDULE
    assert status_of(stage, "slow") is BUSY
    assert len(quick.messages()) == 300
    for _ in range(3):
        slow.read()
        stage.run()
    assert len(slow.messages()) == 300
    assert status_of(stage, "slow") is CAUGHT_UP


def test_acknowledgements_count_against_a_link_that_does_not_read() -> None:
    stage = Stage(Limits(delivery_bytes=400))
    client = stage.client("c", reads=False)
    client.read()

    for _ in range(5):
        client.push(*(client.message("t", b"", 1) for _ in range(100)))
        stage.run()

    assert status_of(stage, "c") is BUSY
    assert sum(len(each) for each in client.link.outgoing if isinstance(each, bytes)) == 400
    for _ in range(5):
        client.read()
        stage.run()
    assert len([each for each in client.got() if isinstance(each, PubAck)]) == 500


def test_answers_to_a_client_that_never_reads_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr("callboard.mqtt.router.ingress.MOST_ACKS", 1_000)
    stage = Stage(Limits(delivery_bytes=400))
    client = stage.client("c", reads=False)

    for _ in range(2_000):
        client.push(b"\xc0\x00")
    stage.run()

    assert "c" not in stage.machine.sessions.connections


def test_readyqueue_is_served_in_turn() -> None:
    stage = Stage()
    publisher = stage.client("p")
    readers = [stage.client(f"r{number}", reads=False) for number in range(3)]
    for reader in readers:
        reader.push(b"\x82\x07\0\1\0\0\1t\0")
    stage.run()
    publisher.push(publisher.message("t"))

    turn = stage.machine.run_turn(0.0)

    assert [link.client_id for link, _ in turn.transmits] == ["r0", "r1", "r2"]
    assert stage.machine.is_idle


def test_run_inner_takes_up_to_500_events_then_serves_up_to_100_ready_connections(
    stage,
) -> None:
    clients = [stage.client(f"c{number}") for number in range(150)]
    for client in clients:
        for _ in range(4):
            client.push(b"\xc0\x00")

    first = stage.machine.run_turn(0.0)

    assert len(stage.machine.events) == 600 - MOST_EVENTS
    assert len(first.transmits) == MOST_READY
    assert len(stage.machine.delivery.ready) == MOST_EVENTS // 4 - MOST_READY


def test_run_inner_without_anything_to_do_is_idle(stage) -> None:
    stage.client("c")

    assert stage.machine.is_idle
    assert stage.machine.run_turn(1.0) == RouterTurn()


def test_consume_serves_many_filters_of_one_connection_in_rounds(stage) -> None:
    publisher, reader = stage.client("p"), stage.client("r")
    for number in range(150):
        reader.subscribe(f"t/{number}")

    publisher.send(*(publisher.message(f"t/{number}") for number in range(150)))

    assert len(reader.messages()) == 150


def test_tracker_holds_the_requests_of_a_connection_and_the_reason_of_its_pause(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False, receive_maximum=1)
    session = stage.machine.sessions.connections["r"].session
    seen = [(session.status, list(session.tracker))]
    reader.subscribe("a", "b", qos=1)
    seen.append((session.status, list(session.tracker)))
    publisher.send(*(publisher.message(topic, b"", 1) for topic in ("a", "b", "a")))

    assert seen == [(CAUGHT_UP, []), (CAUGHT_UP, [])]
    assert session.status is FULL
    assert set(session.tracker) == set(session.requests.values())


def test_readyqueue_has_a_connection_at_most_once_and_at_the_back_after_its_turn(stage) -> None:
    publisher, reader = stage.client("p", version=V4), stage.client("r")
    other = stage.client("o")
    for number in range(120):
        reader.subscribe(f"t/{number}")
    other.subscribe("t/1")
    for number in range(120):
        publisher.push(publisher.message(f"t/{number}"))
    machine = stage.machine

    machine.run_turn(0.0)  # a hundred rounds are over before it has read all

    assert [each.client_id for each in machine.delivery.ready] == ["r"]
    publisher.push(publisher.message("t/1"))
    turn = machine.run_turn(0.0)
    assert [link.client_id for link, _ in turn.transmits] == ["r", "o"]
    assert machine.is_idle


def test_the_next_append_wakes_all_waiters(stage) -> None:
    readers = [stage.client(f"r{number}") for number in range(3)]
    for reader in readers:
        reader.subscribe("t")
    log, publisher = stage.machine.logs.get("t"), stage.client("p")
    before = len(log.waiters)

    run = MessageRun.of_payloads(b"t", [b"x"], qos=0, publisher="p")
    stage.machine.logs.append(run, stage.machine.logs.route(b"t"))

    assert (before, len(log.waiters)) == (3, 0)
    assert len(stage.machine.logs.woken) == 3
    del publisher


def test_notifications_reach_trackers_after_the_whole_packet_batch(stage, monkeypatch) -> None:
    publisher, reader = stage.client("p", version=V4), stage.client("r")
    reader.subscribe("a", "b")
    handed = []
    notify = Delivery.notify

    def noted(delivery: Delivery) -> None:
        handed.append([each.log.topic_filter for each in stage.machine.logs.woken])
        notify(delivery)

    monkeypatch.setattr(Delivery, "notify", noted)
    publisher.send(*(publisher.message(topic) for topic in ("a", "b", "a", "b")))

    assert handed == [["a", "b"]]
    assert len(reader.messages()) == 4


def test_ackslog_is_flushed_whole_before_messages_when_a_connection_is_consumed(stage) -> None:
    client = stage.client("c")
    client.subscribe("t", qos=0)

    client.push(
        *(client.message("t", b"x", 1) for _ in range(300)),
        *(client.message("t", b"x", 2) for _ in range(300)),
        b"\xc0\x00",
    )
    stage.run()

    kinds = [type(each).__name__ for each in client.got()]
    assert kinds[:601] == ["PubAck"] * 300 + ["PubRec"] * 300 + ["PingResp"]
    assert kinds[601:901] == ["Publish"] * 300


def test_consume_inflight_full_pauses_until_an_incoming_ack(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False, receive_maximum=2)
    reader.subscribe("t", qos=1)
    publisher.send(*(publisher.message("t", b"", 1) for _ in range(3)))
    paused = status_of(stage, "r")

    sent = reader.messages()
    more = reader.send(PubAck(sent[0].packet_id))

    assert (paused, len(sent), len(more)) == (FULL, 2, 1)
    assert status_of(stage, "r") is CAUGHT_UP


def test_consume_requeues_a_partial_read_after_a_sweep_of_200(stage) -> None:
    publisher, reader = stage.client("p", version=V4), stage.client("r")
    reader.subscribe("a", "b")
    publisher.send(
        *(publisher.message("a") for _ in range(250)),
        *(publisher.message("b") for _ in range(9)),
    )

    topics = [each.topic for each in reader.messages()]

    assert topics == ["a"] * 200 + ["b"] * 9 + ["a"] * 50


def test_an_acknowledgement_wakes_a_group_though_its_member_is_ready_already(stage) -> None:
    member = stage.client("m", answers=False, receive_maximum=1)
    member.subscribe("$share/g/t", qos=1)
    member.publish("u", b"", 2, packet_id=9)
    publisher = stage.client("p")
    for payload in (b"1", b"2"):
        publisher.publish("t", payload, 1)
    (first,) = member.messages()

    # The PUBREL makes it ready, so that the PUBACK behind it does not.
    got = member.send(PubRel(9), PubAck(first.packet_id))

    assert [each.payload for each in got if isinstance(each, Publish)] == [b"2"]
