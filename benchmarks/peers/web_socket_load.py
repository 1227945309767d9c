"""The other side of Zeek's WebSocket JSON: its frames are made beforehand, or only counted.

    python web_socket_load.py ROLE CONNECTIONS EVENTS [PORT]

| role | what it is |
|---|---|
| `send` | clients of a port; each sends its share of the events |
| `receive` | clients of a port; each takes all events |
| `feed` | a server; each client is sent its share of the events |
| `take` | a server; each client sends all events |

A server prints its port. Then, when all are connected, a line is printed; a line on stdin
lets it begin, and a last line says that it sent or has everything. It knows no more of
WebSocket than the handshake and how long a frame is, has a thread for each connection and
writes events in runs of a hundred: so it costs next to nothing, and is the same for all.
"""

import json
import socket
import sys
import threading
from itertools import cycle
from typing import Any

from websockets.client import ClientProtocol
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

TOPIC = "/zeek/event/ping"
BATCH = 100
READ = 1 << 18
KEY = b"\x37\xfa\x21\x3d"


def event(number: int) -> str:
    """Return the text of an event of three arguments."""
    arguments = [node("string", "hello world"), node("count", number)]
    arguments.append(node("address", f"10.0.0.{number}"))
    body = [node("string", "Test::ping"), node("vector", arguments)]
    whole = node("vector", [node("count", 1), node("count", 1), node("vector", body)])
    return json.dumps({"type": "data-message", "topic": TOPIC, **whole})


def node(kind: str, data: object) -> dict[str, object]:
    """Return a value with its type."""
    return {"@data-type": kind, "data": data}


def framed(text: str, *, masked: bool) -> bytes:
    """Return a text as a frame: a client masks it, a server does not."""
    payload = text.encode()
    size, bit = len(payload), 0x80 * masked
    length = bytes((size | bit,)) if size < 126 else bytes((126 | bit,)) + size.to_bytes(2)
    if masked:
        payload = KEY + bytes(byte ^ key for byte, key in zip(payload, cycle(KEY)))
    return b"\x81" + length + payload


def send(sock: socket.socket, events: int, *, masked: bool) -> None:
    """Send events."""
    frames = [framed(event(number), masked=masked) for number in range(BATCH)]
    batch = b"".join(frames)
    for _ in range(events // BATCH):
        sock.sendall(batch)
    sock.sendall(b"".join(frames[: events % BATCH]))


def receive(sock: socket.socket, events: int) -> None:
    """Receive a number of frames, each smaller than 64 KiB."""
    data = b""
    while events:
        read = sock.recv(READ)
        if not read:
            raise EOFError(events)
        data += read
        at, end = 0, len(data)
        while end - at >= 4:
            size = data[at + 1] & 0x7F
            head = 2 + 4 * (data[at + 1] >> 7)
            if size == 126:
                size, head = data[at + 2] << 8 | data[at + 3], head + 2
            if at + head + size > end:
                break
            at += head + size
            events -= 1
        data = data[at:]


def joined(port: int, topics: list[str]) -> socket.socket:
    """Return a client's connection, acknowledged."""
    sock = socket.create_connection(("127.0.0.1", port))
    core = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/v1/messages/json"))
    core.send_request(core.connect())
    shake_hands(sock, core)
    sock.sendall(framed(json.dumps(topics), masked=True))
    receive(sock, 1)
    return sock


def accepted(server: socket.socket) -> socket.socket:
    """Return a server's connection, acknowledged."""
    sock, core = server.accept()[0], ServerProtocol()
    (request,) = shake_hands(sock, core)
    core.send_response(core.accept(request))
    sock.sendall(b"".join(core.data_to_send()))
    receive(sock, 1)
    ack = {"type": "ack", "endpoint": "plain", "version": "8.1.0"}
    sock.sendall(framed(json.dumps(ack), masked=False))
    return sock


def shake_hands(sock: socket.socket, core: ClientProtocol | ServerProtocol) -> list[Any]:
    """Send a protocol's output, and let it read one head."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"".join(core.data_to_send()))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    core.receive_data(head)
    return core.events_received()


def main(role: str, connections: str, events: str, port: str = "") -> None:
    """Play a role."""
    count, total, is_client = int(connections), int(events), bool(port)
    share = total if role in ("receive", "take") else total // count
    if is_client:
        topics = [TOPIC] if role == "receive" else []
        socks = [joined(int(port), topics) for _ in range(count)]
    else:
        server = socket.create_server(("127.0.0.1", 0))
        print(server.getsockname()[1], flush=True)
        socks = [accepted(server) for _ in range(count)]
    print("ready", flush=True)
    sys.stdin.readline()

    def work(sock: socket.socket) -> None:
        if role in ("receive", "take"):
            receive(sock, share)
        else:
            send(sock, share, masked=is_client)

    threads = [threading.Thread(target=work, args=(sock,)) for sock in socks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
