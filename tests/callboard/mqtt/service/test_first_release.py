"""Compatibility with routers of release 0.1, whose sessions had no users.

The bytes are of that release itself (tests/golden/files/first_release.hex): the claim of a
session, and a journal in which the session `meter`, which never ends, has three messages.
"""

from contextlib import ExitStack

import pytest

from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.mqtt import Security
from callboard.mqtt.service.claims import ClaimSession
from tests.callboard.mqtt.service.test_owners import (
    NOT_AUTHORIZED,
    USERS,
    connect,
    refusal,
    running,
)
from tests.golden.sample import read_files, write_folder

BYTES = read_files("first_release")


@pytest.fixture
def journal(tmp_path):
    prefix = "journal/"
    files = {name.removeprefix(prefix): BYTES[name] for name in BYTES if prefix in name}
    write_folder(tmp_path, files)
    return tmp_path


def come(folder, user, *, security=USERS):
    """Connect as a user; return the payloads that waited."""
    with ExitStack() as stack:
        router = running(stack, security, directory=folder)
        with connect(router, user, expiry=0xFFFFFFFF) as caller:
            assert caller.greeting.reason_code == 0
            assert caller.greeting.session_present
            return [packet.payload for packet in caller.hear_packets(3)]


def test_the_claim_of_a_session_has_no_user():
    claim = PayloadCodec(DEFAULT_REGISTRY).decode_message(BYTES["ClaimSession"])

    assert claim == ClaimSession("c", True, 2**60, 5)
    assert claim.user is None


def test_a_session_in_a_journal_belongs_to_its_first_user(journal):
    assert come(journal, "bob") == [b"reading 0", b"reading 1", b"reading 2"]

    for user in ("ann", ""):
        with ExitStack() as stack:
            router = running(stack, directory=journal)
            assert refusal(router, user) == NOT_AUTHORIZED
    assert len(come(journal, "bob")) == 3  # not acknowledged, and his over restarts


def test_without_authentication_a_session_has_no_user(journal):
    assert len(come(journal, "", security=Security())) == 3
    assert len(come(journal, "ann")) == 3
