"""When a link speaks, and what it takes for too long; what it does then is in test_link."""

import pytest

from basp.handshake import LinkConfig
from basp.link_state import LinkState
from basp.link_times import LinkTimes
from basp.node_id import NodeId

CONFIG = LinkConfig(NodeId(b"a" * 18), heartbeat=1.0, missed=3, handshake_timeout=5.0)
IDENTIFIED = [
    LinkState.AWAIT_SYN,
    LinkState.PARKED,
    LinkState.AWAIT_SYN_ACK,
    LinkState.AWAIT_ACK,
    LinkState.ESTABLISHED,
]
SPEAKING = [state for state in IDENTIFIED if state is not LinkState.AWAIT_ACK]


def test_a_stranger_has_the_time_of_a_part_of_the_handshake_and_gets_no_heartbeat():
    times, state = LinkTimes(CONFIG, 10.0), LinkState.INTRODUCING

    assert times.next_at(state, 14.5) == 15.0
    assert not times.is_heartbeat_due(state, 14.9)
    assert times.overdue(state, 14.9, 10.0) is None
    assert times.overdue(state, 15.0, 14.9) == "handshake took longer than 5 s"


@pytest.mark.parametrize("state", SPEAKING)
def test_a_heartbeat_is_due_an_interval_after_the_last_one(state):
    times = LinkTimes(CONFIG, 10.0)
    times.end_part(11.0)

    assert times.next_at(state, 11.5) == 12.0
    assert not times.is_heartbeat_due(state, 11.9)
    assert times.is_heartbeat_due(state, 12.0)
    times.heartbeat_sent(12.5)
    assert not times.is_heartbeat_due(state, 13.4)
    assert times.next_at(state, 12.5) == 13.5


def test_who_awaits_the_ack_sends_no_heartbeat():
    times = LinkTimes(CONFIG, 10.0)
    times.end_part(11.0)

    assert not times.is_heartbeat_due(LinkState.AWAIT_ACK, 20.0)
    assert times.next_at(LinkState.AWAIT_ACK, 11.0) == 14.0


@pytest.mark.parametrize("state", IDENTIFIED)
def test_silence_ends_every_link_whose_peer_is_identified(state):
    times = LinkTimes(CONFIG, 10.0)
    times.end_part(11.0)

    assert times.overdue(state, 14.9, 12.0) is None
    assert times.overdue(state, 15.0, 12.0) == "silent for 3.0 s, 3 heartbeats"


def test_each_part_of_the_handshake_has_its_own_time():
    times, state = LinkTimes(CONFIG, 10.0), LinkState.AWAIT_SYN_ACK
    times.end_part(14.0)
    times.begin_part(14.0)

    assert times.overdue(state, 18.9, 18.0) is None
    assert times.overdue(state, 19.0, 18.0) == "handshake took longer than 5 s"
