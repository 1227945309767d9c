"""The consumer of a channel, message by message."""

import pytest

from callboard.channel import (
    Consumer,
    CumulativeAck,
    EndOfChannel,
    Event,
    Handshake,
    Heartbeat,
    Nack,
    RetransmitFailed,
)
from callboard.channel.producer import NACK_LIMIT
from tests.callboard.channel.cast import Station, consumer


def opened(first=1, **options):
    receiver, station = consumer(**options)
    receiver.handle(Handshake(first, 5))
    station.take_sent()
    return receiver, station


def ticks(receiver, count):
    for _ in range(count):
        receiver.tick()


def test_consume_gets_the_payload_of_each_event_in_order():
    receiver, station = opened()

    for seq in (2, 1, 4, 3):
        receiver.handle(Event(seq, f"e{seq}"))

    assert station.take_told() == [("consume", f"e{seq}") for seq in (1, 2, 3, 4)]
    assert (receiver.next_seq, receiver.buffered, receiver.is_idle) == (5, 0, True)


def test_a_doubled_event_is_consumed_once():
    receiver, station = opened()

    for seq in (1, 1, 3, 3, 2, 2, 3, 1):
        receiver.handle_event(seq, seq)

    assert station.take_told() == [("consume", 1), ("consume", 2), ("consume", 3)]


def test_a_handshake_is_acknowledged_and_again_when_it_comes_again():
    receiver, station = consumer()

    assert receiver.handle_handshake(8, 5)
    receiver.handle_event(8, "x")
    assert not receiver.handle_handshake(8, 5)
    assert station.take_sent() == [CumulativeAck(7), CumulativeAck(8)]


def test_events_that_outrun_the_handshake_are_kept_and_older_ones_forgotten():
    receiver, station = consumer()
    for seq in (4, 3, 2):
        receiver.handle_event(seq, seq)
    assert (station.take_told(), receiver.next_seq, receiver.is_idle) == ([], 0, False)

    receiver.handle_handshake(3, 5)
    assert station.take_told() == [("consume", 3), ("consume", 4)]


@pytest.mark.parametrize("first", [0, -1])
def test_a_handshake_without_a_first_event_is_refused(first):
    receiver, station = consumer()

    assert not receiver.handle_handshake(first, 5)
    assert station.sent == []


def test_cumulative_ack_is_periodic_even_when_idle():
    receiver, station = opened()

    ticks(receiver, 15)

    assert station.take_sent() == [CumulativeAck(0)] * 3


def test_cumulative_ack_notifies_which_events_were_processed():
    receiver, station = opened()
    receiver.handle_event(1, "x")
    receiver.handle_event(2, "y")

    receiver.tick()
    receiver.acknowledge()

    assert station.take_sent() == [CumulativeAck(2)]


def test_acknowledge_tells_at_once_and_only_what_is_untold():
    receiver, station = consumer()
    receiver.acknowledge()
    assert station.sent == []

    receiver.handle_handshake(1, 5)
    receiver.handle_event(1, "x")
    receiver.acknowledge()
    receiver.acknowledge()
    assert station.take_sent() == [CumulativeAck(0), CumulativeAck(1)]


def test_nack_notifies_that_events_got_lost():
    receiver, station = opened(nack_after=2)
    for seq in (1, 3, 5):
        receiver.handle_event(seq, seq)
    receiver.acknowledge()
    station.take_sent()

    ticks(receiver, 4)

    assert station.take_sent() == [Nack((2, 4))] * 2


def test_a_heartbeat_reveals_that_the_last_events_got_lost():
    receiver, station = opened(nack_after=1)

    receiver.handle(Heartbeat(2))
    assert not receiver.is_idle
    ticks(receiver, 1)
    assert station.take_sent() == [Nack((1, 2))]


def test_a_nack_asks_for_a_limited_number():
    receiver, station = opened(nack_after=1)
    receiver.handle_heartbeat(10 * NACK_LIMIT)

    receiver.tick()

    assert station.take_sent() == [Nack(tuple(range(1, NACK_LIMIT + 1)))]


def test_events_beyond_the_window_are_not_kept():
    receiver, station = opened(window=3)
    for seq in (2, 3, 4, 9):
        receiver.handle_event(seq, seq)
    assert receiver.buffered == 2

    receiver.handle_event(1, 1)
    assert [payload for _, payload in station.take_told()] == [1, 2, 3]
    assert not receiver.is_idle


