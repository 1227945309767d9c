"""Publishers wait for readers with QoS 1 and 2 before these lose messages."""

import pytest

from callboard.mqtt.router.backpressure import GUARD, HELD_BYTES, LOCAL_BYTES
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.packet import Disconnect as DisconnectPacket
from callboard.mqtt.wire.packet import PingReq, PingResp, PubAck, Publish, Will
from tests.callboard.mqtt.stage import Client, Stage

SMALL = {"segment_bytes": 2000, "segment_count": 4}
PATIENCE = 5.0


def stage_with(**limits) -> Stage:
    return Stage(Limits(**SMALL, **limits))


def flood(publisher: Client, count: int, topic: str = "t", qos: int = 1) -> None:
    """Publish many messages, each in a separate read."""
    for number in range(count):
        publisher.publish(topic, number.to_bytes(2, "big"), qos)


def acknowledge(reader: Client, kind=PubAck) -> list[int]:
    """Acknowledge the received messages, and return them."""
    found = reader.messages()
    for message in found:
        reader.push(kind(message.packet_id))
    reader.stage.run()
    return [int.from_bytes(message.payload, "big") for message in found]


def read_all(reader: Client) -> list[int]:
    got: list[int] = []
    while found := acknowledge(reader):
        got += found
    return got


@pytest.fixture
def stage() -> Stage:
    return stage_with(inflight=1)


def test_a_reader_that_acknowledges_slowly_loses_no_message(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=1)

    flood(publisher, 200)
    acknowledged = len([each for each in publisher.got() if isinstance(each, PubAck)])
    got = []
    while found := acknowledge(reader):
        got += found
        stage.advance(PATIENCE / 2)

    assert acknowledged < 20
    assert got == list(range(200))
    assert (stage.machine.meters.lost, stage.machine.meters.passed_over) == (0, 0)
    assert len([each for each in publisher.got() if isinstance(each, PubAck)]) == (
        200 - acknowledged
    )
    assert not stage.machine.ingress.brakes.braked


def test_publishers_of_other_filters_do_not_wait(stage) -> None:
    publisher, other = stage.client("p"), stage.client("o")
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=1)
    stage.client("q").subscribe("u", qos=1)

    flood(publisher, 100)
    flood(other, 100, "u")

    assert len(publisher.got()) < 20
    assert len(other.got()) == 100


def test_an_inactive_reader_is_ignored_until_it_is_active(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=1)
    flood(publisher, 100)

    stage.advance(PATIENCE - 0.1)
    before = len(publisher.got())
    stage.advance(0.1)

    assert before < 20
    assert before + len(publisher.got()) == 100
    assert stage.machine.meters.passed_over == 1
    assert stage.machine.ingress.brakes.laggards() == {"r"}
    acknowledge(reader)
    assert stage.lost == stage.machine.meters.lost > 0
    flood(publisher, 50)
    assert stage.machine.ingress.brakes.braked  # it does something again


def test_a_too_slow_reader_is_ignored_for_the_same_time_again() -> None:
    stage = stage_with(inflight=1, max_hold=20.0)
    publisher = stage.client("p")
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=1)
    flood(publisher, 100)

    for _ in range(8):
        assert stage.machine.ingress.brakes.braked
        stage.advance(2.5)
        acknowledge(reader)
    flood(publisher, 100)

    assert not stage.machine.ingress.brakes.braked
    assert stage.machine.meters.passed_over == 1
    stage.advance(19.9)
    flood(publisher, 100)
    assert not stage.machine.ingress.brakes.braked
    stage.advance(0.1)
    flood(publisher, 100)
    assert stage.machine.ingress.brakes.braked


def test_without_patience_no_publisher_waits() -> None:
    stage = stage_with(inflight=1, acknowledge_patience=0)
    publisher = stage.client("p")
    stage.client("r", answers=False).subscribe("t", qos=1)

    flood(publisher, 100)

    assert len(publisher.got()) == 100


@pytest.mark.parametrize("ends", ["lost", "unsubscribed", "taken over"])
def test_a_disconnected_reader_releases_publishers(stage, ends) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False, clean=False, expiry=100)
    reader.subscribe("t", qos=1)
    flood(publisher, 100)
    before = len(publisher.got())

    if ends == "lost":
        reader.lose()
    elif ends == "unsubscribed":
        reader.unsubscribe("t")
    else:
        stage.client("r", clean=True)

    assert before + len(publisher.got()) == 100


