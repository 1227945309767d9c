"""A detector on three Zeeks that answers a scan with a NetControl rule, on recorded streams.

Each Zeek here is a recording of its WebSocket; with real ones, only the addresses change. Each
of them loads `examples/zeek/detector.zeek`.

Run it with `python examples/zeek_detector.py`.
"""

import json
import queue
import threading
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from websockets.sync.server import Server, ServerConnection, serve

from callboard import Endpoint
from callboard.broker import Port
from callboard.zeek import zeek_event, zeek_events

Ip = IPv4Address | IPv6Address


@dataclass(frozen=True)
class ConnId:
    orig_h: Ip
    orig_p: Port
    resp_h: Ip
    resp_p: Port


@zeek_event("Detector::rejected")
@dataclass(frozen=True)
class Rejected:
    id: ConnId


@zeek_event("Detector::drop")
@dataclass(frozen=True)
class Drop:
    address: Ip
    span: timedelta
    why: str


LIMIT = 4
rules: queue.Queue[str] = queue.Queue()


def replay(path: Path) -> Server:
    """Serve a recording as Zeek does: read the filter, send ack and events, receive rules."""
    lines = path.read_text().splitlines()

    def zeek(socket: ServerConnection) -> None:
        socket.recv()
        socket.send(json.dumps({"type": "ack", "endpoint": path.stem, "version": "8.1.0"}))
        for line in lines:
            socket.send(line)
        for text in socket:
            address, span, why = json.loads(text)["data"][2]["data"][1]["data"]
            rules.put(f"{path.stem} drops {address['data']} for {span['data']}: {why['data']}")

    server = serve(zeek, "127.0.0.1", 0, compression=None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    folder = Path(__file__).parent / "zeek"
    zeeks = [replay(path) for path in sorted(folder.glob("*.jsonl"))]
    read, seen = zeek_events(Rejected), defaultdict(set)
    with Endpoint() as endpoint, endpoint.make_subscriber("/detector/seen") as subscriber:
        for server in zeeks:
            port = server.socket.getsockname()[1]
            endpoint.connect_web_socket(f"ws://127.0.0.1:{port}", name="detector")
        while True:
            event = read(*subscriber.get())
            source, targets = event.id.orig_h, seen[event.id.orig_h]
            targets.add((event.id.resp_h, event.id.resp_p))
            if len(targets) == LIMIT:  # no single Zeek has seen this many
                why = f"{LIMIT} targets refused it"
                endpoint.publish("/detector/do", Drop(source, timedelta(minutes=10), why))
                break
        for line in sorted(rules.get(timeout=30) for _ in zeeks):
            print(line)
    for server in zeeks:
        server.shutdown()


if __name__ == "__main__":
    main()
