"""A client on a blocking socket that sends and receives single packets, and nothing else."""

import socket
from dataclasses import replace

from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.framing import Deframer
from callboard.mqtt.wire.packet import V4, V5, Connect, SubAck, Subscribe, Subscription
from callboard.mqtt.wire.properties import Properties


class Caller:
    """One connection."""

    def __init__(self, port, client_id="", version=V4, *, connection=None, **fields):
        self.socket = connection or socket.create_connection(("127.0.0.1", port), 10)
        self.socket.settimeout(10)
        self.version = version
        self.network = Deframer()
        self.waiting = []
        if version == V5:
            fields.setdefault("properties", Properties())
        self.say(Connect(client_id, version=version, **fields))
        heard = self.hear_packets(1)
        if not heard:
            raise ConnectionResetError("closed without a greeting")
        self.greeting = heard[0]

    def say(self, *packets):
        """Send packets in one write."""
        written = []
        for each in packets:
            if self.version == V5 and getattr(each, "properties", 0) is None:
                each = replace(each, properties=Properties())
            written.append(encode(each, self.version))
        self.socket.sendall(b"".join(written))

    def hear_packets(self, count):
        """Return the next packets; fewer if the router closes the connection."""
        while len(self.waiting) < count:
            data = self.socket.recv(65_536)
            if not data:
                break
            self.waiting += decode_all(self.network.receive(data), self.version)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def subscribe(self, topic_filter, qos=0):
        self.say(Subscribe(1, (Subscription(topic_filter, qos),)))
        (answer,) = self.hear_packets(1)
        assert isinstance(answer, SubAck)
        assert answer.reason_codes == (qos,)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
