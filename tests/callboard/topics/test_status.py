"""Codes, statuses, errors and peers: numbers and texts."""

import pytest

from callboard.topics.machine.status import (
    EC,
    SC,
    EndpointInfo,
    Error,
    ErrorCode,
    NetworkInfo,
    OptionalNetworkInfo,
    PeerFlags,
    PeerInfo,
    PeerStatus,
    Status,
    StatusCode,
)

PLACE = OptionalNetworkInfo(NetworkInfo("127.0.0.1", 9999, 10.0))
PEER = EndpointInfo("A1", PLACE)

#: Number and text of each error, in the order of Broker 2.8.
ERRORS = [
    "none",
    "unspecified",
    "peer_incompatible",
    "peer_invalid",
    "peer_unavailable",
    "peer_disconnect_during_handshake",
    "peer_timeout",
    "master_exists",
    "no_such_master",
    "no_such_key",
    "request_timeout",
    "type_clash",
    "invalid_data",
    "backend_failure",
    "stale_data",
    "cannot_open_file",
    "cannot_write_file",
    "invalid_topic_key",
    "end_of_file",
    "invalid_tag",
    "invalid_message",
    "invalid_status",
    "conversion_failed",
    "consumer_exists",
    "connection_timeout",
    "bad_member_function_call",
    "repeated_request_id",
    "broken_clone",
    "shutting_down",
    "invalid_peering_request",
    "repeated_peering_handshake_request",
    "unexpected_handshake_message",
    "invalid_handshake_state",
    "no_path_to_peer",
    "no_connector_available",
    "cannot_open_resource",
    "serialization_failed",
    "deserialization_failed",
    "wrong_magic_number",
    "redundant_connection",
    "logic_error",
    "invalid_json",
]


def test_errors_have_brokers_numbers_and_texts():
    assert [(code.value, code.text) for code in EC] == list(enumerate(ERRORS))
    assert EC.PeerInvalid == 3
    assert str(EC.PeerInvalid) == "EC.PeerInvalid"
    assert (ErrorCode, StatusCode) == (EC, SC)


def test_statuses_have_brokers_numbers_and_texts():
    texts = "unspecified peer_added peer_removed peer_lost endpoint_discovered"
    assert [code.text for code in SC] == [*texts.split(), "endpoint_unreachable"]
    assert list(SC) == list(range(6))


def test_names_and_numbers_of_peers_are_those_of_broker():
    assert [status.name for status in PeerStatus][:6] == [
        "Initialized",
        "Connecting",
        "Connected",
        "Peered",
        "Disconnected",
        "Reconnecting",
    ]
    assert (PeerFlags.Remote | PeerFlags.Outbound | PeerFlags.Inbound).value == 14
    assert PeerFlags(14) & PeerFlags.Remote


def test_a_status_prints_as_broker_prints_it():
    assert str(Status()) == 'unspecified("")'
    assert repr(Status(SC.PeerAdded, PEER)) == (
        'peer_added(A1, 127.0.0.1:9999, "handshake successful")'
    )
    assert str(Status(SC.PeerLost, EndpointInfo("A1"), "gone")) == 'peer_lost(A1, "gone")'


def test_an_error_prints_its_code_and_place():
    unknown = EndpointInfo("", PLACE)

    assert str(Error()) == repr(Error()) == "none"
    assert str(Error(EC.PeerInvalid, unknown)) == (
        'peer_invalid(invalid-node, 127.0.0.1:9999, "cannot unpeer from unknown peer")'
    )


def test_notices_show_their_parts_and_compare():
    status, error = Status(SC.PeerAdded, PEER, "x"), Error(EC.PeerTimeout, PEER, "x")

    assert (status.code(), status.context(), status.message()) == (SC.PeerAdded, PEER, "x")
    assert (error.code(), error.context()) == (6, PEER)
    assert status == Status(SC.PeerAdded, PEER, "x") != error
    assert Status() != Error()
    assert len({status, error, Status(SC.PeerAdded, PEER, "x")}) == 2


@pytest.mark.parametrize("code", [42, -1])
def test_an_unknown_code_is_refused(code):
    with pytest.raises(ValueError, match=str(code)):
        Error(code)


def test_a_place_that_is_not_known_says_so():
    nowhere = OptionalNetworkInfo()

    assert (nowhere.is_set(), bool(nowhere), str(nowhere)) == (False, False, "none")
    assert (PLACE.is_set(), str(PLACE), PLACE.get().port) == (True, "*127.0.0.1:9999", 9999)
    with pytest.raises(LookupError, match="is_set"):
        nowhere.get()


def test_a_peer_shows_its_parts():
    info = PeerInfo(PEER, PeerFlags.Remote, PeerStatus.Peered)

    assert info.peer.node_id() == str(info.peer) == "A1"
    assert (info.flags, info.status) == (PeerFlags.Remote, PeerStatus.Peered)
    assert info.peer.network.get() == NetworkInfo("127.0.0.1", 9999)
