"""Who is in the ready queue, and why: the scheduler's states and transitions."""

import pytest

from callboard.mqtt.limits import Limits
from callboard.mqtt.link import UNSCHEDULE
from callboard.mqtt.machine import MOST_EVENTS, MOST_READY
from callboard.mqtt.packet import PubAck
from callboard.mqtt.tracker import Cause, Status, Tracker
from tests.callboard.mqtt.stage import Stage

READY, BUSY = Status.READY, Status.BUSY
CAUGHT_UP, FULL = Status.CAUGHT_UP, Status.INFLIGHT_FULL


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("status", list(Status))
def test_transitions_of_the_scheduler(status, cause) -> None:
    wakes = {
        Cause.INIT: {BUSY},
        Cause.READY: {BUSY},
        Cause.NEW_FILTER: {CAUGHT_UP},
        Cause.FRESH_DATA: {CAUGHT_UP},
        Cause.INCOMING_ACK: {CAUGHT_UP, FULL},
        Cause.ACKS: {CAUGHT_UP, FULL},
    }
    tracker = Tracker()
    tracker.status = status

    assert tracker.wakes_for(cause) is (status in wakes[cause])
    assert tracker.status is (READY if status in wakes[cause] else status)


def status_of(stage: Stage, client_id: str) -> Status:
    return stage.machine.connections[client_id].session.tracker.status


def test_a_request_is_in_the_tracker_or_among_the_waiters_and_never_both(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False, receive_maximum=1)
    reader.subscribe("t", qos=1)
    session = stage.machine.connections["r"].session
    request, log = session.requests["t"], stage.machine.routes.get("t")

    def where() -> tuple[bool, bool]:
        return request in session.tracker.requests, request in log.waiters

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


def test_a_link_that_does_not_read_is_unscheduled_until_it_is_ready() -> None:
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
    monkeypatch.setattr("callboard.mqtt.machine.MOST_ACKS", 1_000)
    stage = Stage(Limits(delivery_bytes=400))
    client = stage.client("c", reads=False)

    for _ in range(2_000):
        client.push(b"\xc0\x00")
    stage.run()

    assert "c" not in stage.machine.connections


def test_a_polled_connection_goes_to_the_back() -> None:
    stage = Stage()
    publisher = stage.client("p")
    readers = [stage.client(f"r{number}", reads=False) for number in range(3)]
    for reader in readers:
        reader.push(b"\x82\x07\0\1\0\0\1t\0")
    stage.run()
    publisher.push(publisher.message("t"))

    turn = stage.machine.run_inner(0.0)

    assert [link.client_id for link, _ in turn.transmits] == ["r0", "r1", "r2"]
    assert stage.machine.is_idle


def test_a_turn_takes_so_many_events_and_serves_so_many_connections(stage) -> None:
    clients = [stage.client(f"c{number}") for number in range(150)]
    for client in clients:
        for _ in range(4):
            client.push(b"\xc0\x00")

    first = stage.machine.run_inner(0.0)

    assert len(stage.machine.events) == 600 - MOST_EVENTS
    assert len(first.transmits) == MOST_READY
    assert len(stage.machine.ready) == MOST_EVENTS // 4 - MOST_READY


def test_a_turn_without_anything_to_do_is_idle(stage) -> None:
    stage.client("c")

    assert stage.machine.is_idle
    assert stage.machine.run_inner(1.0) == ([], [], [])


def test_many_filters_of_one_connection_are_all_served(stage) -> None:
    publisher, reader = stage.client("p"), stage.client("r")
    for number in range(150):
        reader.subscribe(f"t/{number}")

    publisher.send(*(publisher.message(f"t/{number}") for number in range(150)))

    assert len(reader.messages()) == 150
