"""A Zeek cluster over ZeroMQ that is played: the manager's proxy, and nodes on plain pyzmq."""

import threading
from contextlib import suppress

import zmq

from callboard.model.data import Data
from callboard.zeek.value import value_from_bytes, value_to_bytes
from tests.polling import eventually

WAIT_MS = 10_000


class Manager:
    """XPUB and XSUB with a proxy between, as Zeek's manager has them."""

    def __init__(self):
        self._ports = ("*", "*")
        self.start()

    def start(self):
        self._context = zmq.Context()
        xpub, xsub = self._context.socket(zmq.XPUB), self._context.socket(zmq.XSUB)
        xpub.setsockopt(zmq.XPUB_VERBOSER, 1)
        xpub.setsockopt(zmq.XPUB_NODROP, 1)
        control, self._control = (self._context.socket(zmq.PAIR) for _ in range(2))
        control.bind("inproc://control")
        self._control.connect("inproc://control")
        for each, port in zip((xpub, xsub), self._ports, strict=True):
            each.linger = 0
            self._bind(each, f"tcp://127.0.0.1:{port}")
        self.xpub, self.xsub = (
            each.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0") for each in (xpub, xsub)
        )
        self._ports = tuple(each.rpartition(":")[2] for each in (self.xpub, self.xsub))

        def run():
            zmq.proxy_steerable(xsub, xpub, None, control)
            for each in (xpub, xsub, control):
                each.close(0)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @staticmethod
    def _bind(socket, address):
        def is_bound():
            with suppress(zmq.ZMQError):  # a port that was left is freed in a moment
                socket.bind(address)
                return True

        eventually(is_bound)

    def stop(self):
        self._control.send(b"TERMINATE")
        self._thread.join(10)
        self._control.close(0)
        self._context.term()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Zeek:
    """A node of the cluster."""

    def __init__(self, manager, name="worker-1", **options):
        self.name, self.id = name, f"zeromq_{name}_host_1_Nabc"
        self._context = zmq.Context()
        self.xsub, self.xpub = self._context.socket(zmq.XSUB), self._context.socket(zmq.XPUB)
        self.xpub.setsockopt(zmq.XPUB_VERBOSE, 1)
        for each, address in ((self.xsub, manager.xpub), (self.xpub, manager.xsub)):
            each.linger, each.rcvtimeo, each.sndtimeo = 0, WAIT_MS, WAIT_MS
            for option, value in options.items():
                setattr(each, option, value)
            each.connect(address)

    def subscribe(self, *prefixes):
        """Subscribe, and wait until the manager has passed it on."""
        for prefix in prefixes:
            self.xsub.send(b"\1" + prefix.encode())
            self.await_subscription(prefix)

    def unsubscribe(self, prefix):
        self.xsub.send(b"\0" + prefix.encode())

    def await_subscription(self, prefix, kind=b"\1"):
        """Wait for a subscriber; return the earlier messages."""
        before = []
        while (frame := self.xpub.recv()) != kind + prefix.encode():
            before.append(frame)
        return before

    def publish(self, topic, value, form=b"broker-bin-v1"):
        payload = value if isinstance(value, bytes) else value_to_bytes(Data(value))
        self.xpub.send_multipart([topic.encode(), self.id.encode(), form, payload])

    def receive(self):
        """Return topic, sender, format and value of the next message."""
        topic, sender, form, payload = self.xsub.recv_multipart()
        value = payload if b"json" in form else value_from_bytes(payload)
        return topic.decode(), sender.decode(), form.decode(), value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.xsub.close(0)
        self.xpub.close(0)
        self._context.term()
