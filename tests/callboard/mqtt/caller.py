"""A client on a socket that blocks: it says and hears packets, and nothing by itself."""

import socket

from callboard.mqtt.codec import decode, encode
from callboard.mqtt.framing import body_start, packet_end
from callboard.mqtt.network import Network
from callboard.mqtt.packet import V4, V5, Connect, SubAck, Subscribe, Subscription
from callboard.mqtt.properties import Properties


class Caller:
    """One connection."""

    def __init__(self, port, client_id="", version=V4, *, connection=None, **fields):
        self.socket = connection or socket.create_connection(("127.0.0.1", port), 10)
        self.socket.settimeout(10)
        self.version = version
        self.network = Network()
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
                each = type(each)(
                    **{name: getattr(each, name) for name in each.__slots__}
                    | {"properties": Properties()}
                )
            written.append(encode(each, self.version))
        self.socket.sendall(b"".join(written))

    def hear_packets(self, count):
        """Return the next packets; fewer if the router closes the connection."""
        while len(self.waiting) < count:
            data = self.socket.recv(65_536)
            if not data:
                break
            self._take(self.network.receive(data))
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def _take(self, chunk):
        position = 0
        while position < len(chunk):
            end = packet_end(chunk, position)
            body = chunk[body_start(chunk, position) : end]
            self.waiting.append(decode(chunk[position], body, self.version))
            position = end

    def subscribe(self, topic_filter, qos=0):
        self.say(Subscribe(1, (Subscription(topic_filter, qos),)))
        (answer,) = self.hear_packets(1)
        assert isinstance(answer, SubAck)
        assert answer.reason_codes == (qos,)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
