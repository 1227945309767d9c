"""Notifications of ready sockets, by epoll and by the other pollers of the system."""

import selectors
import socket
from types import SimpleNamespace

import pytest

from callboard.actors.runner.poller import best_selector
from callboard.mqtt.access.admission import Peer
from callboard.mqtt.port import socket_stream
from callboard.mqtt.port.socket_stream import SocketStream


class Owner:
    """A stand-in for a `RemoteLink` that records notifications, and may react to them."""

    def __init__(self, _connections, wire, _peer):
        self.wire = wire
        self.told = []
        self.then = lambda: None

    def receive(self, data):
        self.told.append(data)
        self.then()

    def drained(self):
        self.told.append("drained")

    def hang_up(self):
        self.wire.close()

    def lost(self):
        self.told.append("lost")


class Place:
    """A runner that polls on request, with connections."""

    def __init__(self, selector):
        self.selector = selector
        self.soon = []
        self.loop = SimpleNamespace(call_soon=self.soon.append)
        self.others = []

    def open(self):
        """Return the owner of a connection, and the socket at its other end."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.others.append(theirs)
        owner = SocketStream(None, Peer(), ours.detach(), self).remote
        return owner, theirs

    def look(self):
        """Poll once; returns how many sockets were ready."""
        found = self.selector.select(0)
        for key, events in found:
            key.data(events)
        while self.soon:
            self.soon.pop(0)()
        return len(found)

    def close(self):
        for key in list(self.selector.get_map().values()):
            key.data.__self__.abort()
        for sock in self.others:
            sock.close()
        self.selector.close()


@pytest.fixture(params=[best_selector, selectors.SelectSelector])
def place(request, monkeypatch):
    monkeypatch.setattr(socket_stream, "RemoteLink", Owner)
    place = Place(request.param())
    yield place
    place.close()


def test_the_owner_of_a_link_is_notified_until_it_has_read_all_messages(place, monkeypatch):
    monkeypatch.setattr(socket_stream, "READ_SIZE", 1)
    owner, theirs = place.open()
    theirs.send(b"abc")

    assert [place.look() for _ in range(4)] == [1, 1, 1, 0]
    assert owner.told == [b"a", b"b", b"c"]


def test_the_owner_of_a_link_is_notified_of_its_end_and_of_room_to_write(place):
    reader, theirs = place.open()
    theirs.close()
    place.look()
    assert reader.told == ["lost"]

    writer, theirs = place.open()
    sent = b"x" * (8 << 20)
    writer.wire.write(sent)
    assert writer.wire.is_full
    count = 0
    while count < len(sent):
        count += len(theirs.recv(1 << 20))
        place.look()
    assert writer.told == ["drained"]
    assert place.look() == 0


def test_a_removed_owner_is_not_notified(place):
    first, one = place.open()
    second, two = place.open()
    two.send(b"a")
    second.wire.pause()
    one.send(b"a")

    assert place.look() == 1
    assert (first.told, second.told) == ([b"a"], [])
    second.wire.resume()
    place.look()
    assert second.told == [b"a"]


def test_an_owner_that_is_notified_may_close_the_next_stream_of_the_same_poll(place):
    (first, one), (second, two) = place.open(), place.open()

    def end_both():
        first.wire.abort()
        second.wire.abort()

    for owner, theirs in ((first, one), (second, two)):
        owner.then = end_both
        theirs.send(b"a")

    assert place.look() == 2
    assert sorted((first.told, second.told), key=len) == [["lost"], [b"a", "lost"]]
