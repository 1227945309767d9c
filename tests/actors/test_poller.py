"""The poller tells what the selector of the standard library tells."""

import selectors
import socket
import time

import pytest

from callboard.actors.runner.poller import best_selector
from callboard.support.platform.system import HAS_EPOLL

BOTH = selectors.EVENT_READ | selectors.EVENT_WRITE


@pytest.fixture
def poller():
    with best_selector() as made:
        yield made


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_ready_files_are_returned_with_their_keys_and_directions(poller, pair):
    one, other = pair
    one_key = poller.register(one, BOTH, "one")
    other_key = poller.register(other, selectors.EVENT_READ, "other")
    one.send(b"x")

    assert sorted(poller.select(5.0), key=lambda found: found[0].data) == [
        (one_key, selectors.EVENT_WRITE),
        (other_key, selectors.EVENT_READ),
    ]


def test_a_modified_file_is_returned_with_its_new_key(poller, pair):
    one, other = pair
    poller.register(one, selectors.EVENT_WRITE, "before")
    other.send(b"x")

    key = poller.modify(one, selectors.EVENT_READ, "after")

    assert poller.select(5.0) == [(key, selectors.EVENT_READ)]
    assert poller.get_key(one) == key


def test_an_unregistered_file_is_not_returned(poller, pair):
    one, other = pair
    poller.register(one, selectors.EVENT_READ)
    other.send(b"x")

    poller.unregister(one)

    assert poller.select(0.0) == []
    assert len(poller.get_map()) == 0


@pytest.mark.parametrize("wanted", [selectors.EVENT_READ, selectors.EVENT_WRITE, BOTH])
def test_a_connection_that_broke_is_ready_in_the_wanted_directions(poller, pair, wanted):
    one, other = pair
    poller.register(one, wanted)
    other.close()

    with selectors.DefaultSelector() as standard:
        standard.register(one, wanted)
        expected = [mask for _, mask in standard.select(5.0)]

    assert [mask for _, mask in poller.select(5.0)] == expected


def test_a_poll_waits_as_long_as_it_may(poller, pair):
    poller.register(pair[0], selectors.EVENT_READ)
    started = time.monotonic()

    assert poller.select(0.02) == []
    assert time.monotonic() - started >= 0.02


@pytest.mark.skipif(not HAS_EPOLL, reason="a closed poll object has no descriptor to close")
def test_a_closed_poller_polls_no_more(pair):
    poller = best_selector()
    poller.register(pair[0], selectors.EVENT_READ)

    poller.close()

    with pytest.raises((ValueError, RuntimeError)):
        poller.select(0.0)