def test_events_before_the_handshake_are_bounded_too():
    receiver, _ = consumer(window=3)
    for seq in range(1, 100):
        receiver.handle_event(seq, seq)

    assert receiver.buffered == 3


def test_consume_nil_takes_the_turn_of_a_lost_event():
    receiver, station = opened()
    receiver.handle_event(3, "z")
    receiver.handle(RetransmitFailed(2))
    assert station.told == []

    receiver.handle_event(1, "x")
    assert station.take_told() == [("consume", "x"), ("nil",), ("consume", "z")]


def test_consume_nil_may_abort_and_then_close_is_called_with_its_error():
    receiver, station = opened(nil_answer="cannot go on")
    receiver.handle_event(2, "y")

    receiver.handle_retransmit_failed(1)
    assert station.take_told() == [("nil",), ("close", "cannot go on")]
    assert receiver.is_closed


def test_an_event_that_arrives_after_all_wins_over_the_report_of_its_loss():
    receiver, station = opened()
    receiver.handle_retransmit_failed(2)
    receiver.handle_event(2, "y")
    receiver.handle_retransmit_failed(2)
    receiver.handle_event(1, "x")

    assert station.take_told() == [("consume", "x"), ("consume", "y")]


def test_close_is_the_last_call():
    receiver, station = opened(timeout=10, nil_answer="end")
    ticks(receiver, 11)
    assert station.take_told() == [("close", EndOfChannel.CONNECTION_TIMEOUT)]
    station.take_sent()

    for msg in (Handshake(1, 5), Event(1, "x"), RetransmitFailed(1), Heartbeat(9)):
        receiver.handle(msg)
    receiver.acknowledge()
    ticks(receiver, 20)
    assert (station.sent, station.told) == ([], [])


def test_any_message_is_a_sign_of_life():
    receiver, station = opened(timeout=10)
    for msg in (Heartbeat(0), Event(1, "x"), RetransmitFailed(2), Handshake(1, 5)) * 2:
        ticks(receiver, 9)
        receiver.handle(msg)

    assert ("close", EndOfChannel.CONNECTION_TIMEOUT) not in station.take_told()


def test_silence_before_the_handshake_ends_it_too():
    receiver, station = consumer(timeout=10)
    ticks(receiver, 11)

    assert station.take_told() == [("close", EndOfChannel.CONNECTION_TIMEOUT)]


def test_an_event_that_never_comes_ends_it():
    receiver, station = opened(timeout=10)
    for _ in range(11):
        receiver.handle(Heartbeat(5))
        receiver.tick()

    assert station.take_told() == [("close", EndOfChannel.RETRANSMISSION_TIMEOUT)]


def test_progress_keeps_a_consumer_open_however_much_is_missing():
    receiver, station = opened(timeout=10)
    for seq in range(1, 6):
        receiver.handle_heartbeat(100)
        ticks(receiver, 9)
        receiver.handle_event(seq, seq)

    assert not receiver.is_closed
    assert len(station.take_told()) == 5


def test_the_first_argument_is_the_consumer_so_one_backend_serves_many():
    station = Station("end")
    one, two = Consumer(station), Consumer(station)
    for receiver in (one, two):
        receiver.handle(Handshake(1, 5))
        receiver.handle(Event(1, "x"))
        receiver.handle(RetransmitFailed(2))

    assert [call[0] for call in station.sent] == [one, two]
    assert [call[0] for call in station.told] == [one] * 3 + [two] * 3


def test_a_backend_may_feed_the_consumer_while_it_consumes():
    class Feeding(Station):
        def consume(self, receiver, payload):
            super().consume(receiver, payload)
            receiver.handle_event(payload + 1, payload + 1) if payload < 5 else None

    station = Feeding()
    receiver = Consumer(station)
    receiver.handle_handshake(1, 5)
    receiver.handle_event(2, 2)
    receiver.handle_event(1, 1)

    assert [payload for _, payload in station.take_told()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{"nack_after": 0}, {"timeout": 2}, {"window": 0}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match="a consumer needs"):
        consumer(**options)


def test_the_interval_of_a_handshake_cannot_silence_a_consumer():
    receiver, station = consumer(timeout=20)
    receiver.handle_handshake(1, 10**9)
    station.take_sent()
    for _ in range(10):
        receiver.handle_heartbeat(0)
        receiver.tick()

    assert station.take_sent() == [CumulativeAck(0)] * 2
