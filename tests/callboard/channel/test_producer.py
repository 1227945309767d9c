"""The producer of a channel, message by message."""

import pytest

from callboard.channel import (
    CumulativeAck,
    EndOfChannel,
    Event,
    Handshake,
    Heartbeat,
    Nack,
    Producer,
    RetransmitFailed,
)
from callboard.channel.producer import NACK_LIMIT
from tests.callboard.channel.cast import Station, producer


def connected(*hdls, **options):
    sender, station = producer(**options)
    for hdl in hdls:
        sender.add(hdl)
        sender.handle_ack(hdl, 0)
    station.take_sent()
    station.take_told()
    return sender, station


def test_handshake_transmits_the_first_sequence_number():
    sender, station = producer()
    sender.produce("early")

    assert sender.add("a")
    assert not sender.add("a")
    assert station.take_sent() == [("a", Handshake(2, 5))]


def test_event_transmits_data_with_rising_numbers_to_all():
    sender, station = connected("a", "b")

    assert [sender.produce("x"), sender.produce("y")] == [1, 2]
    assert station.take_sent() == [("all", Event(1, "x")), ("all", Event(2, "y"))]


def test_without_consumers_events_are_counted_only():
    sender, station = producer()

    assert sender.produce("x") == 1
    assert (station.take_sent(), sender.buffered, sender.seq) == ([], 0, 1)


def test_retransmit_failed_notifies_that_an_event_is_no_longer_available():
    sender, station = connected("a", buffer_limit=2)
    for payload in "xyz":
        sender.produce(payload)
    station.take_sent()

    assert sender.handle("a", Nack((1, 2)))
    assert station.take_sent() == [("a", RetransmitFailed(1)), ("a", Event(2, "y"))]
    assert (sender.given_up, sender.buffered) == (1, 2)


def test_heartbeat_keeps_connections_alive_while_nothing_is_produced():
    sender, station = connected("a", heartbeat_interval=3)
    sender.produce("x")
    station.take_sent()

    for _ in range(6):
        sender.tick()

    assert station.take_sent() == [("all", Heartbeat(1))] * 2


def test_an_event_takes_the_place_of_a_heartbeat():
    sender, station = connected("a", heartbeat_interval=3)

    for _ in range(6):
        sender.tick()
        sender.produce("x")

    assert {type(msg) for _, msg in station.take_sent()} == {Event}


def test_handshake_completed_is_called_at_the_initial_ack():
    sender, station = producer()
    sender.add("a")

    assert sender.handle("a", CumulativeAck(0))
    sender.handle("a", CumulativeAck(0))
    assert station.take_told() == [("completed", "a")]


def test_a_pending_handshake_is_sent_again_at_each_heartbeat():
    sender, station = producer(heartbeat_interval=3)
    sender.add("a")
    station.take_sent()

    repeated = []
    for tick in range(1, 8):
        sender.tick()
        repeated += [(tick, msg) for hdl, msg in station.take_sent() if hdl == "a"]

    assert repeated == [(3, Handshake(1, 3)), (6, Handshake(1, 3))]


def test_drop_indicates_that_a_consumer_got_removed():
    sender, station = connected("a", "b", timeout=10)
    sender.produce("x")
    sender.handle_ack("b", 1)

    for _ in range(11):
        sender.tick()
        sender.handle_ack("b", 1)

    assert station.take_told() == [("drop", "a", EndOfChannel.CONNECTION_TIMEOUT)]
    assert (sender.consumers, sender.buffered) == (("b",), 0)
    assert not sender.handle_ack("a", 1)
    assert not sender.handle_nack("a", [1])


def test_the_first_argument_is_the_producer_so_one_backend_serves_many():
    station = Station()
    one, two = Producer(station), Producer(station, timeout=6)
    for sender in (one, two):
        sender.add("a")
        sender.handle_ack("a", 0)
        sender.produce("x")
    for _ in range(7):
        two.tick()

    assert [call[0] for call in station.sent[:4]] == [one, one, two, two]
    assert [call[0] for call in station.told] == [one, two, two]


def test_an_event_is_kept_until_all_have_acknowledged_it():
    sender, _ = connected("a", "b")
    for payload in "xyz":
        sender.produce(payload)

    sender.handle_ack("a", 3)
    assert (sender.buffered, sender.is_idle) == (3, False)
    sender.handle_ack("b", 2)
    assert (sender.buffered, sender.is_idle) == (1, False)
    sender.handle_ack("b", 3)
    assert (sender.buffered, sender.is_idle) == (0, True)


def test_a_removed_consumer_holds_back_nothing():
    sender, station = connected("a", "b")
    sender.produce("x")
    sender.handle_ack("a", 1)

    assert sender.remove("b")
    assert not sender.remove("b")
    assert (sender.buffered, station.take_told()) == (0, [])


def test_a_pending_handshake_keeps_the_producer_from_being_idle():
    sender, _ = producer()
    assert sender.is_idle

    sender.add("a")
    assert not sender.is_idle


@pytest.mark.parametrize("seq", [-1, 0, 3])
def test_an_ack_of_what_was_not_sent_to_it_is_refused(seq):
    """A consumer that joined after event 1 cannot have processed less, nor event 3 of 2."""
    sender, station = producer()
    sender.produce("before")
    sender.add("a")
    sender.produce("x")

    assert not sender.handle_ack("a", seq)
    assert (station.take_told(), sender.buffered) == ([], 1)


def test_late_and_doubled_acks_change_nothing():
    sender, _ = connected("a")
    for payload in "xyz":
        sender.produce(payload)

    for seq in (2, 1, 2, 0):
        assert sender.handle_ack("a", seq)
    assert sender.buffered == 1


def test_a_nack_for_what_is_acknowledged_or_unknown_sends_nothing():
    sender, station = connected("a")
    sender.produce("x")
    sender.handle_ack("a", 1)
    station.take_sent()

    sender.handle_nack("a", [1, 0, -5, 2])
    assert station.take_sent() == []


def test_a_nack_is_answered_up_to_a_limit():
    sender, station = connected("a")
    for number in range(NACK_LIMIT + 10):
        sender.produce(number)
    station.take_sent()

    sender.handle_nack("a", range(1, NACK_LIMIT + 11))
    assert len(station.take_sent()) == NACK_LIMIT


@pytest.mark.parametrize(
    "options",
    [
        {"heartbeat_interval": 0},
        {"heartbeat_interval": 100},
        {"timeout": 5},
        {"buffer_limit": 0},
    ],
)
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match="a producer needs"):
        producer(**options)
