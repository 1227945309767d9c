"""The other side of Broker 2.x's wire: its frames are made beforehand, or only counted.

    python zeek_peer_load.py feed|take EVENTS PORT

Peers with the endpoint at a port of this machine, prints a line, and continues at a line on
`feed` sends so many events of three arguments, `take` subscribes to them and counts. A last
line says that it sent or has everything. After the handshake it does almost nothing.
"""

import socket
import sys
import uuid

from callboard.basp.link import Transmit
from callboard.broker import Count
from callboard.broker.zeek import Event
from callboard.model.encoding import python_to_cbor
from callboard.zeek.peering import FrameBuffer, PeeringFrame, PeeringSession, PeeringState
from callboard.zeek.transcoder import broker_from_cbor

TOPIC = "/zeek/event/ping"
READ = 1 << 18
BATCH = 100
FRAME_LIMIT = 1 << 26


def main() -> None:
    """Run one role."""
    role, events, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with socket.create_connection(("127.0.0.1", port)) as sock:
        topics = (TOPIC,) if role == "take" else ()
        session = peered(sock, topics)
        print("ready", flush=True)
        sys.stdin.readline()
        (feed if role == "feed" else take)(sock, session, events)
        print("done", flush=True)
        sys.stdin.read()


def peered(sock: socket.socket, topics: tuple[str, ...]) -> PeeringSession:
    """Do the handshake."""
    own = uuid.uuid4().bytes
    session = PeeringSession(own, lambda: topics, {}, 0.0, is_dialed=True)
    effects = session.start()
    while True:
        for effect in effects:
            if isinstance(effect, Transmit):
                sock.sendall(effect.data)
        if session.state is PeeringState.PEERED:
            return session
        _, effects = session.take(sock.recv(READ), 0.0)


def feed(sock: socket.socket, session: PeeringSession, events: int) -> None:
    """Send events."""
    event = Event("Test::ping", "hello world", Count(7), "10.0.0.1")
    payload = broker_from_cbor(python_to_cbor(event))
    run = session.send(TOPIC.encode(), payload, 16) * BATCH
    for _ in range(events // BATCH):
        sock.sendall(run)


def take(sock: socket.socket, _session: PeeringSession, events: int) -> None:
    """Count events until all have arrived."""
    buffer, seen = FrameBuffer(), 0
    while seen < events:
        bodies = buffer.take(sock.recv(READ), FRAME_LIMIT)
        seen += sum(body[32] == PeeringFrame.DATA for body in bodies)


if __name__ == "__main__":
    main()