def test_a_disconnected_session_does_not_delay_publishers(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", clean=False, expiry=100)
    reader.subscribe("t", qos=1)
    reader.lose()

    flood(publisher, 100)

    assert len(publisher.got()) == 100
    assert stage.machine.ingress.brakes.due is None


@pytest.mark.slow
def test_readers_with_qos_0_do_not_delay_publishers(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r")
    reader.subscribe("t", qos=0)
    reader.reads = False

    flood(publisher, 5000)

    assert len(publisher.got()) == 5000


def test_clients_that_publish_what_they_read_do_not_wait_for_themselves(stage) -> None:
    both = [stage.client(name, answers=False) for name in "ab"]
    for client in both:
        client.subscribe("t/#", qos=1)
    for number in range(100):
        for client in both:
            client.publish(f"t/{client.link.client_id}", number.to_bytes(2, "big"), 1)
            stage.advance(0.01)

    got = {client: [] for client in both}
    for _ in range(500):
        for client in both:
            found = client.messages()
            got[client] += [(each.topic, each.payload) for each in found]
            client.push(*(PubAck(each.packet_id) for each in found))
        stage.run()

    for client in both:
        assert len(got[client]) == len(set(got[client])) == 200
    assert stage.machine.meters.lost == 0


def test_two_clients_that_wait_for_each_other_both_continue(stage) -> None:
    one, two = stage.client("1", answers=False), stage.client("2", answers=False)
    one.subscribe("from/2", qos=1)
    two.subscribe("from/1", qos=1)
    got = []
    flood(one, 150, "from/1")
    flood(two, 150, "from/2")
    assert len(stage.machine.ingress.brakes.braked) == 2

    for _ in range(400):
        got += acknowledge(one) + acknowledge(two)

    assert len(got) == 300
    assert (stage.machine.meters.lost, stage.machine.meters.passed_over) == (0, 0)


def test_a_held_client_is_answered_pings(stage) -> None:
    publisher = stage.client("p")
    stage.client("r", answers=False).subscribe("t", qos=1)
    flood(publisher, 100)
    publisher.got()

    assert publisher.send(PingReq()) == [PingResp()]


def test_messages_of_a_held_client_that_disconnects_are_published(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=1)
    flood(publisher, 100)
    leaving = stage.client("q", will=Will("t", b"never"))
    flood(leaving, 3)
    assert len(leaving.got()) == 1

    leaving.push(DisconnectPacket())
    leaving.lose()

    got = read_all(reader)
    assert sorted(got) == sorted([*range(100), 0, 1, 2])
    assert (stage.machine.meters.lost, stage.machine.meters.wills) == (0, 0)


def test_a_held_client_may_start_a_clean_session(stage) -> None:
    stage.client("r", answers=False).subscribe("t", qos=1)
    both = stage.client("b", clean=False, expiry=100)
    both.subscribe("u")
    flood(both, 30)

    both.push(both.message("u"))
    stage.run()
    again = stage.client("b", clean=True)

    assert again.end is None
    assert "u" not in {log.topic_filter for log in stage.machine.logs}


def test_waiting_publishers_are_released_one_by_one(stage) -> None:
    publishers = [stage.client(f"p{number}") for number in range(40)]
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=1)
    big = bytes(150)
    for publisher in publishers:
        publisher.push(*(publisher.message("t", big, 1) for _ in range(5)))
    stage.run()
    for publisher in publishers:
        publisher.push(*(publisher.message("t", big, 1) for _ in range(20)))
    stage.run()

    count = peak = 0
    while found := acknowledge(reader):
        count += len(found)
        peak = max(peak, len(stage.machine.logs.get("t").segments))

    assert count == 40 * 25
    assert stage.machine.meters.lost == 0
    assert peak <= GUARD * 4


def test_a_shared_subscription_slows_publishers_while_it_has_a_member(stage) -> None:
    publisher = stage.client("p")
    members = [stage.client(name, answers=False) for name in "ab"]
    for member in members:
        member.subscribe("$share/g/t", qos=1)
    flood(publisher, 100)
    held = len(publisher.got())

    got = []
    for _ in range(200):
        for member in members:
            got += acknowledge(member)

    assert held < 30
    assert sorted(got) == list(range(100))


def test_qos_2_messages_arrive_once_and_in_order(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=2)
    flood(publisher, 100, qos=2)
    got = []
    for _ in range(300):
        for packet in reader.got():
            got += [packet.payload[1]] if isinstance(packet, Publish) else []
            reader._answer(packet)
        stage.run()

    assert got == list(range(100))
    assert stage.machine.meters.lost == 0


def test_unprocessed_bytes_of_a_client_are_bounded_by_its_connection(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False)
    reader.subscribe("t", qos=1)
    flood(publisher, 20)
    assert not publisher.link.is_full

    publisher.push(publisher.message("t", bytes(HELD_BYTES), 1))
    stage.run()
    assert publisher.link.is_full
    reader.lose()
    stage.run()

    assert not publisher.link.is_full
    assert stage.machine.sessions.by_link[publisher.link].held is None


def test_a_local_client_is_read_even_when_too_much_waits(stage) -> None:
    publisher = stage.client("p", is_local=True)
    stage.client("r", answers=False).subscribe("t", qos=1)
    flood(publisher, 20)
    publisher.got()

    publisher.push(publisher.message("t", bytes(LOCAL_BYTES), 1))
    stage.run()

    assert publisher.got()
