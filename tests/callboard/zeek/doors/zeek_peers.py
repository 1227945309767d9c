"""A peer of Broker 2.x that is played: our machine on a plain socket, without a node."""

import socket
import time
import uuid

from callboard.zeek.peering import PeerFilter, PeerMessage
from tests.callboard.zeek.peering_ends import End

LIMIT = 20.0


class ZeekPeer(End):
    """Dials a port, or accepts one connection of an endpoint; all calls block."""

    def __init__(self, topics=(), *, port=0, own=None, listener=None):
        if listener is None:
            self.sock = socket.create_connection(("127.0.0.1", port), LIMIT)
        else:
            listener.settimeout(LIMIT)
            self.sock, _ = listener.accept()
        self.sock.settimeout(0.05)
        super().__init__(own or uuid.uuid4().bytes, topics, is_dialed=listener is None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def pump(self):
        """Write the waiting bytes, and read once."""
        if out := self.take_out():
            self.sock.sendall(out)
        try:
            data = self.sock.recv(65_536)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if data:
            self.feed(data)
        elif self.closed is None:
            self.carry_out(self.session.lost("closed by the other side"))
        if (out := self.take_out()) and data:
            self.sock.sendall(out)

    def until(self, condition, seconds=LIMIT):
        """Continue until a condition holds."""
        end = time.monotonic() + seconds
        while not (found := condition(self)):
            assert time.monotonic() < end, f"not within {seconds:g} s"
            self.pump()
        return found

    def peered(self):
        self.until(lambda self: self.admitted)
        return self

    def say(self, topic, payload=b"\x01\x01", ttl=16, **how):
        self.out += self.session.send(topic.encode(), payload, ttl, **how)
        self.pump()

    def heard(self):
        return [each for each in self.messages if isinstance(each, PeerMessage)]

    def filters(self):
        return [each.topics for each in self.messages if isinstance(each, PeerFilter)]
