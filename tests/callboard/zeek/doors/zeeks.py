"""A simulated Zeek, which publishes messages to each connection whose filter matches."""

import json
import threading
from contextlib import suppress

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from callboard.zeek.json_message import message_to_json


class Zeek:
    """Like Zeek's manager: one filter for each connection, and no echo."""

    def __init__(self):
        self.heard = []
        #: The filters of all connections at each time that one began.
        self.seen_filters = []
        self._connections = {}
        self._lock = threading.Lock()
        self._port = 0
        self.start()

    def start(self):
        self._server = serve(self._serve, "127.0.0.1", self._port, compression=None)
        self._port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"ws://127.0.0.1:{self._port}/v1/messages/json"

    def _serve(self, socket):
        topics = json.loads(socket.recv())
        with self._lock:
            socket.send(json.dumps({"type": "ack", "endpoint": "zeek", "version": "7.0.0"}))
            self._connections[socket] = topics
            self.seen_filters.append(list(self._connections.values()))
        with suppress(ConnectionClosed):
            for text in socket:
                self._publish(socket, text)
        with self._lock:
            self._connections.pop(socket, None)

    def _publish(self, sender, text):
        frame = json.loads(text)
        self.heard.append((frame["topic"], frame["data"]))
        self.say_text(text, frame["topic"], sender)

    def say(self, topic, value):
        """Publish a value, as a script of this Zeek would."""
        self.say_text(message_to_json(topic, value), topic)

    def say_text(self, text, topic=None, sender=None):
        with self._lock:
            for socket, topics in self._connections.items():
                is_wanted = topic is None or topic.startswith(tuple(topics))
                if socket is not sender and is_wanted:
                    with suppress(ConnectionClosed):
                        socket.send(text)

    def filters(self):
        with self._lock:
            return list(self._connections.values())

    def headers(self):
        with self._lock:
            return [socket.request.headers for socket in self._connections]

    def cut(self):
        """Break all connections, as a cable does."""
        with self._lock:
            for socket in self._connections:
                socket.socket.shutdown(2)

    def stop(self):
        self._server.shutdown()
        self.cut()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
